"""Instances on links in columns: what `network.flow.traffic` and `instances` do, over the tables of `event_driven`.

A transfer that shares links takes rows of the tables for each of its chains, and leaves them to the next with the same
demand. If there are none, or what a transfer takes in isolation is not known, the loop returns, and goes on when the
caller has added it.

Symbols: M instances, T transfers that differ, H pairs of a transfer and a link, L links, G chains that are laid out, K
kinds of chains.
"""

import math
from typing import NamedTuple

import numpy as np

from scaleout.network.flow.compiling import Table, inlined
from scaleout.network.flow.event_driven import run, set_speed
from scaleout.network.flow.incremental_max_min import CHANGED, FINISHED, REQUESTED, SENT, Tables
from scaleout.network.flow.max_min import SAME
from scaleout.program.graph import NONE, Floats, Ints
from scaleout.simulation.core.devices import TOLD, Devices
from scaleout.simulation.core.heaps import place, pop_number, push_number, remove

STARTING, EARLY, ENDED, ALONE, LACKING, UNKNOWN, CATCHING_UP = range(7)
STARTED, REACHED = range(2)
STARTED_ONE, ALL_STARTED, LACKING_SOME = range(3)

TRANSFER = np.dtype(
    [(name, "f8") for name in ("size_bytes", "before_s", "after_s", "latencies", "sent_s", "done_s")]
    + [(name, "i4") for name in ("first_kind", "num_chains", "first_link", "last_link")]
)
"""What an instance sends. `sent_s` and `done_s` are in isolation, NaN until they are asked for; the kinds of its chains
are `kinds` from the first on, and its links `crossed`."""

INSTANCE = np.dtype(
    [(name, "f8") for name in ("since_s", "reached_s", "speed")]
    + [(name, "i4") for name in ("instance", "transfer", "first_chain", "to_send", "to_end", "position")]
    + [(name, "i1") for name in ("is_paced", "is_moving", "is_alone", "has_sent", "is_released", "is_changed")]
)
"""`instance` is its number; `transfer` is `NONE` if it is not on links. One that shared devices slow down is paced. One
that has its links to itself is alone: it was at a part of its isolated time at a time, and its speed is not 1 from the
start on if it is changed. Of others `running` has the chains, so many of which are to send all, and to end."""

CHAIN = np.dtype([(name, "i4") for name in ("instance", "kind", "after")])
"""Whose it is, and the next of its kind that is free while it is."""


class Links(NamedTuple):
    """Links, and what is in flight or may be."""

    tables: Tables
    transfers: Table
    instances: Table
    crossed: Table
    link_bytes: Floats
    """(H,) what a transfer sends over each link."""
    user: Table
    """(L,) the instance that has each link to itself."""
    crossing: Table
    """(L,) instances that share each link, or may."""
    carried: Floats
    """(L,) bytes of instances that were alone."""
    kinds: Table
    running: Table
    chains: Table
    free: Table
    """(K,) the first chain of a kind that is free."""
    starting: Table
    early: Table
    ended: Table
    alone: Table
    counts: Ints
    times: Floats
    """When those in `starting` start, and the time that has been reached."""


@inlined
def start_transfer(n: Links, instance: int, now_s: float) -> None:
    """Note that an instance starts, if it is on links and not paced."""
    if n.instances[instance]["transfer"] != NONE and not n.instances[instance]["is_paced"]:
        n.starting[n.counts[STARTING]] = instance
        n.counts[STARTING] += 1
        n.times[STARTED] = now_s


@inlined
def begin_alone(n: Links, instance: int, now_s: float) -> bool:
    """Let an instance have its links to itself; False if what it takes in isolation is not known."""
    which = n.instances[instance]["transfer"]
    if math.isnan(n.transfers[which]["sent_s"]):
        n.counts[UNKNOWN] = which
        return False
    for at in range(n.transfers[which]["first_link"], n.transfers[which]["last_link"]):
        n.user[n.crossed[at]] = instance
    n.instances[instance]["is_moving"], n.instances[instance]["is_alone"] = 1, 1
    n.instances[instance]["since_s"], n.instances[instance]["speed"] = now_s, 1.0
    wait(n, instance)
    return True


@inlined
def met(n: Links, instance: int) -> tuple[int, bool]:
    """Return an instance that has one of another one's links to itself, or `NONE`, and whether others share them."""
    which, shared = n.instances[instance]["transfer"], False
    for at in range(n.transfers[which]["first_link"], n.transfers[which]["last_link"]):
        if n.user[n.crossed[at]] != NONE:
            return int(n.user[n.crossed[at]]), True
        shared = shared or n.crossing[n.crossed[at]] > 0
    return NONE, shared


@inlined
def wait(n: Links, instance: int) -> None:
    """Set when an instance that is alone has sent all, or is done."""
    which, speed = n.instances[instance]["transfer"], n.instances[instance]["speed"]
    target_s = n.transfers[which]["done_s"] if n.instances[instance]["has_sent"] else n.transfers[which]["sent_s"]
    next_s = n.instances[instance]["since_s"] + (target_s - n.instances[instance]["reached_s"]) / speed
    n.counts[ALONE] = place(n.alone, n.counts[ALONE], n.instances, instance, next_s)


@inlined
def leave_links(n: Links, instance: int) -> None:
    """Let an instance that is alone leave its links."""
    which = n.instances[instance]["transfer"]
    for at in range(n.transfers[which]["first_link"], n.transfers[which]["last_link"]):
        n.user[n.crossed[at]] = NONE


@inlined
def resumed_s(n: Links, instance: int, now_s: float) -> float:
    """Return when an instance that is alone would have started, had it gone at full speed ever since."""
    since_s = n.instances[instance]["since_s"]
    if not n.instances[instance]["is_changed"]:
        return float(since_s)
    return float(now_s - (n.instances[instance]["reached_s"] + (now_s - since_s) * n.instances[instance]["speed"]))


@inlined
def leave_alone(n: Links, instance: int, now_s: float) -> None:
    """Let an instance that was alone be one of those that share links; what it has sent has to be caught up with."""
    leave_links(n, instance)
    n.instances[instance]["is_alone"] = 0
    n.counts[ALONE] = remove(n.alone, n.counts[ALONE], n.instances, instance)
    n.counts[CATCHING_UP], n.times[REACHED] = instance, now_s


@inlined
def request(n: Links, instance: int, start_s: float) -> bool:
    """Let the chains of an instance start among others; False if one of them is not laid out once more."""
    which = n.instances[instance]["transfer"]
    transfer = n.transfers[which]
    first, count = transfer["first_kind"], transfer["num_chains"]
    for at in range(count):
        if n.free[n.kinds[first + at]] == NONE:
            n.counts[LACKING] = n.kinds[first + at]
            return False
    for at in range(count):
        kind = n.kinds[first + at]
        chain = n.free[kind]
        n.free[kind] = n.chains[chain]["after"]
        n.chains[chain]["instance"] = instance
        n.running[n.instances[instance]["first_chain"] + at] = chain
        asked = n.tables.requests[n.tables.counts[REQUESTED]]
        asked["start_s"], asked["chain"] = start_s + transfer["before_s"], chain
        asked["after_s"], asked["latencies"] = transfer["after_s"], transfer["latencies"]
        asked["size_bytes"] = transfer["size_bytes"]
        n.tables.counts[REQUESTED] += 1
    for at in range(transfer["first_link"], transfer["last_link"]):
        n.crossing[n.crossed[at]] += 1
    n.instances[instance]["is_moving"] = 1
    n.instances[instance]["to_send"], n.instances[instance]["to_end"] = count, count
    return True


@inlined
def set_speed_of(n: Links, instance: int, speed: float, now_s: float) -> None:
    """Set the speed of an instance; what shares links goes at it from the next `run` on."""
    if n.instances[instance]["is_alone"]:
        if speed != n.instances[instance]["speed"]:
            done_s = (now_s - n.instances[instance]["since_s"]) * n.instances[instance]["speed"]
            n.instances[instance]["reached_s"] += done_s
            n.instances[instance]["since_s"], n.instances[instance]["speed"] = now_s, speed
            n.instances[instance]["is_changed"] = 1
            wait(n, instance)
        return
    first = n.instances[instance]["first_chain"]
    for at in range(first, first + n.transfers[n.instances[instance]["transfer"]]["num_chains"]):
        if n.running[at] != NONE:
            set_speed(n.tables, n.running[at], speed)


@inlined
def next_to_start(n: Links, d: Devices, until_s: float) -> tuple[int, float]:
    """Return an instance that is to start, and when; `NONE` if there is no more.

    What is paced starts at its first speed above zero, once the moment of that is over.
    """
    if n.counts[STARTING]:
        return int(n.starting[n.counts[STARTING] - 1]), float(n.times[STARTED])
    if d.counts[TOLD] and until_s > d.changed_s[0]:
        for at in range(d.counts[TOLD]):
            told = d.instances[d.told[at]]
            if told["rate"] > 0 and not n.instances[told["instance"]]["is_moving"]:
                return int(told["instance"]), float(d.changed_s[0])
    return NONE, 0.0


@inlined
def start_next(n: Links, d: Devices, until_s: float) -> int:
    """Start the next instance, or let one that it meets join those that share links first; see `advance`."""
    instance, now_s = next_to_start(n, d, until_s)
    if instance == NONE:
        return ALL_STARTED
    other, shares = met(n, instance)
    joins, start_s = instance, now_s
    if other != NONE:
        joins, start_s = other, resumed_s(n, other, now_s)
    if not (request(n, joins, start_s) if shares else begin_alone(n, instance, now_s)):
        return LACKING_SOME
    if other != NONE:
        leave_alone(n, other, now_s)
    elif n.counts[STARTING]:
        n.counts[STARTING] -= 1
    return STARTED_ONE


@inlined
def tell_speeds(n: Links, d: Devices) -> None:
    """Set the speeds of what is paced and moves."""
    for at in range(d.counts[TOLD]):
        told = d.instances[d.told[at]]
        told["is_told"] = 0
        if n.instances[told["instance"]]["is_moving"]:
            set_speed_of(n, told["instance"], told["rate"], d.changed_s[0])
    d.counts[TOLD] = 0


@inlined
def next_bound(n: Links, d: Devices, until_s: float) -> float:
    """Start what starts now, and give what is paced its speed once the moment of its last change is over.

    Returns the time to which all that shares links is to `run` next; NaN if the caller has to add something first.
    """
    while n.counts[CATCHING_UP] == NONE and not n.tables.counts[CHANGED]:
        found = start_next(n, d, until_s)
        if found == LACKING_SOME:
            return math.nan
        if found == STARTED_ONE:
            continue
        if not d.counts[TOLD] or until_s <= d.changed_s[0]:
            return float(min(until_s, n.alone[0]["key"] if n.counts[ALONE] else math.inf))
        tell_speeds(n, d)
        if n.tables.counts[CHANGED]:
            return float(d.changed_s[0])
    return float(n.times[REACHED])


@inlined
def advance(n: Links, d: Devices, until_s: float) -> float:
    """Advance until an instance has sent all or ends, but not beyond a time.

    Returns that time, or NaN if the caller has to add something first, and then to call again. `run` is called at one
    place, as each is a copy of it.
    """
    while True:
        bound_s = next_bound(n, d, until_s)
        if math.isnan(bound_s):
            return bound_s
        late, changes = n.counts[CATCHING_UP], n.tables.counts[CHANGED]
        if late == NONE and not changes and (n.counts[EARLY] or n.counts[ENDED]):
            return float(n.times[REACHED])
        now_s = run(n.tables, bound_s)
        if math.isnan(now_s):
            return now_s
        has_noted = note(n)
        if late != NONE and not n.tables.counts[SENT] and not n.tables.counts[FINISHED]:
            n.counts[CATCHING_UP] = NONE
            if n.instances[late]["speed"] != 1.0:
                set_speed_of(n, late, n.instances[late]["speed"], bound_s)
        if late == NONE and not changes and (has_noted or now_s == bound_s):
            end_alone(n, now_s)
            n.times[REACHED] = now_s
            return now_s


@inlined
def end_alone(n: Links, now_s: float) -> None:
    """Let instances that are alone have sent all, or end, at a time."""
    while n.counts[ALONE] and now_s < math.inf and n.alone[0]["key"] <= now_s * (1 + SAME):
        instance = n.alone[0]["which"]
        if n.instances[instance]["has_sent"]:
            n.counts[ALONE] = remove(n.alone, n.counts[ALONE], n.instances, instance)
            n.instances[instance]["is_alone"] = 0
            push_number(n.ended, 0, n.counts[ENDED], instance)
            n.counts[ENDED] += 1
            continue
        has_sent(n, instance)
        leave_links(n, instance)
        which = n.instances[instance]["transfer"]
        for at in range(n.transfers[which]["first_link"], n.transfers[which]["last_link"]):
            n.carried[n.crossed[at]] += n.link_bytes[at]
        wait(n, instance)


@inlined
def has_sent(n: Links, instance: int) -> None:
    """Note that an instance has sent all; a slice or a message releases its streams."""
    n.instances[instance]["has_sent"] = 1
    if not n.instances[instance]["is_paced"] and not n.transfers[n.instances[instance]["transfer"]]["latencies"]:
        push_number(n.early, 0, n.counts[EARLY], instance)
        n.counts[EARLY] += 1


@inlined
def note(n: Links) -> bool:
    """Note the chains that have sent all, and those that are done; return whether an instance has, or is."""
    found = False
    for number in range(n.tables.counts[SENT]):
        instance = n.chains[n.tables.sent[number]]["instance"]
        n.instances[instance]["to_send"] -= 1
        if not n.instances[instance]["to_send"]:
            found = True
            has_sent(n, instance)
            which = n.instances[instance]["transfer"]
            for at in range(n.transfers[which]["first_link"], n.transfers[which]["last_link"]):
                n.crossing[n.crossed[at]] -= 1
    for number in range(n.tables.counts[FINISHED]):
        found = leave_rows(n, n.tables.done[number]) or found
    return found


@inlined
def leave_rows(n: Links, chain: int) -> bool:
    """Let a chain that is done leave its rows to the next of its kind; return whether its instance ends."""
    instance, kind = n.chains[chain]["instance"], n.chains[chain]["kind"]
    n.chains[chain]["after"], n.free[kind] = n.free[kind], chain
    first = n.instances[instance]["first_chain"]
    for at in range(first, first + n.transfers[n.instances[instance]["transfer"]]["num_chains"]):
        if n.running[at] == chain:
            n.running[at] = NONE
    n.instances[instance]["to_end"] -= 1
    if n.instances[instance]["to_end"]:
        return False
    push_number(n.ended, 0, n.counts[ENDED], instance)
    n.counts[ENDED] += 1
    return True


@inlined
def next_early(n: Links) -> int:
    """Take the first of the instances that have sent all and release their streams."""
    n.counts[EARLY] -= 1
    instance = pop_number(n.early, 0, n.counts[EARLY] + 1)
    n.instances[instance]["is_released"] = 1
    return instance


@inlined
def next_ended(n: Links) -> int:
    """Take the first of the instances that end."""
    n.counts[ENDED] -= 1
    return pop_number(n.ended, 0, n.counts[ENDED] + 1)
