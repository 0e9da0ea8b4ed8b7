"""A network as lines of text: each dimension from the outermost in, what its links are called, and which have faults.

Knows no terminal; `cli` prints the lines.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from scaleout.cluster.topology.dimension import Dimension, edges_of
from scaleout.cluster.topology.faults import LinkChange, link_bytes_per_s, name_link
from scaleout.cluster.topology.topology import Topology
from scaleout.cluster.topology.what_if import names_of
from scaleout.config.units import counted, format_bytes_per_s, format_seconds, format_share, ranks_in_words

_MOST_NODES = 8
"""Of a dimension that are drawn one by one."""
_MOST_LINKS = 6
"""Whose names are listed of a dimension."""


def draw(topology: Topology) -> list[str]:
    """Return a picture of a network: one block a dimension, innermost last, as ranks lie within nodes."""
    lines = []
    for number in reversed(range(len(topology.dimensions))):
        dimension, names = topology.dimensions[number], names_of(topology)[number]
        inner = math.prod(topology.shape[:number])
        unit = "ranks" if inner == 1 else f"x {inner} ranks"
        speed = f"{format_bytes_per_s(dimension.bytes_per_s)} each way, {format_seconds(dimension.latency_s)}"
        lines.append(f"dimension {' or '.join(names)}: {dimension.size} {unit}, {dimension.structure.description}")
        lines.append(f"  {speed}")
        lines += [f"  {line}" for line in _picture(dimension)]
        found = list(link_names(topology, number))
        total = len(edges_of(dimension).tails) // 2 * (topology.num_ranks // dimension.size)
        lines.append(f"  links: {_listed(found, total)}" if found else "  no links")
        lines += [f"  {words}" for dimension_of, words in faults_of(topology) if dimension_of == number]
    if topology.cards_down:
        down = ranks_in_words(topology.cards_down)
        lines.append(f"network card down: of {down}; another rank of the node shares its own")
    return lines


def faults_of(topology: Topology) -> list[tuple[int, str]]:
    """Return the dimension of links that are slower than built or broken, and which they are and what is left.

    >>> from scaleout.cluster.topology.topology import load_topology
    >>> from scaleout.cluster.topology.what_if import NetworkChanges, change_network
    >>> faults_of(change_network(load_topology("dgx-h200-2"), NetworkChanges(nic_down=(5,))))
    [(1, 'slower: 1:4-switch, 1:5-switch at 25 GB/s each way (50.0% of as built)')]
    """
    found = dict[tuple[int, float, float], list[LinkChange]]()
    for change in _changed(topology):
        built = link_bytes_per_s(topology.dimensions[change.dimension], change.ends)
        found.setdefault((change.dimension, change.factor, built), []).append(change)
    return [
        (number, f"slower: {_named(topology, links)} at {format_bytes_per_s(factor * built)} each way "
                 f"({format_share(factor)} of as built)" if factor else f"broken: {_named(topology, links)}")
        for (number, factor, built), links in found.items()
    ]  # fmt: skip


def changed_names(topology: Topology, *, broken: bool) -> str:
    """Return the names of the links that are broken, or of those that are slower than built."""
    return _named(topology, [change for change in _changed(topology) if (change.factor == 0) == broken])


def _changed(topology: Topology) -> list[LinkChange]:
    """Return what becomes of each link that is changed, however often."""
    found = dict[tuple[int, int, tuple[int, int]], LinkChange]()
    for change in topology.changes:
        place = (change.dimension, change.line, change.ends)
        known = found.get(place)
        found[place] = replace(change, factor=change.factor * (known.factor if known else 1.0))
    return list(found.values())


def _named(topology: Topology, links: Sequence[LinkChange]) -> str:
    return _listed([name_link(topology.dimensions, link) for link in links[:_MOST_LINKS]], len(links))


def _listed(names: Sequence[str], total: int) -> str:
    return ", ".join(names) + (f", ... ({total:,} in all)" if total > len(names) else "")


def link_names(topology: Topology, number: int) -> Iterator[str]:
    """Yield the names of the first links of a dimension, as ``--degrade`` and ``--break`` take them."""
    dimension = topology.dimensions[number]
    edges = edges_of(dimension)
    seen: set[tuple[int, int]] = set()
    for tail, head in zip(map(int, edges.tails), map(int, edges.heads), strict=True):
        ends = (min(tail, head), max(tail, head))
        if ends in seen:
            continue
        if len(seen) == _MOST_LINKS:
            return
        seen.add(ends)
        yield name_link(topology.dimensions, LinkChange(number, 0, ends, 1.0))


def _picture(dimension: Dimension) -> list[str]:
    """Draw one line of a dimension."""
    n, kind = dimension.size, dimension.kind
    shown = [str(each) for each in range(min(n, _MOST_NODES))]
    ends = [*shown[:-2], "...", str(n - 1)] if n > _MOST_NODES else shown
    if kind in ("ring", "mesh"):
        line = " -- ".join(ends)
        return [f"{line} -- (0)" if kind == "ring" and n > 2 else line]
    if kind == "fully_connected":
        return [f"{' '.join(ends)}: each linked to each"]
    if kind in ("fat_tree", "switch"):
        return _tree(dimension)
    if kind == "dragonfly":
        ranks, routers, groups = dimension.radices
        return [
            f"{counted(groups, 'group')} of {counted(routers, 'router')} of {counted(ranks, 'rank')}; "
            f"{counted(dimension.global_links, 'global link')} a router"
        ]
    assert dimension.fabric is not None
    switches = counted(len(dimension.fabric.switches), "switch")
    return [f"{counted(n, 'rank')} and {switches}, {counted(len(dimension.fabric.links), 'link')}"]


def _tree(dimension: Dimension) -> list[str]:
    """Draw switches level by level, the top first."""
    radices = dimension.radices or (dimension.size,)
    lines = []
    for level in reversed(range(len(radices))):
        switches = dimension.size // math.prod(radices[: level + 1])
        what = "ranks" if level == 0 else "switches"
        joins = f"{'one switch joins' if switches == 1 else f'{switches} switches, each of'} {radices[level]} {what}"
        taper = dimension.oversubscription[level] if level < len(dimension.oversubscription) else None
        up = "" if taper is None else f", {taper:g}:1 down to up"
        lines.append(f"{'  ' * (len(radices) - 1 - level)}[{joins}{up}]")
    return lines
