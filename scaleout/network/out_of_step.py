"""Collectives whose members are not in step: lays them out for the compiled event loop, and runs it.

Maps lanes of a `Demand` to rows of the tables of `event_loop`. Rows are never given back: a lane that is done leaves
them to the next collective that asks the same of the links.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.network.demand import Demand, Flows
from scaleout.network.event_loop import push_event, run
from scaleout.network.flight import (
    EVENTS,
    FINISHED,
    FLOW,
    LANE,
    MEMBER,
    PAIR,
    SENT,
    START,
    STEP,
    Table,
    Tables,
    empty,
)
from scaleout.network.links import Floats, Ints, Links

_GROWN = {
    "pairs": (),
    "flows": ("ends", "moved"),
    "members": ("moving",),
    "lanes": ("sent", "done"),
    "steps": (),
    "outs": (),
    "out_flows": (),
    "missing": (),
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
        self._at_first: dict[int, tuple[Floats, Ints]] = {}

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has been given to carry so far."""
        return np.asarray(self._tables.links["carried"], np.float64)

    def begin(
        self, name: int, lane: Demand, size_bytes: float, *, start_s: float, after_s: float, latencies: bool
    ) -> None:
        """Let one lane of a collective begin."""
        free = self._free.setdefault(id(lane), [])
        number = free.pop() if free else self._lay_out(lane)
        fractions, missing = self._at_first[id(lane)]
        t = self._tables
        row = t.lanes[number]
        row["after_s"], row["latencies"], row["behind"] = after_s, latencies, lane.num_members
        t.members["at"][row["member"] : row["member"] + lane.num_members] = -1
        t.steps["size_bytes"][row["step"] : row["step"] + len(lane.steps)] = fractions * size_bytes
        t.missing[row["missing"] : row["missing"] + len(missing)] = missing
        self._names[number] = name
        self._make_room()
        push_event(self._tables, start_s, START, number, 0)

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance until a lane has sent all or is done, but not beyond a time; return the time and their names."""
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

    def _lay_out(self, lane: Demand) -> int:
        """Write the rows of a lane; return its number."""
        kinds = list({id(flows): flows for flows in lane.steps}.values())
        number, members = self._rows["lanes"], self._rows["members"]
        out_of: dict[int, int] = {}
        for flows in kinds:
            first_flow, first_pair = self._rows["flows"], self._rows["pairs"]
            of_pair, links, weights = flows.pairs
            order = np.argsort(of_pair, kind="stable")
            self._append(
                "pairs",
                _rows(PAIR, weight=weights[order], link=links[order], flow=of_pair[order] + first_flow),
            )
            ends = first_pair + np.cumsum(np.bincount(of_pair, minlength=len(flows)))
            self._append(
                "flows",
                _rows(
                    FLOW,
                    latency_s=flows.latency_s,
                    source=flows.sources + members,
                    destination=flows.destinations + members,
                    first=np.concatenate(([first_pair], ends[:-1])),
                    last=ends,
                    place=np.full(len(flows), -1),
                ),
            )
            out_of[id(flows)] = self._rows["outs"]
            counts = np.bincount(flows.sources, minlength=lane.num_members)
            self._append("outs", np.concatenate(([0], np.cumsum(counts))) + self._rows["out_flows"])
            self._append("out_flows", np.argsort(flows.sources, kind="stable") + first_flow)
        row = {
            "member": members,
            "num_members": lane.num_members,
            "step": self._rows["steps"],
            "num_steps": len(lane.steps),
            "missing": self._rows["missing"],
        }
        self._append("lanes", _rows(LANE, **{name: np.array([value]) for name, value in row.items()}))
        self._append("members", _rows(MEMBER, lane=np.full(lane.num_members, number)))
        self._append("steps", _rows(STEP, out=np.array([out_of[id(flows)] for flows in lane.steps], np.int64)))
        if id(lane) not in self._at_first:
            self._at_first[id(lane)] = np.array(lane.fractions), _missing(lane, kinds)
        self._append("missing", self._at_first[id(lane)][1])
        self._names.append(-1)
        self._demands.append(lane)
        return number

    def _append(self, name: str, rows: Table | Ints) -> None:
        """Append rows to a table, which doubles when it is full."""
        have = self._rows[name]
        self._rows[name] = need = have + len(rows)
        for grown in (name, *_GROWN[name]):
            table = getattr(self._tables, grown)
            if need > len(table):
                wider = np.zeros(max(need, 2 * len(table)), table.dtype)
                wider[: len(table)] = table
                self._tables = self._tables._replace(**{grown: wider})
        getattr(self._tables, name)[have:need] = rows


def _missing(lane: Demand, kinds: Sequence[Flows]) -> Ints:
    """Messages that each member has to send and to receive in each step, one step after the other."""
    of_kind = {
        id(flows): np.bincount(np.concatenate((flows.sources, flows.destinations)), minlength=lane.num_members)
        for flows in kinds
    }
    return np.concatenate([np.zeros(0, np.int64), *(of_kind[id(flows)] for flows in lane.steps)])


def _rows(dtype: np.dtype[Any], **columns: npt.NDArray[Any]) -> Table:
    """Make rows of a table from some of its columns; the others are zero."""
    rows = np.zeros(len(next(iter(columns.values()))), dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows
