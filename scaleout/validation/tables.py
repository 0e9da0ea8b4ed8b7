"""Rows of published tables: bus bandwidths of NCCL on a node, and steps of Megatron-LM.

Megatron-LM's rows hold two measured steps each: all layers computed again, and sequence parallelism with the attention
core alone computed again, as the shipped workloads have it.

Source: vTrain's NCCL traces; Korthikanti et al., arXiv:2205.05198, Table 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scaleout.errors import ConfigError
from scaleout.network.alpha_beta import collective_cost
from scaleout.placement import place
from scaleout.validation.case import Case, Machine, NoModelError, case_of
from scaleout.validation.rows import Row
from scaleout.workload import Workload, load_workload

_NODES = {"nccl_allreduce_a100_node": ("a100-80g", "a100-node-8")}
"""Table to the device and the topology that it was measured on."""

_STEPS: Mapping[str, Mapping[str, Any]] = {
    "full_s": {"recompute": "full", "sequence_parallel": False},
    "seqsel_s": {"recompute": "selective", "sequence_parallel": True},
}
"""Measured step to the keys in which it differs from the shipped workload."""


def split(rows: Sequence[Row]) -> list[Row]:
    """Give each measured step of a row that holds several a row of its own."""
    found = []
    for row in rows:
        steps = [key for key in _STEPS if key in row.values and "model" in row.values]
        found += [
            replace(row, id=f"{row.id}:{key.removesuffix('_s')}", values={**row.values, "name": row.values["model"],
                                                                          "step": key})
            for key in steps
        ] or [row]  # fmt: skip
    return found


def node_of(row: Row) -> tuple[str, str] | None:
    """Return device and topology of a table of collectives, if it is known."""
    return _NODES.get(row.source)


def all_reduce(row: Row, machine: Machine) -> Case:
    """An all-reduce over the first ranks of a node, as nccl-tests times it: calls in a row."""
    topology, ranks, size_bytes = machine.topology, row.count("gpus"), row.number("bytes")
    if ranks > topology.num_ranks:
        raise NoModelError(f"{ranks} ranks are more than topology {topology.name!r} has")

    def predict_s() -> float:
        return collective_cost("all_reduce", size_bytes, place(topology, range(ranks))).time_s - topology.startup_s

    return Case(row.number("time_us") * 1e-6, predict_s)


def _shipped(row: Row, changes: Mapping[str, Any]) -> Workload:
    """Return the shipped workload of a model, which is named by its size: ``gpt3-175B`` is megatron-175b."""
    try:
        return load_workload(f"megatron-{str(row.values['model']).rpartition('-')[2].lower()}", changes)
    except ConfigError:
        raise NoModelError(f"no workload of model {row.values['model']!r}") from None


def cluster_of(row: Row) -> tuple[str, str] | None:
    """Return device and topology of the shipped workload of a model."""
    workload = _shipped(row, {})
    return workload.device, workload.topology


def step(row: Row, machine: Machine) -> Case:
    """A step of Megatron-LM, whose kernels the host issues well ahead; collectives run beside gradients of weights.

    Kernel by kernel over all micro-batches: the largest models take minutes.
    """
    workload = _shipped(row, _STEPS[row.values["step"]])
    for key, own in (
        ("gpus", workload.num_ranks),
        ("tp", workload.tensor_parallel),
        ("pp", workload.pipeline_parallel),
    ):
        if row.count(key) != own:
            raise NoModelError(f"the shipped workload has {key} {own}, not {row.count(key)}")
    microseconds = replace(row, values={**row.values, "step_us": row.number(row.values["step"]) * 1e6})
    return case_of(workload, microseconds, machine, schedule="overlap", host="none")
