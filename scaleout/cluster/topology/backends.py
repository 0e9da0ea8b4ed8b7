"""Ways to communicate that a machine offers, and policies: which of them serves an all-reduce.

A back end is a communication library with its own costs; a topology's file names them. A policy makes one library of
some: `NAME` or `NAME+NAME` (the fastest of these), `fastest` (of all that leave the host free), `FILE.yaml` (a table of
rules) or `NAME=FILE,...` (benchmarks as nccl-tests print them, by the nearest ranks and size). Other collectives stay
with the topology's library. Knows no collective and no time. See docs/models/back-ends.md.

Source: NVIDIA/nccl-tests, src/common.cu, for the form of benchmarks.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scaleout.cluster.topology.communication_library import Curve, Learned, Library, Protocol, Rule, Selection, Table
from scaleout.cluster.topology.topology import Topology
from scaleout.config import validated
from scaleout.config.documents import is_file, read_text
from scaleout.config.units import BYTES, SECONDS, RankCount, Size, counted, parse
from scaleout.errors import ConfigError

KIND = "all_reduce"
"""What policies choose for."""

_FASTEST = "fastest"


def with_policy(topology: Topology, policy: str) -> Topology:
    """Return the topology with the library that a policy makes of its back ends.

    Raises
    ------
    ConfigError
        If the machine has no such back end, or a table or benchmark is wrong.
    """
    if not topology.backends:
        raise ConfigError(
            f"policy {policy!r}: topology {topology.name!r} names no back ends; add 'backends' to its file, or leave "
            f"the policy out"
        )
    selection: Selection | None = None
    if policy.endswith((".yaml", ".yml")):
        selection = load_table(Path(policy))
    elif "=" in policy:
        selection = Learned(tuple(_curves(topology, policy)))
    if selection is not None:
        names = selection.backends
    elif policy == _FASTEST:
        names = tuple(name for name, library in topology.backends if not library.blocks_host)
    else:
        names = tuple(dict.fromkeys(policy.split("+")))
    return replace(topology, library=_joined(topology, policy, names, selection))


def with_table(topology: Topology, table: Table, *, name: str) -> Topology:
    """Return the topology with the library that a table makes of its back ends."""
    return replace(topology, library=_joined(topology, name, table.backends, table))


def backend(topology: Topology, name: str) -> Library:
    """Return one back end of a machine; refuse a name that it does not have."""
    known = dict(topology.backends)
    if name not in known:
        raise ConfigError(
            f"topology {topology.name!r} has no back end {name!r}; {validated.nearest(name, [*known, _FASTEST])}"
        )
    return known[name]


def _joined(topology: Topology, policy: str, names: Sequence[str], selection: Selection | None) -> Library:
    """Make one library of several: each serves the algorithms that are its own."""
    parts = {name: backend(topology, name) for name in names}
    blocking = [name for name, library in parts.items() if library.blocks_host]
    if blocking and len(parts) > 1:
        raise ConfigError(
            f"policy {policy!r}: {blocking[0]} blocks the host, so that the choice of a back end changes what it can "
            f"overlap; take it on its own"
        )
    default = topology.library
    # The protocols of the topology's own library, without the kind that the policy serves.
    kept = [
        replace(protocol, collectives=tuple(kind for kind in protocol.collectives if kind != KIND))
        for protocol in (default.protocols if default else ())
    ]
    protocols = tuple(
        _pinned(protocol, library, name, beyond_s=library.startup_s - (default.startup_s if default else 0.0))
        for name, library in parts.items()
        for protocol in library.protocols
        if KIND in protocol.collectives
    )
    served = tuple(dict.fromkeys(name for library in parts.values() for name in library.algorithms_for(KIND)))
    algorithms = tuple((kind, chosen) for kind, chosen in default.algorithms if kind != KIND) if default else ()
    return Library(
        f"{policy} on {topology.name}",
        (*(protocol for protocol in kept if protocol.collectives), *protocols),
        (*algorithms, (KIND, served)),
        "\n".join(library.source for library in parts.values()),
        default.startup_s if default else 0.0,
        default.resource_use if default else None,
        blocks_host=bool(blocking),
        selection=selection,
    )


def _pinned(protocol: Protocol, library: Library, name: str, *, beyond_s: float) -> Protocol:
    """Return a protocol of a back end, whose calls start later than those of the topology's own library."""
    algorithms = protocol.algorithms or library.algorithms_for(KIND)
    actual = replace(protocol.actual, startup_s=protocol.actual.startup_s + beyond_s)
    return replace(protocol, collectives=(KIND,), algorithms=algorithms, backend=name, actual=actual)


class _RuleFile(validated.Config):
    ranks: RankCount | None = None
    size: Size | None = None
    backend: str


class _TableFile(validated.Config):
    source: str
    rules: tuple[_RuleFile, ...]


def load_table(path: Path) -> Table:
    """Read a table of rules; what a rule leaves out does not limit it."""
    if not is_file(path):
        raise ConfigError(f"policy file '{path}' does not exist; give a file of rules, or a back end's name")
    values = validated.validate(_TableFile, validated.read_yaml(path), where=str(path))
    if not values.rules:
        raise ConfigError(f"{path}: a table without rules; give at least one")
    # No rule gives a zero.
    return Table(tuple(Rule(rule.ranks or math.inf, rule.size or math.inf, rule.backend) for rule in values.rules))


def _curves(topology: Topology, policy: str) -> list[Curve]:
    """Read the benchmarks that a policy names."""
    found: list[Curve] = []
    for part in policy.split(","):
        name, _, file = part.partition("=")
        if not (name and file):
            raise ConfigError(f"policy {policy!r}: {part!r} is no benchmark of a back end; write nccl_ring=runs.txt")
        backend(topology, name)
        found += read_runs(Path(file), name)
    (name, ranks), runs = Counter((curve.backend, curve.num_ranks) for curve in found).most_common(1)[0]
    if runs > 1:
        raise ConfigError(f"policy {policy!r}: {name} on {counted(ranks, 'rank')} was run more than once; keep one run")
    return found


_RANK = re.compile(r"#\s+Rank\s+([0-9]{1,9})\b")
_UNITS = re.compile(r"#\s+\((\w+)\)")
_MISSING = "N/A"
_COLUMNS = 4
"""Of a measurement, at the end of a line: time, algorithm and bus bandwidth, how many values are wrong."""


def read_runs(path: Path, name: str) -> tuple[Curve, ...]:
    """Read the runs of a back end that nccl-tests printed: times out of place, or in place where those are missing.

    A run's header lists its ranks, a line each, then the columns and their units; one line a size follows.

    Raises
    ------
    ConfigError
        If the file is missing or not of this form, or its runs have different units; the message names the line.
    """
    if not is_file(path):
        raise ConfigError(f"benchmark '{path}' does not exist; give a file that nccl-tests printed")
    units: list[str] = []
    units_at = 0
    found: list[tuple[set[int], dict[float, float]]] = []  # of each run its ranks, and seconds by size
    for number, text in enumerate(read_text(path, what="output of nccl-tests").splitlines(), start=1):
        line, where = text.strip(), f"{path}, line {number}"
        if not found or (found[-1][1] and _RANK.match(line)):
            found.append((set(), {}))
        ranks, seconds_at = found[-1]
        if rank := _RANK.match(line):
            ranks.add(int(rank[1]))
        elif _UNITS.match(line):
            given = _units_in(line, where)
            if units and given != units:
                raise ConfigError(
                    f"{where}: units {', '.join(given)} are not those of line {units_at}, {', '.join(units)}; give "
                    f"runs with the same units, or files of their own"
                )
            units, units_at = given, number
        elif line and not line.startswith("#"):
            size_bytes, seconds = _measured(line, units, where)
            seconds_at[size_bytes] = seconds
    runs = [(ranks, sorted(seconds_at.items())) for ranks, seconds_at in found if seconds_at]
    if not runs:
        raise ConfigError(f"{path}: no sizes and times; give a file that nccl-tests printed")
    if not all(ranks for ranks, _ in runs):
        raise ConfigError(
            f"{path}: a run does not say its ranks; keep the lines '#  Rank  0 ...' that nccl-tests print"
        )
    return tuple(Curve(name, len(ranks), *zip(*rows, strict=True)) for ranks, rows in runs)


def _units_in(line: str, where: str) -> list[str]:
    units = re.findall(r"\((\S+?)\)", line)
    if len(set(units[2::3])) > 1:
        raise ConfigError(
            f"{where}: times out of place and in place have different units, {' and '.join(units[2::3])}; give both "
            f"in one"
        )
    return units


def _measured(line: str, units: list[str], where: str) -> tuple[float, float]:
    """Return the size in bytes and the seconds of a line."""
    cells = line.split()
    if not units:
        raise ConfigError(
            f"{where}: no line before it names the units, as '#  (B) ... (us) ...'; keep the header that nccl-tests "
            f"print"
        )
    ends = _COLUMNS * len(units[2::3])  # cells of times and bandwidths; those before them differ by version
    try:
        size_bytes = parse(f"{cells[0]} {units[0]}", BYTES)
        times = [cell for cell in cells[3:][-ends::_COLUMNS] if cell != _MISSING] if len(cells) > ends + 2 else []
        seconds = parse(f"{times[0]} {units[2]}", SECONDS)
    except (ConfigError, IndexError) as error:
        raise ConfigError(
            f"{where}: {line!r} is no size and time in {', '.join(units)}; keep what nccl-tests printed ({error})"
        ) from None
    if not (size_bytes > 0 and seconds > 0):
        raise ConfigError(f"{where}: size and time must be above zero; leave the line out")
    return size_bytes, seconds
