"""Files of measured runs to rows, and a row to a case: a measured number, and the function that predicts it.

A file holds one JSON object per line, or, where a table is named, one object with `tables` that have an `id` and
`rows`. ``environment.json`` in the same folder names the GPU of the rows, or the files of its device and topology, as
`scaleout measure` writes them; a row may name its own machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from scaleout.analysis.efficiency import mfu_of
from scaleout.analysis.goodput import expected_slowest
from scaleout.analysis.uncertainty import Interval
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.documents import LARGEST_NUMBER, LEAST_NUMBER, MAX_RANKS, is_file, read_json, read_json_lines
from scaleout.config.units import MOST_COUNT
from scaleout.config.validated import nearest, validate
from scaleout.errors import ConfigError, shown
from scaleout.program.program import Program
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, Outcome, run
from scaleout.study.provenance import provenance_of
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.families import FAMILIES

_TEXTS = ("id", "name", "kind", "op", "group", "source", "note", "schedule", "protocol", "compute")
"""Keys of a row that hold a name or a remark, if they are there."""


@dataclass(frozen=True)
class Row:
    """One measured run, from `where`: file and line, or table and number; `source` is the file's stem or table's id.

    `gpu` is what `environment.json` names, if any, and `machine` its files of the `device` and the `topology`. Files
    that the row names are sought in `folder`.
    """

    values: Mapping[str, Any]
    where: str
    id: str
    source: str
    gpu: str = ""
    machine: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def __post_init__(self) -> None:
        for key in _TEXTS:
            if not isinstance(self.values.get(key, ""), str):
                raise ConfigError(f"{self.where}: {key} is {shown(self.values[key])}; give a text")

    @property
    def name(self) -> str:
        """The kind of run that the row says it is."""
        return str(self.values.get("name") or self.values.get("kind") or self.values.get("op") or "")

    def derived(self, suffix: str, **values: Any) -> "Row":
        """Return the row of one of several runs that this one holds: its id ends with `suffix`, `values` are set."""
        return replace(self, id=f"{self.id}:{suffix}", values={**self.values, **values})

    def named(self, name: str) -> "Row":
        """Return this row with a name, unless it has one."""
        return replace(self, values={"name": name, **self.values})

    def parts(self, suffixes: Mapping[str, str], **values: Any) -> "list[Row]":
        """Return a row for each of some keys that this one has, with the key as `measured`; itself if it has none."""
        held = [key for key in suffixes if key in self.values]
        return [self.derived(suffixes[key], measured=key, **values) for key in held] or [self]

    def number(self, key: str) -> float:
        """Return a number above zero; raise `ConfigError` with the row's place if it is missing or none."""
        value = self.values.get(key)
        if value is None:
            kind = f"{self.source} {self.name}".strip()
            raise ConfigError(f"{self.where}: key {key!r} is missing; a row of {kind} needs it")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{self.where}: {key} is {shown(value)}; give a number above zero")
        if not LEAST_NUMBER <= value <= LARGEST_NUMBER:
            raise ConfigError(
                f"{self.where}: {key} is {shown(value)}; give a number from {LEAST_NUMBER:g} to {LARGEST_NUMBER:g}"
            )
        return value

    def count(self, key: str, *, most: int = MOST_COUNT) -> int:
        """Return a whole number above zero; raise as `number` does."""
        value = self.number(key)
        if value != int(value) or value > most:
            raise ConfigError(f"{self.where}: {key} is {shown(value)}; give a whole number, at most {most:,}")
        return int(value)

    def ranks(self, key: str = "gpus") -> int:
        """Return a number of ranks; raise as `number` does."""
        return self.count(key, most=MAX_RANKS)

    def word(self, key: str, known: tuple[str, ...]) -> str:
        """Return one of the known words; raise `ConfigError` if it is missing or another one."""
        value = self.values.get(key)
        if value is None:
            raise ConfigError(f"{self.where}: key {key!r} is missing; give one of {', '.join(known)}")
        if value not in known:
            raise ConfigError(f"{self.where}: unknown {key} {shown(value)}; {nearest(str(value), known)}")
        return str(value)


def read_rows(path: Path, *, table: str | None = None) -> list[Row]:
    """Read the rows of a file, of one table of a file of tables, or of a file that is the table, one row a line."""
    if table is not None and path.suffix != ".jsonl":
        return _of_table(path, table)
    gpu, machine = _environment(path)
    rows = []
    for where, values in read_json_lines(path, what="file of measured rows"):
        if values and "provenance" not in values:
            name = str(values.get("id") or f"{path.stem}:{where.rpartition(' ')[2]}")
            rows.append(Row(values, where, name, table or path.stem, gpu, machine, str(path.parent)))
    if not rows:
        raise ConfigError(f"{path}: holds no rows; give one JSON object a line")
    return rows


def _of_table(path: Path, table: str) -> list[Row]:
    whole = read_json(path)
    tables = whole.get("tables") if isinstance(whole, dict) else None
    if not isinstance(tables, list) or not all(isinstance(found, dict) and "id" in found for found in tables):
        raise ConfigError(f"{path}: holds no list 'tables' of objects with an 'id'; leave out --table for rows")
    ids = [found["id"] for found in tables]
    for number, name in enumerate(ids):
        if not isinstance(name, str) or name in ids[:number]:
            raise ConfigError(f"{path}: the id of a table is {shown(name)}; give each a text of its own")
    by_id = dict(zip(ids, tables, strict=True))
    if table not in by_id:
        raise ConfigError(f"{path}: has no table {table!r}; {nearest(table, by_id)}")
    rows = by_id[table].get("rows")
    if not (rows and isinstance(rows, list) and all(isinstance(values, dict) for values in rows)):
        raise ConfigError(f"{path}: table {table!r} holds no list 'rows' of objects; mend it")
    return [
        Row(values, f"{path}, table {table}, row {number}", f"{table}:{number}", table)
        for number, values in enumerate(rows, start=1)
    ]


def _environment(path: Path) -> tuple[str, Mapping[str, str]]:
    """Return the GPU that ``environment.json`` in the same folder names, and the files of its device and topology."""
    file = path.parent / "environment.json"
    if not file.is_file():
        return "", {}
    found = read_json(file)
    if not isinstance(found, dict):
        return "", {}
    named = {key: found[key] for key in ("device", "topology") if key in found}
    for key, name in named.items():
        if not isinstance(name, str):
            raise ConfigError(f"{file}: {key} is {shown(name)}; give the name of its file")
    files = {key: str(path.parent.absolute() / name) for key, name in named.items()}
    return str(found.get("gpu", "")), files


# ---- Cases


class NoModelError(Exception):
    """A row that scaleout has no model of; the message is the reason."""


MACHINES = {
    "NVIDIA H200": ("h200", "h200-node-4"),
    "NVIDIA A100": ("a100-80g", "dgx-a100-1"),
}
"""Name of a GPU in its driver to its device and the topology of a node."""


QUANTITIES: Mapping[str, tuple[str, float]] = {
    "time": ("us", 1e6),
    "memory": ("bytes", 1.0),
    "fit": ("fits", 1.0),
}
"""Quantity to the suffix of its keys in JSON, and to how many of these units are one second or byte; a run fits, 1, or
crashes, 0."""


@dataclass(frozen=True)
class Case:
    """A measured number, in seconds or bytes or whether a run fits (`quantity`), and what predicts it in the same unit.

    `variant` is set where a number of chunks is to be chosen: the case it is chosen for, and the number in this row.
    `interval` has the error bars of a simulated step, or None. `mfu` says what of its devices' peak the model's FLOPs
    would use in some seconds, where a model of layers ran; `others` are seconds that other tools are known to predict.
    """

    measured: float
    predict: Callable[[], float]
    quantity: str = "time"
    variant: tuple[str, int] | None = None
    note: str = ""  # what to know of the row
    interval: Callable[[], Interval | None] = lambda: None
    model: Callable[[], str] = lambda: ""  # what predicts it, where that is not the plainest model of its machine
    mfu: Callable[[float], float] | None = None
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """Rows that one function predicts: `case`, which raises `NoModelError` where there is no model.

    `home` says on which device and topology a row was measured, or None; `split` makes a row of each run in a row.
    """

    name: str
    case: Callable[[Row, Machine], Case]
    home: Callable[[Row], tuple[str, str] | None] = lambda row: None
    split: Callable[[Row], list[Row]] = lambda row: [row]


def no_model(reason: str) -> Callable[[Row, Machine], Case]:
    """Return the `case` of a family whose rows have no prediction, for a reason."""

    def case(row: Row, machine: Machine) -> Case:
        raise NoModelError(reason)

    return case


def simulated(
    row: Row,
    work: ModelFamily | Program | Mapping[str, Any],
    machine: Machine,
    *,
    measured_us: float | None = None,
    schedule: str = "baseline",
    slowest: bool = False,
    **options: Any,
) -> Case:
    """Return the case of a workload, a program or a workload's keys, on as many of the machine's ranks as it has.

    `measured_us` is the row's `step_us` by default. `options` are those of `SimulationOptions`; by default the host is
    eager and the GPU starts cold, as in measurements. What was measured did not take the shorter of two schedules, so
    that `overlap` is `overlap:always`. With `slowest` the step waits for the slowest of its ranks, as steps do that no
    efficiency was fitted to; see docs/models/cost-and-goodput.md.
    """
    schedule = "+".join("overlap:always" if part == "overlap" else part for part in schedule.split("+"))
    job = workload_of(work, row, machine) if isinstance(work, Mapping) else work
    chosen = SimulationOptions(**{"host": "eager", "clocks": "cold_start", **options})

    def asked() -> Job:
        part = machine.of(job.num_ranks)
        return Job(job, part.device, part.topology, schedule, chosen)

    @cache
    def outcome() -> Outcome:
        return run(asked())

    def predict_s() -> float:
        found = outcome()
        return found.makespan_s + slowest * waiting_s(found.breakdown.compute_s, job.num_ranks, machine.device)

    measured_s = (row.number("step_us") if measured_us is None else measured_us) * 1e-6
    return Case(
        measured_s, predict_s, interval=lambda: outcome().interval, mfu=utilisation(job, machine),
        model=lambda: provenance_of(asked()).models,
    )  # fmt: skip


def waiting_s(compute_s: float, num_ranks: int, device: Device) -> float:
    """Return how long a step waits for the slowest of its GPUs, by the `jitter` that the device's file states."""
    jitter = device.reliability.jitter if device.reliability else 0.0
    return compute_s * (expected_slowest(num_ranks, jitter) - 1)


def utilisation(work: object, machine: Machine) -> Callable[[float], float] | None:
    """Return what a model of layers uses of a machine's peak in some seconds; None for any other work."""
    return partial(mfu_of, work, machine.device) if isinstance(work, LayeredModel) else None


def machine_of(row: Row, *, device: str | None = None, topology: str | None = None) -> Machine:
    """Return the machine of `device` and `topology`, else of the row, else of its file's environment."""
    device = device or _beside(row, "device") or row.machine.get("device")
    topology = topology or _beside(row, "topology") or row.machine.get("topology")
    if device is None or topology is None:
        if not row.gpu:
            raise ConfigError(
                f"{row.where}: no machine is named; add the keys device and topology to the row, or give --device "
                f"and --topology"
            )
        if row.gpu not in MACHINES:
            raise ConfigError(
                f"{row.where}: unknown machine {row.gpu!r} in environment.json beside the file; "
                f"{nearest(row.gpu, MACHINES)}, or give --device and --topology"
            )
        device, topology = device or MACHINES[row.gpu][0], topology or MACHINES[row.gpu][1]
    try:
        return Machine(load_device(str(device)), load_topology(str(topology)))
    except ConfigError as error:
        raise ConfigError(f"{row.where}: {error}") from None


def _beside(row: Row, key: str) -> str | None:
    """Return a name or file of the row; a file is one beside the row's own where there is one."""
    if key not in row.values:
        return None
    name = row.values[key]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{row.where}: {key} is {shown(name)}; give a name or a file, or leave it out")
    beside = Path(row.folder, name)
    return str(beside) if is_file(beside, named_by=f"{row.where}: {key}") else name


def workload_of(values: Mapping[str, Any], row: Row, machine: Machine) -> ModelFamily:
    """Build the workload of a row; raise `ConfigError` with the row's place if its keys are inconsistent."""
    whole = {
        "name": row.id,
        "description": "a measured run",
        "source": row.where,
        "topology": machine.topology.name,
        "device": machine.device.name,
        **values,
    }
    kind = whole.get("kind")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(f"{row.where}: kind {kind!r} is no kind of workload; {nearest(str(kind), FAMILIES)}")
    return validate(FAMILIES[kind], whole, where=row.where)
