"""Published steps and memory of Megatron-LM: one row per model, with and without sequence parallelism.

A row of steps holds two: full recompute, and sequence parallelism with selective recompute, as in the shipped
workloads. A row of memory holds four numbers: parameters with optimizer states, and activations, each without recompute
and as shipped.

Source: Korthikanti et al., arXiv:2205.05198, Table 5 and Fig. 1.
"""

from collections.abc import Callable, Mapping
from math import fsum
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.errors import ConfigError
from scaleout.study.search.evaluate import evaluate
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row, utilisation, waiting_s
from scaleout.validation.published import shipped
from scaleout.workloads import memory
from scaleout.workloads.config.layered import LayeredModel

_STEPS: Mapping[str, Mapping[str, Any]] = {
    "full_s": {"recompute": "full", "sequence_parallel": False},
    "seqsel_s": {"recompute": "selective", "sequence_parallel": True},
}
"""Measured step to the keys in which it differs from the shipped workload."""

_LAYERS = {"vocabulary": 0, "tied_embedding": False}
"""A model without embedding and head."""

_PLANS: Mapping[str, Mapping[str, Any]] = {
    "none": {"recompute": "none", "sequence_parallel": False, **_LAYERS},
    "seqsel": {**_STEPS["seqsel_s"], **_LAYERS},
}
_KINDS = {
    "param_opt": ("parameters", "gradients", "optimizer_states"),
    "act": ("activations",),
}
"""Measured part of the memory to what it counts."""
_PARTS = tuple(f"{plan}_{kind}" for plan in _PLANS for kind in _KINDS)
_GIB = 2.0**30


def _split(keys: tuple[str, ...]) -> Callable[[Row], list[Row]]:
    """Return what makes a row for each measured number of a row."""
    return lambda row: row.parts({key: key.removesuffix("_s") for key in keys}, name=row.values.get("model"))


def _measured(row: Row, known: Mapping[str, Any]) -> str:
    if "measured" not in row.values:
        raise ConfigError(f"{row.where}: none of the keys {', '.join(known)}; give one with what was measured")
    return str(row.values["measured"])


def _shipped(row: Row, changes: Mapping[str, Any]) -> LayeredModel:
    """Return the shipped workload of a model, which is named by its size: ``gpt3-175B`` is megatron-175b."""
    size = str(row.values.get("model")).rpartition("-")[2]
    return shipped(row, f"megatron-{size.lower()}", changes)


def cluster_of(row: Row) -> tuple[str, str]:
    """Return device and topology of the shipped workload of a model."""
    workload = _shipped(row, {})
    return workload.device, workload.topology


def step(row: Row, machine: Machine) -> Case:
    """A step, which waits for the slowest GPU and not for the host; collectives overlap with gradients of weights."""
    measured = _measured(row, _STEPS)
    workload = _shipped(row, _STEPS[measured])
    for key, own in {
        "gpus": workload.num_ranks,
        "tp": workload.tensor_parallel,
        "pp": workload.pipeline_parallel,
    }.items():
        if row.count(key) != own:
            raise NoModelError(f"the shipped workload has {key} {own}, not {row.count(key)}")

    def predict_s() -> float:
        found = evaluate(workload, machine.topology, machine.device, schedule="overlap")
        return found.step_s + waiting_s(found.compute_s, workload.num_ranks, machine.device)

    return Case(row.number(measured), predict_s, mfu=utilisation(workload, machine))


def held(row: Row, machine: Machine) -> Case:
    """Part of the memory of the fullest rank, without embedding and head.

    The published numbers come from the paper's formulas, which leave out embedding, head and recomputed activations:
    parameters and optimizer states of the 22B are 18 bytes times 12 h^2 L / 8 parameters to the last digit.
    """
    del machine
    plan, _, kind = _measured(row, _PLANS).partition("_")
    workload = _shipped(row, _PLANS[plan])

    def predict_bytes() -> float:
        found = memory.peak(workload).bytes_of
        return fsum(found.get(name, 0.0) for name in _KINDS[kind])

    return Case(row.number(f"{plan}_{kind}") * _GIB, predict_bytes, "memory")


TABLES = {
    "megatron_seqsel_tab5": Family("Megatron-LM", step, cluster_of, _split(tuple(_STEPS))),
    "megatron_seqsel_fig1_mem": Family("Megatron-LM memory", held, cluster_of, _split(_PARTS)),
}
