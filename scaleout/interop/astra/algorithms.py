"""Collective algorithms of ASTRA-sim: a name as system.json has it, a kind and a size, to who sends what to whom.

An exchange sends one message for every message received. A rank begins with `window` permits, each ready an endpoint
delay after its start. A permit sends the next message of the list and posts the receive of the message that the
counterpart sends in the same round. A received message becomes a permit after an endpoint delay, and its reduction if
it has one. The rank is done when all messages are sent and `window` permits are back. Knows neither time nor networks.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scaleout.config.reading import nearest
from scaleout.errors import ConfigError

NOBODY = -1
"""In place of the parent of a tree's root."""


class Manner(NamedTuple):
    """How an exchange is to go, besides what it is."""

    window: int | None = None  # messages that a rank sends at a time; all of them for None
    direction: int = 1  # to whom first: 1 for the next member, -1 for the one before
    in_group: bool = False


@dataclass(frozen=True, eq=False)
class Exchange:
    """What every rank of n does, in rounds counted from 0."""

    num_ranks: int
    # in round i a rank sends to its relative peer ``offsets[i % len]``, so far on (modulo n) or, with `xor`, the one
    # whose position differs in these bits; and receives from the member whose peer it is
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]  # bytes sent in round i are ``sizes[i % len]``
    num_sends: int  # rounds
    window: int = 1  # messages that a rank sends before it needs to receive
    reduced: tuple[int, ...] = ()  # bytes to reduce after the first, second, ... receipt; none after the last of them
    # rounds from this one on wait until so many messages have arrived (the second wave of a direct all-reduce)
    gate: int = 0
    xor: bool = False

    def offset(self, index: int) -> int:
        """Relative peer (or bits) that a rank sends to in a round."""
        return self.offsets[index % len(self.offsets)]

    def size_bytes(self, index: int) -> int:
        """Bytes that a rank sends in a round."""
        return self.sizes[index % len(self.sizes)]

    def target(self, position: int, offset: int) -> int:
        """Position of the member that `position` sends to."""
        return position ^ offset if self.xor else (position + offset) % self.num_ranks

    def source(self, position: int, offset: int) -> int:
        """Position of the member that sends to `position`."""
        return position ^ offset if self.xor else (position - offset) % self.num_ranks


@dataclass(frozen=True, eq=False)
class Tree:
    """Who sends to whom."""

    num_ranks: int
    size_bytes: int  # bytes of every message
    parents: tuple[int, ...]  # (n,) position of each member's parent; `NOBODY` for the root
    # (n,) positions of each member's children, in the order in which it sends to them
    children: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the messages, once."""
        return (self.size_bytes,)


def ring(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Every round passes a chunk to the next member: of an all-gather the whole input, of other kinds the n-th part.

    All-reduce takes 2 (n - 1) rounds, reduce-scatter and all-gather n - 1, all-to-all n (n - 1) / 2; the first n - 1
    chunks of a reducing collective are reduced.
    """
    chunk = size_bytes if kind == "all-gather" else size_bytes // num_ranks
    rounds = {"all-reduce": 2 * (num_ranks - 1), "all-to-all": num_ranks * (num_ranks - 1) // 2}.get(
        kind, num_ranks - 1
    )
    reduced = (chunk,) * (num_ranks - 1) if kind in ("all-reduce", "reduce-scatter") else ()
    return Exchange(num_ranks, (manner.direction,), (chunk,), rounds, reduced=reduced)


def direct(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Every member sends to all others, at growing distance, `window` messages at a time.

    An all-reduce does so twice; its second wave begins when all messages of the first have arrived, and uses every
    permit since then at once. An all-gather sends the whole of its input, other kinds the n-th part.
    """
    chunk = size_bytes if kind == "all-gather" else size_bytes // num_ranks
    others = num_ranks - 1
    permits = others if manner.window is None else min(manner.window, others)
    return Exchange(
        num_ranks,
        tuple(manner.direction * distance for distance in range(1, num_ranks)),
        (chunk,),
        2 * others if kind == "all-reduce" else others,
        window=permits,
        reduced=_reduced(kind, others, permits, chunk, in_group=manner.in_group),
        gate=others if kind == "all-reduce" else 0,
    )


def _reduced(kind: str, others: int, permits: int, chunk: int, *, in_group: bool) -> tuple[int, ...]:
    # Receipts alternate: a block of `permits` that may be reduced, then `permits` that are not. A reduce-scatter
    # reduces all blocks, an all-reduce every other: with a window as wide as the group, its first wave.
    # In a communicator group blocks are `others` times as long, and from a window of 2 on the second wave is reduced.
    if kind not in ("all-reduce", "reduce-scatter"):
        return ()
    period, receipts = (2, 2 * others) if kind == "all-reduce" else (1, others)
    block = permits * others if in_group else permits
    numbered = [divmod(receipt, block + permits) for receipt in range(receipts)]
    return tuple(chunk if number % period == 0 and within < block else 0 for number, within in numbered)


def halving_doubling(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Partners at distance 1, 2, 4, ... exchange halves, then the same way back.

    A reduction costs what the next, halved message takes, so that the last round reduces nothing. Halves are whole
    bytes, and an all-reduce doubles on the way back what is left of one half more: an odd last half loses a byte.
    Members must be a power of two.
    """
    levels = num_ranks.bit_length() - 1
    distances = tuple(1 << level for level in range(levels))
    if kind == "all-gather":
        sizes = tuple(size_bytes << level for level in range(levels))
        return Exchange(num_ranks, distances[::-1], sizes, levels, xor=True)
    halves = tuple(size_bytes >> (level + 1) for level in range(levels))
    if kind == "reduce-scatter":
        return Exchange(num_ranks, distances, halves, levels, reduced=halves[1:], xor=True)
    back = tuple((size_bytes >> (levels + 1) << 1) << level for level in range(levels))
    return Exchange(num_ranks, distances + distances[::-1], halves + back, 2 * levels, reduced=halves[1:], xor=True)


def double_binary_tree(num_ranks: int, size_bytes: int, tree: int) -> Tree:
    """Build tree 0 or 1: the whole buffer climbs to the root and comes back, whatever the kind of collective.

    All members but the root, numbered in order, are a perfect tree, and the root lies above it: the last member in
    tree 0, the first in tree 1. A member with children reduces what it receives, also from its parent. Members must be
    a power of two.
    """
    root, first = (num_ranks - 1, 0) if tree == 0 else (0, 1)
    parents = [NOBODY] * num_ranks
    children: list[tuple[int, ...]] = [()] * num_ranks
    # A subtree of 2 h - 1 members is rooted in its middle; halves of h / 2 lie on either side.
    middle = first + num_ranks // 2 - 1
    parents[middle] = root
    children[root] = (middle,)
    level, half = [middle], num_ranks // 4
    while half:
        for parent in level:
            children[parent] = (parent - half, parent + half)
            for child in children[parent]:
                parents[child] = parent
        level = [child for parent in level for child in children[parent]]
        half //= 2
    return Tree(num_ranks, size_bytes, tuple(parents), tuple(children))


Pattern = Exchange | Tree

TREE = "doubleBinaryTree"
ALGORITHMS: Mapping[str, Callable[[str, int, int, Manner], Exchange]] = {
    "ring": ring,
    "direct": direct,
    "halvingDoubling": halving_doubling,
}
"""Name of an exchange to what builds it from kind, members, bytes and manner."""

_NAMES = (*ALGORITHMS, TREE, "oneRing", "oneDirect", "oneHalvingDoubling")
_WINDOWED = re.compile(r"(direct|oneDirect)([0-9]{1,9})")


class Named(NamedTuple):
    """What a name in system.json selects."""

    algorithm: str  # one of `ALGORITHMS`, or `TREE`
    window: int | None = None  # see `Manner`
    flat: bool = False  # whether all dimensions are taken as one ("one...")


def named(text: str, *, where: str) -> Named:
    """Read a name such as ``direct8`` or ``oneRing``."""
    match = _WINDOWED.fullmatch(text)
    name, window = (match[1], int(match[2])) if match else (text, None)
    if name not in _NAMES or window == 0:
        raise ConfigError(f"{where}: unknown algorithm {text!r}; {nearest(text, _NAMES)}")
    flat = name.startswith("one")
    return Named(name[3].lower() + name[4:] if flat else name, window, flat)


def check(choice: Named, kind: str, num_ranks: int, *, where: str) -> None:
    """Refuse an algorithm on which ASTRA-sim would hang or crash for this kind and number of members."""
    if choice.algorithm in ("halvingDoubling", TREE) and num_ranks & (num_ranks - 1):
        raise ConfigError(
            f"{where}: {choice.algorithm} needs a power of two of ranks, but there are {num_ranks}; use ring or direct"
        )
    if choice.algorithm == "halvingDoubling" and kind == "all-to-all":
        raise ConfigError(f"{where}: {choice.algorithm} cannot do {kind}; use ring or direct")


def build(choice: Named, kind: str, num_ranks: int, *, size_bytes: int, tree: int = 0, manner: Manner) -> Pattern:
    """Build what the members do for one phase of a stream of `size_bytes`."""
    if choice.algorithm == TREE:
        return double_binary_tree(num_ranks, size_bytes, tree)
    return ALGORITHMS[choice.algorithm](kind, num_ranks, size_bytes, manner)
