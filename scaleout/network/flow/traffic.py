"""What is in flight on links, and when each of it is done: collectives and messages that share the links.

A transfer that has its links to itself takes as long as in isolation, which is found once. When another one comes to a
link of it, both go on in `shared`, from where they are. Knows nothing of graphs or streams: whoever starts a collective
calls `advance`. See docs/models/flow-network.md.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaleout.network.flow.isolated import Isolated, IsolatedTransfers
from scaleout.network.flow.max_min import SAME
from scaleout.network.flow.shared import SharedTraffic, Transfer
from scaleout.network.routes.links import Floats, Ints, Links
from scaleout.program.graph import NONE


@dataclass(eq=False)
class _Alone:
    """A transfer that has its links to itself: at what part of its isolated time it was at a time, and its speed."""

    transfer: Transfer
    isolated: Isolated
    since_s: float
    reached_s: float = 0.0
    speed: float = 1.0
    version: int = 0
    has_sent: bool = False

    @property
    def next_s(self) -> float:
        """When it has sent all, or is done."""
        target_s = self.isolated.done_s if self.has_sent else self.isolated.sent_s
        return self.since_s + (target_s - self.reached_s) / self.speed


class Traffic:
    """The links and all that is in flight; for `worth_s` see `shared.SharedTraffic`."""

    def __init__(self, links: Links, worth_s: float | None = None) -> None:
        self.links = links
        self.isolated = IsolatedTransfers(links, worth_s)
        self._shared = SharedTraffic(links, worth_s)
        self._carried: Floats = np.zeros(len(links))
        """(L,)"""
        self._sent: list[Isolated] = []
        """What has been sent since by transfers that had their links to themselves."""
        self._alone: dict[int, _Alone] = {}
        self._started: list[int] = []
        """Those that had their links to themselves when they started, whose ends have not been asked for yet."""
        self._ends: list[tuple[float, int, int]] = []
        self._user: Ints = np.full(len(links), NONE)
        """(L,) the transfer that has each link to itself."""
        self._crossing: Ints = np.zeros(len(links), np.int64)
        """(L,) transfers that share each link, or may."""
        self._sharing: dict[int, Ints] = {}
        """Those that have not sent all yet, and their links."""
        self._caught_up: tuple[list[int], list[int]] = [], []
        """What has sent all, and is done, at the time that was reached last, and has not been told yet."""
        self._reached_s = 0.0

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has been given to carry so far; of links that are alike, the one that stands for them.

        What a transfer sends over links that it has to itself counts when it has sent all.
        """
        for isolated in self._sent:
            self._carried[isolated.links] += isolated.link_bytes
        self._sent.clear()
        return self._carried + self._shared.link_bytes

    def start(self, name: int, transfer: Transfer, now_s: float) -> None:
        """Start a transfer, which `advance` shall call by a name, not before any time that was advanced to."""
        isolated = self.isolated.of(transfer)
        crossed = isolated.links
        users = self._user[crossed]
        for other in dict.fromkeys(users[users != NONE].tolist()):
            self._share(other, now_s)
        if self._crossing[crossed].any():
            self._add_shared(name, transfer, now_s)
        else:
            self._user[crossed] = name
            self._alone[name] = _Alone(transfer, isolated, now_s)
            self._started.append(name)

    def _add_shared(self, name: int, transfer: Transfer, start_s: float) -> None:
        crossed = self.isolated.of(transfer).links
        self._shared.start(name, transfer, start_s)
        self._sharing[name] = crossed
        self._crossing[crossed] += 1

    def _share(self, name: int, now_s: float) -> None:
        """Let a transfer that had its links to itself go on among others, from where it is."""
        alone = self._alone.pop(name)
        self._user[alone.isolated.links] = NONE
        reached_s = alone.reached_s + (now_s - alone.since_s) * alone.speed
        start_s = alone.since_s if alone.version == 0 else now_s - reached_s
        self._add_shared(name, alone.transfer, start_s)
        self._reached_s = now_s
        while any(found := self._shared.advance(now_s)[1:]):
            self._note(*found)
        if alone.speed != 1.0:
            self._shared.set_speeds({name: alone.speed}, now_s)

    def _note(self, sent: list[int], done: list[int]) -> None:
        """Note which of those that share links have sent all, and are done."""
        for name in sent:
            self._crossing[self._sharing.pop(name)] -= 1
        self._caught_up[0].extend(sent)
        self._caught_up[1].extend(done)

    def set_speeds(self, speeds: Mapping[int, float], now_s: float) -> None:
        """Set the speeds, above zero and at most 1, of some collectives in flight from now on.

        A message gets so many times its fair rate, of which no other uses the rest; latencies are divided by it.
        """
        shared = {}
        for name, speed in speeds.items():
            if name not in self._alone:
                shared[name] = speed
                continue
            alone = self._alone[name]
            if speed == alone.speed:
                continue
            alone.reached_s += (now_s - alone.since_s) * alone.speed
            alone.since_s, alone.speed, alone.version = now_s, speed, alone.version + 1
            heapq.heappush(self._ends, (alone.next_s, name, alone.version))
        if shared:
            self._shared.set_speeds(shared, now_s)

    def _next_alone_s(self) -> float:
        for name in self._started:
            if name in self._alone and self._alone[name].version == 0:
                heapq.heappush(self._ends, (self._alone[name].next_s, name, 0))
        self._started.clear()
        while self._ends:
            end_s, name, version = self._ends[0]
            if name in self._alone and (self._alone[name].version, self._alone[name].next_s) == (version, end_s):
                return end_s
            heapq.heappop(self._ends)
        return math.inf

    def advance(self, until_s: float = math.inf) -> tuple[float, list[int], list[int]]:
        """Advance until something has been sent or is done, but not beyond a time.

        Returns the time, the collectives that have sent all, and those that are done; if there are none until then,
        `until_s`: infinite if nothing is in flight.
        """
        now_s = self._reached_s
        if not any(self._caught_up):
            now_s, *found = self._shared.advance(min(until_s, self._next_alone_s()))
            self._note(*found)
        (sent, done), self._caught_up = self._caught_up, ([], [])
        while now_s < math.inf and self._next_alone_s() <= now_s * (1 + SAME):
            _, name, version = heapq.heappop(self._ends)
            alone = self._alone[name]
            if alone.has_sent:
                done.append(name)
                del self._alone[name]
                continue
            sent.append(name)
            alone.has_sent = True
            self._user[alone.isolated.links] = NONE
            self._sent.append(alone.isolated)
            heapq.heappush(self._ends, (alone.next_s, name, version))
        return now_s, sent, done

    def hand_over(self, link_bytes: Floats) -> None:
        """Take over what has been carried elsewhere, (L,)."""
        self._carried = self._carried + link_bytes
