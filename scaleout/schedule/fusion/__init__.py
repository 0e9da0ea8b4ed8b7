"""Fused computation-collectives, work-group by work-group, against their bulk-synchronous baselines.

`OPERATORS` is the one table: name to its keys and to what lays it out on a machine. `evaluate_operator` simulates one.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scaleout.config.validated import nearest, validate
from scaleout.errors import ConfigError
from scaleout.schedule.fusion import embedding
from scaleout.schedule.fusion import gemm as gemms
from scaleout.schedule.fusion.machine import FusedMachine
from scaleout.schedule.fusion.operator import Evaluation, Plan, Settings, evaluate


class Operator(NamedTuple):
    """An operator: what it is in a line, its keys, and its layout."""

    summary: str
    settings: type[Settings]
    plan: Callable[[Any, FusedMachine], Plan]


OPERATORS: Mapping[str, Operator] = {
    "embedding_all_to_all": Operator(
        "embedding tables pooled, vectors to the ranks of their samples", embedding.EmbeddingAllToAll, embedding.plan
    ),
    "gemv_all_reduce": Operator(
        "matrix by vector, partial sums added up (two-phase direct)", gemms.GemvAllReduce, gemms.gemv_all_reduce
    ),
    "gemm_all_to_all": Operator(
        "GEMM of an expert, rows back to their tokens' ranks", gemms.GemmAllToAll, gemms.gemm_all_to_all
    ),
    "gemm_reduce_scatter": Operator(
        "GEMM, partial sums added up and scattered by rows", gemms.Gemm, gemms.gemm_reduce_scatter
    ),
    "all_gather_gemm": Operator("rows gathered, then a GEMM", gemms.Gemm, gemms.all_gather_gemm),
}  # fmt: skip
"""Name of every operator."""


def evaluate_operator(name: str, settings: Mapping[str, Any], machine: FusedMachine) -> Evaluation:
    """Simulate an operator on a machine: baseline, fused in both orders, split into small kernels.

    `name` is one of `OPERATORS`; keys that `settings` lack keep their defaults. A ConfigError says which is wrong.
    """
    return evaluate(plan_operator(name, settings, machine))


def defaults_of(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an operator that `settings` lack, with what they are by default; none that is unset."""
    fields = _operator(name).settings.model_fields
    found = {key: field.default for key, field in fields.items() if key not in settings}
    return {key: value for key, value in found.items() if value is not None}


def _operator(name: str) -> Operator:
    if name not in OPERATORS:
        raise ConfigError(f"unknown operator {name!r}; {nearest(name, OPERATORS)}")
    return OPERATORS[name]


def plan_operator(name: str, settings: Mapping[str, Any], machine: FusedMachine) -> Plan:
    """Lay out an operator on a machine, without simulating it; see `evaluate_operator`."""
    operator = _operator(name)
    try:
        return operator.plan(validate(operator.settings, settings, where=name), machine)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(name) else f"{name}: {text}") from None


__all__ = [
    "OPERATORS",
    "Evaluation",
    "FusedMachine",
    "Operator",
    "Plan",
    "defaults_of",
    "evaluate_operator",
    "plan_operator",
]
