"""Published steps of nanotron's Llama-like models on 8 to 512 H100: the table of the Ultra-Scale Playbook, a row a run.

A row has its plan, its sizes, the time of one step and the memory that the first stage reserved; families are its
classes, from a plan on a node (A, B) to what the network or polling spoils (D to S). A run fits or crashes, which
memory decides where it is near to the GPU's or beyond. Host and network are in the files `h100-p5` and `p5-64`.

The code that was read sends logits from a stage with the head to one with the loss where the head's threshold lies in
between; the times of these runs have no such message (1B on 8 stages would need 90 GB/s of a port of 50), so head and
loss are on one stage here, the last.

Source: github.com/vinjn/nanotron-ultrascale-playbook (924e4d0), benchmarks_interactive.html; what ran is in
huggingface/nanotron, scripts/scaling_benchmarks.py and branch nouamane/bench2: FlashAttention 2, its fused rotation,
RMSNorm in Triton, SiLU and product apart, sharded cross entropy in fp32, PyTorch 2.1 call by call.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.validation.measured.rows import Case, Family, Row, simulated, workload_of
from scaleout.workloads.config import layered
from scaleout.workloads.memory.reserved import reserved_bytes

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
_VOCABULARY = 131072
_ROOM_BYTES = 76 * 2**30
"""Of the 79.6 GiB of an H100 (NVML), what its context and NCCL's buffers leave; no run that ended reserved more than
70, and of those that crashed with numbers the largest had 77."""
_DECIDES = 0.8
"""Of the room: a run that crashed with less reserved crashed for another reason, of which the table has several."""


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
    """Return the keys of the workload of a row; sizes that a crashed run does not say are those of its like."""
    unknown = {"kv_heads": row.values.get("heads"), "vocab": _VOCABULARY}
    given = {**row.values, **{key: row.values.get(key) or value for key, value in unknown.items()}}
    row = replace(row, values=given)
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


def memory(row: Row, machine: Machine) -> Case:
    """What the first stage reserves."""
    return Case(row.number("memory_gib") * 2**30, partial(_reserved_bytes, row, machine), "memory")


def fits(row: Row, machine: Machine) -> Case:
    """Whether a run fits: 1, or 0 where it crashed."""
    return Case(float(row.values["status"] == "ok"), lambda: float(_reserved_bytes(row, machine) <= _ROOM_BYTES), "fit")


def _reserved_bytes(row: Row, machine: Machine) -> float:
    job = layered(workload_of(workload_values(row), row, machine), wants="these are transformers")
    return reserved_bytes(job, 0, ahead=_ahead(row))


def _ahead(row: Row) -> float:
    """How far the host is ahead of the GPU: not where it polls or on 64 nodes, where every run was slow.

    In pipelines over several nodes a layer took the host 2.3 ms and 0.6 ms for each tensor-parallel rank, from which
    number of tokens on memory grew; in the others all runs grew.
    """
    stages, tensor, nodes = row.count("pp"), row.count("tp"), row.count("nodes")
    if "slow_mode" in row.values.get("flags", ()) or (stages == 1 and nodes >= 64):
        return 0.0
    if stages == 1 or nodes == 1:
        return 1.0
    parameters = (4 * row.count("hidden") + 3 * row.count("intermediate")) * row.count("hidden")
    gpu_s = 6 * parameters * row.count("seq") * row.count("mbs") / (tensor * 450e12)
    return min(max((gpu_s / (2.3e-3 + 0.6e-3 * tensor) - 0.8) / 0.4, 0.0), 1.0)


_CASES: Mapping[str, Callable[[Row, Machine], Case]] = {"step": step, "memory": memory, "fits": fits}


def _case(row: Row, machine: Machine) -> Case:
    return _CASES[row.values["measured"]](row, machine)


def _runs(row: Row) -> list[Row]:
    """Return the rows of a run that ended, or of one that crashed where memory decides: near the room, or beyond."""
    name, status = f"Ultra-Scale {row.values.get('class')}", row.values.get("status")
    rows = []
    if status == "ok" and row.values.get("step_s") is not None:
        rows += [row.derived("step", group=name, measured="step")]
        if row.values.get("memory_gib") is not None:
            rows += [row.derived("memory", group=name, measured="memory")]
            rows += [row.derived("fits", group="Ultra-Scale", measured="fits")]
    elif status == "crashed" and _reserved_bytes(row, _machine()) > _DECIDES * _ROOM_BYTES:
        rows += [row.derived("fits", group="Ultra-Scale", measured="fits")]
    return rows


_HOME = ("h100-p5", "p5-64")


@cache
def _machine() -> Machine:
    return Machine(load_device(_HOME[0]), load_topology(_HOME[1]))


TABLES = {"ultrascale": Family("Ultra-Scale", _case, lambda row: _HOME, _runs)}
