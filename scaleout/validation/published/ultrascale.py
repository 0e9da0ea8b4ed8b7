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
from functools import cache
from typing import Any

from scaleout.cluster.device.host import CHECK
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.study.search.cost import PlanCosts, Work, plan_costs_of
from scaleout.study.search.stages import Ledger, contents_of, stages_of
from scaleout.validation.measured.rows import Case, Family, Row, simulated, workload_of
from scaleout.workloads.families.transformer import Transformer
from scaleout.workloads.memory import Ledger as Held
from scaleout.workloads.memory.reserved import Pace, reserved_bytes
from scaleout.workloads.pipeline import Action

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
_SLOWEST = 1.5
"""What the slowest of several hosts needs over another: a call costs one of two amounts (docs/models/host-issue.md)."""


_LEAST_CHECK = 0.95
"""The least of six measured costs of a check over their median (traces/h100-four/checks.jsonl: 219 and 231 us)."""


def layers_of_stages(layers: int, layer_cost: int, head_cost: int, stages: int, *, at_share: bool = False) -> list[int]:
    """Return the layers of each stage as nanotron cuts them: a stage ends behind what exceeds its share of all cost.

    With `at_share` a stage ends as well where a layer ends just at its share.
    """
    total, counts, stage = layers * layer_cost + head_cost, [0] * stages, 0
    for number in range(1, layers + 1):
        counts[stage] += 1
        if number * layer_cost * stages + at_share > total * (stage + 1):
            stage += 1
    return counts


def _pipeline(row: Row) -> dict[str, Any]:
    """Return the keys of a row's pipeline; a layer's cost is that of its weights, the head's that of its own.

    A layer of 1B ends just at the share of a stage of two and of four. The code that was read, which polls, puts it on
    that stage. Runs that do not poll are of another version: they hold less by the layer behind it (which half of the
    table's memory says, 79% of 113 runs against 3% of 32).
    """
    stages, hidden = row.count("pp"), row.count("hidden")
    if stages == 1:
        return {}
    layer_cost, head_cost = (4 * hidden + 3 * row.count("intermediate")) * hidden, row.count("vocab") * hidden
    counts = layers_of_stages(row.count("layers"), layer_cost, head_cost, stages, at_share=not _never_ahead(row))
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
    values, host = workload_values(row), "checking" if _checks(row) else "eager"
    measured_us = row.number("step_s") * 1e6
    return simulated(row, values, machine, measured_us=measured_us, schedule="overlap", host=host, clocks="sustained")


def memory(row: Row, machine: Machine) -> Case:
    """What the first stage reserves."""
    return Case(row.number("memory_gib") * 2**30, lambda: min(_reserved_bytes(row, machine), _ROOM_BYTES), "memory")


def fits(row: Row, machine: Machine) -> Case:
    """Whether a run fits: 1, or 0 where it crashed."""
    return Case(float(row.values["status"] == "ok"), lambda: float(_reserved_bytes(row, machine) <= _ROOM_BYTES), "fit")


def _job(row: Row, machine: Machine) -> Transformer:
    job = workload_of(workload_values(row), row, machine)
    assert isinstance(job, Transformer)
    return job


def _held_bytes(job: Transformer) -> float:
    """Return the parameters, gradients, states and activations of the first stage: less it cannot reserve."""
    held = Held.of(job).bytes_of(0)
    return sum(held[kind] for kind in ("parameters", "gradients", "optimizer_states", "activations"))


def _reserved_bytes(row: Row, machine: Machine) -> float:
    job = _job(row, machine)
    return reserved_bytes(job, _pace(row, job, machine), _ROOM_BYTES)


def _pace(row: Row, job: Transformer, machine: Machine) -> Pace:
    """Say what the passes of the first stage take its host and its GPU, block by block as in a search.

    On one stage the host of one of several ranks sets the pace, and that of the first rank, whose memory is known, is
    likely another one, which goes ahead. Where hosts poll, and on 64 nodes, where every run was slow, they are never
    ahead; without a pipeline they are not where their checks outlast the GPU.
    """
    costs = _costs(job.num_ranks, machine)
    host_s, gpu_s = _host_s(job, costs, checks=_checks(row)), _gpu_s(job, costs)
    stages, tensor = row.count("pp"), row.count("tp")
    if stages == 1 and tensor > 1 and row.count("nodes") > 1:
        checked_s = _host_s(job, costs, checks=True)
        if _took_checks(row, checked_s, gpu_s):
            return Pace(checked_s, gpu_s, False)
        polls = False
    else:
        polls = _never_ahead(row)
    if polls:
        host_s = _at_least(host_s, tuple(2 * each for each in gpu_s))
    elif stages == 1 and tensor > 2:
        gpu_s = _at_least(gpu_s, tuple(_SLOWEST * each for each in host_s))
    return Pace(host_s, gpu_s, polls)


def _checks(row: Row) -> bool:
    """Whether a run's host checks each collective: in pipelines with tensor parallelism over nodes that do not poll.

    Those were run again, later. The benchmark's base script of then is not public; later ones of its author set
    TORCH_DISTRIBUTED_DEBUG=DETAIL (nanotron, slurm_launcher.py of ef206a3a). A layer took 2 ms more for each
    tensor-parallel rank in these runs alone: what ten checks take, measured apart (traces/h100-four/checks.jsonl).
    Without tensor parallelism groups of 64 ranks and more reduced their buckets faster than checks would let them.
    """
    over_nodes = row.count("pp") > 1 and row.count("tp") > 1 and row.count("nodes") > 1
    return over_nodes and "slow_mode" not in row.values.get("flags", ())


def _never_ahead(row: Row) -> bool:
    """Whether a run's host polls, or it is one of 64 nodes, where every run was slow."""
    return "slow_mode" in row.values.get("flags", ()) or row.count("nodes") >= 64


def _took_checks(row: Row, checked_s: tuple[float, float], gpu_s: tuple[float, float]) -> bool:
    """Whether a run without pipeline took as long as its host would with checks, which no key says and its time does.

    Only memory asks: a run's time says nothing there but whether its host was ahead of its GPU.
    """
    if row.values.get("step_s") is None or sum(checked_s) <= sum(gpu_s):
        return False
    return row.number("step_s") >= _LEAST_CHECK * row.count("accum") * sum(checked_s)


def _at_least(these: tuple[float, ...], those: tuple[float, ...]) -> tuple[float, float]:
    forward, backward = map(max, these, those)
    return forward, backward


_PASSES = (Action.FORWARD, False), (Action.BACKWARD, True)


def _gpu_s(job: Transformer, costs: PlanCosts) -> tuple[float, float]:
    first = stages_of(job, costs)[0]
    forward, backward = (first.actions[action].total_s for action, _ in _PASSES)
    return forward, backward


def _host_s(job: Transformer, costs: PlanCosts, *, checks: bool) -> tuple[float, float]:
    parts, content = Ledger.of(job, costs).parts, contents_of(job)[0]
    check_s = costs.device.host_launch_s[CHECK] * job.tensor_parallel * checks

    def issues_s(work: Work) -> float:
        return costs.host_s(work) + check_s * sum(work.collectives.values())

    forward, backward = (
        costs.start_s(backward=back) + sum(count * issues_s(parts[kind].works[action]) for kind, count in content)
        for action, back in _PASSES
    )
    return forward, backward


def _costs(num_ranks: int, machine: Machine) -> PlanCosts:
    part = machine.of(num_ranks)
    return plan_costs_of(part.topology, part.device)


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
    elif status == "crashed" and _near_room(row):
        rows += [row.derived("fits", group="Ultra-Scale", measured="fits")]
    return rows


def _near_room(row: Row) -> bool:
    """Whether memory decides about a run that crashed; what must be held says so alone where it is much or little."""
    held = _held_bytes(_job(row, _machine()))
    return held > _DECIDES * _ROOM_BYTES or (
        held > 0.2 * _ROOM_BYTES and _reserved_bytes(row, _machine()) > _DECIDES * _ROOM_BYTES
    )


_HOME = ("h100-p5", "p5-64")


@cache
def _machine() -> Machine:
    return Machine(load_device(_HOME[0]), load_topology(_HOME[1]))


TABLES = {"ultrascale": Family("Ultra-Scale", _case, lambda row: _HOME, _runs)}
