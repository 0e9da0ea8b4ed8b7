"""The links of a topology, and the routes of messages over them.

A link is one *port* of one rank: link ``port * R + rank``, so that whatever maps ranks to ranks maps links to links. A
bundle of links between switches is a port of the first rank below it. Routes cross dimension 0 first; along a dimension
they follow the closed form of its kind, or are searched for (`routing`). Knows nothing of time, groups or collectives.

Symbols: R ranks; P ports a rank; L = P R links; M messages; H links of all their routes; n ranks along a dimension.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np

from scaleout.cluster.topology.dimension import Dimension, edges_of, ports_of
from scaleout.cluster.topology.faults import LinkChange, name_link
from scaleout.cluster.topology.kinds.kind import Ends, Floats, Ints, LineRoutes, Port
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import BYTES_PER_S
from scaleout.errors import ConfigError
from scaleout.network.routes.crossing import Crossing, Part, route_table
from scaleout.network.routes.routing import check_crossed, router

__all__ = ["Floats", "Ints", "Links", "Port", "Routes", "links_of"]


class Routes(NamedTuple):
    """Links of M messages, H pairs of a message and a link; in no order that counts."""

    messages: Ints  # (H,)
    links: Ints  # (H,)
    shares: Floats  # (H,) part of the message that takes the link: 1, or 1/2, 1/4, ... where it splits at half way
    latency_s: Floats  # (M,) from the first rank to the last, over all hops


@dataclass(frozen=True)
class Links:
    """All links of a topology; link ``port * R + rank`` is one of the P `ports` of a rank."""

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
            if not dimension.structure.even:
                edges = edges_of(dimension)
                of_line = np.zeros((len(ports_of(dimension)), dimension.size))
                shared = edges.chosen(np.repeat(np.arange(len(edges.spans)), edges.spans))
                within = np.arange(len(shared.spans)) - np.repeat(np.cumsum(edges.spans) - edges.spans, edges.spans)
                of_line[shared.ports, shared.coordinates + within] = shared.bytes_per_s
                first = self._first(number)
                found[first : first + len(of_line)] = of_line[:, ranks // weight % dimension.size]
        for change in self.topology.changes:
            weight = _weights(self.topology)[change.dimension]
            edges = edges_of(self.topology.dimensions[change.dimension])
            for edge in edges.between(*change.ends).tolist():
                coordinates = edges.coordinates[edge] + np.arange(edges.spans[edge])
                found[self._first(change.dimension) + edges.ports[edge], change.line + coordinates * weight] *= (
                    change.factor
                )
        return found

    def speeds_of(self, number: int, lines: Ints) -> Floats:
        """(E, N) what the edges of a dimension carry each way, on the lines with these lowest ranks."""
        edges, weight = edges_of(self.topology.dimensions[number]), _weights(self.topology)[number]
        ports = self._first(number) + edges.ports
        return np.asarray(self.speeds[ports[:, None], lines + edges.coordinates[:, None] * weight], np.float64)

    def _first(self, number: int) -> int:
        """Return the first port of a dimension."""
        return sum(port.dimension < number for port in self.ports)

    def name(self, link: int) -> str:
        """Name a link as options take it (`faults.find_link`), its ends in the order in which messages pass them.

        >>> from scaleout.cluster.topology.topology import Dimension, Topology
        >>> links = links_of(Topology("t", (Dimension("ring", 4, 1e9, 0.0), Dimension("switch", 2, 1e9, 0.0))))
        >>> links.name(3), links.name(8), links.name(21)
        ('3-0', '0-3', '1:5-switch')
        """
        number, rank = divmod(link, self.topology.num_ranks)
        port = self.ports[number]
        if port.role == "injection":
            return f"injection of rank {rank}"
        dimension, weight = self.topology.dimensions[port.dimension], _weights(self.topology)[port.dimension]
        coordinate = rank // weight % dimension.size
        edges = edges_of(dimension)
        of_port = edges.ports == number - self._first(port.dimension)
        edge = int(np.flatnonzero(of_port & (edges.coordinates == coordinate))[0])
        ends = int(edges.tails[edge]), int(edges.heads[edge])
        return name_link(self.topology.dimensions, LinkChange(port.dimension, rank - coordinate * weight, ends, 1.0))

    def spread(self, port: Port) -> tuple[int, int]:
        """Return how far apart the ranks below a port are, and how many there are along its dimension."""
        if port.role == "injection":
            return 1, 1
        return _weights(self.topology)[port.dimension], port.span

    def having(self, number: int) -> Ints:
        """Return the ranks that have a port: one of all below a bundle, and no end of a mesh."""
        port, count = self.ports[number], self.topology.num_ranks
        weight = self.spread(port)[0]
        ranks: Ints = np.arange(count)
        having = (ranks // weight % port.span == 0) & (self.bytes_per_s(number * count + ranks) > 0)
        if port.absent_at:
            having &= ~np.isin(ranks // weight % self.topology.shape[port.dimension], port.absent_at)
        return np.asarray(ranks[having], np.int64)

    def left_of(self, number: int) -> Floats:
        """(R,) what is left of a port's bandwidth at each rank: 0 where the link is broken, 1 where it is as built."""
        every = np.arange(self.topology.num_ranks)
        built = self.ports[number].bytes_per_s
        left = self.bytes_per_s(number * self.topology.num_ranks + every) / built
        absent = self.ports[number].absent_at
        if absent:
            weight = self.spread(self.ports[number])[0]
            left[np.isin(every // weight % self.topology.shape[self.ports[number].dimension], absent)] = 1
        return np.asarray(left, np.float64)

    def kind_of(self, port: Port) -> str:
        """Return the kind of dimension that a port is in, or that it is in none."""
        dimensions = self.topology.dimensions
        return dimensions[port.dimension].kind if port.dimension < len(dimensions) else "injection"

    def neighbours(self, port: Port, ranks: Ints) -> Ints:
        """Return the ranks at the other end of links between two ranks."""
        size, weight = self.topology.shape[port.dimension], self.spread(port)[0]
        coordinate = ranks // weight % size
        return np.asarray(ranks + ((coordinate + port.offset) % size - coordinate) * weight, np.int64)

    def routes(self, sources: Ints, destinations: Ints) -> Routes:
        """Return the routes of messages between ranks, (M,) each; a message to oneself takes no link."""
        crossing, latency_s = self.crossed(sources, destinations)
        return Routes(*crossing.pairs, latency_s)

    def crossed(self, sources: Ints, destinations: Ints) -> tuple[Crossing, Floats]:
        """Return the routes of messages, links not spelled out yet, and the (M,) latency of each."""
        for ends in (sources, destinations):
            if len(ends) and not 0 <= ends.min() <= ends.max() < self.topology.num_ranks:
                self.topology.coordinates([ends.min(), ends.max()])  # says which rank is not there
        rank = np.asarray(sources, np.int64).copy()
        latency_s = np.zeros(len(rank))
        parts: list[Part] = []
        first = 0
        for number, (dimension, weight) in enumerate(
            zip(self.topology.dimensions, _weights(self.topology), strict=True)
        ):
            at, to = (self._coordinates[number][ends] for ends in (sources, destinations))
            added, passed_s = self._crossing(number, rank - at * weight, (at, to))
            parts += [part._replace(first=part.first + first * self.topology.num_ranks) for part in added]
            latency_s += passed_s
            rank += (to - at) * weight
            first += len(ports_of(dimension))
        if len(self.ports) > first:
            leaving = np.flatnonzero(sources != destinations)
            parts.append(Part(leaving, first * self.topology.num_ranks + np.asarray(sources, np.int64)[leaving]))
        return Crossing(tuple(parts), len(rank)), latency_s

    @cached_property
    def _coordinates(self) -> Ints:
        """(D, R) coordinate of each rank along each dimension."""
        return np.ascontiguousarray(self.topology.coordinates(np.arange(self.topology.num_ranks)).T)

    def _crossing(self, number: int, lines: Ints, ends: Ends) -> tuple[list[Part], Floats]:
        """Links (from the first port of the dimension on) and latency of messages along it; from a table if small."""
        dimension, weight = self.topology.dimensions[number], _weights(self.topology)[number]
        num_ranks = self.topology.num_ranks
        latency_s, parts = np.zeros(len(lines)), list[Part]()
        moving = np.flatnonzero(ends[0] != ends[1])
        known = route_table(dimension, num_ranks=num_ranks, weight=weight)
        if known is not None:
            broken = self._broken(number)
            on_broken = np.isin(lines[moving], list(broken)) if broken else np.zeros(len(moving), bool)
            whole, moving = moving[~on_broken], moving[on_broken]
            pairs = ends[0][whole] * dimension.size + ends[1][whole]
            for rows, which in known.chosen(pairs):
                parts.append(Part(whole[which], lines[whole[which]], rows, known.row[pairs[which]]))
            latency_s[whole] = known.latency_s[pairs]
        if not len(moving):
            return parts, latency_s
        local, latency_s[moving] = self._routes_along(number, lines[moving], (ends[0][moving], ends[1][moving]))
        message = moving[local.message]
        links = local.port * num_ranks + lines[message] + local.coordinate * weight
        return [*parts, Part(message, links, share=local.share)], latency_s

    def _broken(self, number: int) -> dict[int, tuple[LinkChange, ...]]:
        """Lines of a dimension that have broken links, and all that is changed there."""
        return {
            line: changes
            for (changed, line), changes in self.topology.changes_of_line.items()
            if changed == number and not all(change.factor for change in changes)
        }

    def _routes_along(self, number: int, lines: Ints, ends: Ends) -> tuple[LineRoutes, Floats]:
        """Links and latency of messages along one dimension: in closed form, or over the edges of their lines."""
        broken = self._broken(number)
        parts = []
        latency_s = np.zeros(len(lines))
        on_broken = np.isin(lines, list(broken))
        for line, changes in [(-1, ()), *broken.items()]:
            chosen = np.flatnonzero(~on_broken if line < 0 else lines == line)
            local, latency_s[chosen] = self._routes_on(number, changes, (ends[0][chosen], ends[1][chosen]))
            if not np.isfinite(latency_s[chosen]).all():
                lost = chosen[np.argmax(np.isinf(latency_s[chosen]))]
                self._refuse(
                    number, changes, [int(lines[lost] + end[lost] * _weights(self.topology)[number]) for end in ends]
                )
            parts.append(LineRoutes(chosen[local.message], *local[1:]))
        return LineRoutes.joined(parts), latency_s

    def _routes_on(self, number: int, changes: tuple[LinkChange, ...], ends: Ends) -> tuple[LineRoutes, Floats]:
        dimension = self.topology.dimensions[number]
        broken = tuple(change.ends for change in changes if not change.factor)
        if dimension.structure.closed and len(broken) == 1 and dimension.size > 2:  # a line is left, behind the link
            n, first = dimension.size, max(broken[0]) if abs(broken[0][0] - broken[0][1]) == 1 else 0
            source, destination = ((coordinates - first) % n for coordinates in ends)
            local, latency_s = _routes_along(replace(dimension, kind="mesh"), (source, destination))
            return local._replace(coordinate=(local.coordinate + first) % n), latency_s
        return _routes_along(dimension, ends, None if not changes else broken)

    def _refuse(self, number: int, changes: tuple[LinkChange, ...], ends: list[int]) -> NoReturn:
        broken = [name_link(self.topology.dimensions, change) for change in changes if not change.factor]
        card = "give --nic-down RANK, whose card another of its node stands in for, " if number else ""
        raise ConfigError(
            f"no way is left from rank {ends[0]} to rank {ends[1]} along dimension {number} "
            f"({self.topology.dimensions[number].kind}) of topology {self.topology.name!r}: broken there "
            f"{'is link' if len(broken) == 1 else 'are links'} {', '.join(broken)}; keep the link, degrade it instead, "
            f"{card}or leave such ranks out of the job (messages do not detour through other dimensions)"
        )


def _routes_along(
    dimension: Dimension, ends: Ends, broken: tuple[tuple[int, int], ...] | None = None
) -> tuple[LineRoutes, Floats]:
    """Links and latency of messages along a line: in closed form, or searched for where links are changed."""
    if dimension.structure.neighbours:
        ahead = np.abs(ends[1] - ends[0])
        hops = np.minimum(ahead, dimension.size - ahead) if dimension.structure.closed else ahead
        check_crossed(dimension, int(hops.sum()))
    closed_form = dimension.structure.routes(dimension, ends) if broken is None else None
    if closed_form is not None:
        return closed_form[0], dimension.latency_of(closed_form[1])
    return router(dimension, broken or ()).ways(ends)


def links_of(topology: Topology, *, injection_bytes_per_s: float | None = None) -> Links:
    """Return the links of a topology, with a limit to what a rank sends over all its links if there is one.

    Raises
    ------
    ConfigError
        If the limit is not above zero.
    """
    ports = [
        replace(port, dimension=number)
        for number, dimension in enumerate(topology.dimensions)
        for port in ports_of(dimension)
    ]
    if injection_bytes_per_s is not None:
        if not BYTES_PER_S.smallest <= injection_bytes_per_s <= BYTES_PER_S.largest:
            raise ConfigError(
                f"a rank sends {injection_bytes_per_s} B/s at most; give a limit above zero, from "
                f"{BYTES_PER_S.smallest:g} to {BYTES_PER_S.largest:g} B/s"
            )
        ports.append(Port(len(topology.dimensions), "injection", injection_bytes_per_s))
    return Links(topology, tuple(ports))


def _weights(topology: Topology) -> list[int]:
    """Ranks from one place along a dimension to the next."""
    return [math.prod(topology.shape[:number]) for number in range(len(topology.shape))]
