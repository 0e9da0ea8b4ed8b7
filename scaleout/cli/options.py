"""Options that several verbs share, and how their text becomes values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from scaleout.cluster.device.spec import Device
    from scaleout.cluster.topology.topology import Topology
    from scaleout.workloads.config import ModelFamily

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")(command)


def output_option(meaning: str) -> Callable[[Command], Command]:
    """Add ``--output``, a directory."""
    return click.option("--output", type=click.Path(path_type=Path, file_okay=False), help=meaning)


def print_files(written: Iterable[tuple[Path, str]]) -> None:
    """Print the files that were written, and what each holds."""
    for path, meaning in written:
        click.echo(f"{path}  {meaning}")


def set_option(command: Command) -> Command:
    """Add ``--set key=value``."""
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the workload file; repeatable."
    )(command)


def algorithm_option(command: Command) -> Command:
    """Add ``--algorithm``, which names an algorithm for a kind of collective."""
    return click.option(
        "--algorithm",
        "algorithms",
        multiple=True,
        metavar="KIND=NAME",
        help="Algorithm of a kind of collective, as `scaleout list collectives` names them; repeatable.",
    )(command)


def injection_option(command: Command) -> Command:
    """Add ``--injection``."""
    meaning = "What a rank sends at most over all its links, such as '400 Gb/s'; with --network link."
    return click.option("--injection", metavar="RATE", help=meaning)(command)


def policy_option(command: Command) -> Command:
    """Add ``--policy``."""
    meaning = (
        "Who serves all-reduces: a back end of the topology, several joined by + (the fastest), fastest, a table "
        "(FILE.yaml), or NAME=FILE,... with what nccl-tests printed of each."
    )
    return click.option("--policy", metavar="P", help=meaning)(command)


_SIMULATION: dict[str, Callable[[Command], Command]] = {
    "algorithms": algorithm_option,
    "host": click.option(
        "--host", default="none", show_default=True, help="How the host issues a step: none (at once) or eager."
    ),
    "clocks": click.option(
        "--clocks",
        default="unthrottled",
        show_default=True,
        help="Clocks of kernels: unthrottled, sustained (at the power limit) or cold_start (a few steps from rest).",
    ),
    "network": click.option(
        "--network", default="alpha_beta", show_default=True, help="Network model: alpha_beta or link."
    ),
    "injection": injection_option,
    "policy": policy_option,
    "contention": click.option(
        "--contention/--no-contention",
        default=True,
        help="Whether kernels and collectives that run at the same time share SMs and memory, where a library says so.",
    ),
    "placement": click.option(
        "--placement",
        default="linear",
        show_default=True,
        metavar="P",
        help="Where ranks lie: linear, transposed, order:1,0, strided:8, random:SEED, a list of ranks, or a file of "
        "one.",
    ),
}
"""Option of a simulation to what adds it to a verb; a verb takes those that hold for it."""

SIMULATION = tuple(_SIMULATION)


def simulation_options(*names: str) -> Callable[[Command], Command]:
    """Add options of simulations by name, and hand the verb one ``options``, a `SimulationOptions`."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def collected(*arguments: Any, **given: Any) -> Any:
            from scaleout.config.units import BYTES_PER_S, parse
            from scaleout.simulation.options import SimulationOptions

            found = {name: given.pop(name) for name in names}
            if "algorithms" in found:
                found["algorithms"] = parse_algorithms(found["algorithms"])
            injection = found.pop("injection", None)
            limit = None if injection is None else parse(injection, BYTES_PER_S)
            options = SimulationOptions(**found, injection_bytes_per_s=limit)
            return command(*arguments, options=options, **given)

        for name in reversed(names):
            collected = _SIMULATION[name](collected)
        return cast("Command", collected)

    return decorate


@dataclass(frozen=True)
class NamedJob:
    """A workload and the machine that it runs on, as a command line names them.

    Attributes
    ----------
    workload : str or None
        Name or file.
    topology, device : str or None
        Names or files; those of the workload if not given.
    settings : mapping
        Keys of the workload to change.
    degrade, broken, slow : sequence of str
        Links and ranks of the topology to change.
    """

    workload: str | None
    topology: str | None
    device: str | None
    settings: Mapping[str, Any]
    degrade: Sequence[str] = ()
    broken: Sequence[str] = ()
    slow: Sequence[str] = ()

    def load(self) -> "tuple[ModelFamily, Topology, Device]":
        """Load the workload, and the topology and device that it names where the command line names none."""
        from scaleout.cluster.device.spec import load_device
        from scaleout.workloads.config import load_workload

        assert self.workload is not None
        workload = load_workload(self.workload, self.settings)
        topology = self.load_topology(workload.topology)
        return workload, topology, load_device(self.device or workload.device)

    def load_topology(self, default: str) -> "Topology":
        """Load the topology, with its links and ranks changed."""
        from scaleout.cluster.topology.topology import load_topology

        loaded = load_topology(self.topology or default)
        return change_ranks(change_links(loaded, self.degrade, self.broken), self.slow)


def link_options(command: Command) -> Command:
    """Add ``--degrade`` and ``--break``."""
    degrade = click.option(
        "--degrade",
        multiple=True,
        metavar="LINK=TO",
        help="Slow a link: 3-4=0.5, or 3-4='10 GB/s'; ranks by number, switches by name (5-switch); repeatable.",
    )
    cut = click.option(
        "--break", "broken", multiple=True, metavar="LINK", help="Break a link; messages go another way; repeatable."
    )
    return degrade(cut(command))


def job_options(*, required: bool = True, faults: bool = False) -> Callable[[Command], Command]:
    """Add WORKLOAD, ``--topology``, ``--device`` and ``--set``, and hand the verb one ``job``, a `NamedJob`.

    With `faults` also ``--degrade``, ``--break`` and ``--slow``.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def collected(*arguments: Any, **given: Any) -> Any:
            settings = parse_settings(given.pop("settings"))
            named = {name: given.pop(name) for name in ("workload", "topology", "device")}
            changed = {name: given.pop(name) for name in ("degrade", "broken", "slow")} if faults else {}
            return command(*arguments, job=NamedJob(**named, settings=settings, **changed), **given)

        if faults:
            slow = click.option(
                "--slow", multiple=True, metavar="RANK=FACTOR", help="Slow a rank's kernels: 5=1.3; repeatable."
            )
            collected = link_options(slow(collected))
        collected = set_option(collected)
        for name, metavar, what in (("--device", "D", "device"), ("--topology", "T", "network")):
            meaning = f"Name or file of the {what}; by default the workload's."
            collected = click.option(name, metavar=metavar, help=meaning)(collected)
        return cast("Command", click.argument("workload", required=required)(collected))

    return decorate


def parse_slower(texts: Sequence[str], *, option: str) -> dict[str, str]:
    """Turn ``what=to`` texts into a mapping; a value is read by whoever knows what it is.

    Raises
    ------
    ConfigError
        If a text has no ``=``, or names the same twice.
    """
    from scaleout.errors import ConfigError

    found: dict[str, str] = {}
    for text in texts:
        what, separator, to = text.partition("=")
        if not (what and separator and to):
            raise ConfigError(f"{option} {text!r}: write it like {'5=1.3' if option == '--slow' else '3-4=0.5'}")
        if what in found:
            raise ConfigError(f"{option} {text!r}: {what} is given twice; give it once")
        found[what] = to
    return found


def change_links(topology: "Topology", degrade: Sequence[str], broken: Sequence[str]) -> "Topology":
    """Apply ``--degrade`` and ``--break``.

    Raises
    ------
    ConfigError
        If a link is both.
    """
    from scaleout.cluster.topology.faults import find_link
    from scaleout.cluster.topology.topology import break_links, degrade_links
    from scaleout.errors import ConfigError

    slower = parse_slower(degrade, option="--degrade")
    links = {find_link(topology.dimensions, name): name for name in slower}
    for name in broken:
        if (other := links.get(find_link(topology.dimensions, name))) is not None:
            raise ConfigError(
                f"--break {name} and --degrade {other}={slower[other]} are the same link; give one of them"
            )
    return break_links(degrade_links(topology, slower), broken)


def change_ranks(topology: "Topology", slow: Sequence[str]) -> "Topology":
    """Apply ``--slow``.

    Raises
    ------
    ConfigError
        If a rank or factor is no number.
    """
    from scaleout.cluster.topology.topology import slow_down
    from scaleout.errors import ConfigError

    factors: dict[int, float] = {}
    for rank, factor in parse_slower(slow, option="--slow").items():
        try:
            factors[int(rank)] = float(factor)
        except ValueError:
            raise ConfigError(f"--slow {rank}={factor}: write a rank and a factor, such as --slow 5=1.3") from None
    return slow_down(topology, factors)


def parse_settings(settings: Sequence[str], *, option: str = "--set") -> dict[str, Any]:
    """Turn ``key=value`` texts into a mapping, values read as YAML reads them.

    Raises
    ------
    ConfigError
        If a text has no ``=``, or its value is not a plain one.
    """
    import yaml

    from scaleout.errors import ConfigError

    values: dict[str, Any] = {}
    for text in settings:
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator or not key:
            raise ConfigError(f"{option} {text!r}: write it as key=value")
        try:
            if key in values:
                raise ConfigError(f"{option} {text!r}: {key} is given twice; give it once")
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"{option} {text!r}: {value!r} is not a plain value; quote it") from None
    return values


def parse_algorithms(texts: Sequence[str]) -> dict[str, str]:
    """Check each ``kind=name`` of ``--algorithm``, used or not: a wrong one must not be passed over in silence."""
    from scaleout.config.validated import nearest
    from scaleout.errors import ConfigError
    from scaleout.network.collectives import ALGORITHMS, check_kind

    chosen: dict[str, str] = {}
    for key, name in parse_settings(texts, option="--algorithm").items():
        kind = key.replace("-", "_")
        check_kind(kind)
        able = [algorithm for algorithm, entry in ALGORITHMS.items() if kind in entry.schedules]
        if name not in able:
            raise ConfigError(f"--algorithm {key}={name}: no algorithm of {kind}; {nearest(str(name), able)}")
        chosen[kind] = name
    return chosen
