"""Collectives whose members are not in step: lays them out for the compiled event loop, and runs it.

Maps lanes of a `Demand` to rows of the tables of `event_loop`. Rows are never given back: a lane that is done leaves
them to the next collective that asks the same of the links.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.network.crossing import Crossing
from scaleout.network.event_loop import run
from scaleout.network.flight import (
    ASKING,
    ENDS,
    EVENTS,
    FINISHED,
    FLOW,
    LANE,
    MEMBER,
    OVER,
    SENT,
    STEP,
    Table,
    Tables,
    empty,
)
from scaleout.network.flows import Demand, Flows
from scaleout.network.links import Floats, Ints, Links

_GROWN = {
    "crossed": ("weights", "listed"),
    "flows": ("fair", "ends", "leaving", "moved"),
    "members": ("moving",),
    "lanes": ("sent", "done", "asked"),
    "steps": (),
    "outs": (),
    "out_flows": (),
    "missing": ("expected",),
}
"""Table to the arrays that must have as many entries."""


class OutOfStep:
    """All that is in flight, one message at a time; asked as `traffic.Traffic` is."""

    def __init__(self, links: Links) -> None:
        self._tables: Tables = empty(links.bytes_per_s(np.arange(len(links))))
        self._rows = dict.fromkeys(_GROWN, 0)
        self._names: list[int] = []
        self._demands: list[Demand] = []
        self._free: dict[int, list[int]] = {}
        self._listed = 0

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has been given to carry so far."""
        return np.asarray(self._tables.carried, np.float64)

    def begin(
        self, name: int, lane: Demand, size_bytes: float, *, start_s: float, after_s: float, latencies: bool
    ) -> None:
        """Let one lane of a collective begin."""
        free = self._free.setdefault(id(lane), [])
        number = free.pop() if free else self._lay_out(lane)
        t = self._tables
        t.asked[t.counts[ASKING]] = start_s, number, after_s, latencies, size_bytes
        t.counts[ASKING] += 1
        self._names[number] = name

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance until a lane has sent all or is done, but not beyond a time; return the time and their names."""
        if self._rows["crossed"] > self._listed:
            self._make_room_on_links()
        self._make_room()
        while math.isnan(now_s := run(self._tables, until_s)):
            self._make_room()
        t = self._tables
        done = t.done[: t.counts[FINISHED]].tolist()
        for number in done:
            self._free[id(self._demands[number])].append(number)
        sent = t.sent[: t.counts[SENT]].tolist()
        return now_s, [self._names[number] for number in sent], [self._names[number] for number in done]

    def _make_room(self) -> None:
        """Double the heap of events if it could overflow within one moment."""
        t = self._tables
        if (need := int(t.counts[EVENTS]) + len(t.flows) + len(t.lanes) + 1) > len(t.events):
            events = np.zeros(2 * need, t.events.dtype)
            events[: len(t.events)] = t.events
            self._tables = t._replace(events=events)

    def _make_room_on_links(self) -> None:
        """Let each link have room for all flows that may be over it, or twice as much if it has not."""
        t = self._tables
        crossing = np.bincount(t.crossed[: self._rows["crossed"]], minlength=len(t.links))
        if (crossing > np.diff(t.first_over)).any():
            first_over = np.concatenate(([0], np.cumsum(2 * crossing)))
            over = np.zeros(first_over[-1], OVER)
            counts = t.links["num_over"].astype(np.int64)
            entry = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            over[entry + np.repeat(first_over[:-1], counts)] = t.over[entry + np.repeat(t.first_over[:-1], counts)]
            self._tables = t._replace(over=over, first_over=first_over, rates=np.zeros(int(2 * crossing.max())))
        self._listed = self._rows["crossed"]

    def _lay_out(self, lane: Demand) -> int:
        """Write the rows of a lane; return its number."""
        kinds = list({id(flows): flows for flows in lane.steps}.values())
        number, members, first_flow = self._rows["lanes"], self._rows["members"], self._rows["flows"]
        for whole, begin, end in _spans(kinds):
            self._append_crossed(whole.between(begin, end))
        ends = {
            end: np.concatenate([np.zeros(0, np.int64), *(getattr(flows, end) for flows in kinds)]) + members
            for end in ("sources", "destinations")
        }
        latency_s = np.concatenate([np.zeros(0), *(flows.latency_s for flows in kinds)])
        self._tables.ends[first_flow : self._rows["flows"]] = _rows(
            ENDS, latency_s=latency_s, source=ends["sources"], destination=ends["destinations"]
        )
        kind = np.repeat(np.arange(len(kinds)), [len(flows) for flows in kinds]) * lane.num_members - members
        sent, received = (
            np.bincount(kind + ends[end], minlength=len(kinds) * lane.num_members)
            for end in ("sources", "destinations")
        )
        kind_of = {id(flows): which for which, flows in enumerate(kinds)}
        which = np.array([kind_of[id(flows)] for flows in lane.steps], np.int64)
        row = {
            "member": members,
            "num_members": lane.num_members,
            "step": self._rows["steps"],
            "num_steps": len(lane.steps),
            "missing": self._rows["missing"],
        }
        self._append("lanes", _rows(LANE, **{name: np.array([value]) for name, value in row.items()}))
        self._append("members", _rows(MEMBER, lane=np.full(lane.num_members, number)))
        outs = self._rows["outs"] + which * lane.num_members
        self._append("steps", _rows(STEP, fraction=np.array(lane.fractions), out=outs))
        self._append("outs", np.concatenate(([0], np.cumsum(sent))) + self._rows["out_flows"])
        self._append("out_flows", np.argsort(kind + ends["sources"], kind="stable") + first_flow)
        missing = (sent + received).reshape(len(kinds), lane.num_members)[which].ravel()
        self._append("missing", missing)
        self._tables.expected[row["missing"] : self._rows["missing"]] = missing
        self._names.append(-1)
        self._demands.append(lane)
        return number

    def _append_crossed(self, crossing: Crossing) -> None:
        """Append flows, and the links that they cross."""
        first_pair = self._rows["crossed"]
        begins, links, weights = crossing.by_message()
        self._append("crossed", links)
        self._tables.weights[first_pair : first_pair + len(links)] = weights
        whole = np.ones(crossing.num_messages, bool)
        whole[np.searchsorted(begins, np.flatnonzero(weights != 1), side="right") - 1] = False
        self._append("flows", _rows(FLOW, first=begins[:-1] + first_pair, last=begins[1:] + first_pair, whole=whole))

    def _append(self, name: str, rows: Table | Ints) -> None:
        """Append rows to a table, which doubles when it is full."""
        have = self._rows[name]
        self._rows[name] = need = have + len(rows)
        for grown in (name, *_GROWN[name]):
            table = getattr(self._tables, grown)
            if need >= len(table):  # a heap has one more
                wider = np.zeros(max(need + 1, 2 * len(table)), table.dtype)
                wider[: len(table)] = table
                self._tables = self._tables._replace(**{grown: wider})
        getattr(self._tables, name)[have:need] = rows


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
