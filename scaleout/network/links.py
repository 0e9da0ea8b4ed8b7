"""The links of a topology, and the routes of messages over them.

Maps a `Topology` to directed links and pairs of ranks to the links that a message between them takes. A link is one
*port* of one rank: link ``port * R + rank``, so that whatever maps ranks to ranks maps links to links. Knows nothing
of time, groups or collectives.

A route crosses the dimensions one after another, dimension 0 first, as `topology` says: the shorter way round a ring
(at half way half of the message each way, over both at one rate), out of the port of the sender and into that of the
receiver on a switch, which never blocks inside, over the link of the pair where all are connected, and up and down
the bundles of a fat tree, over which messages spread evenly. A bundle is a port of the first rank below it. Graphs,
dragonflies and lines with a broken link are routed over their edges instead, see `routing`.

Symbols: R ranks; P ports a rank; L = P R links; M messages; H links of all their routes; n ranks along a dimension.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from scaleout.dimension import UNEVEN
from scaleout.errors import ConfigError
from scaleout.faults import LinkChange, name_link
from scaleout.network.ports import PORTS, Port
from scaleout.network.routing import Local, router
from scaleout.topology import Dimension, Topology
from scaleout.wiring import Floats, Ints, edges_of, switches_of

Flags = npt.NDArray[np.bool_]

__all__ = ["Floats", "Ints", "Links", "Port", "Routes", "links_of"]


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
        if not self.topology.even:
            return np.asarray(self.speeds.ravel()[links], np.float64)
        speeds = np.array([port.bytes_per_s for port in self.ports])
        return np.asarray(speeds[links // self.topology.num_ranks], np.float64)

    @cached_property
    def speeds(self) -> Floats:
        """(P, R) what every link carries each way; 0 if it is broken, or not there."""
        found = np.repeat([[port.bytes_per_s] for port in self.ports], self.topology.num_ranks, axis=1)
        ranks = np.arange(self.topology.num_ranks)
        for number, (dimension, weight) in enumerate(
            zip(self.topology.dimensions, _weights(self.topology), strict=True)
        ):
            if dimension.fabric is not None:
                edges = edges_of(dimension)
                of_line = np.zeros((len(PORTS["graph"](dimension)), dimension.size))
                of_line[edges.ports, edges.places] = edges.bytes_per_s
                first = self._first(number)
                found[first : first + len(of_line)] = of_line[:, ranks // weight % dimension.size]
        for change in self.topology.changes:
            weight = _weights(self.topology)[change.dimension]
            edges = edges_of(self.topology.dimensions[change.dimension])
            for edge in edges.between(*change.ends).tolist():
                places = edges.places[edge] + np.arange(edges.spans[edge])
                found[self._first(change.dimension) + edges.ports[edge], change.line + places * weight] *= change.factor
        return found

    def speeds_of(self, number: int, lines: Ints) -> Floats:
        """(E, N) what the edges of a dimension carry each way, on the lines with these lowest ranks."""
        edges, weight = edges_of(self.topology.dimensions[number]), _weights(self.topology)[number]
        ports = self._first(number) + edges.ports
        return np.asarray(self.speeds[ports[:, None], lines + edges.places[:, None] * weight], np.float64)

    def _first(self, number: int) -> int:
        """Return the first port of a dimension."""
        return sum(port.dimension < number for port in self.ports)

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
        if port.span > 1 and port.role != "edge":
            return f"{kind} {port.dimension}: bundle over {port.span} places from rank {rank}, {port.role}"
        if port.role == "edge":
            return f"{kind} {port.dimension}: {self._name_edge(number, rank)}"
        if port.role in ("up", "down"):
            return f"{kind} {port.dimension}: port of rank {rank}, {port.role}"
        return f"{kind} {port.dimension}: {rank} -> {self._neighbour(port, rank)}"

    def spread(self, port: Port) -> tuple[int, int]:
        """Return how far apart the ranks below a port are, and how many there are along its dimension."""
        if port.role == "injection":
            return 1, 1
        return _weights(self.topology)[port.dimension], port.span

    def _name_edge(self, number: int, rank: int) -> str:
        port = self.ports[number].dimension
        dimension, weight = self.topology.dimensions[port], _weights(self.topology)[port]
        place = rank // weight % dimension.size
        edges = edges_of(dimension)
        (edge, *_) = np.flatnonzero((edges.ports == number - self._first(port)) & (edges.places == place)).tolist()
        line = rank - place * weight
        names = [*(str(line + at * weight) for at in range(dimension.size)), *switches_of(dimension)]
        on = f" on the line of rank {line}" if dimension.size < self.topology.num_ranks else ""
        return f"{names[edges.tails[edge]]} -> {names[edges.heads[edge]]}{on}"

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
            lines = rank[moving] - at[moving, number] * weight
            local, passed_s = self._ways(number, lines, (at[moving, number], to[moving, number]))
            message = moving[local.message]
            place = rank[message] + (local.place - at[message, number]) * weight
            parts.append(_Part(message, (first + local.port) * self.topology.num_ranks + place, local.share))
            latency_s[moving] += passed_s
            rank += (to[:, number] - at[:, number]) * weight
            first += len(PORTS[dimension.kind](dimension))
        if len(self.ports) > first:
            leaving = np.flatnonzero(sources != destinations)
            links = first * self.topology.num_ranks + np.asarray(sources, np.int64)[leaving]
            parts.append(_Part(leaving, links, np.ones(len(leaving))))
        message, links, shares = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(message, kind="stable")
        offsets = np.concatenate(([0], np.cumsum(np.bincount(message, minlength=len(rank)))))
        return Routes(offsets.astype(np.int64), links[order], shares[order], latency_s)

    def _ways(self, number: int, lines: Ints, ends: "_Ends") -> tuple[Local, Floats]:
        """Links and latency of messages along one dimension: in closed form, or over the edges of their lines."""
        dimension = self.topology.dimensions[number]
        broken = {
            line: changes
            for (changed, line), changes in self.topology.changes_of_line.items()
            if changed == number and not all(change.factor for change in changes)
        }
        if not broken and dimension.kind not in UNEVEN:
            local, hops = _WAYS[dimension.kind](dimension, ends)
            return local, dimension.latency_of(hops)
        parts = []
        latency_s = np.zeros(len(lines))
        on_broken = np.isin(lines, list(broken))
        for line, changes in [(-1, ()), *broken.items()]:
            chosen = np.flatnonzero(~on_broken if line < 0 else lines == line)
            local, latency_s[chosen] = self._ways_on(number, changes, (ends[0][chosen], ends[1][chosen]))
            if not np.isfinite(latency_s[chosen]).all():
                lost = chosen[np.argmax(np.isinf(latency_s[chosen]))]
                self._refuse(
                    number, changes, [int(lines[lost] + end[lost] * _weights(self.topology)[number]) for end in ends]
                )
            parts.append(Local(chosen[local.message], *local[1:]))
        return Local(*(np.concatenate(column) for column in zip(*parts, strict=True))), latency_s

    def _ways_on(self, number: int, changes: tuple[LinkChange, ...], ends: "_Ends") -> tuple[Local, Floats]:
        dimension = self.topology.dimensions[number]
        if not changes and dimension.kind not in UNEVEN:
            local, hops = _WAYS[dimension.kind](dimension, ends)
            return local, dimension.latency_of(hops)
        broken = tuple(change.ends for change in changes if not change.factor)
        return router(dimension, broken).ways(ends)

    def _refuse(self, number: int, changes: tuple[LinkChange, ...], ends: list[int]) -> NoReturn:
        broken = [name_link(self.topology.dimensions, change) for change in changes if not change.factor]
        raise ConfigError(
            f"no way is left from rank {ends[0]} to rank {ends[1]} along dimension {number} "
            f"({self.topology.dimensions[number].kind}) of topology {self.topology.name!r}: broken there "
            f"{'is link' if len(broken) == 1 else 'are links'} {', '.join(broken)}; keep the link, degrade it instead, "
            f"or leave such ranks out of the job (messages do not detour through other dimensions)"
        )


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
        for port in PORTS[dimension.kind](dimension)
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


_Ends = tuple[Ints, Ints]


def _weights(topology: Topology) -> list[int]:
    """Ranks from one place along a dimension to the next."""
    return [math.prod(topology.shape[:number]) for number in range(len(topology.shape))]


def _around(dimension: Dimension, ends: _Ends) -> tuple[Local, Ints]:
    """Links of a ring; two ranks have one link, so one way only."""
    n, (source, destination) = dimension.size, ends
    ahead = (destination - source) % n
    halved = (2 * ahead == n) & (n > 2)
    return _along(n, source, np.minimum(ahead, n - ahead), (2 * ahead <= n, (2 * ahead > n) | halved), halved)


def _on_line(dimension: Dimension, ends: _Ends) -> tuple[Local, Ints]:
    """Links of a mesh."""
    source, destination = ends
    up = destination > source
    return _along(dimension.size, source, np.abs(destination - source), (up, ~up), np.zeros(len(up), bool))


def _along(n: int, source: Ints, hops: Ints, ways: tuple[Flags, Flags], halved: Flags) -> tuple[Local, Ints]:
    """Links from place to place, to the next or to the previous; messages that go both ways are halved."""
    parts = []
    for port, (step, chosen) in enumerate(zip((1, -1), ways, strict=True)):
        taken = np.flatnonzero(chosen)
        message = np.repeat(taken, hops[taken])
        gone = np.arange(len(message)) - np.repeat(np.cumsum(hops[taken]) - hops[taken], hops[taken])
        place = (source[message] + step * gone) % n
        parts.append(Local(message, np.full(len(message), port), place, np.where(halved[message], 0.5, 1.0)))
    return Local(*(np.concatenate(column) for column in zip(*parts, strict=True))), hops


def _through(dimension: Dimension, ends: _Ends) -> tuple[Local, Ints]:
    """Ports of a switch: the sender's up, the receiver's down."""
    del dimension
    count = len(ends[0])
    ports = np.repeat([0, 1], count)
    return Local(np.tile(np.arange(count), 2), ports, np.concatenate(ends), np.ones(2 * count)), np.ones(count, int)


def _over_tree(dimension: Dimension, ends: _Ends) -> tuple[Local, Ints]:
    """Bundles up to the lowest level that joins both ends, and down from it."""
    source, destination = ends
    parts = []
    hops = np.full(len(source), -1)
    for level, (span, _) in enumerate(dimension.levels):
        message = np.flatnonzero(source // span != destination // span)
        hops[message] += 2
        for way, end in enumerate(ends):
            place = end[message] // span * span
            parts.append(Local(message, np.full(len(message), 2 * level + way), place, np.ones(len(message))))
    return Local(*(np.concatenate(column) for column in zip(*parts, strict=True))), hops


def _straight(dimension: Dimension, ends: _Ends) -> tuple[Local, Ints]:
    """The link of each pair."""
    source, destination = ends
    count = len(source)
    port = (destination - source) % dimension.size - 1
    return Local(np.arange(count), port, source, np.ones(count)), np.ones(count, int)


_WAYS: dict[str, Callable[[Dimension, _Ends], tuple[Local, Ints]]] = {
    "ring": _around,
    "mesh": _on_line,
    "switch": _through,
    "fully_connected": _straight,
    "fat_tree": _over_tree,
}
"""Kind of dimension, if even, to the links of messages along it, and to their hops."""
