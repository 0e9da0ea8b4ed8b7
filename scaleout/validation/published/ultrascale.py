"""Published steps of nanotron's Llama-like models on 8 to 512 H100: the table of the Ultra-Scale Playbook, a row a run.

A row has its plan, its sizes and the time of one step; families are its classes, from a plan on a node (A, B) to what
the network or polling spoils (D to S). Rows that crashed have no time and are left out. The network between nodes is
taken as one port of 400 Gb/s a GPU.

Source: github.com/vinjn/nanotron-ultrascale-playbook (924e4d0), benchmarks_interactive.html; what ran is in
huggingface/nanotron, scripts/scaling_benchmarks.py and branch nouamane/bench2: FlashAttention 2, its fused rotation,
RMSNorm in Triton, SiLU and product apart, sharded cross entropy in fp32, PyTorch 2.1 call by call.
"""

from collections.abc import Mapping
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row, simulated

_NANOTRON: Mapping[str, Any] = {
    "kind": "transformer",
    "framework": "nanotron",
    "activation": "swiglu",
    "norm": "rms_norm",
    "rotary": "fused",
    "attention": "flash2",
    "separate_projections": False,
}
_SIZES: Mapping[str, str] = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "intermediate",
    "vocabulary": "vocab",
    "sequence": "seq",
    "data_parallel": "dp",
    "tensor_parallel": "tp",
    "microbatch": "mbs",
}
"""Key of a workload to that of a row."""


def workload_values(row: Row) -> dict[str, Any]:
    """Return the keys of the workload of a row."""
    if row.count("pp") > 1:
        raise NoModelError("stages of nanotron's pipelines are uneven, and the last ones empty")
    return {
        **_NANOTRON,
        **{key: row.count(given) for key, given in _SIZES.items()},
        "tied_embedding": bool(row.values.get("tied")),
        "batch_per_replica": row.count("mbs") * row.count("accum"),
        "zero": 1 if row.values.get("zero") else 0,
    }


def step(row: Row, machine: Machine) -> Case:
    """A step of all micro-batches, over and over, as PyTorch's host issues it."""
    values = workload_values(row)
    measured_us = row.number("step_s") * 1e6
    return simulated(
        row, values, machine, measured_us=measured_us, schedule="overlap", host="eager", clocks="sustained"
    )


def _runs(row: Row) -> list[Row]:
    ran = row.values.get("status") == "ok" and row.values.get("step_s") is not None
    return [row.derived("step", group=f"Ultra-Scale {row.values.get('class')}")] if ran else []


TABLES = {"ultrascale": Family("Ultra-Scale", step, lambda row: ("h100-p5", "p5-64"), _runs)}
