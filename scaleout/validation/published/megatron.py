"""Published steps and memory of Megatron-LM: one row a model, with and without sequence parallelism.

A row of steps holds two: all layers computed again, and sequence parallelism with the attention core alone computed
again, as the shipped workloads have it. A row of memory holds four numbers: parameters with optimizer states, and
activations, each with nothing computed again and as shipped.

Source: Korthikanti et al., arXiv:2205.05198, Table 5 and Fig. 1.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.errors import ConfigError
from scaleout.study.search.evaluate import evaluate
from scaleout.validation.measured.case import Case, NoModelError
from scaleout.validation.measured.rows import Row
from scaleout.validation.published.table import Table
from scaleout.workloads import memory
from scaleout.workloads.config import LayeredModel, layered, load_workload

_STEPS: Mapping[str, Mapping[str, Any]] = {
    "full_s": {"recompute": "full", "sequence_parallel": False},
    "seqsel_s": {"recompute": "selective", "sequence_parallel": True},
}
"""Measured step to the keys in which it differs from the shipped workload."""

_LAYERS = {"vocabulary": 0, "tied_embedding": False}
"""Layers alone."""

_PLANS: Mapping[str, Mapping[str, Any]] = {
    "none": {"recompute": "none", "sequence_parallel": False, **_LAYERS},
    "seqsel": {**_STEPS["seqsel_s"], **_LAYERS},
}
_KINDS = {
    "param_opt": ("parameters", "gradients", "optimizer_states"),
    "act": ("activations",),
}
"""Measured part of the memory to what it counts."""
_GIB = 2.0**30


def _split(keys: tuple[str, ...], row: Row) -> list[Row]:
    """Give each measured number of a row that holds several a row of its own."""
    found = [key for key in keys if key in row.values]
    return [
        replace(
            row,
            id=f"{row.id}:{key.removesuffix('_s')}",
            values={**row.values, "name": row.values.get("model"), "measured": key},
        )
        for key in found
    ] or [row]


def split_steps(row: Row) -> list[Row]:
    """Return a row for each measured step."""
    return _split(tuple(_STEPS), row)


def split_memory(row: Row) -> list[Row]:
    """Return a row for each measured part of the memory."""
    return _split(tuple(f"{plan}_{kind}" for plan in _PLANS for kind in _KINDS), row)


def _measured(row: Row, known: Mapping[str, Any]) -> str:
    """Return the key of what was measured.

    Raises
    ------
    ConfigError
        If the row has none of those that are known.
    """
    if "measured" not in row.values:
        raise ConfigError(f"{row.where}: none of the keys {', '.join(known)}; give one with what was measured")
    return str(row.values["measured"])


def _shipped(row: Row, changes: Mapping[str, Any]) -> LayeredModel:
    """Return the shipped workload of a model, which is named by its size: ``gpt3-175B`` is megatron-175b."""
    model = str(row.values.get("model"))
    try:
        found = load_workload(f"megatron-{model.rpartition('-')[2].lower()}", changes)
        return layered(found, wants="these are transformers")
    except ConfigError:
        raise NoModelError(f"no workload of model {model!r}") from None


def cluster_of(row: Row) -> tuple[str, str]:
    """Return device and topology of the shipped workload of a model."""
    workload = _shipped(row, {})
    return workload.device, workload.topology


def step(row: Row, machine: Machine) -> Case:
    """A step of Megatron-LM, whose kernels the host issues well ahead; collectives run beside gradients of weights."""
    measured = _measured(row, _STEPS)
    workload = _shipped(row, _STEPS[measured])
    for key, own in (
        ("gpus", workload.num_ranks),
        ("tp", workload.tensor_parallel),
        ("pp", workload.pipeline_parallel),
    ):
        if row.count(key) != own:
            raise NoModelError(f"the shipped workload has {key} {own}, not {row.count(key)}")

    def predict_s() -> float:
        return evaluate(workload, machine.topology, machine.device, schedule="overlap").step_s

    return Case(row.number(measured), predict_s)


def held(row: Row, machine: Machine) -> Case:
    """Part of the memory of the fullest rank, of its layers alone.

    The published numbers are those of the paper's formulas, in which embedding and head have no place: parameters and
    optimizer states of the 22B are 18 bytes of 12 h^2 L / 8 parameters to the last digit. Nor have activations that are
    computed again.
    """
    del machine
    plan, _, kind = _measured(row, _PLANS).partition("_")
    workload = _shipped(row, _PLANS[plan])

    def predict_bytes() -> float:
        found = memory.peak(workload).bytes_of
        return sum(found.get(name, 0.0) for name in _KINDS[kind])

    return Case(row.number(f"{plan}_{kind}") * _GIB, predict_bytes, "memory")


TABLES = {
    "megatron_seqsel_tab5": Table("Megatron-LM", step, cluster_of, split_steps),
    "megatron_seqsel_fig1_mem": Table("Megatron-LM memory", held, cluster_of, split_memory),
}
