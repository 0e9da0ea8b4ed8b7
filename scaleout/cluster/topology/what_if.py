"""Network what-ifs: changes in words, as a command line or a study's file gives them, to another `Topology`.

Other numbers of nodes, tapers, bandwidths and latencies of a dimension; network cards that are down; links that are
slow or broken, and slow ranks. Changes are applied in the order of the fields of `NetworkChanges`, in whatever order
they were given. A dimension is named by its number, link type, link or kind, or as `all`; a name that several of them
have means each.

Where a rank's network card is down, NCCL takes another card of its node, and both ranks send through that one: each has
half of it. Channels of whole nodes spread over the cards that are left instead, as many on every node as on the one
with the fewest (`placement`). That messages cross NVLink first is not modelled. See docs/how-to/networks.md.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from scaleout.cluster.topology.dimension import Dimension, edges_of
from scaleout.cluster.topology.expression import ratio_of
from scaleout.cluster.topology.faults import LinkChange, find_link, name_link
from scaleout.cluster.topology.nodes import part_of_node, several_nodes, without_nodes
from scaleout.cluster.topology.topology import Topology, break_links, degrade_links, slow_down
from scaleout.config.documents import NUMBER, number, whole
from scaleout.config.reading import nearest
from scaleout.config.units import BYTES_PER_S, SECONDS, Quantity, counted, format_difference, format_seconds, parse
from scaleout.errors import ConfigError, shown

Pairs = tuple[tuple[str, str], ...]
"""What is changed, and to what, as texts."""

_FACTOR = re.compile(rf"({NUMBER.pattern})\s*x", re.ASCII)
_LEAST, _MOST = 1e-6, 1e6
"""Of factors."""
_NAMED = 3
"""Changes that are named one by one where it is said what they cost."""


@dataclass(frozen=True)
class NetworkChanges:
    """Changes of a network, as texts until they are applied; see `change_network`.

    >>> NetworkChanges.of(bandwidth={"infiniband": "2x"}, nodes=32).words
    ('nodes=32', 'bandwidth infiniband=2x')
    """

    nodes: int | None = None  # size of the outermost dimension
    taper: Pairs = ()  # dimension to "2:1", to a ratio a level, or to "2:1@32": a switch cut into leaves of 32
    bandwidth: Pairs = ()  # dimension to "2x" or "400 Gb/s"
    latency: Pairs = ()  # dimension to "0.5x" or "700 ns"
    nic_down: tuple[int, ...] = ()  # ranks whose network card is down
    degrade: Pairs = ()  # link to a factor or a bandwidth
    broken: tuple[str, ...] = ()  # links
    slow: Pairs = ()  # rank to a factor of its kernel times

    @classmethod
    def of(cls, **given: Any) -> "NetworkChanges":
        """Make changes of plain values, as YAML has them: mappings, lists, texts and numbers.

        Raises
        ------
        ConfigError
            If there is no such change, or a value is of a wrong type.
        """
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown change of the network {name!r}; {nearest(name, known)}")
        return cls(**{name: _READERS[name](name, value) for name, value in given.items() if value is not None})

    @property
    def size_alone(self) -> "NetworkChanges":
        """The number of nodes without what else is changed: what a what-if is held against."""
        return NetworkChanges(nodes=self.nodes)

    @property
    def options(self) -> tuple[str, ...]:
        """Words of a command line that give the same changes."""
        return tuple(word for name, value in self._given() for word in (f"--{_OPTIONS.get(name, name)}", value))

    @property
    def words(self) -> tuple[str, ...]:
        """What is changed, for people."""
        return tuple(f"{name}={value}" if name == "nodes" else f"{name} {value}" for name, value in self._given())

    def _given(self) -> list[tuple[str, str]]:
        """Name and text of each change, in the order in which they are applied."""
        found = [] if self.nodes is None else [("nodes", str(self.nodes))]
        for field in fields(self)[1:]:
            for each in getattr(self, field.name):
                found.append((field.name, "=".join(each) if isinstance(each, tuple) else str(each)))
        return found


_OPTIONS = {"nic_down": "nic-down", "broken": "break"}
"""Field to its option, where that is called otherwise."""


def _pairs(name: str, value: Any) -> Pairs:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise ConfigError(f"{name}: must map what is changed to what it is then, not {shown(value)}")
    found: dict[str, str] = {}
    for each in pairs:
        if isinstance(each, str) or not (isinstance(each, Sequence) and len(each) == 2):
            raise ConfigError(f"{name}: must map what is changed to what it is then, not {shown(value)}")
        what, to = (_text(name, part) for part in each)
        if what in found:
            raise ConfigError(f"{name}: {what} is given twice; give it once")
        found[what] = to
    return tuple(found.items())


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{name}: {shown(value)} is neither a text nor a number; write it like infiniband=2x")
    return str(value)


def _count(name: str, value: Any) -> int:
    found = whole(value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int) or found < (name == "nodes"):
        raise ConfigError(f"{name}: {shown(value)} is no whole number{' above zero' * (name == 'nodes')}; give one")
    return found


def _several(each: Callable[[str, Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    def read(name: str, value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, list | tuple) else [value]
        found = tuple(each(name, one) for one in values)
        twice = next((one for place, one in enumerate(found) if one in found[:place]), None)
        if twice is not None:
            raise ConfigError(f"{name}: {twice} is given twice; give it once")
        return found

    return read


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "nodes": _count,
    **dict.fromkeys(("taper", "bandwidth", "latency", "degrade", "slow"), _pairs),
    "nic_down": _several(_count),
    "broken": _several(_text),
}


def cost_of_changes(changes: Sequence[str], before_s: float, after_s: float, steps: int = 1) -> str:
    """Say what changes cost or save in a step, in all: what each rank loses to them is told elsewhere.

    Times are those of `steps` steps.

    >>> cost_of_changes(["slow 5=1.2"], 1.0, 1.25)
    'slow 5=1.2 costs 250 ms, 25.0% longer'
    """
    words = [each for each in changes if not each.startswith("nodes=")]
    is_named = 0 < len(words) <= _NAMED
    named = ", ".join(words) if is_named else "all changes"
    if after_s == before_s:
        return f"the same with {named}"
    verb = ("cost" if after_s > before_s else "save") + ("s" if is_named and len(words) == 1 else "")
    return f"{named} {verb} {format_seconds(abs(after_s - before_s) / steps)}, {format_difference(after_s, before_s)}"


def change_network(topology: Topology, changes: NetworkChanges) -> Topology:
    """Return the topology with changes, which its `altered` tells; the same one if there are none.

    Raises
    ------
    ConfigError
        If a dimension, link or rank is not there, a value has no unit or no meaning, or a change contradicts another.

    >>> from scaleout.cluster.topology.topology import load_topology
    >>> faster = change_network(load_topology("dgx-h200-2"), NetworkChanges.of(nodes=4, bandwidth={"nvlink": "2x"}))
    >>> faster.num_ranks, faster.dimensions[0].bytes_per_s
    (32, 752000000000.0)
    """
    words = changes.words
    if not words:
        return topology
    if changes.nodes is not None:
        topology = _with_nodes(topology, changes.nodes)
    for name, change in (("taper", _tapered), ("bandwidth", _with_bandwidth), ("latency", _with_latency)):
        topology = _changed(topology, name, getattr(changes, name), change)
    cards = _shared_cards(topology, changes.nic_down)
    altered = (*topology.altered, *words)

    def with_faults(network: Topology) -> Topology:
        network = _with_slow_links(network, changes.degrade, changes.broken, tuple(cards))
        return replace(_with_slow_ranks(network, changes.slow), altered=altered)

    if not cards:
        return with_faults(topology)
    shared = with_faults(degrade_links(topology, cards))
    return replace(shared, cards_down=changes.nic_down, all_cards=with_faults(topology))


def dimensions_named(topology: Topology, name: str) -> list[int]:
    """Return the dimensions that a name means.

    Raises
    ------
    ConfigError
        If no dimension has the name; the message has the nearest one.
    """
    called = names_of(topology)
    found = [number for number, names in enumerate(called) if name in (*names, "all")]
    if not found:
        known = dict.fromkeys(each for names in called for each in names)
        hint = nearest(name, [*known, "all"]) if not name.isdecimal() else f"give 0 to {len(called) - 1}"
        raise ConfigError(f"topology {topology.name!r} has no dimension {shown(name)}; {hint}")
    return found


def names_of(topology: Topology) -> list[tuple[str, ...]]:
    """Return the names of each dimension besides `all`: its number, its link type, its link, its kind."""
    return [
        tuple(dict.fromkeys(filter(None, (str(number), dimension.link_name, dimension.link, dimension.kind))))
        for number, dimension in enumerate(topology.dimensions)
    ]


def _with_nodes(topology: Topology, nodes: int) -> Topology:
    """Give the outermost dimension another size."""
    if len(topology.dimensions) < 2:
        part = part_of_node(topology, nodes)
        raise ConfigError(
            f"nodes={nodes}: {without_nodes(topology)}; give one of several nodes, {several_nodes(topology)}"
            + (f", or {counted(nodes, 'rank')} of this one: {part!r}" if part else "")
        )
    if topology.changes or topology.slow_ranks:
        raise ConfigError(
            f"nodes={nodes}: topology {topology.name!r} has slow or broken links or slow ranks, which are those of "
            f"its own size; write another file"
        )
    try:
        last = topology.dimensions[-1].resized(nodes)
    except ConfigError as error:
        raise ConfigError(f"nodes={nodes}: {error}") from None
    return replace(topology, dimensions=(*topology.dimensions[:-1], last))


def _changed(topology: Topology, what: str, pairs: Pairs, change: Callable[[Dimension, str], Dimension]) -> Topology:
    """Change dimensions by name, each once."""
    dimensions = list(topology.dimensions)
    named: dict[int, str] = {}
    for name, to in pairs:
        for each in dimensions_named(topology, name):
            if each in named:
                raise ConfigError(f"{what}: {named[each]} and {name} are both dimension {each}; give one of them")
            named[each] = name
            try:
                dimensions[each] = change(dimensions[each], to)
            except ConfigError as error:
                raise ConfigError(f"{what} {name}={to}: {error}") from None
    return replace(topology, dimensions=tuple(dimensions))


def _new_value(old: float, text: str, quantity: Quantity) -> float:
    """Return what a factor of a value, such as ``2x``, or another value with its unit comes to."""
    match = _FACTOR.fullmatch(text.strip(" "))
    if match is None:
        if number(text.strip(" ")):
            raise ConfigError(f"give a unit, such as {quantity.example!r}, or a factor, such as 2x")
        return parse(text, quantity)
    factor = float(match[1].replace("_", ""))
    if not _LEAST <= factor <= _MOST:
        raise ConfigError(f"a factor of {factor:g}; give one from {_LEAST:g} to {_MOST:g}")
    return old * factor


def _with_bandwidth(dimension: Dimension, text: str) -> Dimension:
    return dimension.with_bandwidth(_new_value(dimension.bytes_per_s, text, BYTES_PER_S))


def _with_latency(dimension: Dimension, text: str) -> Dimension:
    return dimension.with_latency(_new_value(dimension.latency_s, text, SECONDS))


def _tapered(dimension: Dimension, text: str) -> Dimension:
    """Apply ``2:1`` or ``2:1,1:1``, of a switch with the ranks of a leaf: ``2:1@32``.

    The ratios take the place of those that a tree has, as bandwidths with units do; ``1:1`` takes its taper away.
    """
    levels, at, leaf = text.partition("@")
    ratios = tuple(ratio_of(level) for level in re.split("[,/]", levels))
    ranks = whole(leaf.strip(" "))
    if at and ranks is None:
        raise ConfigError(f"{shown(leaf)} is no number of ranks of a leaf; write it like 2:1@32")
    return replace(dimension, **dimension.structure.tapered(dimension, ratios, ranks))


def _shared_cards(topology: Topology, ranks: Sequence[int]) -> dict[str, float]:
    """Return what is left of which links where each rank whose card is down shares that of another of its node.

    It is the card that the fewest share, and of those the nearest.
    """
    if not ranks:
        return {}
    inside = topology.shape[0]
    if len(topology.dimensions) < 2:
        raise ConfigError(
            f"nic_down: topology {topology.name!r} is one network without network cards between nodes; give one of "
            f"several nodes (`scaleout list topologies`), or slow a link down with --degrade"
        )
    if inside < 2:
        raise ConfigError(
            f"nic_down: a node of topology {topology.name!r} is one rank, whose card no other can take over; break its "
            f"link instead"
        )
    topology.coordinates(ranks)  # refuses ranks that are not there
    taken_over: dict[int, int] = {}
    for rank in ranks:
        first = rank - rank % inside
        working = [other for other in range(first, first + inside) if other not in ranks]
        if not working:
            raise ConfigError(f"nic_down: no card is left in the node of ranks {first} to {first + inside - 1}")
        used = Counter(taken_over.values())
        taken_over[rank] = min(working, key=lambda other: (used[other], other ^ rank))
    used = Counter(taken_over.values())
    shares = {rank: 1 / (1 + used[beside]) for pair in taken_over.items() for rank, beside in (pair, pair[1:] * 2)}
    return {name: share for rank, share in shares.items() for name in _ports(topology, rank)}


def _ports(topology: Topology, rank: int) -> list[str]:
    """Name the links of a rank's network card: those to switches in all dimensions but the innermost."""
    found = []
    for each, dimension in enumerate(topology.dimensions[1:], start=1):
        if dimension.size == 1:
            continue
        weight = math.prod(topology.shape[:each])
        coordinate = rank // weight % dimension.size
        edges = edges_of(dimension)
        heads = edges.heads[edges.tails == coordinate].tolist()
        if min(heads) < dimension.size:
            raise ConfigError(
                f"nic_down: dimension {each}, a {dimension.kind}, links ranks to their neighbours, whose cards cannot "
                f"take over; break links instead"
            )
        line = rank - coordinate * weight
        found += [name_link(topology.dimensions, LinkChange(each, line, (coordinate, head), 1.0)) for head in heads]
    return found


def _with_slow_links(topology: Topology, degrade: Pairs, broken: Sequence[str], shared: Sequence[str]) -> Topology:
    """Slow links down and break others; no link twice."""
    if not (degrade or broken):
        return topology
    named = {find_link(topology.dimensions, name): "--nic-down, whose cards share it," for name in shared}
    given = [(name, f"--degrade {name}={to}") for name, to in degrade] + [(name, f"--break {name}") for name in broken]
    for name, text in given:
        position = find_link(topology.dimensions, name)
        if position in named and named[position].split()[0] != text.split()[0]:
            raise ConfigError(f"{text} and {named[position]} are the same link; give one of them")
        named[position] = text
    return break_links(degrade_links(topology, dict(degrade)), broken)


def _with_slow_ranks(topology: Topology, slow: Pairs) -> Topology:
    factors: dict[int, float] = {}
    for text, to in slow:
        rank, factor = whole(text), number(to)
        if rank is None or factor is None:
            raise ConfigError(f"--slow {text}={to}: write a rank and a factor, such as --slow 5=1.3")
        factors[rank] = factor
    return slow_down(topology, factors) if factors else topology
