"""What a kind of dimension says of its links: the edges of one line, and closed forms where it has them.

A kind gives its name and either `ports`, if all links are between ranks a fixed offset apart, or `edges`; all else
follows from them: routes are then searched for, and loads counted message by message, slower, with the same answer.
Only *even* kinds, where it does not matter where along a line a group lies, may have closed forms. Knows no process
group and no collective. See docs/models/topologies.md.

Symbols: n ranks along the dimension, coordinates ``0`` to ``n - 1``; m members of a group along it; s stride of the
group, in coordinates; M messages.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension
    from scaleout.cluster.topology.files import DimensionFile
    from scaleout.cluster.topology.placement import Extent

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Ends = tuple[Ints, Ints]
"""(M,) coordinates of the sources and of the destinations of messages along a line."""

Lines = tuple[Ints, int]
"""(M,) the line of each message, and how many lines there are."""

Carried = tuple[Floats, Any] | None
"""Bytes on each link, and hops of each message; None where there is no closed form."""

RoundLoad = tuple[float, int] | None
"""Messages on the busiest link, counted in whole messages and in bandwidths of one port, and hops of the farthest
message; None where there is no closed form."""

_SHAPE = {
    "radices": "radices",
    "oversubscription": "oversubscription",
    "global_links": "global_links",
    "level_latency_s": "latency",
    "level_bytes_per_s": "bandwidth",
}
"""Fields of a `Dimension` that only some kinds take, and their keys in a file."""


class Edge(NamedTuple):
    """One direction of a link, known by its port and the coordinate of the rank that has the port.

    Nodes are the ranks, then the switches. A link between switches belongs to the first rank below it.
    """

    tail: int
    head: int
    port: int
    coordinate: int
    span: int
    """Ranks that share the edge: more than one between switches."""
    bytes_per_s: float
    latency_s: float
    reluctance_s: float = 0.0
    """Added to the latency when routes are compared, and only then."""


@dataclass(frozen=True)
class Port:
    """One of the links that every rank has in a dimension."""

    dimension: int  # its number; the number of dimensions for the rank's injection, which is in none
    # ``"next"``, ``"previous"`` (rings and meshes), ``"up"``, ``"down"`` (switches, trees and dragonflies), ``"pair"``,
    # ``"edge"`` (any other link) or ``"injection"``
    role: str
    bytes_per_s: float  # the fastest link's, where they differ; see `Links.bytes_per_s`
    offset: int = 0  # how much further along the dimension the other end lies, for links between two ranks
    span: int = 1  # ranks along the dimension that share it: more than one between switches
    absent_at: tuple[int, ...] = ()  # coordinates of ranks that do not have it, such as the ends of a mesh


class LineRoutes(NamedTuple):
    """Links that messages take along a line: pairs of a message and a link, in no order that counts."""

    message: Ints
    port: Ints
    coordinate: Ints
    share: Floats
    """Part of the message that takes the link."""

    @classmethod
    def joined(cls, parts: Iterable["LineRoutes"]) -> "LineRoutes":
        """Return all parts as one."""
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def edges_in_order(links: Iterable[tuple[int, int, float, float]], num_ranks: int) -> Iterator[Edge]:
    """Number full-duplex links (node, node, bytes per second, seconds): port and coordinate are numbers only."""
    ways = ((*ends, speed, latency_s) for a, b, speed, latency_s in links for ends in ((a, b), (b, a)))
    return (
        Edge(tail, head, *divmod(number, num_ranks), 1, speed, latency_s)
        for number, (tail, head, speed, latency_s) in enumerate(ways)
    )


def up_and_down(a: int, b: int, *, level: int, at: tuple[int, int], rest: tuple[float, float]) -> list[Edge]:
    """Return a link up from a node to a switch and down from it, both ports of the first rank below."""
    return [Edge(a, b, 2 * level, *at, *rest), Edge(b, a, 2 * level + 1, *at, *rest)]


def check_radices(dimension: "Dimension", *, order: str, lower_bound: int, ports: bool = False) -> None:
    """Refuse levels whose ranks are not those of the dimension, and latencies that are not one a level.

    With `ports` there may be a latency of the ports before those of the levels.
    """
    name, radices, latencies = dimension.kind.replace("_", " "), dimension.radices, dimension.level_latency_s
    if min(radices, default=0) < lower_bound or math.prod(radices) != dimension.size:
        raise ConfigError(
            f"a {name} of {dimension.size} ranks has radices {list(radices)}; give one a level, {lower_bound} or more, "
            f"{order}, whose product is {dimension.size}"
        )
    if len(latencies) not in (0, len(radices), len(radices) + ports):
        raise ConfigError(f"a {name} of {len(radices)} levels has {len(latencies)} latencies; give one or one a level")


class DimensionKind:
    """A kind of dimension; an instance holds no state, the numbers are those of a `Dimension`."""

    name: ClassVar[str]  # in files and tables
    description: ClassVar[str]  # what a rank has in the dimension
    names_in_files: ClassVar[tuple[str, ...]] = ()  # other names of the kind in topology files
    # fields of `Dimension` that this kind takes besides size, bandwidth and latency
    takes: ClassVar[frozenset[str]] = frozenset()
    even: ClassVar[bool] = False  # whether it does not matter where along the dimension a group lies
    # whether any two ranks may be exchanged: then the coordinates of members do not matter at all
    interchangeable: ClassVar[bool] = False
    movable: ClassVar[bool] = False  # whether a group may be moved along the dimension as a whole
    neighbours: ClassVar[bool] = False  # whether a rank is linked to the next and to the previous one
    closed: ClassVar[bool] = False  # whether the last is linked to the first
    part: ClassVar[str | None] = None  # kind of what the first ranks of a line are; None if they are no dimension

    # ---- Structure

    def edges(self, dimension: "Dimension") -> Iterator[Edge]:
        """Yield the edges of one line, two for each link; by default the links of ports between two ranks."""
        n = dimension.size
        return (
            Edge(i, (i + port.offset) % n, number, i, 1, port.bytes_per_s, dimension.latency_s)
            for number, port in enumerate(self.ports(dimension))
            for i in range(n)
            if i not in port.absent_at
        )

    def switches(self, dimension: "Dimension") -> tuple[str, ...]:
        """Return the names of the nodes that are no ranks."""
        return ()

    def ports(self, dimension: "Dimension") -> list[Port]:
        """Return what every rank has of the edges; by default as many as number them all."""
        count = math.ceil(sum(1 for _ in self.edges(dimension)) / dimension.size)
        return [Port(0, "edge", dimension.bytes_per_s)] * count

    def links_of_a_rank(self, dimension: "Dimension") -> int:
        """Return the links over which a rank sends, those of the rank that has most."""
        tails = [edge.tail for edge in self.edges(dimension)]
        return max(1, int(np.bincount(tails, minlength=dimension.size)[: dimension.size].max()))

    def latency_of(self, dimension: "Dimension", hops: Any) -> Any:
        """Latency [s] of so many hops, in the shape of `hops`."""
        return hops * dimension.latency_s

    # ---- Files

    def check(self, dimension: "Dimension") -> None:
        """Refuse numbers that do not make a dimension of this kind, and fields that it does not take."""
        given = [key for field, key in _SHAPE.items() if getattr(dimension, field) and field not in self.takes]
        if given and self.takes.isdisjoint(_SHAPE):
            raise ConfigError(
                f"a {self.name} has no levels; leave out 'radices' and 'oversubscription'; give one bandwidth "
                f"and latency"
            )
        if given:
            raise ConfigError(f"a {self.name} takes no {given[0]!r} of its levels; leave it out")

    def read(self, entry: "DimensionFile", folder: Path) -> dict[str, Any]:
        """Return the fields of `Dimension` that an entry of a file gives; paths in it are relative to `folder`."""
        if entry.switches or entry.links or entry.file:
            raise ConfigError(f"a {entry.kind} has links of its own; leave out 'switches', 'links' and 'file'")
        if not entry.latency:
            advice = f"no link type has that of a {entry.kind}" if entry.link_type else "or give a 'link_type'"
            raise ConfigError(f"key 'latency' is missing; add it ({advice}), such as latency 700ns")
        if (not entry.bandwidth) == (entry.bandwidth_per_rank is None):
            raise ConfigError("give either 'bandwidth' (of a link or port) or 'bandwidth_per_rank'")
        bandwidth = entry.bandwidth or (entry.bandwidth_per_rank,)
        return {
            "bytes_per_s": bandwidth[0],
            "latency_s": entry.latency[0],
            "radices": entry.radices,
            "oversubscription": entry.oversubscription,
            "global_links": entry.global_links,
            "level_latency_s": entry.latency if len(entry.latency) > 1 else (),
            "level_bytes_per_s": bandwidth[1:],
        }

    def latencies(self, latency_s: tuple[float, ...], radices: tuple[int, ...]) -> tuple[float, ...]:
        """Return the latency of a file's entry, by level where it has several, whose messages all take so long."""
        return latency_s

    def resized(self, dimension: "Dimension", size: int) -> dict[str, Any]:
        """Return the fields of `Dimension` that change where it has another size.

        Raises
        ------
        ConfigError
            If levels or links say the size already.
        """
        if not self.takes.isdisjoint({"radices", "fabric"}):
            raise ConfigError("nodes cannot resize a dimension of levels or links; give the dimensions in full")
        return {"size": size}

    def tapered(self, dimension: "Dimension", ratios: tuple[float, ...], leaf: int | None) -> dict[str, Any]:
        """Return the fields of `Dimension` that change where levels have less bandwidth up than down.

        `ratios` are bandwidth down over bandwidth up, one for each level but the last; they take the place of those
        that the dimension has. `leaf` is the ranks below a leaf switch, for a kind that has no levels of its own.
        """
        raise ConfigError(f"a {self.name} has no switches in levels; taper a fat_tree, a leaf_spine or a switch")

    def example(self, size: int) -> dict[str, Any]:
        """Return the fields of `Dimension` that the kind needs besides size, bandwidth and latency, for tests."""
        return {}

    # ---- Symmetry

    def distance(self, dimension: "Dimension", ends: Ends) -> Ints:
        """(M,) numbers that are equal only for messages that cost the same along the dimension."""
        if self.interchangeable:
            return np.asarray(ends[0] != ends[1], np.int64)
        return ends[0] * dimension.size + ends[1]

    def turned(self, dimension: "Dimension", coordinates: Ints, stride: int | None) -> Ints:
        """(m,) coordinates whose links are as those of a group at ascending ones, near the start of the dimension.

        With the stride of a regular group, those of its siblings go to those of the other's siblings, in order.
        """
        return coordinates

    def turns(self, dimension: "Dimension", weight: int, largest: int) -> Sequence[int]:
        """Radices, at most `largest`, of a digit of the coordinate with a weight: adding 1 to it changes no link."""
        return ()

    def arranged(self, dimension: "Dimension", coordinates: Ints) -> tuple[int, Ints] | None:
        """Stride and order of a group's members at ascending coordinates, shape (m,); None if not regular."""
        if self.interchangeable or len(coordinates) == 1:
            return 1, coordinates
        stride = int(coordinates[1] - coordinates[0])
        if (np.diff(coordinates) != stride).any():
            return None
        fits = self.fits(dimension, int(coordinates[0]), len(coordinates), stride)
        return (stride, coordinates) if fits else None

    def fits(self, dimension: "Dimension", first: int, members: int, stride: int) -> bool:
        """Whether groups like one of equal strides fill the dimension side by side."""
        return dimension.size % (members * stride) == 0 and first % (members * stride) < stride

    def siblings(self, dimension: "Dimension", coordinates: Ints, first: int, stride: int) -> list[Ints]:
        """Return the coordinates of a group and of all groups like it that fit the dimension with it, its own first."""
        n, m = dimension.size, len(coordinates)
        if self.interchangeable:
            others = np.setdiff1d(np.arange(n), coordinates)
            return [coordinates, *(others[start : start + m] for start in range(0, len(others) - m + 1, m))]
        windows = range(self.window(dimension, first, m * stride), n - m * stride + 1, m * stride)
        starts = sorted((at + offset for at in windows for offset in range(stride)), key=lambda at: at != first)
        return [start + stride * np.arange(m) for start in starts]

    def window(self, dimension: "Dimension", first: int, width: int) -> int:
        """Where the first of the windows begins, each of which holds as many groups as the stride."""
        return 0

    # ---- Closed forms, of even kinds only

    def routes(self, dimension: "Dimension", ends: Ends) -> tuple[LineRoutes, Ints] | None:
        """Links and hops of messages, none of them to itself."""
        return None

    def ring_load(self, extent: "Extent", *, both_ways: bool) -> RoundLoad:
        """Load if every member sends to the next, or half of that to the next and half to the previous."""
        return None

    def everyone_load(self, extent: "Extent") -> RoundLoad:
        """Load if every member sends to every other."""
        return None

    def shift_load(self, extent: "Extent", offset: int) -> RoundLoad:
        """Load if each member sends to the one so many further on, the last one's next being the first."""
        return None

    def exchange_load(self, extent: "Extent", distance: int) -> RoundLoad:
        """Load if members swap in pairs so many apart, a power of two."""
        return None

    def carried(self, extent: "Extent", lines: Lines, ends: Ends, weights: Floats) -> Carried:
        """Bytes on the links of all lines of a group, from messages between its members, by their numbers."""
        return None

    def cut(self, extent: "Extent", j: int) -> float:
        """Links, each way, that separate j members of a line from the others: the group's part of them."""
        return math.inf
