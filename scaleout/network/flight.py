"""What is in flight message by message: the tables of `event_loop`.

Tables are structured arrays, whose columns the dtypes below name; heaps are arrays whose first entries are in use. Each
link knows the flows over it, as a chain of its pairs in the order of their rates and one of those whose rate is open.

Symbols: F flows that may be in flight, K pairs of a flow and a link, L links, M members, G lanes of collectives.
"""

from typing import Any, NamedTuple

import numpy as np

from scaleout.network.links import Floats, Ints

Table = np.ndarray[Any, Any]

LINK = np.dtype(
    [(name, "f8") for name in ("bytes_per_s", "carried", "load", "open", "used", "level", "estimate", "key")]
    + [(name, "i8") for name in ("head", "tail", "first_open", "place", "touched")]
)
"""`load` is of all flows over it, `open` of those whose rate is open, and `used` about what the others take. `level` is
the rate at which it is full, infinite if never, and `estimate` what it will be once `event_loop` has come there, or the
negative of a bound to it; `key` and `place` are those of its heap."""

PAIR = np.dtype([("weight", "f8"), ("rate", "f8"), ("link", "i4"), ("flow", "i4"), ("next", "i4"), ("previous", "i4")])
"""`rate` is the flow's fair one, below zero if it is open; `next`, `previous` and a link's `head`, `tail` and
`first_open` are -1 for none."""

FLOW = np.dtype(
    [(name, "f8") for name in ("latency_s", "left_bytes", "rate", "since_s", "end_s", "fair")]
    + [(name, "i8") for name in ("source", "destination", "first", "last", "step", "place", "moved")]
)
"""`first` to `last` are its pairs; `place` is its place in the heap of ends, -1 unless it is in flight. `rate` is in
force since `since_s`, `fair` what it is to be; `moved` flows may differ in the two."""

MEMBER = np.dtype([("lane", "i8"), ("at", "i8")])

LANE = np.dtype(
    [("after_s", "f8"), ("latencies", "f8")]
    + [(name, "i8") for name in ("member", "num_members", "step", "num_steps", "missing", "behind")]
)
"""Its first member, step and count of missing messages; `behind` members have not done their last step."""

STEP = np.dtype([("size_bytes", "f8"), ("out", "i8")])
"""`out` plus a member's number in its lane is its place in `outs`: its flows are ``out_flows[outs[i]:outs[i + 1]]``."""

EVENT = np.dtype([("time_s", "f8"), ("kind", "i8"), ("which", "i8"), ("step", "i8")])

START, ARRIVED, DONE = 0, 1, 2
"""Kinds of events: a lane starts, a flow arrives, a lane is done."""


class Tables(NamedTuple):
    """All that is in flight or may be. `missing` has for each lane one number a step and member."""

    links: Table
    pairs: Table
    flows: Table
    members: Table
    lanes: Table
    steps: Table
    outs: Ints
    out_flows: Ints
    missing: Ints
    events: Table
    ends: Ints
    moving: Ints
    touched: Ints
    levels: Ints
    full: Ints
    moved: Ints
    sent: Ints
    done: Ints
    counts: Ints
    """Entries in use of `events`, `ends`, `moving`, `touched`, `levels`, `moved`, `sent`, `done`."""


EVENTS, ENDS, MOVING, TOUCHED, LEVELS, MOVED, SENT, FINISHED = range(8)


def empty(bytes_per_s: Floats) -> Tables:
    """Return tables of links over which nothing is in flight."""
    links = np.zeros(len(bytes_per_s), LINK)
    links["bytes_per_s"], links["level"], links["estimate"] = bytes_per_s, np.inf, np.inf
    links["head"], links["tail"], links["first_open"], links["place"] = -1, -1, -1, -1
    none = np.zeros(0, np.int64)
    return Tables(
        links=links,
        pairs=np.zeros(0, PAIR),
        flows=np.zeros(0, FLOW),
        members=np.zeros(0, MEMBER),
        lanes=np.zeros(0, LANE),
        steps=np.zeros(0, STEP),
        outs=none,
        out_flows=none,
        missing=none,
        events=np.zeros(64, EVENT),
        ends=none,
        moving=none,
        touched=np.zeros(len(links), np.int64),
        levels=np.zeros(len(links), np.int64),
        full=np.zeros(len(links), np.int64),
        moved=none,
        sent=none,
        done=none,
        counts=np.zeros(8, np.int64),
    )
