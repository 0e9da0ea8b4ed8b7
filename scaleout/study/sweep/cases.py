"""Inputs of a case to the job that they name, to the command that runs it alone, and to a key.

The key is a hash of all that the numbers depend on, as it was read from the files: the workload, the network with its
changes, the device with its measured kernels, the schedule, the options, and the version of scaleout. Two cases whose
inputs say the same in other words have one key.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import scaleout
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network, dimensions_named
from scaleout.config.reading import nearest
from scaleout.config.units import BYTES_PER_S, parse
from scaleout.errors import ConfigError, shown
from scaleout.network.collectives import check_chosen
from scaleout.schedule import passes_of
from scaleout.simulation.options import SimulationOptions, changed
from scaleout.study.realism import options_for
from scaleout.study.sized import job_on_gpus
from scaleout.study.sweep.grid import Grid, Inputs, Value
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.families import load_workload

DEFAULTS: Mapping[str, Value] = {"schedule": "baseline", "network": "alpha_beta"}
"""Of inputs that stand in every table; topology and device are those of the workload."""

_CHANGES = {"nodes": "nodes", "nic_down": "nic_down", "break": "broken"}
_KEYED_CHANGES = ("taper", "bandwidth", "latency", "degrade", "slow")
_WORD = re.compile(r"(?!(?i:null|true|false)$)[A-Za-z][A-Za-z0-9_]*|[0-9]+(\.[0-9]+)?[KMGT]?i?B")
"""A text that YAML reads as it stands: a word or a size."""
_OPTIONS = ("network", "host", "clocks", "placement", "policy", "injection")
"""Inputs that are options of the command line by their own name."""
_FLAGS: Mapping[str, Mapping[Value, str]] = {
    "ideal": {True: "--ideal"},
    "contention": {True: "--contention", False: "--no-contention"},
}
"""Inputs that are true or false, and their options."""


class Parts(NamedTuple):
    """Some of a case's inputs, by what they are of, as pairs of column and value."""

    workload: tuple[tuple[str, Value], ...]
    network: tuple[tuple[str, Value], ...]
    options: tuple[tuple[str, Value], ...]


_KEYS = (("workload", "set"), ("topology", *_CHANGES, *_KEYED_CHANGES), (*_OPTIONS, *_FLAGS, "algorithm"))
"""Of a study's file, those of each of the `Parts`."""


@cache
def _columns(part: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(column for column in columns if column.partition(".")[0] in part)


def parts_of(inputs: Inputs) -> Parts:
    """Return the parts of some inputs; those of cases that share a workload or a network are equal."""
    columns = tuple(inputs)
    return Parts(*(tuple((each, inputs[each]) for each in _columns(part, columns)) for part in _KEYS))


_Read = TypeVar("_Read")


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a job that cases share, and a hash of it, by which pieces are equal, in any process."""

    digest: str
    value: Any = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True)
class Case:
    """One row of a study, resolved: what it is called, and the job that it is; `error` says why it is none."""

    number: int
    inputs: Inputs
    key: str
    workload: Piece | None = None
    topology: Piece | None = None
    device: Piece | None = None
    options: SimulationOptions = field(default_factory=SimulationOptions)
    error: str = ""

    @property
    def schedule(self) -> str:
        """The schedule it runs under."""
        return str(self.inputs["schedule"])

    @property
    def ranks(self) -> int | None:
        """Ranks of the workload, where it could be read."""
        return None if self.workload is None else int(self.workload.value.num_ranks)


class Resolver:
    """Reads what inputs name, each thing once, as long as it lives."""

    def __init__(self) -> None:
        self._read: dict[tuple[Any, ...], Any] = {}

    def resolve(self, number: int, inputs: Inputs) -> Case:
        """Return the case of some inputs; what is wrong with them is its `error`."""
        given = {**DEFAULTS, **inputs}
        error, found = "", dict[str, Any]()
        try:
            sized = self._sized(given)
            parts = parts_of(sized)
            found["workload"] = self._once(_workload, parts.workload)
            workload: ModelFamily = found["workload"].value
            given |= {key: sized[key] for key in ("topology", "device") if sized.get(key) is not None}
            given |= {key: getattr(workload, key) for key in ("topology", "device") if given.get(key) is None}
            found["topology"] = self._once(_topology, given["topology"], parts.network)
            found["device"] = self._once(_device, given["device"])
            found["options"] = self._once(_options, found["workload"], found["device"], parts.options)
        except ConfigError as refusal:
            error = str(refusal)
        given = {"topology": "", "device": "", **given}
        key = _hash(version(), error or [found[each].digest for each in ("workload", "topology", "device")],
                    found.get("options") or sorted(map(repr, given.items())), given["schedule"])  # fmt: skip
        return Case(number, given, key, **found, error=error)

    def ranks(self, inputs: Inputs) -> int | None:
        """Return the ranks of the workload of some inputs; None where it cannot be read."""
        try:
            return int(self.workload(inputs).value.num_ranks)
        except ConfigError:
            return None

    def workload(self, inputs: Inputs) -> Piece:
        """Return the workload of some inputs; `ConfigError` if it cannot be read."""
        return self._once(_workload, parts_of(self._sized(inputs)).workload)

    def _sized(self, inputs: Inputs) -> Inputs:
        """Return inputs with the replicas and nodes that their `gpus` make."""
        return inputs if inputs.get("gpus") is None else {**inputs, **self._once(_on_gpus, *_gpus_of(inputs))}

    def _once(self, read: Callable[..., _Read], *arguments: Any) -> _Read:
        """Return what a function reads, or raise what it raised, from memory if it did so before."""
        key = (read, *arguments, _written(arguments))
        if key not in self._read:
            try:
                self._read[key] = read(*arguments)
            except ConfigError as error:
                self._read[key] = error
        found = self._read[key]
        if isinstance(found, ConfigError):
            raise found
        return found  # type: ignore[no-any-return]


def _workload(part: tuple[tuple[str, Value], ...]) -> Piece:
    given = dict(part)
    changes = {key: _plain(value) for key, value in _keyed(given, "set").items()}
    workload = load_workload(str(given["workload"]), changes)
    kept = workload.model_dump_json(exclude={"description", "source", "schedules", "topology", "device"})
    return Piece(_hash(type(workload).__name__, kept), workload)


def _topology(name: Value, part: tuple[tuple[str, Value], ...]) -> Piece:
    topology = change_network(load_topology(str(name)), _changes(part))
    return Piece(_hash(replace(topology, name="", source="", altered=())), topology)


def _device(name: Value) -> Piece:
    device = load_device(str(name))
    return Piece(_hash(*described(device)), device)


def _options(workload: Piece, device: Piece, part: tuple[tuple[str, Value], ...]) -> SimulationOptions:
    return options_for(workload.value, device.value, **stated_of(dict(part)))


def described(device: Device) -> list[Any]:
    """Return all that times of kernels on a device depend on, as values that say it in their `repr`."""
    devices = [device, *([load_device(device.efficiency_from)] if device.efficiency_from else [])]
    files = [hashlib.sha256(path.read_bytes()).hexdigest() for each in devices for path in each.kernel_files]
    return [[replace(each, kernel_files=()) for each in devices], files]


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def version() -> str:
    """Return the version of scaleout, with a hash of its source: a number that a change of it moves is another."""
    found = hashlib.sha256()
    package = Path(scaleout.__file__).parent
    for path in sorted(package.rglob("*.py")):
        if "data" not in path.relative_to(package).parts:
            found.update(path.read_bytes())
    return f"{scaleout.__version__}+{found.hexdigest()[:12]}"


def on_gpus(inputs: Inputs) -> Inputs:
    """Return inputs with replicas, and nodes of a topology, in the place of `gpus`; `ConfigError` as `job_on_gpus`."""
    if inputs.get("gpus") is None:
        return inputs
    return {**{key: value for key, value in inputs.items() if key != "gpus"}, **_on_gpus(*_gpus_of(inputs))}


def _gpus_of(inputs: Inputs) -> tuple[Any, ...]:
    parts = parts_of(inputs)
    return inputs["gpus"], inputs.get("device"), parts.workload, parts.network


def _on_gpus(gpus: Any, device: Any, workload: tuple[tuple[str, Value], ...], network: Any) -> dict[str, Value]:
    given, topology = dict(workload), dict(network).get("topology")
    found = job_on_gpus(
        str(given["workload"]), gpus, topology=topology, device=device, settings=_keyed(given, "set"),
        changes=_changes(network),
    )  # fmt: skip
    nodes, replicas = found.changes.nodes, found.settings["data_parallel"]
    return {"topology": found.topology or topology, "nodes": nodes, "set.data_parallel": replicas}


def changes_of(inputs: Inputs) -> NetworkChanges:
    """Return the changes of the network that some inputs say."""
    return _changes(parts_of(inputs).network)


def _written(arguments: Iterable[Any]) -> str:
    """Return what tells inputs apart that are equal, such as true and 1, of which one may be refused."""
    return repr([each for each in arguments if type(each) is tuple])


def _changes(part: tuple[tuple[str, Value], ...]) -> NetworkChanges:
    return _changes_of(part, _written(part))


@lru_cache(maxsize=1024)
def _changes_of(part: tuple[tuple[str, Value], ...], _: str) -> NetworkChanges:
    inputs = dict(part)
    given: dict[str, Any] = {name: inputs[key] for key, name in _CHANGES.items() if inputs.get(key) is not None}
    given |= {key: found for key in _KEYED_CHANGES if (found := _keyed(inputs, key))}
    return NetworkChanges.of(**given)


def stated_of(inputs: Inputs) -> dict[str, Any]:
    """Return the options of a simulation that some inputs say, as keywords; `ConfigError` if one is none."""
    given: dict[str, Any] = {key: inputs[key] for key in _OPTIONS if inputs.get(key) is not None}
    if "injection" in given:
        given["injection_bytes_per_s"] = parse(given.pop("injection"), BYTES_PER_S)
    given |= {key: inputs[key] for key in _FLAGS if inputs.get(key) is not None}
    algorithms = {kind: str(name) for kind, name in _keyed(inputs, "algorithm").items()}
    for kind, name in algorithms.items():
        check_chosen(kind, name, where=f"algorithm.{kind}: {shown(name)}")
    return {**given, "algorithms": algorithms}


def run_line(inputs: Inputs) -> str:
    """Return the command that simulates a case alone, and gives the same numbers.

    >>> run_line({"workload": "dlrm-128", "set.global_batch": 64, "topology": "ring-128", "schedule": "fused"})
    'scaleout run dlrm-128 --set global_batch=64 --topology ring-128 --schedule fused'
    """
    words = ["scaleout", "run", str(inputs["workload"])]
    words += [word for key, value in _keyed(inputs, "set").items() for word in ("--set", f"{key}={_as_yaml(value)}")]
    for key in ("gpus", "topology", "device"):
        words += [f"--{key}", str(inputs[key])] if inputs.get(key) else []
    words += changes_of(inputs).options
    for key in _OPTIONS:
        value = inputs.get(key)
        if value is not None and value != DEFAULTS.get(key):
            words += [f"--{key}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    for kind, name in _keyed(inputs, "algorithm").items():
        words += ["--algorithm", f"{kind}={name}"]
    words += [options[value] for key, options in _FLAGS.items() if (value := inputs.get(key)) in options]
    words += ["--schedule", str(inputs.get("schedule", DEFAULTS["schedule"]))]
    return shlex.join(words)


def _keyed(inputs: Inputs, key: str) -> dict[str, Value]:
    begin = f"{key}."
    return {name.removeprefix(begin): value for name, value in inputs.items() if name.startswith(begin)}


def _as_yaml(value: Value) -> str:
    """Return a value as `--set` reads it back: a text that YAML would read as something else is in quotes."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else json.dumps(_plain(value))


def _plain(value: Value) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def check_names(grids: Sequence[Grid]) -> None:
    """Refuse names that are none, and keys that a workload has not, before any case runs: all with it would fail.

    Raises
    ------
    ConfigError
        Which name or key, and the nearest one.
    """
    topology, device = cache(load_topology), cache(load_device)
    workload, schedule = cache(load_workload), cache(passes_of)
    for grid in grids:
        values = grid.values
        for name in values.get("device", ()):
            if name is not None:
                device(str(name))
        _check_dimensions(values, [topology(name) for name in _topologies(values, workload)])
        for name in values.get("schedule", ()):
            schedule(str(name))
        for name in values["workload"]:
            _check_keys(
                workload(str(name)),
                [column.removeprefix("set.") for column in values if column.startswith("set.")],
            )
        for column in {"nodes", "set.data_parallel"} & {*values} if "gpus" in values else ():
            raise ConfigError(f"gpus and {column} both say how many ranks there are; give one of them")
        for column, of_column in values.items():
            for value in of_column:
                if value is not None:
                    _check_value(column, value)


def _topologies(values: Mapping[str, tuple[Value, ...]], workload: Callable[[str], ModelFamily]) -> list[str]:
    """Return the networks of a grid: those that it names, and where it names none those of its workloads."""
    found = {None if name is None else str(name) for name in values.get("topology", (None,))}
    if None in found and "gpus" not in values:  # with which they may be on their device's own network
        found |= {workload(str(name)).topology for name in values["workload"]}
    return sorted(name for name in found if name)


def _check_dimensions(values: Iterable[str], topologies: Sequence[Topology]) -> None:
    """Refuse to change a dimension that no network of a grid has."""
    for column in values:
        key, _, name = column.partition(".")
        if key not in ("taper", "bandwidth", "latency"):
            continue
        errors = list[ConfigError]()
        for topology in topologies:
            try:
                dimensions_named(topology, name)
            except ConfigError as error:
                errors.append(error)
        if topologies and len(errors) == len(topologies):
            others = f", nor has another of the {len(errors)}" if len(errors) > 1 else ""
            raise ConfigError(f"{column}: {errors[0]}{others}")


def _check_value(column: str, value: Value) -> None:
    """Refuse what no network and no simulation can have, whichever they are."""
    key = column.partition(".")[0]
    if key in (*_CHANGES, *_KEYED_CHANGES):
        changes_of({column: value})
    elif key in ("algorithm", "injection"):
        stated_of({column: value})
    elif key in ("network", "host", "clocks"):
        changed(SimulationOptions(), {key: str(value)})
    elif key == "gpus" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(f"gpus must be a whole number, 1 or more, not {shown(value)}")
    elif key in _FLAGS and not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, not {shown(value)}")


def _check_keys(workload: ModelFamily, keys: Iterable[str]) -> None:
    known = {*type(workload).model_fields, *type(workload).RENAMED}
    for key in keys:
        if key not in known:
            raise ConfigError(
                f"set.{key}: workload {workload.name!r} has no such key; {nearest(key, known)} (keys of one workload "
                f"alone stand in its own entry of `cases`)"
            )
