"""Names of slow and broken links, and how they are found.

A link is named by its two nodes, ``3-4`` or ``12-leaf1``: ranks by their numbers in the whole topology, all else by
the names in `dimension.switches_of`. Where two dimensions have such a link the number of the dimension goes before it,
``1:5-switch``; a link between two switches names a rank on its line: ``leaf0-spine1@8``.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.cluster.topology.dimension import Dimension, edges_of, switches_of
from scaleout.config.documents import whole
from scaleout.errors import ConfigError


@dataclass(frozen=True)
class LinkChange:
    """A link that is slower than the others or broken, both ways."""

    dimension: int
    line: int
    """The lowest rank of its line."""
    ends: tuple[int, int]
    """Nodes of the line, the lower first."""
    factor: float
    """Of its bandwidth; 0 for a broken link."""


LinkPosition = tuple[int, int, tuple[int, int]]
"""Dimension, lowest rank of the line, and nodes of a link."""


def find_link(dimensions: Sequence[Dimension], name: str) -> LinkPosition:
    """Find a link by its name.

    Raises
    ------
    ConfigError
        If no link or more than one has the name.

    >>> find_link((Dimension("ring", 4, 1e9, 0.0), Dimension("ring", 2, 1e9, 0.0)), "5-1")
    (1, 1, (0, 1))
    """
    text, _, on = name.partition("@")
    first, colon, rest = text.partition(":")
    named = whole(first) if colon else None
    chosen = list(range(len(dimensions))) if named is None else [named]
    pair = text if named is None else rest
    if not set(chosen) <= set(range(len(dimensions))):
        raise ConfigError(f"link {name!r}: there is no dimension {first}; give 0 to {len(dimensions) - 1}")
    splits = [(pair[:at], pair[at + 1 :]) for at, sign in enumerate(pair) if sign == "-"]
    switches = list(dict.fromkeys(name for d in chosen for name in switches_of(dimensions[d])))
    if not any(all(_rank(dimensions, end) is not None or end in switches for end in ends) for ends in splits):
        examples = f" ({', '.join(switches[:3])}{', ...' if len(switches) > 3 else ''})" if switches else ""
        raise ConfigError(
            f"link {name!r} does not name two nodes of the topology; write it like 0-1, with ranks by number (0 to "
            f"{_weight(dimensions, len(dimensions)) - 1}) and switches by name{examples}; what changes "
            f"a whole dimension is --bandwidth"
        )
    found = sorted({position for d in chosen for ends in splits for position in _positions(dimensions, d, ends, on)})
    if not found:
        raise ConfigError(f"link {name!r}: no link joins these two; {_hint(dimensions, chosen, splits)}")
    if len(found) > 1 and len({position[0] for position in found}) > 1:
        raise ConfigError(f"link {name!r} is in several dimensions; write {found[0][0]}:{pair} for the first of them")
    if len(found) > 1:
        raise ConfigError(f"link {name!r} is on several lines; name a rank on its line, such as {pair}@{found[0][1]}")
    return found[0]


def name_link(dimensions: Sequence[Dimension], change: LinkChange) -> str:
    """Name a link as `find_link` takes it: with its dimension and line where its ends alone do not say which it is.

    >>> name_link((Dimension("switch", 4, 1e9, 0.0), Dimension("switch", 2, 1e9, 0.0)), LinkChange(1, 3, (1, 2), 1.0))
    '1:7-switch'
    """
    dimension, weight = dimensions[change.dimension], _weight(dimensions, change.dimension)
    switches = switches_of(dimension)
    of_switches = [end >= dimension.size for end in change.ends]
    several = sum(each.size > 1 for each in dimensions) > 1
    names = [
        str(change.line + end * weight) if end < dimension.size else switches[end - dimension.size]
        for end in change.ends
    ]
    first = f"{change.dimension}:" if several and any(of_switches) else ""
    return f"{first}{'-'.join(names)}{f'@{change.line}' if several and all(of_switches) else ''}"


def link_bytes_per_s(dimension: Dimension, ends: tuple[int, int]) -> float:
    """Return what the link between two nodes of a line carries each way."""
    edges = edges_of(dimension)
    return float(edges.bytes_per_s[edges.between(*ends)].max())


def _weight(dimensions: Sequence[Dimension], number: int) -> int:
    return math.prod(dimension.size for dimension in dimensions[:number])


def _rank(dimensions: Sequence[Dimension], name: str) -> int | None:
    rank = whole(name)
    return rank if rank is not None and rank < _weight(dimensions, len(dimensions)) else None


def _positions(dimensions: Sequence[Dimension], number: int, ends: tuple[str, str], on: str) -> Iterator[LinkPosition]:
    """Links of a dimension that two names may mean."""
    dimension, weight = dimensions[number], _weight(dimensions, number)
    switches = switches_of(dimension)
    nodes, lines = [], set()
    for end in ends:
        rank = _rank(dimensions, end)
        if rank is not None:
            nodes.append(rank // weight % dimension.size)
            lines.add(rank - nodes[-1] * weight)
        elif end in switches:
            nodes.append(dimension.size + switches.index(end))
        else:
            return
    if not edges_of(dimension).between(*nodes).size:
        return
    if not lines:
        ranks = np.arange(_weight(dimensions, len(dimensions)))
        rank = _rank(dimensions, on)
        chosen = ranks if rank is None else np.array([rank])
        lines = set((chosen - chosen // weight % dimension.size * weight).tolist())
    if len(lines) == 1 or all(node >= dimension.size for node in nodes):
        yield from ((number, line, (min(nodes), max(nodes))) for line in lines)


def _hint(dimensions: Sequence[Dimension], chosen: Sequence[int], splits: Sequence[tuple[str, str]]) -> str:
    """Name some links of the first rank that was named."""
    rank = next((found for ends in splits for end in ends if (found := _rank(dimensions, end)) is not None), None)
    if rank is None:
        return "name the two ends of one link"
    names = []
    for d in chosen:
        weight = _weight(dimensions, d)
        node = rank // weight % dimensions[d].size
        edges = edges_of(dimensions[d])
        for head in edges.heads[edges.tails == node].tolist():
            names.append(name_link(dimensions, LinkChange(d, rank - node * weight, (node, head), 1.0)))
    return f"rank {rank} has the links {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"
