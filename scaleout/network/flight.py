"""What is in flight message by message: the tables of `event_loop`.

Tables are structured arrays, whose columns the dtypes below name; heaps are arrays whose first entries are in use. Each
link knows the flows over it, as a chain of its pairs in the order of their rates and one of those whose rate is open.

Symbols: F flows that may be in flight, K pairs of a flow and a link, L links, M members, G lanes of collectives.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.network.links import Floats, Ints

Table = np.ndarray[Any, Any]

SPARE = 1 - 1e-6
"""Part of a link that is surely left by flows that are said to use no more, whatever their sum is rounded to."""

OPEN, GONE = np.inf, 0.0
"""Fair rates of a flow that has yet to find its own, and of one that is not in flight."""

LINK = np.dtype(
    [(name, "f8") for name in ("used", "limit", "open", "held", "level", "estimate")]
    + [(name, "i4") for name in ("touched", "weighed", "num_over", "place")]
)
"""`open` is the load of flows whose rate is open, `used` about what the others take; a link that uses no more than its
`limit` is not full. `level` is the rate at which it is full, infinite if never, and `estimate` what it will be once
`event_loop` has come there, for a load of `held`, or the negative of a bound to it. `weighed` is 0 if rates over it
have changed since, 2 if some are above it, and else 1; `place` is that in the heap of levels."""

FLOW = np.dtype(
    [(name, "f8") for name in ("rate", "left_bytes", "since_s", "end_s")]
    + [(name, "i4") for name in ("first", "last", "place", "moved", "whole", "free")]
)
"""`first` to `last` are its pairs, of weight 1 all if it is `whole`; `place` is that in the heap of those that
leave. `rate` is in force since `since_s`; it may differ from the `fair` one of flows that are `moved`."""

ENDS = np.dtype([("latency_s", "f8"), ("source", "i8"), ("destination", "i8"), ("step", "i8")])

OVER = np.dtype([("weight", "f8"), ("flow", "u4"), ("pair", "u4")])
"""A flow over a link, which may be gone; the first `num_over` from a link's place in `first_over` are in use."""

ENTRY = np.dtype([("key", "f8"), ("which", "i8")])
"""Of a heap, whose first entry is its size: places are counted from 1, and are 0 for what is not in it. What an entry
stands for may have a key that is higher by now."""

MEMBER = np.dtype([("lane", "i8"), ("at", "i8")])

LANE = np.dtype(
    [("after_s", "f8"), ("latencies", "f8"), ("size_bytes", "f8")]
    + [(name, "i8") for name in ("member", "num_members", "step", "num_steps", "missing", "behind")]
)
"""Its first member, step and count of missing messages; `behind` members have not done their last step."""

STEP = np.dtype([("fraction", "f8"), ("out", "i8")])
"""`fraction` is of the bytes of its lane. `out` plus a member's number in the lane is a place in `outs`: its flows are
``out_flows[outs[i]:outs[i + 1]]``."""

ASKED = np.dtype([("start_s", "f8"), ("lane", "i8"), ("after_s", "f8"), ("latencies", "f8"), ("size_bytes", "f8")])
"""Of a lane that is to start."""

EVENT = np.dtype([("time_s", "f8"), ("kind", "i8"), ("which", "i8"), ("step", "i8")])

START, ARRIVED, DONE = 0, 1, 2
"""Kinds of events: a lane starts, a flow arrives, a lane is done."""


class Tables(NamedTuple):
    """All that is in flight or may be.

    `missing` has for each lane one number a step and member, all of which are `expected` when it starts.
    """

    links: Table
    bytes_per_s: Floats
    carried: Floats
    load: Floats
    crossed: npt.NDArray[np.uint32]
    weights: Floats
    listed: npt.NDArray[np.uint8]
    over: Table
    first_over: Ints
    rates: Floats
    flows: Table
    fair: Floats
    ends: Table
    members: Table
    lanes: Table
    steps: Table
    outs: Ints
    out_flows: Ints
    missing: Ints
    expected: Ints
    asked: Table
    events: Table
    leaving: Table
    levels: Table
    moving: Ints
    touched: Ints
    full: Ints
    moved: Ints
    sent: Ints
    done: Ints
    counts: Ints
    """Entries in use of `events`, `moving`, `touched`, `full`, `moved`, `sent`, `done`, `asked`."""


EVENTS, MOVING, TOUCHED, FULL, MOVED, SENT, FINISHED, ASKING = range(8)


def empty(bytes_per_s: Floats) -> Tables:
    """Return tables of links over which nothing is in flight."""
    links = np.zeros(len(bytes_per_s), LINK)
    links["level"], links["limit"] = np.inf, bytes_per_s * SPARE
    names = ("outs", "out_flows", "missing", "expected", "moving", "moved", "sent", "done")
    numbers = {name: np.zeros(0, np.int64) for name in names}
    return Tables(
        links=links,
        bytes_per_s=bytes_per_s,
        carried=np.zeros(len(links)),
        load=np.zeros(len(links)),
        crossed=np.zeros(0, np.uint32),
        weights=np.zeros(0),
        listed=np.zeros(0, np.uint8),
        over=np.zeros(0, OVER),
        first_over=np.zeros(len(links) + 1, np.int64),
        rates=np.zeros(0),
        flows=np.zeros(0, FLOW),
        fair=np.zeros(0),
        ends=np.zeros(0, ENDS),
        members=np.zeros(0, MEMBER),
        lanes=np.zeros(0, LANE),
        steps=np.zeros(0, STEP),
        asked=np.zeros(0, ASKED),
        events=np.zeros(64, EVENT),
        leaving=np.zeros(1, ENTRY),
        levels=np.zeros(len(links) + 1, ENTRY),
        touched=np.zeros(len(links), np.int64),
        full=np.zeros(len(links), np.int64),
        counts=np.zeros(8, np.int64),
        **numbers,
    )
