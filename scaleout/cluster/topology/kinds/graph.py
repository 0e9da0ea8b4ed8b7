"""Graphs: the links of a `Fabric`, any at all.

Messages take the route of the lowest latency, and of those the one of the fewest hops; where several are equal, each
node spreads them evenly over its next hops (ECMP).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleout.cluster.topology.fabric import SUFFIXES, Fabric, fabric_of, load_fabric
from scaleout.cluster.topology.kinds.kind import DimensionKind, Edge, edges_in_order
from scaleout.config.units import counted
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension
    from scaleout.cluster.topology.files import DimensionFile, LinkFile


class Graph(DimensionKind):
    """Listed links."""

    name = "graph"
    description = "the links that are listed"
    takes = frozenset({"fabric"})

    def check(self, dimension: "Dimension") -> None:
        super().check(dimension)
        if dimension.fabric is not None and dimension.fabric.num_ranks != dimension.size:
            raise ConfigError(
                f"the graph has {counted(dimension.fabric.num_ranks, 'rank')}, and the dimension's "
                f"size is {dimension.size}"
            )

    def read(self, entry: "DimensionFile", folder: Path) -> dict[str, Any]:
        """Read links, listed or in a file beside this one; what a link leaves out is the dimension's."""
        if bool(entry.links) == bool(entry.file):
            raise ConfigError(
                "a graph needs either 'links' (between, bandwidth, latency) or 'file', with the same in it"
            )
        if entry.radices or entry.oversubscription or entry.global_links or entry.bandwidth_per_rank is not None:
            raise ConfigError("a graph's links say all; leave out 'radices', 'oversubscription', 'bandwidth_per_rank'")
        if entry.file and not entry.file.endswith(SUFFIXES):
            raise ConfigError(f"file {entry.file!r} is neither {' nor '.join(SUFFIXES)}; convert it with networkx")
        if entry.file:
            fabric = load_fabric(folder / entry.file)
        else:
            fabric = fabric_of(entry.size, entry.switches, [_link(link, entry) for link in entry.links])
        if fabric.num_ranks != entry.size:
            raise ConfigError(
                f"the graph in {entry.file!r} has {counted(fabric.num_ranks, 'rank')}, and the size is {entry.size}"
            )
        return fields_of(fabric)

    def example(self, size: int) -> dict[str, Any]:
        links = [(rank, "hub", 1e9, 1e-6) for rank in range(size)] + [(a, a - 1, 2e9, 5e-7) for a in range(2, size, 2)]
        return fields_of(fabric_of(size, ["hub"], links))

    def switches(self, dimension: "Dimension") -> tuple[str, ...]:
        assert dimension.fabric is not None
        return dimension.fabric.switches

    def edges(self, dimension: "Dimension") -> Iterator[Edge]:
        assert dimension.fabric is not None
        return edges_in_order(dimension.fabric.links, dimension.size)


def fields_of(fabric: Fabric) -> dict[str, Any]:
    """Return the fields of the `Dimension` that a fabric is, with its highest bandwidth and lowest latency."""
    return {
        "bytes_per_s": max((link.bytes_per_s for link in fabric.links), default=1.0),
        "latency_s": min((link.latency_s for link in fabric.links), default=0.0),
        "fabric": fabric,
    }


def _link(link: "LinkFile", entry: "DimensionFile") -> tuple[int | str, int | str, float, float]:
    a, b = link.between
    values = []
    for key in ("bandwidth", "latency"):
        own, shared = getattr(link, key), getattr(entry, key)
        if own is None and len(shared) != 1:
            raise ConfigError(f"link {a}-{b} has no {key!r}; give it to the link, or one to the whole dimension")
        values.append(shared[0] if own is None else own)
    return a, b, values[0], values[1]
