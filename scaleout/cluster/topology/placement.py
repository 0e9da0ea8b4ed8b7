"""Where a process group is in a topology: ranks to a grid of members along the dimensions.

A regular group is a grid: along each dimension its members are a fixed stride apart. Only the grid, whatever its
origin, determines the cost, so all groups of an axis have the same `Placement`, by which costs are cached. Groups that
interleave on a ring share its links: with a stride of ``s`` each link carries the messages of ``s`` groups. Irregular
groups, and groups on uneven dimensions or changed lines, keep their ranks; their messages are routed over the links.
See docs/models/placement-and-folding.md.

Symbols: n ranks along a dimension; m members of the group along it; s stride; p members in all.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from scaleout.cluster.topology.communication_library import Library
from scaleout.cluster.topology.kinds import DimensionKind
from scaleout.cluster.topology.kinds.kind import Bools, Ints
from scaleout.cluster.topology.topology import Dimension, LinkChange, Topology
from scaleout.config.units import counted
from scaleout.errors import ConfigError


@dataclass(frozen=True)
class Extent:
    """Members of a group along one dimension."""

    dimension: Dimension
    size: int  # members ``m``
    # Coordinates ``s`` from one member to the next, on a ring or mesh also the groups that share a link. Always 1 where
    # ranks are interchangeable, as on a switch.
    stride: int = 1

    @property
    def structure(self) -> DimensionKind:
        """What the kind of dimension says of its links."""
        return self.dimension.structure

    @property
    def wraps(self) -> bool:
        """Whether the members are all the way round a ring; otherwise they are on a line within it."""
        return self.structure.closed and self.size * self.stride == self.dimension.size

    @property
    def is_line(self) -> bool:
        """Whether the members are on a line: on a mesh, or on a ring without going round."""
        return self.structure.neighbours and not self.wraps

    def below(self, span: int) -> int:
        """Members in a subtree of a fat tree with so many ranks, if it has any."""
        return min(self.size, max(1, span // self.stride))


@dataclass(frozen=True)
class Placement:
    """A group of ranks in a topology, up to where it starts."""

    extents: tuple[Extent, ...]  # the grid, innermost dimension first; dimensions with one member only are left out
    startup_s: float = 0.0  # time to start one collective, from the topology
    # Empty if the group is the whole grid. Otherwise the group is irregular: the grid is the topology (less the
    # dimensions in which no two members differ) and these are the members' indices in it, innermost fastest.
    members: tuple[int, ...] = ()
    library: Library | None = None  # what the communication library adds to the links, from the topology
    # of groups that keep their ranks: the network, less the changed links that they cannot use
    topology: Topology | None = None
    # of those: the ranks in that network, or those of a congruent group, in the order of the grid
    ranks: tuple[int, ...] = ()
    # whether messages reach some ports through the host, as the group lacks ranks of the dimensions farther in
    detours: bool = False
    # where messages of ranks to ranks go, if they do not go as channels of whole nodes do
    messages: "Placement | None" = None

    @property
    def regular(self) -> bool:
        """Whether the group is a grid."""
        return not self.members

    @property
    def links(self) -> frozenset[str]:
        """Kinds of link that the group extends along."""
        return frozenset(extent.dimension.link for extent in self.extents)

    @property
    def shape(self) -> tuple[int, ...]:
        """Members along each extent, innermost first."""
        return tuple(extent.size for extent in self.extents)

    @property
    def num_ranks(self) -> int:
        """Members ``p`` of the group."""
        return len(self.members) or math.prod(self.shape)

    def carrying(self, kind: str) -> "Placement":
        """Return where a kind of collective goes: one of messages through the cards of its ranks."""
        return self.messages if self.messages is not None and kind in _OF_MESSAGES else self


_OF_MESSAGES = frozenset({"all_to_all", "gather", "scatter", "send"})
"""Kinds that are messages of ranks to ranks, which go through the card of the rank."""


def place(topology: Topology, ranks: Sequence[int] | Ints) -> Placement:
    """Find the grid that a group, its ranks in any order, forms in a topology.

    Raises
    ------
    ConfigError
        If there are no ranks, one stands twice, or one is not in the topology.

    >>> from scaleout.cluster.topology.topology import Dimension, Topology
    >>> torus = Topology("torus-8x16", (Dimension("ring", 8, 25e9, 7e-7), Dimension("ring", 16, 25e9, 7e-7)))
    >>> [(extent.size, extent.stride) for extent in place(torus, range(0, 128, 4)).extents]
    [(2, 4), (16, 1)]
    """
    return arrange(topology, ranks)[0]


def congruent_members(topology: Topology, groups: Sequence[Sequence[int]]) -> Ints | None:
    """(G, p) the members of groups in the order of their grids, if all are congruent to the first; None if not.

    They are the first one, moved: along the dimensions in which its members differ only where it is a grid and the
    kind of dimension is movable, and nowhere round the end of a ring. No link may be changed, all dimensions are even.
    """
    if not topology.even or len({len(group) for group in groups}) > 1:
        return None
    members = np.sort(np.array(groups, np.int64), axis=1)
    at = topology.coordinates(members.ravel()).reshape(*members.shape, -1)
    moved = at[:, :1] - at[:1, :1]
    placement, ranks = arrange(topology, groups[0])
    free = [placement.regular and dimension.structure.movable for dimension in topology.dimensions]
    fixed = (np.ptp(at[0], axis=0) > 0) & ~np.array(free)
    if (at - moved != at[:1]).any() or moved[:, :, fixed].any():
        return None
    return np.asarray(members[:, np.searchsorted(members[0], ranks)], np.int64)


def arrange(topology: Topology, ranks: Sequence[int] | Ints) -> tuple[Placement, tuple[int, ...]]:
    """Find the placement of a group, and its ranks in the order of the grid, innermost dimension fastest.

    Rounds of collectives name members by their index in this order.
    """
    members = tuple(sorted(ranks.tolist() if isinstance(ranks, np.ndarray) else ranks))
    placement, ordered = _arrange(topology, members)
    channels = _channels_of_whole_nodes(topology, members)
    if channels is None:
        return placement, ordered
    return replace(_arrange(channels, members)[0], messages=placement), ordered


@lru_cache(maxsize=1024)
def _channels_of_whole_nodes(topology: Topology, ranks: tuple[int, ...]) -> Topology | None:
    """Return the network as channels of a group of whole nodes have it; None if no card of those is down.

    A node without a card builds as many channels less, and every rank takes the least number of all, so that all nodes
    send through as many cards (NCCL, src/init.cc, graphInfo[a].nChannels).
    """
    inside = topology.shape[0]
    nodes = np.array(ranks) // inside
    down = Counter(rank // inside for rank in topology.cards_down)
    most = max((down[node] for node in set(nodes.tolist())), default=0)
    if topology.all_cards is None or not most or len(ranks) % inside or nodes[0] == nodes[-1]:
        return None
    if np.any(nodes.reshape(-1, inside) != nodes[::inside, None]):
        return None
    first, *outer = topology.all_cards.dimensions
    fewer = [each.with_bandwidth((1 - most / inside) * each.bytes_per_s) for each in outer]
    return replace(topology.all_cards, dimensions=(first, *fewer))


def place_isolated(topology: Topology, ranks: Sequence[int]) -> Placement:
    """Return the placement of a group that no siblings accompany, such as the two ends of one message; see `place`."""
    members = tuple(sorted(ranks))
    placement = arrange(topology, members)[0]
    return placement if len(members) == 1 else _irregular(topology, topology.coordinates(members))


def kept_in_place(placement: Placement) -> Placement:
    """Return a placement that keeps the ranks of a congruent group, in a topology of only its dimensions."""
    topology = Topology("grid", tuple(extent.dimension for extent in placement.extents))
    ranks = placement.members
    if placement.regular:
        ranks = _in_grid_order(topology, [extent.stride * np.arange(extent.size) for extent in placement.extents])
    return replace(placement, topology=topology, ranks=ranks)


def siblings(topology: Topology, ranks: Sequence[int] | Ints) -> tuple[tuple[int, ...], ...]:
    """Find all groups of an axis from one of them: as many as the topology has room for, the given one first.

    They are disjoint and have its placement. A group that is no regular grid is the only one.

    >>> from scaleout.cluster.topology.topology import Dimension, Topology
    >>> siblings(Topology("ring-8", (Dimension("ring", 8, 25e9, 7e-7),)), (0, 2))
    ((0, 2), (1, 3), (4, 6), (5, 7))
    """
    placement, members = arrange(topology, ranks)
    if not placement.regular:
        return (members,)
    coordinates = topology.coordinates(members)
    along = []
    for dimension, column in zip(topology.dimensions, coordinates.T, strict=True):
        present = _present(column)
        found = dimension.structure.arranged(dimension, present)
        assert found is not None  # as the group is regular
        along.append(dimension.structure.siblings(dimension, present, column[0], found[0]))
    return tuple(_in_grid_order(topology, chosen[::-1]) for chosen in itertools.product(*along[::-1]))


def _present(coordinates: Ints) -> Ints:
    """Return the distinct ones in ascending order, as `np.unique`, which would import numpy.ma."""
    return np.flatnonzero(np.bincount(coordinates))


@lru_cache(maxsize=65536)
def _arrange(topology: Topology, ranks: tuple[int, ...]) -> tuple[Placement, tuple[int, ...]]:
    if not ranks:
        raise ConfigError("a process group has no ranks; give at least one")
    if len(set(ranks)) < len(ranks):
        twice = next(rank for rank, after in itertools.pairwise(ranks) if rank == after)
        raise ConfigError(
            f"a process group of {counted(len(ranks), 'rank')} names rank {twice} twice; give each rank once"
        )
    coordinates = topology.coordinates(ranks)
    along = [_present(column) for column in coordinates.T]
    if math.prod(len(values) for values in along) == len(ranks):
        pairs = list(zip(topology.dimensions, along, strict=True))
        found = [pair for d, values in pairs if (pair := d.structure.arranged(d, values)) is not None]
        if len(found) == len(pairs):
            extents = tuple(
                Extent(dimension, len(values), stride)
                for (dimension, values), (stride, _) in zip(pairs, found, strict=True)
                if len(values) > 1
            )
            ordered = _in_grid_order(topology, [order for _, order in found])
            grid = Placement(extents, topology.startup_s, library=topology.library, detours=_detours(topology, along))
            return _kept(grid, topology, ordered), ordered
    return _irregular(topology, coordinates), ranks


def _detours(topology: Topology, along: Sequence[Ints]) -> bool:
    """Whether a grid extends along a dimension with detours, and not along the whole of one farther in."""
    whole = True
    for dimension, values in zip(topology.dimensions, along, strict=True):
        if len(values) > 1 and dimension.detour > 1 and not whole:
            return True
        whole = whole and len(values) == dimension.size
    return False


def _kept(placement: Placement, topology: Topology, ranks: tuple[int, ...]) -> Placement:
    """Let a placement keep the ranks of its group, and the network, if a dimension is not even or a link is changed."""
    if topology.even or len(ranks) == 1:
        return placement
    coordinates = topology.coordinates(ranks)
    differ = np.ptp(coordinates, axis=0) > 0
    met = tuple(change for change in topology.changes if _meets(topology, coordinates, differ, change))
    uneven = ~np.array([dimension.structure.even for dimension in topology.dimensions]) & differ
    if not (met or uneven.any()):
        return placement
    moved = coordinates
    if not met:
        # A regular group may start anywhere along an even dimension; any group may be on any line of it.
        free = ~uneven if placement.regular else ~differ
        first = coordinates[0] if placement.regular else coordinates.min(axis=0)
        moved = np.where(free, (coordinates - first) % topology.shape, coordinates)
        moved = _dense(topology, moved, free) if placement.regular else moved
        moved = _turned(topology, moved, uneven, regular=placement.regular)
    ranks = topology.ranks_at(moved.T)
    return replace(placement, topology=replace(topology, changes=met, slow_ranks=()), ranks=ranks)


def _turned(topology: Topology, coordinates: Ints, uneven: Bools, *, regular: bool) -> Ints:
    """Take coordinates along uneven dimensions that are like those of the group."""
    columns = list(coordinates.T)
    for number in np.flatnonzero(uneven).tolist():
        dimension, (present, which) = topology.dimensions[number], np.unique(columns[number], return_inverse=True)
        arranged = dimension.structure.arranged(dimension, present) if regular else None
        stride = None if arranged is None else arranged[0]
        columns[number] = dimension.structure.turned(dimension, present, stride)[which.reshape(-1)]
    return np.stack(columns, axis=-1)


def _dense(topology: Topology, coordinates: Ints, free: Bools) -> Ints:
    """Take the first coordinates where ranks are interchangeable."""
    columns = [
        np.unique(column, return_inverse=True)[1].reshape(-1)
        if movable and dimension.structure.interchangeable
        else column
        for column, movable, dimension in zip(coordinates.T, free, topology.dimensions, strict=True)
    ]
    return np.stack(columns, axis=-1)


def _meets(topology: Topology, coordinates: Ints, differ: Bools, change: LinkChange) -> bool:
    """Whether messages of a group may use a changed link: they go along its line, at coordinates of members."""
    line = topology.coordinates([change.line])[0]
    others = [number for number in range(len(line)) if number != change.dimension]
    return (
        bool(differ[change.dimension])
        and all(line[number] in coordinates[:, number] for number in others)
        and all(end in coordinates[:, change.dimension] for end in topology.ends_of_users(change))
    )


def _irregular(topology: Topology, coordinates: Ints) -> Placement:
    """Keep the members of a group by their indices in the topology, less the dimensions in which none differ."""
    used = np.flatnonzero(np.ptp(coordinates, axis=0)).tolist()
    grid = tuple(Extent(topology.dimensions[number], topology.dimensions[number].size) for number in used)
    columns = tuple(coordinates[:, number] for number in used)
    members = np.ravel_multi_index(columns, tuple(extent.size for extent in grid), order="F")
    detours = any(topology.dimensions[number].detour > 1 for number in used)
    placement = Placement(grid, topology.startup_s, tuple(members.tolist()), topology.library, detours=detours)
    return _kept(placement, topology, topology.ranks_at(coordinates.T))


def _in_grid_order(topology: Topology, orders: Sequence[Ints]) -> tuple[int, ...]:
    """Return the ranks of a grid by its coordinates along each dimension, the innermost fastest."""
    return topology.ranks_at(axis.ravel() for axis in np.meshgrid(*orders[::-1], indexing="ij")[::-1])
