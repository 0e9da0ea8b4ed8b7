"""Event-driven flows: messages that do not start and end at the same time, one by one, in a compiled loop.

Maps parallel chains of a `Demand` to rows of the tables of the loop; a chain that is done leaves its rows to the next
collective with the same demand. Gives the same bits as batches, but touches only what an event changes.

Symbols: see `incremental_max_min`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.network.flow.compiling import Table, compiled, inlined
from scaleout.network.flow.flows import Demand, Flows
from scaleout.network.flow.incremental_max_min import (
    ARRIVED,
    CHAIN,
    CHANGED,
    DONE,
    ENDS,
    EVENTS,
    FINISHED,
    FLOW,
    GONE,
    MEMBER,
    MOVED,
    MOVING,
    OPEN,
    OVER,
    REQUESTED,
    ROUND,
    SENT,
    START,
    Tables,
    empty,
    share,
    sink,
    touch,
)
from scaleout.network.flow.max_min import SAME
from scaleout.network.routes.crossing import Crossing
from scaleout.network.routes.links import Floats, Ints, Links

_WORK = 100_000
"""Moments and changes of rates, tens of milliseconds, after which Python may be interrupted."""
_GROWN = {
    "crossed": ("weights", "listed"),
    "flows": ("fair", "ends", "leaving", "moved"),
    "members": ("moving",),
    "chains": ("sent", "done", "requests"),
    "rounds": (),
    "outs": (),
    "out_flows": (),
    "missing": ("expected",),
}
"""Table to the arrays that must have as many entries."""


class EventDrivenFlows:
    """All that is in flight, one message at a time; called as `traffic.Traffic` is."""

    def __init__(self, links: Links) -> None:
        self.tables: Tables = empty(links.bytes_per_s(np.arange(len(links))))
        self._rows = dict.fromkeys(_GROWN, 0)
        self._names: list[int] = []
        self._demands: list[Demand] = []
        self._running: dict[int, list[int]] = {}
        self._free: dict[int, list[int]] = {}
        self._listed = 0

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has been given to carry so far."""
        return np.asarray(self.tables.carried, np.float64)

    def start(
        self, name: int, chain: Demand, size_bytes: float, *, start_s: float, after_s: float, latencies: bool
    ) -> None:
        """Start one chain of a collective."""
        free = self._free.setdefault(id(chain), [])
        number = free.pop() if free else self.lay_out(chain)
        t = self.tables
        t.requests[t.counts[REQUESTED]] = start_s, number, after_s, latencies, size_bytes
        t.counts[REQUESTED] += 1
        self._names[number] = name
        self._running.setdefault(name, []).append(number)

    def set_speeds(self, speeds: Mapping[int, float], now_s: float) -> None:
        """Set the speeds of collectives from now on."""
        self.make_room()
        for name, speed in speeds.items():
            for number in self._running[name]:
                set_speed(self.tables, number, speed)
        if self.tables.counts[CHANGED]:
            run(self.tables, now_s)

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance until a chain has sent all or is done, but not beyond a time; return the time and their names."""
        self.make_room()
        while math.isnan(now_s := run(self.tables, until_s)):
            self.make_room()
        t = self.tables
        done = t.done[: t.counts[FINISHED]].tolist()
        for number in done:
            self._free[id(self._demands[number])].append(number)
            self._running[self._names[number]].remove(number)
        sent = t.sent[: t.counts[SENT]].tolist()
        return now_s, [self._names[number] for number in sent], [self._names[number] for number in done]

    def make_room(self) -> None:
        """Give links room for the flows over them, and double the heap of events if a moment could make it overflow."""
        if self._rows["crossed"] > self._listed:
            self._make_room_on_links()
        t = self.tables
        if (need := int(t.counts[EVENTS]) + len(t.flows) + len(t.chains) + 1) > len(t.events):
            events = np.zeros(2 * need, t.events.dtype)
            events[: len(t.events)] = t.events
            self.tables = t._replace(events=events)

    def _make_room_on_links(self) -> None:
        """Let each link have room for all flows that may be over it, or twice as much if it has not."""
        t = self.tables
        crossing = np.bincount(t.crossed[: self._rows["crossed"]], minlength=len(t.links))
        if (crossing > np.diff(t.first_over)).any():
            first_over = np.concatenate(([0], np.cumsum(2 * crossing)))
            over = np.zeros(first_over[-1], OVER)
            counts = t.links["num_over"].astype(np.int64)
            entry = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            over[entry + np.repeat(first_over[:-1], counts)] = t.over[entry + np.repeat(t.first_over[:-1], counts)]
            self.tables = t._replace(over=over, first_over=first_over, rates=np.zeros(int(2 * crossing.max())))
        self._listed = self._rows["crossed"]

    def lay_out(self, chain: Demand) -> int:
        """Write the rows of a chain; return its number. `make_room` has to follow before anything runs."""
        kinds = list({id(flows): flows for flows in chain.rounds}.values())
        number, members, first_flow = self._rows["chains"], self._rows["members"], self._rows["flows"]
        for whole, begin, end in _spans(kinds):
            self._append_crossed(whole.between(begin, end))
        ends = {
            end: np.concatenate([np.zeros(0, np.int64), *(getattr(flows, end) for flows in kinds)]) + members
            for end in ("sources", "destinations")
        }
        latency_s = np.concatenate([np.zeros(0), *(flows.latency_s for flows in kinds)])
        times = np.concatenate([np.zeros(0, np.int64), *(flows.times for flows in kinds)])
        self.tables.ends[first_flow : self._rows["flows"]] = _rows(
            ENDS, latency_s=latency_s, source=ends["sources"], destination=ends["destinations"], times=times
        )
        kind = np.repeat(np.arange(len(kinds)), [len(flows) for flows in kinds]) * chain.num_members - members
        sent, received = (
            np.bincount(kind + ends[end], minlength=len(kinds) * chain.num_members)
            for end in ("sources", "destinations")
        )
        kind_of = {id(flows): which for which, flows in enumerate(kinds)}
        which = np.array([kind_of[id(flows)] for flows in chain.rounds], np.int64)
        row = {
            "member": members,
            "num_members": chain.num_members,
            "round": self._rows["rounds"],
            "num_rounds": len(chain.rounds),
            "missing": self._rows["missing"],
            "flow": first_flow,
            "num_flows": self._rows["flows"] - first_flow,
        }
        self._append("chains", _rows(CHAIN, **{name: np.array([value]) for name, value in row.items()}))
        self._append("members", _rows(MEMBER, chain=np.full(chain.num_members, number)))
        outs = self._rows["outs"] + which * chain.num_members
        self._append("rounds", _rows(ROUND, fraction=np.array(chain.fractions), out=outs))
        self._append("outs", np.concatenate(([0], np.cumsum(sent))) + self._rows["out_flows"])
        self._append("out_flows", np.argsort(kind + ends["sources"], kind="stable") + first_flow)
        missing = (sent + received).reshape(len(kinds), chain.num_members)[which].ravel()
        self._append("missing", missing)
        self.tables.expected[row["missing"] : self._rows["missing"]] = missing
        self._names.append(-1)
        self._demands.append(chain)
        return number

    def _append_crossed(self, crossing: Crossing) -> None:
        """Append flows, and the links that they cross."""
        first_pair = self._rows["crossed"]
        begins, links, weights = crossing.by_message()
        self._append("crossed", links)
        self.tables.weights[first_pair : first_pair + len(links)] = weights
        whole = np.ones(crossing.num_messages, bool)
        whole[np.searchsorted(begins, np.flatnonzero(weights != 1), side="right") - 1] = False
        self._append("flows", _rows(FLOW, first=begins[:-1] + first_pair, last=begins[1:] + first_pair, whole=whole))

    def _append(self, name: str, rows: Table | Ints) -> None:
        """Append rows to a table, which doubles when it is full."""
        have = self._rows[name]
        self._rows[name] = need = have + len(rows)
        for grown in (name, *_GROWN[name]):
            table = getattr(self.tables, grown)
            if need >= len(table):  # a heap has one more
                wider = np.zeros(max(need + 1, 2 * len(table)), table.dtype)
                wider[: len(table)] = table
                self.tables = self.tables._replace(**{grown: wider})
        getattr(self.tables, name)[have:need] = rows


def _spans(kinds: Sequence[Flows]) -> list[tuple[Crossing, int, int]]:
    """Return the crossings of flows, and from where to where; of those that follow each other once."""
    spans: list[tuple[Crossing, int, int]] = []
    for flows in kinds:
        whole, begin, end = flows.whole, flows.begin, flows.begin + len(flows)
        if spans and spans[-1][0] is whole and spans[-1][2] == begin:
            begin = spans.pop()[1]
        spans.append((whole, begin, end))
    return spans


def _rows(dtype: np.dtype[Any], **columns: npt.NDArray[Any]) -> Table:
    """Make rows of a table from some of its columns; the others are zero."""
    rows = np.zeros(len(next(iter(columns.values()))), dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows


@inlined
def _push_event(t: Tables, time_s: float, kind: int, which: int, round_: int) -> None:
    """Add an event to the heap, which has room for it."""
    events = t.events
    at = t.counts[EVENTS]
    t.counts[EVENTS] += 1
    while at > 0 and events[(at - 1) >> 1].time_s > time_s:
        events[at] = events[(at - 1) >> 1]
        at = (at - 1) >> 1
    events[at].time_s, events[at].kind, events[at].which, events[at].round = time_s, kind, which, round_


@inlined
def _pop_event(t: Tables) -> tuple[int, int, int]:
    events = t.events
    top = (events[0].kind, events[0].which, events[0].round)
    t.counts[EVENTS] -= 1
    size = t.counts[EVENTS]
    at, time_s = 0, events[size].time_s
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and events[child + 1].time_s < events[child].time_s:
            child += 1
        if events[child].time_s >= time_s:
            break
        events[at] = events[child]
        at = child
    events[at] = events[size]
    return top


@inlined
def _start_flow(t: Tables, number: int, round_: int, size_bytes: float, now_s: float) -> None:
    flow = t.flows[number]
    flow.left_bytes, flow.rate, flow.since_s, flow.moved = size_bytes, 0.0, now_s, 1
    t.fair[number] = OPEN
    t.ends[number].round = round_
    t.moved[t.counts[MOVED]] = number
    t.counts[MOVED] += 1
    whole, times = flow.whole, t.ends[number].times
    for pair in range(flow.first, flow.last):
        weight = 1.0 if whole else t.weights[pair]
        which = t.crossed[pair]
        link = t.links[which]
        each_bytes = weight / times * size_bytes
        for _ in range(times):
            t.carried[which] += each_bytes
        t.load[which] += weight
        link.open += weight
        if not t.listed[pair]:
            t.listed[pair] = 1
            entry = t.over[t.first_over[which] + link.num_over]
            entry.weight, entry.flow, entry.pair = weight, number, pair
            link.num_over += 1
        touch(t, which)


@inlined
def _stop(t: Tables) -> int:
    """Take the flow that ends first out of flight, and return it; links that were not full remain so."""
    number = int(t.leaving[1].which)
    sink(t.leaving, t.flows["position"], np.inf)
    flow, rate = t.flows[number], t.fair[number]
    whole = flow.whole
    for pair in range(flow.first, flow.last):
        weight = 1.0 if whole else t.weights[pair]
        link = t.links[t.crossed[pair]]
        t.load[t.crossed[pair]] -= weight
        link.used -= weight * rate
        link.weighed = 0
        if link.level < np.inf:
            touch(t, t.crossed[pair])
    t.fair[number] = GONE
    return number


@inlined
def _settle(t: Tables, member: int, round_: int) -> None:
    """Count a message of a round as sent or received by a member; note it if that lets it move on."""
    chain = t.chains[t.members[member].chain]
    at = chain.missing + round_ * chain.num_members + member - chain.member
    t.missing[at] -= 1
    if t.missing[at] == 0 and t.members[member].at == round_:
        t.moving[t.counts[MOVING]] = member
        t.counts[MOVING] += 1


@inlined
def _move(t: Tables, member: int, now_s: float) -> None:
    """Let a member that has all its messages start its next rounds."""
    number = t.members[member].chain
    chain = t.chains[number]
    local, round_ = member - chain.member, t.members[member].at
    while round_ < 0 or t.missing[chain.missing + round_ * chain.num_members + local] == 0:
        round_ += 1
        t.members[member].at = round_
        if round_ == chain.num_rounds:
            chain.behind -= 1
            if chain.behind == 0:
                t.sent[t.counts[SENT]] = number
                t.counts[SENT] += 1
                _push_event(t, now_s + chain.after_s / chain.speed, DONE, number, 0)
            return
        its = t.rounds[chain.round + round_]
        for index in range(t.outs[its.out + local], t.outs[its.out + local + 1]):
            _start_flow(t, t.out_flows[index], round_, its.fraction * chain.size_bytes, now_s)


@inlined
def _first_end(t: Tables) -> float:
    """When the next flow ends; infinite if none is in flight."""
    while t.leaving[0].which:
        flow = t.leaving[1].which
        if t.flows[flow].end_s == t.leaving[1].key:
            return float(t.leaving[1].key)
        sink(t.leaving, t.flows["position"], t.flows[flow].end_s)
    return np.inf


@inlined
def _start_chains(t: Tables) -> None:
    """Let requested chains start at their time."""
    for index in range(t.counts[REQUESTED]):
        requests = t.requests[index]
        chain = t.chains[requests.chain]
        chain.after_s, chain.latencies, chain.size_bytes = requests.after_s, requests.latencies, requests.size_bytes
        chain.behind, chain.speed, chain.stretch = chain.num_members, 1.0, 1.0
        for member in range(chain.member, chain.member + chain.num_members):
            t.members[member].at = -1
        for at in range(chain.missing, chain.missing + chain.num_rounds * chain.num_members):
            t.missing[at] = t.expected[at]
        _push_event(t, requests.start_s, START, requests.chain, 0)
    t.counts[REQUESTED] = 0


@compiled
def set_speed(t: Tables, number: int, speed: float) -> None:
    """Set the speed of a chain, and note its flows in flight; `run` has to follow, to the time from which it counts."""
    _start_chains(t)
    chain = t.chains[number]
    if speed == chain.speed:
        return
    t.counts[CHANGED] = 1
    chain.stretch = chain.speed / speed
    chain.speed = speed
    for flow in range(chain.flow, chain.flow + chain.num_flows):
        if t.fair[flow] != GONE and not t.flows[flow].moved:
            t.flows[flow].moved = 1
            t.moved[t.counts[MOVED]] = flow
            t.counts[MOVED] += 1


@inlined
def _stretch(t: Tables, now_s: float) -> None:
    """Stretch the time to events of chains whose speed has been set."""
    size = t.counts[EVENTS]
    t.counts[EVENTS] = t.counts[CHANGED] = 0
    for index in range(size):  # the heap grows again in place, behind what has been read
        event = t.events[index]
        time_s, kind, which, round_ = event.time_s, event.kind, event.which, event.round
        chain = t.members[t.ends[which].source].chain if kind == ARRIVED else which
        if t.chains[chain].stretch != 1.0:
            time_s = now_s + (time_s - now_s) * t.chains[chain].stretch
        _push_event(t, time_s, kind, which, round_)
    for chain in range(len(t.chains)):
        t.chains[chain].stretch = 1.0


@inlined
def _handle_moment(t: Tables, now_s: float) -> None:
    """Handle all events of a moment, and what follows from them at once."""
    counts, together_s = t.counts, now_s * (1 + SAME)
    while _first_end(t) <= together_s:
        flow = _stop(t)
        ended = t.ends[flow]
        chain = t.chains[t.members[ended.source].chain]
        latency_s = ended.latency_s * chain.latencies / chain.speed
        _push_event(t, now_s + latency_s, ARRIVED, flow, ended.round)
        _settle(t, ended.source, ended.round)
    while counts[MOVING] or (counts[EVENTS] and t.events[0].time_s <= together_s):
        while counts[EVENTS] and t.events[0].time_s <= together_s:
            kind, which, round_ = _pop_event(t)
            if kind == ARRIVED:
                _settle(t, t.ends[which].destination, round_)
            elif kind == DONE:
                t.done[counts[FINISHED]] = which
                counts[FINISHED] += 1
            else:
                chain = t.chains[which]
                for member in range(chain.member, chain.member + chain.num_members):
                    t.moving[counts[MOVING]] = member
                    counts[MOVING] += 1
        while counts[MOVING]:
            counts[MOVING] -= 1
            _move(t, t.moving[counts[MOVING]], now_s)


@compiled
def run(t: Tables, until_s: float) -> float:
    """Run until something is sent or done, or to a time; return it.

    NaN if Python has to make room first, or may want to stop, and then to call again.

    If speeds have been set, they count from that time on, and nothing else is done.
    """
    counts = t.counts
    counts[SENT] = counts[FINISHED] = 0
    work = 0
    while work < _WORK:
        now_s, changes = until_s, counts[CHANGED]
        if changes:
            _stretch(t, now_s)
        else:
            _start_chains(t)
            now_s = min(t.events[0].time_s if counts[EVENTS] else np.inf, _first_end(t))
            if now_s > until_s or now_s == np.inf:
                return until_s
            if counts[EVENTS] + t.leaving[0].which + len(t.chains) > len(t.events):
                return np.nan
            _handle_moment(t, now_s)
        work += 1 + share(t, now_s)
        if changes or counts[SENT] or counts[FINISHED]:
            return now_s
    return np.nan
