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
