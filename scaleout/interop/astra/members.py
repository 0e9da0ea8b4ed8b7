"""What a member of a phase does, message by message, and how long a phase takes without contention.

The members are the definition of the algorithms' timing, given who carries their messages. Where all start at once
`elapsed` has it in closed form, and otherwise `staggered` over arrays. Under the rendezvous protocol a receiver first
sends a request, for which the sender waits. Knows no queues, graphs or links.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from scaleout.interop.astra.algorithms import NOBODY, Exchange, Pattern, Tree
from scaleout.interop.astra.clock import Clock, Signals
from scaleout.interop.astra.network import RENDEZVOUS_BYTES

Deliver = Callable[[], None]
Carry = Callable[[int, int, int, Deliver], None]
"""Carries a message from position (or rank) to position, of so many bytes, and calls the last argument on arrival."""


class Shared(NamedTuple):
    """What members of a phase share; `reduction_ns` maps bytes to time."""

    clock: Clock
    carry: Carry
    endpoint_ns: int
    reduction_ns: Callable[[int], int]
    rendezvous: bool


class Member(ABC):
    """Messages of a member: those of the same mark are matched in order, and received once arrived and posted.

    Without `peers` the member represents all: what it sends arrives at itself, as if from its counterpart.
    """

    def __init__(self, shared: Shared, position: int, peers: "Sequence[Member]", done: Deliver) -> None:
        self.shared, self.position, self.peers, self.done = shared, position, peers, done
        self.requests = Signals(shared.clock)
        self._arrived: Counter[int] = Counter()
        self._posted: Counter[int] = Counter()

    @abstractmethod
    def start(self) -> None:
        """Start now."""

    @abstractmethod
    def receive(self, mark: int) -> None:
        """React to a message that has arrived and is posted."""

    def arrive(self, mark: int) -> None:
        """Take a message that has arrived."""
        self._arrived[mark] += 1
        if self._posted[mark] >= self._arrived[mark]:
            self.receive(mark)

    def post(self, mark: int) -> None:
        """Post a receive."""
        self._posted[mark] += 1
        if self._arrived[mark] >= self._posted[mark]:
            self.receive(mark)

    def send(self, other: int, size_bytes: int, mark: int) -> None:
        """Send a message, under the rendezvous protocol once it is requested."""
        deliver = partial(self._peer(other).arrive, mark)
        carry = partial(self.shared.carry, self.position, other, size_bytes, deliver)
        if self.shared.rendezvous:
            self.requests.wait(mark, carry)
        else:
            carry()

    def request(self, other: int, mark: int) -> None:
        """Send the request for a message if the protocol is rendezvous."""
        if self.shared.rendezvous:
            deliver = partial(self._peer(other).requests.signal, mark)
            self.shared.carry(self.position, other, RENDEZVOUS_BYTES, deliver)

    def after(self, work_ns: int, action: Deliver) -> None:
        """Act after an endpoint delay and some work."""
        clock = self.shared.clock
        clock.at(clock.now_ns + self.shared.endpoint_ns + work_ns, action)

    def _peer(self, position: int) -> "Member":
        return self.peers[position] if self.peers else self


class ExchangeMember(Member):
    """A member of an exchange; see `algorithms`. The mark of a message is its offset."""

    def __init__(
        self, pattern: Exchange, shared: Shared, position: int, peers: Sequence[Member], done: Deliver
    ) -> None:
        super().__init__(shared, position, peers, done)
        self.pattern = pattern
        self.permits = self.sent = self.received = 0

    def start(self) -> None:
        """Start now."""
        for _ in range(self.pattern.window):
            self.after(0, self._permit)

    def receive(self, mark: int) -> None:
        """Reduce what has arrived, which gives a permit."""
        reduced = self.pattern.reduced
        work_ns = self.shared.reduction_ns(reduced[self.received]) if self.received < len(reduced) else 0
        self.received += 1
        self.after(work_ns, self._permit)

    def _permit(self) -> None:
        self.permits += 1
        pattern = self.pattern
        turns = 1
        if pattern.gate and pattern.num_sends - self.sent <= pattern.gate:
            if self.received < pattern.gate:
                return
            turns = pattern.window
        for _ in range(turns):
            self._send_next()
        if self.sent == pattern.num_sends and self.permits == pattern.window:
            self.done()
        else:
            self._send_next()

    def _send_next(self) -> None:
        if self.sent == self.pattern.num_sends or not self.permits:
            return
        offset, size_bytes = self.pattern.offset(self.sent), self.pattern.size_bytes(self.sent)
        self.permits -= 1
        self.sent += 1
        self.request(self.pattern.source(self.position, offset), offset)
        self.send(self.pattern.target(self.position, offset), size_bytes, offset)
        self.post(offset)


class TreeMember(Member):
    """A member of a tree; see `algorithms.double_binary_tree`. The mark of a message is the child at an end."""

    def __init__(self, pattern: Tree, shared: Shared, position: int, peers: Sequence[Member], done: Deliver) -> None:
        super().__init__(shared, position, peers, done)
        self.parent, self.children = pattern.parents[position], pattern.children[position]
        self.size_bytes = pattern.size_bytes
        self.reduced = 0

    def start(self) -> None:
        """Start now."""
        if not self.children:
            self.after(0, self._climb)
        for child in self.children:
            self.request(child, child)
            self.post(child)

    def receive(self, mark: int) -> None:
        """Reduce what has arrived, where there are children, and pass it on."""
        work_ns = self.shared.reduction_ns(self.size_bytes) if self.children else 0
        self.after(work_ns, self._descend if mark == self.position else self._reduce)

    def _climb(self) -> None:
        """Send up, or turn round at the root."""
        if self.parent == NOBODY:
            self._descend()
            return
        self.send(self.parent, self.size_bytes, self.position)
        self.request(self.parent, self.position)
        self.post(self.position)

    def _descend(self) -> None:
        for child in self.children:
            self.send(child, self.size_bytes, child)
        self.done()

    def _reduce(self) -> None:
        self.reduced += 1
        if self.reduced == len(self.children):
            self._climb()


def members_of(pattern: Pattern, shared: Shared, ends: Iterable[Deliver], *, folded: bool = False) -> Sequence[Member]:
    """Make the members of a phase, given what each calls at its end; folded, the one member represents all."""
    members: list[Member] = []
    peers: Sequence[Member] = () if folded else members
    for position, end in enumerate(ends):
        if isinstance(pattern, Tree):
            members.append(TreeMember(pattern, shared, position, peers, end))
        else:
            members.append(ExchangeMember(pattern, shared, position, peers, end))
    return members


class MemberLayout(NamedTuple):
    """Where the members of a phase are: the time between any two, and the delays of a rank."""

    send_ns: Callable[[int, int, int], int]  # position, position and bytes to time
    # whether the time depends on the members' distance alone, be it forward or in the bits that differ
    is_regular: bool
    endpoint_ns: int
    reduction_ns: Callable[[int], int]  # bytes to time
    rendezvous: bool


def simulated(pattern: Pattern, layout: MemberLayout, starts: Sequence[int], *, folded: bool = False) -> list[int]:
    """Simulate members message by message and return when each ends; folded, one member represents all."""
    clock = Clock()
    ended = [0] * len(starts)

    def carry(source: int, target: int, size_bytes: int, deliver: Deliver) -> None:
        clock.at(clock.now_ns + layout.send_ns(source, target, size_bytes), deliver)

    def end(position: int) -> None:
        ended[position] = clock.now_ns

    shared = Shared(clock, carry, layout.endpoint_ns, layout.reduction_ns, layout.rendezvous)
    ends = [partial(end, position) for position in range(len(starts))]
    for member, start_ns in zip(members_of(pattern, shared, ends, folded=folded), starts, strict=True):
        clock.at(start_ns, member.start)
    clock.run()
    return ended


def elapsed(pattern: Pattern, layout: MemberLayout) -> int | None:
    """Time from a common start to the common end; None where members do not end together.

    A list of messages one after the other takes ``endpoint delay + sum (send + endpoint delay + reduction)``.
    """
    if isinstance(pattern, Tree) or not layout.is_regular:
        return None
    if pattern.window > 1:
        return simulated(pattern, layout, [0], folded=True)[0]
    period = max(len(pattern.offsets), len(pattern.sizes))
    sends_ns = sum(arrival_ns(pattern, layout, index) for index in range(period)) * (pattern.num_sends // period)
    return sends_ns + (pattern.num_sends + 1) * layout.endpoint_ns + sum(map(layout.reduction_ns, pattern.reduced))


def arrival_ns(pattern: Exchange, layout: MemberLayout, index: int) -> int:
    """Time from when all members send and receive until the messages of a round have arrived, in a regular layout."""
    offset = pattern.offset(index)
    request_ns = layout.send_ns(0, pattern.source(0, offset), RENDEZVOUS_BYTES) if layout.rendezvous else 0
    return request_ns + layout.send_ns(0, pattern.target(0, offset), pattern.size_bytes(index))
