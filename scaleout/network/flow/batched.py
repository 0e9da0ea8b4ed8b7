"""Flows batch by batch: those that start together are one batch of array arithmetic, until members drift apart.

Fast as long as members are in step; `event_driven` goes message by message, with the same bits.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.network.flow.flows import Demand, Flows
from scaleout.network.flow.max_min import SAME, level_of_all, max_min
from scaleout.network.routes.links import Floats, Ints, Links

_RATES_KEPT = 4096
"""Rates of flows in flight together are kept for so many sets of flows."""

_BATCH_S, _MESSAGE_S = 60e-6, 1e-6
"""About what a batch costs here at each moment, and a message in `event_driven`, measured on a machine of 2024."""

_LEVEL_S, _PAIR_S = 2e-5, 5e-9
"""About what each level of rates beyond the first costs, and each link or pair of a flow and a link there."""

_START, _ARRIVED, _DONE = 0, 1, 2


@dataclass(eq=False)
class _Collective:
    """One in flight: the round that each of M members is at, and how many messages hold it up there.

    `ready` are members that nothing holds up any more, and `lowest` the round that all have reached.
    """

    name: int
    demand: Demand
    size_bytes: float
    after_s: float
    latencies: bool
    at: Ints
    speed: float = 1.0
    missing: dict[int, Ints] = field(default_factory=dict)
    ready: list[Ints] = field(default_factory=list)
    lowest: int = -1
    over: bool = False

    def misses(self, round_: int) -> Ints:
        """(M,) messages of a round that members have not sent or not received yet."""
        if round_ not in self.missing:
            flows = self.demand.rounds[round_]
            ends = np.concatenate((flows.sources, flows.destinations))
            self.missing[round_] = np.bincount(ends, minlength=self.demand.num_members)
        return self.missing[round_]

    def settle(self, round_: int, members: Ints) -> bool:
        """Count messages of a round as sent or received by members; note which can move on, return if any can."""
        missing = self.misses(round_)
        np.subtract.at(missing, members, 1)
        free = members[(missing[members] == 0) & (self.at[members] == round_)]
        if len(free):
            self.ready.append(free)
        return len(free) > 0


@dataclass(eq=False)
class _Batch:
    """Flows of one round of a collective that started at the same time; `which` of the round's, (B,) as all else."""

    owner: _Collective
    round: int
    which: Ints
    left_bytes: Floats
    rate: Floats
    since_s: Floats
    end_s: Floats

    @property
    def flows(self) -> Flows:
        return self.owner.demand.rounds[self.round]


class BatchedFlows:
    """All that is in flight, batch by batch; called as `shared.SharedTraffic` is, with chains instead of collectives.

    `wasted_s` is about how much longer it has taken than message by message would.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self._carried_bytes: Floats = np.zeros(len(links))
        self._whole: dict[int, list[Any]] = {}
        self.wasted_s = 0.0
        self._batches: list[_Batch] = []
        self._running: dict[int, list[_Collective]] = {}
        self._events: list[tuple[float, int, int, _Collective, int, Ints]] = []
        self._count = 0
        self._rates: dict[tuple[tuple[int, bytes], ...], tuple[list[Floats], list[Flows]]] = {}
        self._next_end_s = math.inf

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has been given to carry so far."""
        total = self._carried_bytes.copy()
        for flows, size_bytes in self._whole.values():
            if flows.num_added < len(total):
                links, weights = flows.added()
                np.add.at(total, links, weights * size_bytes)
            else:
                total += sum(way.load(len(total)) for way in flows.crossing.ways) * size_bytes
        return total

    def start(
        self, name: int, chain: Demand, size_bytes: float, *, start_s: float, after_s: float, latencies: bool
    ) -> None:
        """Start one chain of a collective."""
        at = np.full(chain.num_members, -1)
        collective = _Collective(name, chain, size_bytes, after_s, latencies, at, ready=[np.arange(len(at))])
        self._running.setdefault(name, []).append(collective)
        self._push(start_s, _START, collective, 0, at)

    def set_speeds(self, speeds: Mapping[int, float], now_s: float) -> None:
        """Set the speeds of collectives from now on."""
        stretch = {}
        for name, speed in speeds.items():
            for collective in self._running[name]:
                stretch[id(collective)] = collective.speed / speed
                collective.speed = speed
        for index, (time_s, count, kind, owner, round_, receivers) in enumerate(self._events):
            if (times := stretch.get(id(owner), 1.0)) != 1.0:
                self._events[index] = now_s + (time_s - now_s) * times, count, kind, owner, round_, receivers
        heapq.heapify(self._events)
        self.wasted_s += _BATCH_S * len(self._batches)
        if any(id(batch.owner) in stretch for batch in self._batches):
            self._share(now_s)

    def next_s(self) -> float:
        """Time at which the next message or chain starts, ends or arrives; infinite if nothing is in flight."""
        return min(self._next_end_s, self._events[0][0] if self._events else math.inf)

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance by one moment, unless the next is after `until_s`; return the time, and chains sent and done."""
        now_s = self.next_s()
        if now_s > until_s or now_s == math.inf:
            return until_s, [], []
        together_s = now_s * (1 + SAME)
        sent: list[int] = []
        done: list[int] = []
        moving: dict[int, _Collective] = {}
        changed = self._end(now_s, together_s, moving)
        while moving or (self._events and self._events[0][0] <= together_s):
            while self._events and self._events[0][0] <= together_s:
                _, _, kind, collective, round_, receivers = heapq.heappop(self._events)
                if kind == _DONE:
                    done.append(collective.name)
                    self._running[collective.name].remove(collective)
                elif kind == _START or collective.settle(round_, receivers):
                    moving[id(collective)] = collective
            moved, moving = moving, {}
            for collective in moved.values():
                changed |= self._move(collective, now_s)
                if collective.over:
                    sent.append(collective.name)
                    self._push(now_s + collective.after_s / collective.speed, _DONE, collective, 0, collective.at)
        if changed:
            self._share(now_s)
        return now_s, sent, done

    def _push(self, time_s: float, kind: int, collective: _Collective, round_: int, receivers: Ints) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, kind, collective, round_, receivers))

    def _end(self, now_s: float, until_s: float, moving: dict[int, _Collective]) -> bool:
        """Take out the flows that have left, which arrive after their latency; note the members that may move on."""
        if self._next_end_s > until_s:
            return False
        going: list[_Batch] = []
        self.wasted_s += _BATCH_S * len(self._batches)
        for batch in self._batches:
            ended = batch.end_s <= until_s
            if ended.any():
                self.wasted_s -= _MESSAGE_S * float(ended.sum())
                flows, which = batch.flows, batch.which[ended]
                latency_s = flows.latency_s[which] * batch.owner.latencies
                if batch.owner.settle(batch.round, flows.sources[which]):
                    moving[id(batch.owner)] = batch.owner
                for each_s in np.unique(latency_s):
                    receivers = flows.destinations[which[latency_s == each_s]]
                    self._push(now_s + float(each_s) / batch.owner.speed, _ARRIVED, batch.owner, batch.round, receivers)
                if ended.all():
                    continue
                on = ~ended
                batch.which, batch.left_bytes = batch.which[on], batch.left_bytes[on]
                batch.rate, batch.since_s, batch.end_s = batch.rate[on], batch.since_s[on], batch.end_s[on]
            going.append(batch)
        self._batches = going
        return True

    def _move(self, collective: _Collective, now_s: float) -> bool:
        """Let the members that have all messages start their next rounds; return whether any message started."""
        started = False
        at, rounds = collective.at, collective.demand.rounds
        ready = np.unique(np.concatenate(collective.ready))
        collective.ready.clear()
        while len(ready):
            is_first = at[ready] == at[ready].min()
            going, ready = ready[is_first], ready[~is_first]
            at[going] += 1
            round_ = int(at[going[0]])
            if round_ < len(rounds):
                started |= self._start_round(collective, round_, going, now_s)
                ready = np.concatenate((ready, going[collective.misses(round_)[going] == 0]))
        lowest = int(at.min())
        for old in range(collective.lowest, lowest):
            collective.missing.pop(old, None)
        collective.lowest = lowest
        collective.over = lowest == len(rounds)
        return started

    def _start_round(self, collective: _Collective, round_: int, members: Ints, now_s: float) -> bool:
        flows = collective.demand.rounds[round_]
        starts = np.zeros(len(collective.at), bool)
        starts[members] = True
        which = np.flatnonzero(starts[flows.sources])
        if not len(which):
            return False
        size_bytes = collective.demand.fractions[round_] * collective.size_bytes
        left_bytes, since_s, end_s = (np.full(len(which), value) for value in (size_bytes, now_s, np.inf))
        self._batches.append(_Batch(collective, round_, which, left_bytes, np.zeros(len(which)), since_s, end_s))
        if len(which) == len(flows):
            self._whole.setdefault(id(flows), [flows, 0.0])[1] += size_bytes
        else:
            links, weights = flows.added(starts[flows.sources])
            np.add.at(self._carried_bytes, links, weights * size_bytes)
        return True

    def _share(self, now_s: float) -> None:
        """Share the links anew; flows whose rate stays keep the time at which they end."""
        for batch, fair in zip(self._batches, self._fair(), strict=True):
            rate = fair if batch.owner.speed == 1.0 else fair * batch.owner.speed
            new = rate != batch.rate
            if new.any():
                left_bytes = np.maximum(batch.left_bytes - batch.rate * (now_s - batch.since_s), 0.0)
                batch.left_bytes = np.where(new, left_bytes, batch.left_bytes)
                batch.since_s = np.where(new, now_s, batch.since_s)
                batch.end_s = np.where(new, now_s + left_bytes / rate, batch.end_s)
                batch.rate = rate
        self._next_end_s = min((float(batch.end_s.min()) for batch in self._batches), default=math.inf)

    def _fair(self) -> list[Floats]:
        """Rates of all batches; flows that are in flight together again get what they got before."""
        key = tuple((id(batch.flows), batch.which.tobytes()) for batch in self._batches)
        if key not in self._rates:
            if len(self._rates) >= _RATES_KEPT:
                self._rates.clear()
            self._rates[key] = (self._max_min(), [batch.flows for batch in self._batches])  # kept, lest ids return
        return self._rates[key][0]

    @cached_property
    def _bytes_per_s(self) -> Floats:
        """(L,) what all links carry."""
        return self.links.bytes_per_s(np.arange(len(self.links)))

    def _level(self) -> float | None:
        """Rate of all flows if they are a whole round over many links, and one rate is that of all."""
        flows = self._batches[0].flows if len(self._batches) == 1 else None
        if flows is None or len(self._batches[0].which) < len(flows) or flows.crossing.num_pairs < len(self.links):
            return None
        return level_of_all(flows.crossing.ways, self._bytes_per_s, num_flows=len(flows))

    def _max_min(self) -> list[Floats]:
        level = self._level()
        if level is not None:
            return [np.full(len(self._batches[0].which), level)]
        flows, links, weights = [], [], []
        offsets = np.cumsum([0, *(len(batch.which) for batch in self._batches)])
        for batch, offset in zip(self._batches, offsets, strict=False):
            whole, (of_whole, crossed, load) = batch.flows, batch.flows.pairs
            if len(batch.which) == len(whole):
                flows.append(of_whole + offset if offset else of_whole)
                links.append(crossed)
                weights.append(load)
                continue
            number = np.full(len(whole), -1)
            number[batch.which] = offset + np.arange(len(batch.which))
            rows = np.flatnonzero(number[of_whole] >= 0)
            flows.append(number[of_whole[rows]])
            links.append(crossed[rows])
            weights.append(load[rows])
        if not flows:
            return []
        used, local = _numbered(_joined(links), len(self.links))
        rates = max_min(
            _joined(flows),
            local,
            _joined(weights),
            num_flows=int(offsets[-1]),
            bytes_per_s=self.links.bytes_per_s(used),
        )
        more = len(np.unique(rates)) - 1
        self.wasted_s += more * (_LEVEL_S + _PAIR_S * (len(used) + len(local)))
        return np.split(rates, offsets[1:-1])


def _joined(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate columns; one alone, which may be large, is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _numbered(links: Ints, num_links: int) -> tuple[Ints, Ints]:
    """Return the links that occur, in order, and the index of each among them; all links, where many occur."""
    if len(links) >= num_links:
        return np.arange(num_links), links
    used, local = np.unique(links, return_inverse=True)
    return used, local.reshape(-1)
