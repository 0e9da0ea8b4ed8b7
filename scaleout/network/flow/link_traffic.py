"""What every link carried over a time: the busiest, a table of all, and sums by dimension and direction.

Maps the bytes on orbit representatives to all links of the topology.

Symbols: R ranks; L links.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from scaleout.network.routes.links import Floats, Ints, Links, Port
from scaleout.network.routes.refinement import Partition
from scaleout.network.routes.symmetry import Symmetry

BUSIEST = 5
"""Links that are named as the busiest."""


@dataclass(frozen=True)
class LinkUse:
    """What a link carries.

    Attributes
    ----------
    link : its name
    alike : links that carry as much for the same reason, this one included
    utilisation : part of its bandwidth that is used, over the whole time
    """

    link: str
    alike: int
    size_bytes: float
    utilisation: float


@dataclass(frozen=True, eq=False)
class LinkTraffic:
    """What all links carried over a time.

    Attributes
    ----------
    symmetry : what takes links to their orbit representatives
    sent_bytes : (L,) on orbit representatives
    carried_bytes : (L,) likewise, with what keeps links busy besides: flags of protocols, and rates below the links'
    """

    links: Links
    symmetry: Symmetry | Partition
    sent_bytes: Floats
    carried_bytes: Floats
    time_s: float

    @property
    def busiest(self) -> tuple[LinkUse, ...]:
        """The links of the highest utilisation, the busiest first; of links that are alike, one."""
        links, found = self.links, self.symmetry
        used = np.flatnonzero(self.carried_bytes)
        utilisation = self._utilisation(used, self.carried_bytes[used])
        chosen = np.argsort(-utilisation, kind="stable")[:BUSIEST]
        return tuple(
            LinkUse(
                links.name(int(used[index])),
                found.alike(links, int(used[index])),
                float(self.sent_bytes[used[index]]),
                float(utilisation[index]),
            )
            for index in chosen
        )

    def ports(self) -> Iterator[tuple[Port, Ints, Floats, Floats]]:
        """Yield every port with the ranks that have it, and the bytes and the utilisation of their links."""
        count = self.links.topology.num_ranks
        for number, port in enumerate(self.links.ports):
            ranks = self.links.having(number)
            links = number * count + ranks
            alike = self.symmetry.representatives_of_links(self.links, links)
            yield port, ranks, self.sent_bytes[alike], self._utilisation(links, self.carried_bytes[alike])

    def columns(self) -> dict[str, Any]:
        """Return a table of all links as columns: where each is, what it carried, and how busy it was."""
        parts: list[dict[str, Any]] = []
        for number, (port, ranks, size_bytes, utilisation) in enumerate(self.ports()):
            parts.append(
                {
                    "dimension": np.full(len(ranks), port.dimension),
                    "kind": np.full(len(ranks), self.links.kind_of(port)),
                    "role": np.full(len(ranks), port.role),
                    "rank": ranks,
                    "bytes": size_bytes,
                    "bytes_per_s": self.links.bytes_per_s(number * self.links.topology.num_ranks + ranks),
                    "utilisation": utilisation,
                }
            )
            # Links between two ranks have another end; switches are no ranks.
            parts[-1]["to_rank"] = self.links.neighbours(port, ranks) if port.offset else np.full(len(ranks), -1)
            parts[-1]["ranks_below"] = np.full(len(ranks), port.span)
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def by_port(self) -> list[dict[str, Any]]:
        """Return one row for each kind of link: its dimension and direction, what all carried, how busy they were."""
        return [
            {
                "dimension": port.dimension,
                "kind": self.links.kind_of(port),
                "role": port.role + (f" over {port.span}" if port.span > 1 else ""),
                "links": len(ranks),
                "total_bytes": float(size_bytes.sum()),
                "mean_utilisation": float(utilisation.mean()),
                "most_utilisation": float(utilisation.max()),
            }
            for port, ranks, size_bytes, utilisation in self.ports()
            if len(ranks)
        ]

    def _utilisation(self, links: Ints, size_bytes: Floats) -> Floats:
        return np.asarray(size_bytes / self.links.bytes_per_s(links) / (self.time_s or 1.0), np.float64)
