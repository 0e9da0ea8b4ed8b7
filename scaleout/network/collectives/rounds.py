"""Rounds: what a collective algorithm sends to whom, in a form that keeps its symmetry.

An algorithm maps a kind of collective and a `Placement` to a `Schedule` of `Round`s: a `Pattern` of messages that all
members send at once, and the size of each as a fraction of the collective's ``bytes``. A member is its index in the
grid of its placement, innermost dimension fastest. A member starts a round when it has all messages of its earlier
rounds; rounds of different *chains* do not wait for each other. `transfers` lists the messages of any round.

Symbols: p members; m members along a dimension; n bytes of the collective, see `collectives.algorithm`.
"""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.placement import Extent, Placement
from scaleout.cluster.topology.topology import Dimension
from scaleout.errors import ConfigError

Indices = npt.NDArray[np.int64]

MOST_MESSAGES = 2 * 10**7
"""Different messages of one group that are spelled out at the most: gigabytes of memory."""


class TooManyMessagesError(ConfigError):
    """An algorithm whose messages cannot be spelled out in a machine's memory."""


class Messages(NamedTuple):
    """Messages of a pattern, shape ``(M,)`` each: from member, to member, share of the round's fraction."""

    sources: Indices
    destinations: Indices
    weights: npt.NDArray[np.float64]


class Pattern(Protocol):
    """Who sends to whom within a grid."""

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out over a grid."""
        ...


@dataclass(frozen=True)
class Ring:
    """Each member sends to the next on a Hamiltonian ring, or half to the next and half to the previous.

    Over several dimensions the ring runs along the innermost and crosses to the next line after each time round; the
    message is split over as many rings as there are members to cross from, as NCCL's channels leave a node through all
    its network cards. On a line within a larger ring members are visited in the order 0, 2, 4, ..., 5, 3, 1.
    """

    both_ways: bool = False

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out over a grid."""
        return _ring_messages(extents, self.both_ways)


@dataclass(frozen=True)
class Everyone:
    """Each member sends to each other member."""

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out over a grid."""
        num_ranks = math.prod(extent.size for extent in extents)
        sources, destinations = (axis.ravel() for axis in np.indices((num_ranks, num_ranks)))
        others = sources != destinations
        return _messages(sources[others], destinations[others])


@dataclass(frozen=True)
class Shift:
    """Each member sends to the one ``offsets[d]`` further along each dimension d, the last one's next the first."""

    offsets: tuple[int, ...]

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out over a grid."""
        shape = tuple(extent.size for extent in extents)
        sources = np.arange(math.prod(shape))
        return _messages(sources, self.moved(sources, shape))

    def moved(self, indices: Indices, shape: tuple[int, ...]) -> Indices:
        """Return to whom some members send."""
        coordinates = np.unravel_index(indices, shape, order="F")
        moved = tuple((c + k) % m for c, k, m in zip(coordinates, self.offsets, shape, strict=True))
        return np.asarray(np.ravel_multi_index(moved, shape, order="F"), np.int64)


@dataclass(frozen=True)
class Exchange:
    """Members whose indices differ in one bit send to each other; the number of members is a power of two."""

    bit: int

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out over a grid."""
        sources = np.arange(math.prod(extent.size for extent in extents))
        return _messages(sources, sources ^ (1 << self.bit))


@dataclass(frozen=True)
class Edges:
    """Single messages, each from one member to another."""

    sources: tuple[int, ...]
    destinations: tuple[int, ...]

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out; the grid does not matter."""
        del extents
        return _messages(np.asarray(self.sources, np.int64), np.asarray(self.destinations, np.int64))

    @classmethod
    def from_root(cls, num_ranks: int) -> "Edges":
        """Return the messages from the first member to all others."""
        return cls((0,) * (num_ranks - 1), tuple(range(1, num_ranks)))

    def reversed(self) -> "Edges":
        """Return the messages that go back."""
        return Edges(self.destinations, self.sources)


@dataclass(frozen=True)
class FoldedExchange:
    """An exchange by bits among a power of two of members; the first ``extra`` of them stand for two members each.

    Of members 0 and 1, 2 and 3, ... up to ``2 extra`` the even one takes part, and so do all from there on.
    """

    bit: int
    extra: int

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out over a grid."""
        turns = np.arange(math.prod(extent.size for extent in extents) - self.extra)
        return _messages(self._member(turns), self._member(turns ^ (1 << self.bit)))

    def _member(self, turns: Indices) -> Indices:
        return np.asarray(np.where(turns < self.extra, 2 * turns, turns + self.extra), np.int64)


@dataclass(frozen=True)
class Fold:
    """Each odd member of the first ``2 extra`` sends to the even one before it, or gets it back."""

    extra: int
    back: bool = False

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell the pattern out; the grid does not matter."""
        del extents
        even = 2 * np.arange(self.extra)
        return _messages(even, even + 1) if self.back else _messages(even + 1, even)


@dataclass(frozen=True)
class Combined:
    """Messages of a pattern through switches that make one of those that meet."""

    pattern: Pattern
    # what a member sends is the same for all: a link carries it once, and switches copy it (multicast)
    copied: bool = False
    reduced: bool = False  # what a member receives is a sum: switches add it up on the way, and a link carries the sum

    def messages(self, extents: tuple[Extent, ...]) -> Messages:
        """Spell out who sends to whom, as if nothing were combined."""
        return self.pattern.messages(extents)


def uncombined(pattern: Pattern) -> Pattern:
    """Return who sends to whom, whatever switches make of it."""
    return pattern.pattern if isinstance(pattern, Combined) else pattern


@dataclass(frozen=True)
class Round:
    """Messages that are sent at once."""

    pattern: Pattern  # who sends to whom
    fraction: float  # bytes of one message, as a fraction of the collective's bytes
    repeat: int = 1  # how many times the round is done, one after another
    dimensions: tuple[int, ...] | None = None  # extents of the placement that the pattern runs over; by default all
    chain: int = 0  # rounds of one chain follow one another; all chains run at the same time


@dataclass(frozen=True)
class Schedule:
    """Rounds of a collective, in order."""

    rounds: tuple[Round, ...]
    pipelined: bool = False  # whether chunks of the buffer may follow one another through the rounds
    # Of a reduction, the bytes that a member adds to its own, as a fraction of the collective's. Without it every
    # contribution is added once, which is ``(p - 1) / p`` of the bytes for a member in the mean.
    added: float | None = None
    # Bytes that all members together send on purpose beyond the least that the collective needs, as a fraction of its
    # bytes: what members pass on for others, or send whole where shards would do.
    surplus: float = 0.0

    @property
    def chains(self) -> tuple[tuple[Round, ...], ...]:
        """The rounds of each chain: one chain after another, all of which run at the same time."""
        numbers = sorted({round_.chain for round_ in self.rounds})
        return tuple(tuple(round_ for round_ in self.rounds if round_.chain == number) for number in numbers)


def local_messages(round_: Round, placement: Placement) -> Messages:
    """List the messages of a round's pattern, between members of the dimensions that it runs over."""
    if not placement.regular:
        # Without a grid the members are in the order of their ranks, as if on a ring of their own.
        return round_.pattern.messages(_plain(placement.num_ranks))
    chosen = range(len(placement.extents)) if round_.dimensions is None else round_.dimensions
    return round_.pattern.messages(tuple(placement.extents[number] for number in chosen))


def transfers(round_: Round, placement: Placement) -> Messages:
    """List every message of a round of the group, once, with its bytes as a fraction of the collective's.

    Sources and destinations are indices in the grid order of `placement.arrange`; `repeat` is not unrolled.
    """
    local = local_messages(round_, placement)
    if not placement.regular:
        return local._replace(weights=local.weights * round_.fraction)
    chosen = round_.dimensions if round_.dimensions is not None else tuple(range(len(placement.extents)))
    within = _indices(placement.shape, chosen)
    rest = _indices(placement.shape, tuple(set(range(len(placement.shape))) - set(chosen)))
    sources = (rest[:, None] + within[local.sources]).ravel()
    destinations = (rest[:, None] + within[local.destinations]).ravel()
    return Messages(sources, destinations, np.tile(local.weights, len(rest)) * round_.fraction)


def num_messages(round_: Round, placement: Placement) -> int:
    """Return how many messages `transfers` lists, at the most, without listing them."""
    pattern, p = uncombined(round_.pattern), placement.num_ranks
    sizes = [p]
    if placement.regular:
        along = range(len(placement.shape)) if round_.dimensions is None else round_.dimensions
        sizes = [placement.shape[number] for number in along]
    if isinstance(pattern, Everyone):
        return p * math.prod(sizes)
    if isinstance(pattern, Ring):
        return p * math.prod(sizes[:-1]) * (2 if pattern.both_ways else 1)
    return len(pattern.sources) * p // math.prod(sizes) if isinstance(pattern, Edges) else p


def check_number(number: int, *, algorithm: str, kind: str, num_ranks: int, remedy: str) -> None:
    """Refuse an algorithm of more than `MOST_MESSAGES` messages (`TooManyMessagesError`)."""
    if number > MOST_MESSAGES:
        raise TooManyMessagesError(
            f"algorithm {algorithm!r} sends more than {MOST_MESSAGES:.0e} different messages in a group of "
            f"{num_ranks} ranks, too many to route one by one; choose another algorithm for {kind} (--algorithm), "
            f"a smaller group, or {remedy}"
        )


def among(round_: Round, placement: Placement, indices: Indices) -> Indices:
    """Return the (N, m) members that a round of everyone joins with each of some members, itself included."""
    shape = placement.shape if placement.regular else (placement.num_ranks,)
    whole = tuple(range(len(shape)))
    chosen = whole if round_.dimensions is None or not placement.regular else round_.dimensions
    coordinates = np.unravel_index(indices, shape, order="F")
    rest = [np.zeros_like(indices) if number in chosen else coordinates[number] for number in whole]
    first = np.ravel_multi_index(rest, shape, order="F")
    return np.asarray(first[:, None] + _indices(shape, chosen), np.int64)


def ring_order(extent: Extent) -> Indices:
    """Order in which a ring visits the members of an extent."""
    indices = np.arange(extent.size)
    if not extent.is_line:
        return indices
    return np.concatenate((indices[::2], indices[1::2][::-1]))


def _plain(num_ranks: int) -> tuple[Extent, ...]:
    return (Extent(Dimension("switch", num_ranks, 1.0, 0.0), num_ranks),)


def _messages(sources: Indices, destinations: Indices) -> Messages:
    return Messages(sources, destinations, np.ones(len(sources)))


def _indices(shape: tuple[int, ...], chosen: tuple[int, ...]) -> Indices:
    """Indices in the whole grid of the points of some of its dimensions, the first chosen fastest."""
    indices = np.zeros(1, dtype=np.int64)
    for number in chosen:
        along = np.arange(shape[number]) * math.prod(shape[:number])
        indices = (along[:, None] + indices).ravel()
    return indices


def _ring_messages(extents: tuple[Extent, ...], both_ways: bool) -> Messages:
    """All rings at once: ring ``r`` is ring 0 with each index moved by the offset ``r``, in all but the last extent."""
    shape = tuple(extent.size for extent in extents)
    orders = [ring_order(extent) for extent in extents]
    digits = np.stack(np.unravel_index(np.arange(math.prod(shape)), shape, order="F"))
    rings = list(itertools.product(*(range(size) for size in shape[:-1])))
    sources, destinations = [], []
    for offsets in rings:
        moved = [
            order[(digit + offset) % len(order)]
            for order, digit, offset in zip(orders, digits, (*offsets, 0), strict=True)
        ]
        indices = np.ravel_multi_index(tuple(moved), shape, order="F")
        sources.append(indices)
        destinations.append(np.roll(indices, -1))
    one_way = (np.concatenate(sources), np.concatenate(destinations))
    if both_ways:
        one_way = (np.concatenate(one_way), np.concatenate(one_way[::-1]))
    share = 1.0 / len(rings) / (2 if both_ways else 1)
    return Messages(*one_way, np.full(len(one_way[0]), share))
