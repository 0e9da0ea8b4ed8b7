"""Rows of one thing alone: a kernel, a collective, or a workload that the row itself describes.

A kernel that is in the device's table is predicted as if it were not: by what was measured of other sizes.

`bytes` of a collective is the whole tensor on a rank, as `collectives.convention` says. Collectives that the host
launched one after another take at least what it spends on a launch; those of a CUDA graph do not. A row may name the
`protocol` of the library that was forced.

A row of any file may describe a run of its own:

    {"workload": "llama-3-8b", "changes": {"data_parallel": 8}, "topology": "dgx-h200-1", "device": "h200",
     "schedule": "overlap", "host": "eager", "measured_us": 812345.0}

`workload` is a name, a file, or an object with the keys of a workload's file; `measured`, such as "812 ms", may stand
in place of `measured_us`; `changes`, `schedule` (baseline), `host` (none), `clocks` (alone) and `network` (alpha_beta)
may be left out.

Rows of fused kernels: each holds several times of one operator, which become rows of their own.

`baseline_us` is the bulk-synchronous operator, `fused_us` the fused kernel in communication-aware order,
`fused_oblivious_us` in plain order. `persistent_programs` is the grid of fused and pooling kernels alike; more than
the GPU holds take turns.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scaleout.cluster.device.host import HOSTS
from scaleout.cluster.device.kernel_times import time_without_itself
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import place, place_alone
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import SECONDS, parse
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError, GraphError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.network.collectives import KINDS
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, kernel
from scaleout.schedule.fusion import OPERATORS, FusedMachine, plan_operator
from scaleout.schedule.fusion.fused import run
from scaleout.schedule.fusion.gather import most_work_groups
from scaleout.simulation.options import CLOCKS
from scaleout.validation.measured.case import Case, NoModelError, simulated, workload_of
from scaleout.validation.measured.rows import Row
from scaleout.workloads.config import ModelFamily, load_workload

_NAMES = {"send_recv": "send"}
"""Other names of collectives."""
_KEYS = (
    "id", "name", "note", "workload", "changes", "topology", "device", "schedule", "host", "network", "clocks",
    "measured", "measured_us",
)  # fmt: skip
"""Keys of a described run."""


def measured_kernel(row: Row, machine: Machine) -> Case:
    """A kernel, predicted without the measurements of its own sizes."""
    op = str(row.values["op"])
    if op not in OPERATIONS:
        raise NoModelError(f"no operation {op!r}; {nearest(op, OPERATIONS)}")
    sizes = {name: row.values[name] for name in OPERATIONS[op].parameters if name in row.values}
    try:
        called = kernel(op, dtype=row.word("dtype", tuple(ITEM_BYTES)), **sizes)
    except (ConfigError, GraphError) as error:
        raise ConfigError(f"{row.where}: {error}") from None

    def predict_s() -> float:
        found = time_without_itself(machine.device, called)
        if found is None:
            raise NoModelError(f"fewer than three sizes of {op} in {called.dtype} were measured")
        return found.seconds

    return Case(row.number("us") * 1e-6, predict_s)


def collective(row: Row, machine: Machine) -> Case:
    """A collective over the first ranks of a node; groups beside it do the same."""
    given = row.word("collective", (*KINDS, *_NAMES))
    kind, ranks, size_bytes = _NAMES.get(given, given), row.count("ranks"), row.number("bytes")
    if ranks > machine.topology.num_ranks:
        raise ConfigError(
            f"{row.where}: {ranks} ranks are more than the {machine.topology.num_ranks} of topology "
            f"{machine.topology.name!r}; give a larger one (--topology)"
        )
    graph = "graph" in row.source or "graph" in str(row.values.get("note", ""))

    def predict_s() -> float:
        topology = _forced(machine.topology, str(row.values.get("protocol", "")))
        group = place_alone(topology, list(range(ranks))) if kind == "send" else place(topology, range(ranks))
        cost_s = collective_cost(kind, size_bytes, group).time_s
        if graph:
            return cost_s
        return max(cost_s - topology.startup_s, machine.device.host_launch_s.get("collective_loop", 0.0))

    return Case(row.number("us") * 1e-6, predict_s)


def _forced(topology: Topology, protocol: str) -> Topology:
    """Return the topology with one protocol of its library, which a row says was forced; as it is if there is none."""
    library = topology.library
    only = tuple(each for each in library.protocols if each.name == protocol) if library else ()
    return replace(topology, library=replace(library, protocols=only)) if library and only else topology


def described(row: Row, machine: Machine) -> Case:
    """A run that the row describes itself."""
    _check_keys(row)
    measured_s = _measured_s(row)
    options = {
        "schedule": str(row.values.get("schedule", "baseline")),
        "host": row.word("host", HOSTS) if "host" in row.values else "none",
        "network": str(row.values.get("network", "alpha_beta")),
        "clocks": row.word("clocks", CLOCKS) if "clocks" in row.values else "alone",
    }
    microseconds = replace(row, values={**row.values, "measured_us": measured_s * 1e6})
    return simulated(microseconds, _workload(row, machine), machine, measured="measured_us", **options)


def _measured_s(row: Row) -> float:
    if "measured" not in row.values:
        return row.number("measured_us") * 1e-6
    try:
        seconds = parse(row.values["measured"], SECONDS)
    except ConfigError as error:
        raise ConfigError(f"{row.where}: measured: {error}") from None
    if not seconds > 0:
        raise ConfigError(f"{row.where}: measured is {row.values['measured']!r}; give a time above zero")
    return seconds


def _workload(row: Row, machine: Machine) -> ModelFamily:
    given, changes = row.values["workload"], row.values.get("changes", {})
    if not isinstance(changes, Mapping):
        raise ConfigError(f"{row.where}: changes is {changes!r}; give an object of a workload's keys")
    if isinstance(given, Mapping):
        return workload_of({**given, **changes}, row, machine)
    try:
        return load_workload(str(given), changes)
    except ConfigError as error:
        raise ConfigError(f"{row.where}: {error}") from None


def _check_keys(row: Row) -> None:
    """Refuse keys of a described run that mean nothing.

    Raises
    ------
    ConfigError
        With the nearest key that does.
    """
    for key in row.values:
        if key not in _KEYS:
            raise ConfigError(f"{row.where}: unknown key {key!r}; {nearest(key, _KEYS)}")


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
