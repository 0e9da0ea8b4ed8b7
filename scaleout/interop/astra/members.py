"""What a member of a phase does, message by message: the algorithms as they react to events.

A member begins, sends, and reacts to arrivals; who carries its messages is given. This is the definition of the
algorithms' timing. `phase_time` has the same in closed form where nothing contends. Knows no network.

Under the rendezvous protocol a receiver that waits for a message first sends a request, and the sender waits for it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from scaleout.interop.astra.algorithms.double_binary_tree import NOBODY, Tree
from scaleout.interop.astra.algorithms.exchange import Exchange
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.network import RENDEZVOUS_BYTES

Deliver = Callable[[], None]
Carry = Callable[[int, int, int, Deliver], None]
"""Carries a message from position to position, of so many bytes, and calls the last argument when it is there."""


@dataclass(frozen=True, eq=False)
class Surroundings:
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
    """Messages that have come and those that are waited for, by where they come from."""

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


class _Outbox:
    """Messages that wait until their receiver asks for them, by where they go."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: Counter[int] = Counter()
        self.waiting: dict[int, list[Callable[[], None]]] = defaultdict(list)

    def ask(self, mark: int) -> None:
        if self.waiting[mark]:
            self.waiting[mark].pop(0)()
        else:
            self.asked[mark] += 1

    def send(self, mark: int, action: Callable[[], None]) -> None:
        if self.asked[mark]:
            self.asked[mark] -= 1
            self.clock.at(self.clock.now_ns, action)
        else:
            self.waiting[mark].append(action)


class ExchangeMember:
    """A member of an exchange; see `algorithms.exchange`.

    With `peers` None the member stands for all: every message it sends comes to itself, as if from its counterpart.
    """

    def __init__(
        self, steps: Exchange, around: Surroundings, position: int, peers: "list[ExchangeMember] | None", done: Deliver
    ) -> None:
        self.steps, self.around, self.position, self.peers, self.done = steps, around, position, peers, done
        self.permits = self.sent = self.received = 0
        self.inbox = _Inbox(self._receive)
        self.outbox = _Outbox(around.clock)

    def begin(self) -> None:
        """Start now."""
        clock = self.around.clock
        for _ in range(self.steps.window):
            clock.at(clock.now_ns + self.around.endpoint_ns, self._permit)

    def _permit(self) -> None:
        self.permits += 1
        steps = self.steps
        turns = 1
        if steps.gate and steps.num_sends - self.sent <= steps.gate:
            if self.received < steps.gate:
                return
            turns = steps.window
        for _ in range(turns):
            self._send()
        if self.sent == steps.num_sends and self.permits == steps.window:
            self.done()
        else:
            self._send()

    def _send(self) -> None:
        if self.sent == self.steps.num_sends or not self.permits:
            return
        offset, size_bytes = self.steps.offset(self.sent), self.steps.size_bytes(self.sent)
        self.permits -= 1
        self.sent += 1
        there = self.steps.target(self.position, offset)
        target = self if self.peers is None else self.peers[there]

        def carry() -> None:
            self.around.carry(self.position, there, size_bytes, lambda: target.inbox.arrive(offset))

        if self.around.rendezvous:
            source = self.steps.source(self.position, offset)
            asked = self if self.peers is None else self.peers[source]
            self.around.carry(self.position, source, RENDEZVOUS_BYTES, lambda: asked.outbox.ask(offset))
            self.outbox.send(offset, carry)
        else:
            carry()
        self.inbox.post(offset)

    def _receive(self) -> None:
        reduced = self.steps.reduced
        work_ns = self.around.reduction_ns(reduced[self.received]) if self.received < len(reduced) else 0
        self.received += 1
        clock = self.around.clock
        clock.at(clock.now_ns + self.around.endpoint_ns + work_ns, self._permit)


class TreeMember:
    """A member of a tree; see `algorithms.double_binary_tree`."""

    def __init__(
        self, steps: Tree, around: Surroundings, position: int, peers: "list[TreeMember]", done: Deliver
    ) -> None:
        self.steps, self.around, self.position, self.peers, self.done = steps, around, position, peers, done
        self.parent, self.children = steps.parents[position], steps.children[position]
        self.reduced = 0
        self.inbox: dict[int, _Inbox] = {child: _Inbox(self._from_child) for child in self.children}
        if self.parent != NOBODY:
            self.inbox[self.parent] = _Inbox(self._from_parent)
        self.outbox = _Outbox(around.clock)

    def begin(self) -> None:
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
        self._after(self.around.reduction_ns(self.steps.size_bytes), self._reduce)

    def _reduce(self) -> None:
        self.reduced += 1
        if self.reduced == len(self.children):
            self._climb()

    def _from_parent(self) -> None:
        self._after(self.around.reduction_ns(self.steps.size_bytes) if self.children else 0, self._descend)

    def _after(self, work_ns: int, action: Callable[[], None]) -> None:
        clock = self.around.clock
        clock.at(clock.now_ns + self.around.endpoint_ns + work_ns, action)

    def _send(self, other: int) -> None:
        def carry() -> None:
            deliver = self.peers[other].inbox[self.position].arrive
            self.around.carry(self.position, other, self.steps.size_bytes, lambda: deliver(0))

        if self.around.rendezvous:
            self.outbox.send(other, carry)
        else:
            carry()

    def _post(self, other: int) -> None:
        if self.around.rendezvous:
            ask = self.peers[other].outbox.ask
            self.around.carry(self.position, other, RENDEZVOUS_BYTES, lambda: ask(self.position))
        self.inbox[other].post(0)
