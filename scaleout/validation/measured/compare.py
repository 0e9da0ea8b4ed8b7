"""Rows to predictions and their errors, ``predicted / measured - 1``, summed up by family.

A row without a family, without a model in its family, or with a wrong key or value is kept with the reason and counts
against coverage. Where no row is right, the first of them is an error.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scaleout.analysis.uncertainty import Interval
from scaleout.errors import ConfigError, GraphError, SimulationError
from scaleout.program import operations
from scaleout.program.fastest import fastest
from scaleout.simulation.options import SimulationOptions
from scaleout.study.provenance import provenance
from scaleout.validation.measured import kernels, steps
from scaleout.validation.measured.rows import QUANTITIES, Family, NoModelError, Row, machine_of, no_model, read_rows
from scaleout.validation.published import table_named


@dataclass(frozen=True)
class Accuracy:
    """Errors of predictions; NaN where there is no prediction.

    `predicted` of `num_rows` rows have a prediction; `worst` is the error furthest from zero, with its sign; `bias` is
    the mean error: below zero, predictions are too fast.
    """

    num_rows: int
    predicted: int
    mean_absolute_error: float
    median_absolute_error: float
    p90_absolute_error: float
    worst: float
    bias: float

    @property
    def coverage(self) -> float:
        """Share of the rows that have a prediction."""
        return self.predicted / self.num_rows if self.num_rows else 0.0


def accuracy_of(errors: Sequence[float], *, num_rows: int) -> Accuracy:
    """Sum up the errors of the rows that have a prediction.

    >>> accuracy_of([0.1, -0.3, 0.05], num_rows=4).worst
    -0.3
    """
    if not errors:
        return Accuracy(num_rows, 0, *[float("nan")] * 5)
    signed = np.array(errors)
    absolute = np.abs(signed)
    return Accuracy(
        num_rows,
        len(errors),
        float(absolute.mean()),
        float(np.median(absolute)),
        float(np.quantile(absolute, 0.9)),
        float(signed[absolute.argmax()]),
        float(signed.mean()),
    )


def _named(*starts: str) -> Callable[[Row], bool]:
    return lambda row: row.name.startswith(starts)


def _of_operations(family: operations.Family) -> Callable[[Row], bool]:
    known = {name for name, operation in operations.OPERATIONS.items() if operation.family is family}
    return lambda row: str(row.values.get("op")) in known


def _contention_of(part: str) -> Callable[[Row], bool]:
    return lambda row: row.name == "contention" and row.values.get("part") == part


_FUSED = "fused operators"
FAMILIES: tuple[tuple[Callable[[Row], bool], Family], ...] = (
    (lambda row: "workload" in row.values, Family("described run", steps.described)),
    (
        lambda row: "fused_us" in row.values and row.values.get("measured") == "baseline_us",
        Family(f"{_FUSED}, bulk-synchronous", kernels.fused),
    ),
    (lambda row: "fused_us" in row.values, Family(_FUSED, kernels.fused, split=kernels.split_fused)),
    (
        lambda row: row.name == "host_launch",
        Family("host", no_model("a cost of the host, which is given and not predicted")),
    ),
    *((_of_operations(family), Family(f"kernels, {family}", kernels.isolated_kernel)) for family in operations.Family),
    (lambda row: "op" in row.values, Family("kernels", kernels.isolated_kernel)),
    (_named("transformer_"), Family("transformer", steps.tensor_parallel)),
    (_named("dp_", "fsdp"), Family("data parallel", steps.data_parallel)),
    (_named("hybrid_"), Family("hybrid", steps.hybrid)),
    (lambda row: row.name == "pipeline", Family("pipeline", steps.pipeline)),
    (lambda row: row.name == "pipeline_stage", Family("pipeline stage", steps.pipeline_stage)),
    (lambda row: row.name.startswith("moe_") and "topk" in row.values, Family("mixture of experts", steps.experts)),
    (_named("dlrm_"), Family("DLRM", steps.dlrm)),
    (
        lambda row: row.name == "embedding_all_to_all" and "step_us" in row.values,
        Family("DLRM", steps.embedding_exchange),
    ),
    (_named("gemm_then_collective"), Family("chunked overlap", steps.chunked)),
    (lambda row: row.name == "all_gather_then_matmul", Family("async TP", steps.gather_then_gemm)),
    (_named("async_tp"), Family("async TP", steps.async_tp)),
    *((_contention_of(part), Family(f"contention, {part}", kernels.concurrent)) for part in kernels.PARTS),
    (lambda row: row.name == "contention", Family("contention", kernels.concurrent, split=kernels.split_concurrent)),
    (lambda row: "collective" in row.values, Family("collectives", kernels.collective)),
)
"""Whether a row is of a family, and the family; the first that knows a row predicts it."""


def family_of(row: Row) -> Family | None:
    """Return the published table of a row, or else its family; None if there is neither."""
    return table_named(row.source) or next((family for knows, family in FAMILIES if knows(row)), None)


_ENDS = ("low", "high")
"""Of error bars, the begin of their names in JSON."""


@dataclass(frozen=True)
class Compared:
    """The measured and the predicted number of a row, in seconds or bytes (`quantity`), or the `reason` for none.

    `variant` is the case for which a number of chunks is to be chosen, and the number in this row; see `Choice`.
    `interval` has the error bars of the prediction, where it has any; `device`, `mfu` (as long as it was measured to
    take) and `others` are for the arena.
    """

    id: str
    name: str
    family: str
    measured: float | None
    predicted: float | None
    reason: str = ""
    quantity: str = "time"
    variant: tuple[str, int] | None = None
    note: str = ""
    interval: Interval | None = None
    model: str = ""  # what predicted it
    device: str = ""
    mfu: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def span(self) -> tuple[float, float] | None:
        """The ends of the error bars."""
        return None if self.interval is None or self.predicted is None else self.interval.of(self.predicted)

    @property
    def error(self) -> float | None:
        """``predicted / measured - 1``; of whether a run fits the difference, so that 0 is right."""
        if self.measured is None or self.predicted is None:
            return None
        if self.quantity == "fit":
            return self.predicted - self.measured
        return self.predicted / self.measured - 1

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values: times as `measured_us`, memory as `measured_bytes`."""
        unit, per_base = QUANTITIES[self.quantity]
        return {
            "id": self.id,
            f"measured_{unit}": None if self.measured is None else self.measured * per_base,
            f"predicted_{unit}": None if self.predicted is None else self.predicted * per_base,
            **{f"{end}_{unit}": at * per_base for end, at in zip(_ENDS, self.span or (), strict=False)},
            "error": self.error,
            **({"reason": self.reason} if self.reason else {}),
            **({"note": self.note} if self.note else {}),
        }


@dataclass(frozen=True)
class Comparison:
    """All rows of some files."""

    rows: tuple[Compared, ...]

    @property
    def bars(self) -> "ErrorBars | None":
        """How well the error bars hold; None if no row has any."""
        return error_bars_of(self.rows)

    @property
    def models(self) -> list[str]:
        """What predicted the rows, each once."""
        return list(dict.fromkeys(row.model for row in self.rows if row.model))

    @property
    def accuracy(self) -> Accuracy:
        """Of all rows."""
        return _accuracy(self.rows)

    @property
    def families(self) -> dict[str, Accuracy]:
        """Of each family's rows."""
        names = dict.fromkeys(row.family for row in self.rows)
        return {name: _accuracy([row for row in self.rows if row.family == name]) for name in names}

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values, as `scaleout validate --json` prints them; unknown ones are null."""
        rows = [row.summary() for row in self.rows]
        families = {name: _plain(accuracy) for name, accuracy in self.families.items()}
        bars = {} if self.bars is None else {"intervals": asdict(self.bars)}
        return {"rows": rows, **_plain(self.accuracy), "families": families, **bars}


@dataclass(frozen=True)
class ErrorBars:
    """Of rows with error bars: the shares of measured times that lie within them, below and above.

    `median_width` is that of the whole interval over the prediction.
    """

    num_rows: int
    within: float
    below: float
    above: float
    median_width: float


def error_bars_of(rows: Sequence[Compared]) -> ErrorBars | None:
    """Sum up how well the error bars of rows hold; None if none has any."""
    spans = [(row.measured, *row.span, row.predicted) for row in rows if row.span and row.measured is not None]
    if not spans:
        return None
    measured, low, high, predicted = np.array(spans).T
    below, above = float((measured < low).mean()), float((measured > high).mean())
    return ErrorBars(len(spans), 1.0 - below - above, below, above, float(np.median((high - low) / predicted)))


def _accuracy(rows: Sequence[Compared]) -> Accuracy:
    return accuracy_of([row.error for row in rows if row.error is not None], num_rows=len(rows))


def _plain(accuracy: Accuracy) -> dict[str, Any]:
    values = {**asdict(accuracy), "coverage": accuracy.coverage}
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def compare_files(
    paths: Sequence[Path],
    *,
    table: str | None = None,
    device: str | None = None,
    topology: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Predict all rows of some files, or of one `table` in them.

    `ConfigError` if a file cannot be read, or all of its rows are wrong: then it says what is wrong with the first.

    `device` and `topology` replace those that rows or their file's environment name; `progress` is told how many of how
    many rows are done.
    """
    read = [row for path in paths for row in read_rows(path, table=table)]
    families = [family_of(row) for row in read]
    rows = [run for row, family in zip(read, families, strict=True) for run in (family.split(row) if family else [row])]
    found: list[Compared] = []
    faults: list[ConfigError] = []
    for row in rows:
        progress(len(found), len(rows))
        try:
            found.append(_compare(row, device, topology))
        except ConfigError as error:
            faults.append(error)
            family = family_of(row)
            name = row.source if family is None else _name(row, family, "time")
            found.append(Compared(row.id, row.name, name, None, None, str(error)))
    if faults and len(faults) == len(rows):
        raise faults[0]
    return Comparison(tuple(found))


def _compare(row: Row, device: str | None, topology: str | None) -> Compared:
    family = family_of(row)
    if family is None:
        return Compared(row.id, row.name, row.source, None, None, "rows of this kind are not known")
    measured, quantity = None, "time"
    try:
        home = (device, topology) if device and topology else family.home(row) or (device, topology)
        machine = machine_of(row, device=home[0], topology=home[1])
        case = family.case(row, machine)
        measured, quantity = case.measured, case.quantity
        name, predicted = _name(row, family, quantity), case.predict()
        return Compared(
            row.id,
            row.name,
            name,
            measured,
            predicted,
            quantity=quantity,
            variant=case.variant,
            interval=case.interval(),
            device=machine.device.name,
            mfu=case.mfu(measured) if case.mfu is not None else None,
            others=case.others,
            note=case.note,
            model=case.model() or provenance(machine.topology, machine.device, SimulationOptions()).models,
        )
    except (NoModelError, GraphError, SimulationError) as reason:
        return Compared(row.id, row.name, _name(row, family, quantity), measured, None, str(reason), quantity)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(row.where) else f"{row.where}: {text}") from None


def _name(row: Row, family: Family, quantity: str) -> str:
    """Name the row's group, or its family, so that times and memory are summed up separately."""
    name = str(row.values.get("group", family.name))
    suffix = "" if quantity == "time" or name.endswith(quantity) else f" {quantity}{'s' * (quantity == 'fit')}"
    return f"{name}{suffix}"


@dataclass(frozen=True)
class Choice:
    """A GEMM and its collective in several numbers of chunks: number to seconds, measured and predicted."""

    case: str
    measured_s: dict[int, float]
    predicted_s: dict[int, float]

    @property
    def best(self) -> int:
        """The number of chunks of the least measured time."""
        return min(self.measured_s, key=self.measured_s.__getitem__)

    @property
    def chosen(self) -> int:
        """The number of chunks of the least predicted time."""
        return fastest(self.predicted_s, self.predicted_s.__getitem__)

    @property
    def cost(self) -> float:
        """How much longer the chosen number takes than the best one, as measured: 0.1 is 10%."""
        return self.measured_s[self.chosen] / self.measured_s[self.best] - 1


def choices(rows: Sequence[Compared]) -> tuple[Choice, ...]:
    """Return the choices among predicted rows that differ in their number of chunks only, in the rows' order."""
    found: dict[str, Choice] = {}
    for row in rows:
        if row.measured is not None and row.predicted is not None and row.variant is not None:
            case, chunks = row.variant
            choice = found.setdefault(case, Choice(case, {}, {}))
            choice.measured_s[chunks], choice.predicted_s[chunks] = row.measured, row.predicted
    return tuple(choice for choice in found.values() if len(choice.measured_s) > 1)
