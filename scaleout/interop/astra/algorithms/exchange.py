"""Algorithms in which a rank sends a list of messages, one for every one it received: what they have in common.

A rank begins with `window` permits, each ready an endpoint delay after its start. A permit sends the next message of
the list and posts the receipt of the message that its counterpart sends at the same place of its list. A received
message becomes a permit after an endpoint delay, and its reduction if it has one. The rank is done when all messages
are sent and `window` permits are back. Ring, direct and halving-doubling are such lists; the class knows nothing of
networks, sizes of a whole collective, or time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Manner:
    """How an exchange is to go, besides what it is.

    Attributes
    ----------
    window : int or None
        Messages that a rank sends at a time; all of them for None.
    direction : int
        To whom first: 1 for the next member, -1 for the one before.
    in_group : bool
        Whether the members are a communicator group.
    """

    window: int | None = None
    direction: int = 1
    in_group: bool = False


@dataclass(frozen=True, eq=False)
class Exchange:
    """What every rank of n does; steps count from 0.

    Attributes
    ----------
    num_ranks : int
        Members n.
    offsets : tuple of int
        In step i a rank sends to the member at ``offsets[i % len]``: so far on (modulo n) or, where `xor` holds, the
        one whose position differs in these bits; and receives from the member that does so to it.
    sizes : tuple of int
        Bytes sent in step i are ``sizes[i % len]``.
    num_sends : int
        Steps.
    window : int
        Messages that a rank sends before it needs to receive.
    reduced : tuple of int
        Bytes to reduce after the first, second, ... receipt; none after the last of them.
    gate : int
        Steps from the `gate`-th on wait until so many messages have come (the second wave of a direct all-reduce);
        0 for none.
    xor : bool
        See `offsets`.
    """

    num_ranks: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    num_sends: int
    window: int = 1
    reduced: tuple[int, ...] = ()
    gate: int = 0
    xor: bool = False

    def offset(self, step: int) -> int:
        """Distance (or bits) to whom a rank sends in a step."""
        return self.offsets[step % len(self.offsets)]

    def size_bytes(self, step: int) -> int:
        """Bytes that a rank sends in a step."""
        return self.sizes[step % len(self.sizes)]

    def target(self, position: int, offset: int) -> int:
        """Position of the member that `position` sends to."""
        return position ^ offset if self.xor else (position + offset) % self.num_ranks

    def source(self, position: int, offset: int) -> int:
        """Position of the member that sends to `position`."""
        return position ^ offset if self.xor else (position - offset) % self.num_ranks


def ring(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Every step passes a chunk to the next member.

    All-reduce takes 2 (n - 1) steps, reduce-scatter and all-gather n - 1, all-to-all n (n - 1) / 2 of a chunk each;
    the first n - 1 chunks of a reducing collective are reduced.

    Build the exchange; an all-gather passes the whole of its input on, other kinds the n-th part.
    """
    chunk = size_bytes if kind == "all-gather" else size_bytes // num_ranks
    steps = {"all-reduce": 2 * (num_ranks - 1), "all-to-all": num_ranks * (num_ranks - 1) // 2}.get(kind, num_ranks - 1)
    reduced = (chunk,) * (num_ranks - 1) if kind in ("all-reduce", "reduce-scatter") else ()
    return Exchange(num_ranks, (manner.direction,), (chunk,), steps, reduced=reduced)


def direct(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Every member sends to all others, at growing distance, `window` messages at a time.

    An all-reduce does so twice; its second wave begins when all messages of the first have come, and every permit since
    then is spent at once.

    Build the exchange; an all-gather sends the whole of its input, other kinds the n-th part.
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
    """Bytes to reduce after each receipt.

    Receipts come in rounds: a block that may be reduced, of `permits` receipts, then `permits` that are not. A
    reduce-scatter reduces the blocks of all rounds, an all-reduce those of every other; with a window as wide as the
    group this is the first wave, as it should be. In a communicator group the blocks are `others` times as long, and
    an all-reduce with a window of two or more reduces its second wave too.
    """
    if kind not in ("all-reduce", "reduce-scatter"):
        return ()
    rounds, receipts = (2, 2 * others) if kind == "all-reduce" else (1, others)
    block = permits * others if in_group else permits
    numbered = [divmod(receipt, block + permits) for receipt in range(receipts)]
    return tuple(chunk if number % rounds == 0 and within < block else 0 for number, within in numbered)


def halving_doubling(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Partners at distance 1, 2, 4, ... exchange halves, then the same way back.

    A reduction costs what the next, halved message takes, so that the last step reduces nothing. Halves are whole
    bytes, and an all-reduce doubles on the way back what is left of one half more: an odd last half loses a byte.
    Members must be a power of two.

    Build the exchange of a reduce-scatter, an all-gather, or both after each other.
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
