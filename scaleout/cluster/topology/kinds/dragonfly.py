"""Dragonflies: groups of fully connected routers, joined by global links.

Link q of a group, counted over its routers, leads to the group ``1 + q mod (groups - 1)`` further on; every two groups
have as many links. Routes are minimal; over parallel global links that are equally near a message spreads evenly.
Detours over a third group (Valiant, UGAL) are not modelled. See docs/models/topologies.md.

Source: Kim, Dally, Scott and Abts, Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA 2008; Hastings et al.,
Comparing Global Link Arrangements for Dragonfly Networks, CLUSTER 2015 (the circulant one is ours).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scaleout.cluster.topology.kinds.kind import DimensionKind, Edge, Ints, Port, check_radices, up_and_down
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from scaleout.cluster.topology.dimension import Dimension

_MINIMAL_S = 1.0
"""Reluctance of a global link: no route over two of them is weighed against one over one."""


class Dragonfly(DimensionKind):
    """Groups of routers with global links between them."""

    name = "dragonfly"
    description = "a port into a router of a group; groups are joined by global links"
    takes = frozenset({"radices", "global_links", "level_latency_s", "level_bytes_per_s"})

    def check(self, dimension: "Dimension") -> None:
        super().check(dimension)
        check_radices(dimension, order="ranks, routers, groups", lower_bound=1)
        if len(dimension.radices) != 3:
            raise ConfigError(
                f"a dragonfly has radices {list(dimension.radices)}; give three: ranks a router, routers a group, "
                f"groups"
            )
        if len(dimension.level_bytes_per_s) not in (0, 2):
            raise ConfigError(
                "a dragonfly has one bandwidth or three: of a port, a link within a group and a global link"
            )
        _, routers, groups = dimension.radices
        if groups > 1 and global_links_of_a_pair(dimension) < 1:
            raise ConfigError(
                f"a dragonfly of {groups} groups with {routers} routers of {dimension.global_links} global links "
                f"cannot join every two groups; give it {math.ceil((groups - 1) / routers)} 'global_links' or more"
            )

    def latencies(self, latency_s: tuple[float, ...], radices: tuple[int, ...]) -> tuple[float, ...]:
        return ()  # not known: routes are of one to three routers

    def example(self, size: int) -> dict[str, Any]:
        ranks = max(d for d in range(1, size + 1) if size % d == 0 and d * d <= size)
        return {"radices": (ranks, 1, size // ranks), "global_links": max(0, size // ranks - 1)}

    def switches(self, dimension: "Dimension") -> tuple[str, ...]:
        _, routers, groups = dimension.radices
        return tuple(f"router-{group}-{router}" for group in range(groups) for router in range(routers))

    def edges(self, dimension: "Dimension") -> Iterator[Edge]:
        """Half the latency of a router is on each of its links; those between routers have their own besides."""
        ranks, routers, groups = dimension.radices
        router_s, local_s, global_s = dimension.level_latency_s or (dimension.latency_s, 0.0, 0.0)
        local, far = dimension.level_bytes_per_s or (dimension.bytes_per_s,) * 2
        n = dimension.size
        port = (dimension.bytes_per_s, router_s / 2)
        edges = [edge for i in range(n) for edge in up_and_down(i, n + i // ranks, level=0, at=(i, 1), rest=port)]

        def between(number: int, port: int, to: int, rest: tuple[float, ...]) -> Edge:
            return Edge(n + number, n + to, port, number * ranks, ranks, *rest)

        for group in range(groups):
            first = group * routers
            for router, k in itertools.product(range(routers), range(1, routers)):
                to = first + (router + k) % routers
                edges.append(between(first + router, 1 + k, to, (local, router_s + local_s)))
            for offset, parallel in itertools.product(range(1, groups), range(global_links_of_a_pair(dimension))):
                router, link = divmod(parallel * (groups - 1) + offset - 1, dimension.global_links)
                back = (parallel * (groups - 1) + groups - offset - 1) // dimension.global_links
                to = (group + offset) % groups * routers + back
                edges.append(between(first + router, 1 + routers + link, to, (far, router_s + global_s, _MINIMAL_S)))
        return iter(edges)

    def ports(self, dimension: "Dimension") -> list[Port]:
        """A port up and down for each rank, and for each router links within its group and to others."""
        ranks, routers, _ = dimension.radices
        local, far = dimension.level_bytes_per_s or (dimension.bytes_per_s,) * 2
        speeds = [local] * (routers - 1) + [far] * dimension.global_links
        own = [Port(0, role, dimension.bytes_per_s) for role in ("up", "down")]
        return own + [Port(0, "edge", speed, span=ranks) for speed in speeds]

    def turned(self, dimension: "Dimension", coordinates: Ints, stride: int | None) -> Ints:
        """Turn ranks of all routers, groups, and routers where no message leaves a group, until the first is 0."""
        weight, found = 1, coordinates.copy()
        within = math.prod(dimension.radices[:2])
        inside = coordinates[0] // within == coordinates[-1] // within
        for level, radix in enumerate(dimension.radices):
            first = int(coordinates[0]) // weight % radix
            free = inside or level != 1
            if stride is not None:  # siblings differ in the digit, or all of a window of them move to another window
                width = stride * len(coordinates)
                moves = weight * first % width == 0 and weight * radix % width == 0
                free &= stride % (weight * radix) == 0 or moves
            if free:
                digit = found // weight % radix
                found += ((digit - first) % radix - digit) * weight
            weight *= radix
        return found

    def turns(self, dimension: "Dimension", weight: int, largest: int) -> Sequence[int]:
        """Any ranks of a router, no routers of a group (each has other global links), all groups at once."""
        ranks, routers, _ = dimension.radices
        if weight >= ranks * routers:
            return (largest,)
        return [m for m in range(largest, 1, -1) if largest % m == 0] if weight < ranks else ()


def global_links_of_a_pair(dimension: "Dimension") -> int:
    """Return how many links join each two groups."""
    _, routers, groups = dimension.radices
    return routers * dimension.global_links // (groups - 1) if groups > 1 else 0
