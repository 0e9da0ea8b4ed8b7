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


def stages_of(layers: int, layer_cost: int, head_cost: int, stages: int) -> list[int]:
    """Return the layers of each stage as nanotron cuts them: a stage ends behind what exceeds its share of all cost."""
    total, counts, stage = layers * layer_cost + head_cost, [0] * stages, 0
    for number in range(1, layers + 1):
        counts[stage] += 1
        if number * layer_cost * stages > total * (stage + 1):
            stage += 1
    return counts


def _pipeline(row: Row) -> dict[str, Any]:
    """Return the keys of a row's pipeline; a layer's cost is that of its weights, the head's that of its own."""
    stages, hidden = row.count("pp"), row.count("hidden")
    if stages == 1:
        return {}
    layer_cost, head_cost = (4 * hidden + 3 * row.count("intermediate")) * hidden, row.count("vocab") * hidden
    counts = stages_of(row.count("layers"), layer_cost, head_cost, stages)
    return {"pipeline_parallel": stages, "pipeline_schedule": "1f1b", "stage_layers": counts}


def workload_values(row: Row) -> dict[str, Any]:
    """Return the keys of the workload of a row."""
    return {
        **_NANOTRON,
        **_pipeline(row),
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
