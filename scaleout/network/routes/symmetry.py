"""Symmetry of a job on a topology: moves of all ranks that change nothing, so that one message is simulated for many.

Maps a topology and the groups of a job to rotations of *digits*: a rank is a number with mixed radices, and rotating a
digit adds one to it, modulo its radix, on all ranks at once. A rotation counts if it keeps links (the kind of dimension
says which digits may turn), groups, roles and messages. What rotations take to each other is an orbit; its
representative has zeros in the rotated digits. See docs/models/placement-and-folding.md.

Symbols: R ranks; n ranks along a dimension; m radix of a digit; s ranks from one value of the digit to the next.
"""

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.network.routes.links import Floats, Ints, Links, Routes, links_of


@dataclass(frozen=True)
class Digit:
    """A digit of a rank: its radix, and the weight of a one."""

    radix: int
    weight: int

    def of(self, ranks: Ints) -> Ints:
        """Return the digit of each rank."""
        return ranks // self.weight % self.radix


@dataclass(frozen=True)
class Symmetry:
    """The digits that may rotate; without any, every rank is an orbit of its own."""

    digits: tuple[Digit, ...] = ()

    @cached_property
    def order(self) -> int:
        """How many ranks, links or messages an orbit has at the most."""
        return math.prod(digit.radix for digit in self.digits)

    def representatives_of_links(self, links: Links, which: Ints) -> Ints:
        """Return the representative of each link's orbit."""
        ports, ranks = np.divmod(which, links.topology.num_ranks)
        return ports * links.topology.num_ranks + self.representatives(ranks)

    def alike(self, links: Links, link: int) -> int:
        """Return how many links are in the orbit of one."""
        return self.order // self.fixing(*links.spread(links.ports[link // links.topology.num_ranks]))

    def fixing(self, weight: int, span: int) -> int:
        """How many of the moves leave each bundle over `span` ranks, `weight` apart, where it is."""
        return math.prod(digit.radix for digit in self.digits if weight <= digit.weight < weight * span)

    def representatives(self, ranks: Ints) -> Ints:
        """Return the representative of each rank's orbit."""
        return self.seen_from(ranks, ranks)

    def keeping(self, ranks: Ints) -> "Symmetry":
        """Return the rotations that take a set of ranks to itself."""
        members = np.sort(ranks)
        kept = (digit for digit in self.digits if np.array_equal(np.sort(_turned(digit, members)), members))
        return Symmetry(tuple(kept))

    def seen_from(self, origins: Ints, ranks: Ints) -> Ints:
        """Return where ranks are moved by the rotations that take their origins to their representatives."""
        turned = ranks.copy()
        for digit in self.digits:
            coordinate = digit.of(ranks)
            turned += ((coordinate - digit.of(origins)) % digit.radix - coordinate) * digit.weight
        return turned


Pairs = tuple[Ints, Ints]


def symmetry(
    topology: Topology, families: Sequence[Ints], *, messages: Sequence[Pairs] = (), roles: Ints | None = None
) -> Symmetry:
    """Find the rotations that keep a job as it is.

    Parameters
    ----------
    families : sequence of (R,) arrays of int
        Process-group sets: each rank's group, or -1 for ranks outside, which must stay outside.
    messages : sequence of pairs of (M,) arrays of int
        Sets of messages, sources and destinations, each of which must stay the same set.
    roles : (R,) array of int, optional
        What each rank runs; a rank may only move to where another of its role was.
    """
    ranks = np.arange(topology.num_ranks)
    codes = [(pairs, np.sort(pairs[0] * topology.num_ranks + pairs[1])) for pairs in messages]

    speeds = links_of(topology).speeds if topology.changes else np.zeros((0, len(ranks)))

    def keeps(digit: Digit) -> bool:
        turned = _turned(digit, ranks)
        if (speeds[:, turned] != speeds).any():
            return False
        if roles is not None and (roles[turned] != roles).any():
            return False
        return all(_kept(column, turned) for column in families) and all(
            np.array_equal(np.sort(turned[sources] * len(ranks) + turned[destinations]), code)
            for (sources, destinations), code in codes
        )

    weight = 1
    digits: list[Digit] = []
    for dimension in topology.dimensions:
        s = 1
        while s < dimension.size:
            room = _room(dimension, s)
            radices = dimension.structure.turns(dimension, s, room)
            found = next(filter(keeps, (Digit(m, weight * s) for m in radices)), None)
            if found is not None:
                digits.append(found)
                s *= found.radix
            else:
                s *= min(d for d in range(2, room + 1) if room % d == 0)
        weight *= dimension.size
    return Symmetry(tuple(digits))


def group_of_rank(groups: Sequence[Sequence[int]], num_ranks: int) -> Ints:
    """(R,) number of each rank's group among groups that are disjoint, or -1 for ranks outside."""
    family: Ints = np.full(num_ranks, -1, np.int64)
    for number, group in enumerate(groups):
        family[list(group)] = number
    return family


def links_of_orbits(links: Links, symmetry: Symmetry, routes: Routes) -> tuple[Ints, Floats]:
    """Orbit representatives of the links of routes, and the load of all messages of an orbit on one of them."""
    if not symmetry.digits:
        return routes.links, routes.shares
    ports, ranks = np.divmod(routes.links, links.topology.num_ranks)
    fixing = np.array([symmetry.fixing(*links.spread(port)) for port in links.ports], np.float64)
    representatives = ports * links.topology.num_ranks + symmetry.representatives(ranks)
    return representatives, routes.shares * fixing[ports]


def _room(dimension: Dimension, s: int) -> int:
    """Largest radix that a digit of weight `s` may have: up to the end of the dimension, or of its level."""
    ends = list(itertools.accumulate(dimension.radices or (dimension.size,), operator.mul))
    return int(next(end for end in ends if end > s) // s)


def _turned(digit: Digit, ranks: Ints) -> Ints:
    coordinate = digit.of(ranks)
    return ranks + ((coordinate + 1) % digit.radix - coordinate) * digit.weight


def _kept(column: Ints, turned: Ints) -> bool:
    """Whether a move of the ranks takes groups to groups: all members of one to members of one."""
    image = column[turned]
    if ((column < 0) != (image < 0)).any():
        return False
    target = np.zeros(int(column.max(initial=-1)) + 2, np.int64)
    target[column] = image
    return bool((target[column] == image).all())
