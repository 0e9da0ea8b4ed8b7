"""The links of a topology, and the routes of messages over them.

Maps a `Topology` to directed links and pairs of ranks to the links that a message between them takes. A link is one
*port* of one rank: link ``port * R + rank``, so that whatever maps ranks to ranks maps links to links. Knows nothing
of time, groups or collectives.

A route crosses the dimensions one after another, dimension 0 first, as `topology` says: the shorter way round a ring
(at half way half of the message each way, over both at one rate), out of the port of the sender and into that of the
receiver on a switch, which never blocks inside, over the link of the pair where all are connected, and up and down
the bundles of a fat tree, over which messages spread evenly. A bundle is a port of the first rank below it.

Symbols: R ranks; P ports a rank; L = P R links; M messages; H links of all their routes; n ranks along a dimension.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.errors import ConfigError
from scaleout.topology import Dimension, Topology

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Port:
    """What a rank has of one dimension's links: the same on every rank.

    Attributes
    ----------
    dimension : int
        Its number; the number of dimensions for the rank's injection, which is in none.
    role : str
        ``"next"``, ``"previous"`` (rings and meshes), ``"up"``, ``"down"`` (switches and trees), ``"pair"`` or
        ``"injection"``.
    bytes_per_s : float
    offset : int
        How much further along the dimension the other end lies, for links between two ranks.
    span : int
        Ranks along the dimension that share it: more than one for the bundles of a fat tree.
    """

    dimension: int
    role: str
    bytes_per_s: float
    offset: int = 0
    span: int = 1


class Routes(NamedTuple):
    """Links of M messages in compressed rows: message m takes ``links[offsets[m]:offsets[m + 1]]``."""

    offsets: Ints
    """(M + 1,)"""
    links: Ints
    """(H,)"""
    shares: Floats
    """(H,) part of the message that takes the link: 1, or 1/2, 1/4, ... where it splits at half way."""
    latency_s: Floats
    """(M,) from the first rank to the last, over all hops."""


@dataclass(frozen=True)
class Links:
    """All links of a topology.

    Attributes
    ----------
    topology : Topology
    ports : tuple of Port
        P of them; link ``port * R + rank`` is the port of a rank.
    """

    topology: Topology
    ports: tuple[Port, ...]

    def __len__(self) -> int:
        return len(self.ports) * self.topology.num_ranks

    def bytes_per_s(self, links: Ints) -> Floats:
        """Return what links carry, one way, in the shape of `links`."""
        speeds = np.array([port.bytes_per_s for port in self.ports])
        return np.asarray(speeds[links // self.topology.num_ranks], np.float64)

    def name(self, link: int) -> str:
        """Name a link for the user.

        >>> from scaleout.topology import Dimension, Topology
        >>> links = links_of(Topology("t", (Dimension("ring", 4, 1e9, 0.0), Dimension("switch", 2, 1e9, 0.0))))
        >>> links.name(3), links.name(4), links.name(21)
        ('ring 0: 3 -> 0', 'ring 0: 0 -> 3', 'switch 1: port of rank 5, up')
        """
        number, rank = divmod(link, self.topology.num_ranks)
        port = self.ports[number]
        if port.role == "injection":
            return f"injection of rank {rank}"
        kind = self.topology.dimensions[port.dimension].kind
        if port.span > 1:
            return f"{kind} {port.dimension}: bundle over {port.span} places from rank {rank}, {port.role}"
        if port.role in ("up", "down"):
            return f"{kind} {port.dimension}: port of rank {rank}, {port.role}"
        return f"{kind} {port.dimension}: {rank} -> {self._neighbour(port, rank)}"

    def spread(self, port: Port) -> tuple[int, int]:
        """Return how far apart the ranks below a port are, and how many there are along its dimension."""
        if port.role == "injection":
            return 1, 1
        return _weights(self.topology)[port.dimension], port.span

    def _neighbour(self, port: Port, rank: int) -> int:
        size = self.topology.shape[port.dimension]
        weight = _weights(self.topology)[port.dimension]
        place = rank // weight % size
        return rank + ((place + port.offset) % size - place) * weight

    def routes(self, sources: Ints, destinations: Ints) -> Routes:
        """Return the routes of messages.

        Parameters
        ----------
        sources, destinations : (M,) arrays of int
            Ranks; a message to oneself takes no link.

        Returns
        -------
        Routes
        """
        at, to = (self.topology.coordinates(ranks) for ranks in (sources, destinations))
        rank = np.asarray(sources, np.int64).copy()
        latency_s = np.zeros(len(rank))
        parts: list[_Part] = []
        first = 0
        for number, (dimension, weight) in enumerate(
            zip(self.topology.dimensions, _weights(self.topology), strict=True)
        ):
            moving = np.flatnonzero(at[:, number] != to[:, number])
            ends = (at[moving, number], to[moving, number])
            local, hops = _WAYS[dimension.kind](dimension, ends)
            message = moving[local.message]
            place = rank[message] + (local.place - at[message, number]) * weight
            parts.append(_Part(message, (first + local.port) * self.topology.num_ranks + place, local.share))
            latency_s[moving] += hops * dimension.latency_s
            rank += (to[:, number] - at[:, number]) * weight
            first += len(_PORTS[dimension.kind](dimension))
        if len(self.ports) > first:
            leaving = np.flatnonzero(sources != destinations)
            links = first * self.topology.num_ranks + np.asarray(sources, np.int64)[leaving]
            parts.append(_Part(leaving, links, np.ones(len(leaving))))
        message, links, shares = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(message, kind="stable")
        offsets = np.concatenate(([0], np.cumsum(np.bincount(message, minlength=len(rank)))))
        return Routes(offsets.astype(np.int64), links[order], shares[order], latency_s)


def links_of(topology: Topology, *, injection_bytes_per_s: float | None = None) -> Links:
    """Return the links of a topology.

    Parameters
    ----------
    topology : Topology
    injection_bytes_per_s : float, optional
        What a rank can send over all its links together, if less than their sum.

    Raises
    ------
    ConfigError
        If the injection limit is not above zero.
    """
    ports = [
        replace(port, dimension=number)
        for number, dimension in enumerate(topology.dimensions)
        for port in _PORTS[dimension.kind](dimension)
    ]
    if injection_bytes_per_s is not None:
        if not injection_bytes_per_s > 0:
            raise ConfigError(f"a rank sends {injection_bytes_per_s} B/s at most; give a limit above zero")
        ports.append(Port(len(topology.dimensions), "injection", injection_bytes_per_s))
    return Links(topology, tuple(ports))


class _Part(NamedTuple):
    """Links of messages, one row each: which message, which link, what share of it."""

    message: Ints
    link: Ints
    share: Floats


class _Local(NamedTuple):
    """The same within lines of one dimension: a link is a port at a place along the line."""

    message: Ints
    port: Ints
    place: Ints
    share: Floats


_Ends = tuple[Ints, Ints]


def _weights(topology: Topology) -> list[int]:
    """Ranks from one place along a dimension to the next."""
    return [math.prod(topology.shape[:number]) for number in range(len(topology.shape))]


def _ring_ports(dimension: Dimension) -> list[Port]:
    ports = [Port(0, "next", dimension.bytes_per_s, 1), Port(0, "previous", dimension.bytes_per_s, -1)]
    return ports[: max(0, dimension.size - 1)]


def _mesh_ports(dimension: Dimension) -> list[Port]:
    """Two ports each; the last rank's next and the first one's previous are never used."""
    return [Port(0, "next", dimension.bytes_per_s, 1), Port(0, "previous", dimension.bytes_per_s, -1)]


def _switch_ports(dimension: Dimension) -> list[Port]:
    return [Port(0, role, dimension.bytes_per_s) for role in ("up", "down")] if dimension.size > 1 else []


def _pair_ports(dimension: Dimension) -> list[Port]:
    return [Port(0, "pair", dimension.bytes_per_s, offset) for offset in range(1, dimension.size)]


def _tree_ports(dimension: Dimension) -> list[Port]:
    return [
        Port(0, role, dimension.bytes_per_s * ports, span=span)
        for span, ports in dimension.levels
        for role in ("up", "down")
    ]


_PORTS: dict[str, Callable[[Dimension], list[Port]]] = {
    "ring": _ring_ports,
    "mesh": _mesh_ports,
    "switch": _switch_ports,
    "fully_connected": _pair_ports,
    "fat_tree": _tree_ports,
}
"""Kind of dimension to the ports of a rank in it."""


def _around(dimension: Dimension, ends: _Ends) -> tuple[_Local, Ints]:
    """Links of a ring; two ranks have one link, so one way only."""
    n, (source, destination) = dimension.size, ends
    ahead = (destination - source) % n
    halved = (2 * ahead == n) & (n > 2)
    return _along(n, source, np.minimum(ahead, n - ahead), (2 * ahead <= n, (2 * ahead > n) | halved), halved)


def _on_line(dimension: Dimension, ends: _Ends) -> tuple[_Local, Ints]:
    """Links of a mesh."""
    source, destination = ends
    up = destination > source
    return _along(dimension.size, source, np.abs(destination - source), (up, ~up), np.zeros(len(up), bool))


def _along(n: int, source: Ints, hops: Ints, ways: tuple[Flags, Flags], halved: Flags) -> tuple[_Local, Ints]:
    """Links from place to place, to the next or to the previous; messages that go both ways are halved."""
    parts = []
    for port, (step, chosen) in enumerate(zip((1, -1), ways, strict=True)):
        taken = np.flatnonzero(chosen)
        message = np.repeat(taken, hops[taken])
        gone = np.arange(len(message)) - np.repeat(np.cumsum(hops[taken]) - hops[taken], hops[taken])
        place = (source[message] + step * gone) % n
        parts.append(_Local(message, np.full(len(message), port), place, np.where(halved[message], 0.5, 1.0)))
    return _Local(*(np.concatenate(column) for column in zip(*parts, strict=True))), hops


def _through(dimension: Dimension, ends: _Ends) -> tuple[_Local, Ints]:
    """Ports of a switch: the sender's up, the receiver's down."""
    del dimension
    count = len(ends[0])
    ports = np.repeat([0, 1], count)
    return _Local(np.tile(np.arange(count), 2), ports, np.concatenate(ends), np.ones(2 * count)), np.ones(count, int)


def _over_tree(dimension: Dimension, ends: _Ends) -> tuple[_Local, Ints]:
    """Bundles up to the lowest level that joins both ends, and down from it."""
    source, destination = ends
    parts = []
    hops = np.full(len(source), -1)
    for level, (span, _) in enumerate(dimension.levels):
        message = np.flatnonzero(source // span != destination // span)
        hops[message] += 2
        for way, end in enumerate(ends):
            place = end[message] // span * span
            parts.append(_Local(message, np.full(len(message), 2 * level + way), place, np.ones(len(message))))
    return _Local(*(np.concatenate(column) for column in zip(*parts, strict=True))), hops


def _straight(dimension: Dimension, ends: _Ends) -> tuple[_Local, Ints]:
    """The link of each pair."""
    source, destination = ends
    count = len(source)
    port = (destination - source) % dimension.size - 1
    return _Local(np.arange(count), port, source, np.ones(count)), np.ones(count, int)


_WAYS: dict[str, Callable[[Dimension, _Ends], tuple[_Local, Ints]]] = {
    "ring": _around,
    "mesh": _on_line,
    "switch": _through,
    "fully_connected": _straight,
    "fat_tree": _over_tree,
}
"""Kind of dimension to the links of messages along it, and to their hops."""
