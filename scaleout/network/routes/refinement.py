"""Members and links that are alike although no rotation maps them onto each other: colour refinement.

Maps the flows of a job, the members of groups at their ends and the links that they cross to an *equitable partition*:
every flow of a class crosses links of the same classes, by the same shares; every link of a class carries as much of
each class of flows; every member of a class sends and receives equally many flows of each class. Flows of a class that
start together then have the same max-min rate, so what one of them does, all do. A symmetry keeps such a partition too,
but this needs none: what a slow link, a slow rank or a placement does not reach stays together.

Symbols: R ranks; N members; L links; F flows; E ends of flows; H pairs of a flow and a link.
Source: Berkholz, Bonsma and Grohe, Theory of Computing Systems 60(4), 2017 (colour refinement).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.network.routes.links import Floats, Ints, Links
from scaleout.network.routes.symmetry import Symmetry

Colours = npt.NDArray[np.uint64]

Loads = tuple[Ints, Ints, Floats]
"""(H,) flows, links that they cross, and the load on the link for each byte of the flow."""


Ends = tuple[Ints, Ints, Ints]
"""(E,) flows, members at their ends, and which end each is: 0 or 1."""


class FlowsOfKind(NamedTuple):
    """Flows of one round of a collective, or of one kind of message; those of no links tie members together."""

    latency_s: Floats  # (F,) flows with different latencies are apart
    ends: Ends
    pairs: Loads


class Network(NamedTuple):
    """What a job sends: F flows over L links, between N members."""

    bytes_per_s: Floats  # (L,) links with different bandwidths are apart
    kinds: Ints  # (F,) flows with different numbers are apart
    ends: Ends
    pairs: Loads

    @classmethod
    def of(cls, bytes_per_s: Floats, flows: Sequence[FlowsOfKind]) -> "Network":
        """Join flows of different kinds, at least one."""
        begins = np.cumsum([0, *(len(each.latency_s) for each in flows)])
        kind = np.repeat(np.arange(len(flows)), np.diff(begins))
        latency_s = np.concatenate([np.zeros(0), *(each.latency_s for each in flows)])
        kinds = np.unique(np.stack((kind, latency_s)), axis=1, return_inverse=True)[1].reshape(-1)
        ends, pairs = (_joined(rows, begins) for rows in zip(*(each[1:] for each in flows), strict=True))
        return cls(bytes_per_s, kinds, ends, pairs)


def _joined(rows: Sequence[tuple[Any, Any, Any]], begins: Ints) -> tuple[Any, Any, Any]:
    """Join columns; the first ones number the flows of each kind from zero."""
    flow = np.concatenate([row[0] + begin for row, begin in zip(rows, begins.tolist(), strict=False)])
    return flow, np.concatenate([row[1] for row in rows]), np.concatenate([row[2] for row in rows])


@dataclass(frozen=True, eq=False)
class Partition:
    """The representative of each rank's class, (R,), as members of some groups, and of each link's, (L,)."""

    ranks: Ints
    links: Ints

    @classmethod
    def of(cls, ranks: Ints, links: Ints) -> "Partition":
        """Return the partition with these classes, represented by the lowest of each."""
        found = (np.unique(each, return_index=True, return_inverse=True)[1:] for each in (ranks, links))
        return cls(*(first[numbers] for first, numbers in found))

    @cached_property
    def _sizes(self) -> tuple[Ints, Ints]:
        """Ranks and links in the class of each representative."""
        ranks, links = (np.bincount(each, minlength=len(each)) for each in (self.ranks, self.links))
        return ranks, links

    def representatives(self, ranks: Ints) -> Ints:
        """Return the representative of each rank's class."""
        return self.ranks[ranks]

    def representatives_of_links(self, links: Links, which: Ints) -> Ints:
        """Return the representative of each link's class."""
        return self.links[which]

    def alike(self, links: Links, link: int) -> int:
        """Return how many links are in the class of a representative."""
        return int(self._sizes[1][link])

    def keeping(self, ranks: Ints) -> Symmetry:
        """Return the rotations that take a set of ranks to itself: none is known."""
        return Symmetry()

    def loads(self, pairs: Loads, copies: Ints) -> Loads:
        """Return the load of all copies of each flow, (F,), which are alike, on the links that stand for theirs."""
        flow, link, share = self._sums(pairs)
        return flow, link, share * copies[flow] / self._sizes[1][link]

    def distinct(self, kinds: Ints, ends: tuple[Ints, Ints], pairs: Loads) -> tuple[Ints, Ints, Loads]:
        """Return one of the flows of each class, of those that leave representatives; its copies; and their load.

        `kinds`, (F,): flows with different numbers are apart.
        """
        flow, link, share = self._sums(pairs)
        begins = np.searchsorted(flow, np.arange(len(kinds) + 1)).tolist()
        columns = zip(kinds.tolist(), ends[0].tolist(), self.ranks[ends[1]].tolist(), begins, begins[1:], strict=False)
        keys = ((*key, link[at:to].tobytes(), share[at:to].tobytes()) for *key, at, to in columns)
        number: dict[tuple[int | bytes, ...], int] = {}
        classes = np.fromiter((number.setdefault(key, len(number)) for key in keys), np.int64, len(kinds))
        _, chosen, times = np.unique(classes, return_index=True, return_counts=True)
        copies = times * self._sizes[0][ends[0][chosen]]
        kept = chosen[classes[flow]] == flow
        flow, link = classes[flow[kept]], link[kept]
        return chosen, copies, (flow, link, share[kept] * copies[flow] / self._sizes[1][link])

    def _sums(self, pairs: Loads) -> Loads:
        """Sum the shares of each flow over links of a class; sorted by flow and link."""
        flows, links, shares = pairs
        cells, cell = np.unique(flows * len(self.links) + self.links[links], return_inverse=True)
        flow, link = np.divmod(cells, len(self.links))
        return flow, link, np.bincount(cell.reshape(-1), shares, minlength=len(cells)).astype(np.float64)


def refine(network: Network, members: Ints, most: int) -> tuple[Ints, Ints, Ints] | None:
    """Number the classes of members, links and flows of the coarsest equitable partition.

    Members with different numbers, (N,), are apart. None if it takes more than so many rounds.
    """
    starts = (members, network.bytes_per_s, network.kinds)
    colours, links, flows = (_mixed(_numbered(each) + 1) for each in starts)
    flow, member, end = network.ends
    sender, link, share = network.pairs
    role = _mixed(end.astype(np.uint64) + np.uint64(1 << 32))
    weight = _mixed(share.view(np.uint64))
    count = 0
    for _ in range(most):
        flows += _sum(flow, colours[member] * role, len(flows)) + _sum(sender, links[link] * weight, len(flows))
        flows = _mixed(flows)
        colours = _mixed(colours + _sum(member, flows[flow] * role, len(colours)))
        links = _mixed(links + _sum(link, flows[sender] * weight, len(links)))
        before, count = count, sum(int(np.count_nonzero(np.diff(np.sort(each)))) for each in (colours, links, flows))
        if count == before:
            return _numbered(colours), _numbered(links), _numbered(flows)
    return None


def _mixed(numbers: npt.NDArray[np.unsignedinteger] | Ints) -> Colours:
    """Scatter numbers over 64 bits (the finaliser of SplitMix64)."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _sum(rows: Ints, colours: Colours, count: int) -> Colours:
    total = np.zeros(count, np.uint64)
    np.add.at(total, rows, colours)
    return total


def _numbered(values: npt.NDArray[np.generic]) -> Ints:
    return np.asarray(np.unique(values, return_inverse=True)[1].reshape(-1), np.int64)


def is_equitable(network: Network, classes: tuple[Ints, Ints, Ints]) -> bool:
    """Check classes of members, links and flows, which `refine` tells apart by 64-bit hashes, which may collide."""
    members, links, flows = classes
    flow, member, end = network.ends
    sender, link, share = network.pairs
    one = np.ones(len(flow))
    return (
        _is_even(sender, links[link], share, flows)
        and _is_even(link, flows[sender], share, links)
        and _is_even(flow, 2 * members[member] + end, one, flows)
        and _is_even(member, 2 * flows[flow] + end, one, members)
    )


def _is_even(row: Ints, column: Ints, weight: Floats, class_of_row: Ints) -> bool:
    """Whether the weights of each row of a class have the same sum over each class of columns."""
    width = int(column.max(initial=0)) + 1
    cells, cell = np.unique(row * width + column, return_inverse=True)
    total = np.bincount(cell.reshape(-1), weight, minlength=len(cells))
    row, column = np.divmod(cells, width)
    _, first, block, rows = np.unique(
        class_of_row[row] * width + column, return_index=True, return_inverse=True, return_counts=True
    )
    same = total == total[first][block.reshape(-1)]
    return bool(same.all() and (rows == np.bincount(class_of_row)[class_of_row[row][first]]).all())
