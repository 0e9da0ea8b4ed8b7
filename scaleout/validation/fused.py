"""Rows of fused kernels: each holds several times of one operator, which become rows of their own.

`baseline_us` is the bulk-synchronous operator, `fused_us` the fused kernel in communication-aware order,
`fused_oblivious_us` in plain order. `persistent_programs` is the grid of fused and pooling kernels alike; more than
the GPU holds take turns.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scaleout.errors import ConfigError
from scaleout.machine import Machine
from scaleout.operators import OPERATORS, FusedMachine, plan_operator
from scaleout.operators.fused import run
from scaleout.operators.gather import most_work_groups
from scaleout.validation.case import Case, NoModelError
from scaleout.validation.rows import Row

_TIMES = {"baseline_us": "", "fused_us": "aware", "fused_oblivious_us": "oblivious"}
"""Measured time to the order of the fused operator; none for the baseline."""

_DTYPES = ("fp32", "fp16", "bf16")


def split(row: Row) -> list[Row]:
    """Give each time that a row holds a row of its own."""
    return [
        replace(row, id=f"{row.id}:{key.removesuffix('_us')}", values={**row.values, "time": key})
        for key in _TIMES
        if key in row.values
    ]


def case(row: Row, machine: Machine) -> Case:
    """One time of an operator."""
    if row.name not in OPERATORS:
        raise NoModelError(f"no model of a fused operator {row.name!r}")
    part = machine.of(row.count("gpus"))
    on = FusedMachine(part.device, part.topology)
    settings = _settings_of(row, on)
    order = _TIMES[row.values["time"]]
    try:
        plan = plan_operator(row.name, settings, on)
    except ConfigError as reason:
        raise NoModelError(str(reason)) from None

    def predict_s() -> float:
        return run(plan.recipes[order], order).time_s if order else sum(plan.baseline_s.values())

    return Case(row.number(row.values["time"]) * 1e-6, predict_s)


def _settings_of(row: Row, on: FusedMachine) -> dict[str, Any]:
    keys: Mapping[str, Callable[[], dict[str, Any]]] = {
        "embedding_all_to_all": lambda: {
            "batch": row.count("batch"),
            "tables": row.count("tables_per_gpu"),
            "dim": row.count("dim"),
            "pooling": row.count("pooling"),
            "work_groups": min(row.count("persistent_programs"), most_work_groups(on.device)),
        },
        "gemv_all_reduce": lambda: {key: row.count(key) for key in "MK"},
    }
    own = keys[row.name]() if row.name in keys else {key: row.count(key) for key in "MNK"}
    return {"dtype": row.word("dtype", _DTYPES), **own}
