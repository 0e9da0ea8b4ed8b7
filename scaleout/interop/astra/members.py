"""What a member of a phase does, message by message; who carries its messages is given.

This is the definition of the algorithms' timing, which `phase_time` has in closed form where nothing contends. Under
the rendezvous protocol a receiver first sends a request, for which the sender waits. Knows no network.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from scaleout.interop.astra.algorithms import NOBODY, Exchange, Tree
from scaleout.interop.astra.clock import Clock, Signals
from scaleout.interop.astra.network import RENDEZVOUS_BYTES

Deliver = Callable[[], None]
Carry = Callable[[int, int, int, Deliver], None]
"""Carries a message from position to position, of so many bytes, and calls the last argument on arrival."""


@dataclass(frozen=True, eq=False)
class Shared:
    """What members of a phase share.

    Attributes
    ----------
    reduction_ns : callable
        Bytes to time.
    """

    clock: Clock
    endpoint_ns: int
    reduction_ns: Callable[[int], int]
    carry: Carry
    rendezvous: bool


class _Inbox:
    """Messages that have arrived and receives that are posted, by source."""

    def __init__(self, receive: Callable[[], None]) -> None:
        self.receive = receive
        self.arrived: Counter[int] = Counter()
        self.posted: Counter[int] = Counter()

    def arrive(self, mark: int) -> None:
        self.arrived[mark] += 1
        if self.posted[mark] >= self.arrived[mark]:
            self.receive()

    def post(self, mark: int) -> None:
        self.posted[mark] += 1
        if self.arrived[mark] >= self.posted[mark]:
            self.receive()


class ExchangeMember:
    """A member of an exchange; see `algorithms.exchange`.

    With `peers` None the member represents all: what it sends arrives at itself, as if from its counterpart.
    """

    def __init__(
        self,
        pattern: Exchange,
        shared: Shared,
        position: int,
        peers: "list[ExchangeMember] | None",
        done: Deliver,
    ) -> None:
        self.pattern, self.shared, self.position, self.peers, self.done = pattern, shared, position, peers, done
        self.permits = self.sent = self.received = 0
        self.inbox = _Inbox(self._receive)
        self.outbox = Signals(shared.clock)

    def start(self) -> None:
        """Start now."""
        clock = self.shared.clock
        for _ in range(self.pattern.window):
            clock.at(clock.now_ns + self.shared.endpoint_ns, self._permit)

    def _permit(self) -> None:
        self.permits += 1
        pattern = self.pattern
        turns = 1
        if pattern.gate and pattern.num_sends - self.sent <= pattern.gate:
            if self.received < pattern.gate:
                return
            turns = pattern.window
        for _ in range(turns):
            self._send()
        if self.sent == pattern.num_sends and self.permits == pattern.window:
            self.done()
        else:
            self._send()

    def _send(self) -> None:
        if self.sent == self.pattern.num_sends or not self.permits:
            return
        offset, size_bytes = self.pattern.offset(self.sent), self.pattern.size_bytes(self.sent)
        self.permits -= 1
        self.sent += 1
        there = self.pattern.target(self.position, offset)
        target = self if self.peers is None else self.peers[there]

        def carry() -> None:
            self.shared.carry(self.position, there, size_bytes, lambda: target.inbox.arrive(offset))

        if self.shared.rendezvous:
            source = self.pattern.source(self.position, offset)
            requested = self if self.peers is None else self.peers[source]
            self.shared.carry(self.position, source, RENDEZVOUS_BYTES, lambda: requested.outbox.signal(offset))
            self.outbox.wait(offset, carry)
        else:
            carry()
        self.inbox.post(offset)

    def _receive(self) -> None:
        reduced = self.pattern.reduced
        work_ns = self.shared.reduction_ns(reduced[self.received]) if self.received < len(reduced) else 0
        self.received += 1
        clock = self.shared.clock
        clock.at(clock.now_ns + self.shared.endpoint_ns + work_ns, self._permit)


class TreeMember:
    """A member of a tree; see `algorithms.double_binary_tree`."""

    def __init__(self, pattern: Tree, shared: Shared, position: int, peers: "list[TreeMember]", done: Deliver) -> None:
        self.pattern, self.shared, self.position, self.peers, self.done = pattern, shared, position, peers, done
        self.parent, self.children = pattern.parents[position], pattern.children[position]
        self.reduced = 0
        self.inbox: dict[int, _Inbox] = {child: _Inbox(self._from_child) for child in self.children}
        if self.parent != NOBODY:
            self.inbox[self.parent] = _Inbox(self._from_parent)
        self.outbox = Signals(shared.clock)

    def start(self) -> None:
        """Start now."""
        if not self.children:
            self._after(0, self._climb)
        for child in self.children:
            self._post(child)

    def _climb(self) -> None:
        """Send up, or turn round at the root."""
        if self.parent == NOBODY:
            self._descend()
            return
        self._send(self.parent)
        self._post(self.parent)

    def _descend(self) -> None:
        for child in self.children:
            self._send(child)
        self.done()

    def _from_child(self) -> None:
        self._after(self.shared.reduction_ns(self.pattern.size_bytes), self._reduce)

    def _reduce(self) -> None:
        self.reduced += 1
        if self.reduced == len(self.children):
            self._climb()

    def _from_parent(self) -> None:
        self._after(self.shared.reduction_ns(self.pattern.size_bytes) if self.children else 0, self._descend)

    def _after(self, work_ns: int, action: Callable[[], None]) -> None:
        clock = self.shared.clock
        clock.at(clock.now_ns + self.shared.endpoint_ns + work_ns, action)

    def _send(self, other: int) -> None:
        def carry() -> None:
            deliver = self.peers[other].inbox[self.position].arrive
            self.shared.carry(self.position, other, self.pattern.size_bytes, lambda: deliver(0))

        if self.shared.rendezvous:
            self.outbox.wait(other, carry)
        else:
            carry()

    def _post(self, other: int) -> None:
        if self.shared.rendezvous:
            request = self.peers[other].outbox.signal
            self.shared.carry(self.position, other, RENDEZVOUS_BYTES, lambda: request(self.position))
        self.inbox[other].post(0)
