"""Instances on links in columns: what `network.flow.instances` does, over the tables of `network.flow.event_driven`.

A transfer that starts takes rows of the tables for each of its chains, and leaves them to the next with the same
demand. If there are none the loop returns, and goes on when the caller has laid out more.

Symbols: M instances, G chains that are laid out, K kinds of chains.
"""

import math
from typing import NamedTuple

import numpy as np

from scaleout.network.flow.compiling import Table, compiled
from scaleout.network.flow.event_driven import change_speeds, run, set_speed, start_chains
from scaleout.network.flow.incremental_max_min import FINISHED, REQUESTED, SENT, Tables
from scaleout.program.graph import NONE, Floats, Ints
from scaleout.simulation.core.devices import TOLD, Devices
from scaleout.simulation.core.heaps import pop_number, push_number

STARTING, EARLY, ENDED, LACKING = range(4)
STARTED, REACHED = range(2)

TRANSFER = np.dtype(
    [(name, "f8") for name in ("size_bytes", "before_s", "after_s")]
    + [(name, "i4") for name in ("first_kind", "num_chains", "first_chain", "to_send", "to_end")]
    + [(name, "i1") for name in ("latencies", "is_paced", "is_moving", "is_released")]
)
"""Of an instance: the kinds of its chains are `kinds` from the first on, and the chains that run `running`. It has no
chains if it is not on links; so many are to send all, and to end. One that shared devices slow down is paced."""

CHAIN = np.dtype([(name, "i4") for name in ("instance", "kind", "after")])
"""Whose it is, and the next of its kind that is free while it is."""


class Links(NamedTuple):
    """Links, and what is in flight or may be."""

    tables: Tables
    transfers: Table
    kinds: Table
    running: Table
    chains: Table
    free: Table
    """(K,) the first chain of a kind that is free."""
    starting: Table
    early: Table
    ended: Table
    counts: Ints
    times: Floats
    """When those in `starting` start, and the time that has been reached."""


@compiled
def start_transfer(n: Links, instance: int, now_s: float) -> None:
    """Note that an instance starts, if it is on links and not paced."""
    if n.transfers[instance]["num_chains"] and not n.transfers[instance]["is_paced"]:
        n.starting[n.counts[STARTING]] = instance
        n.counts[STARTING] += 1
        n.times[STARTED] = now_s


@compiled
def request(n: Links, instance: int, now_s: float) -> bool:
    """Let the chains of a transfer start; False if one of them is not laid out once more, which is told the caller."""
    transfer = n.transfers[instance]
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
        n.running[transfer["first_chain"] + at] = chain
        asked = n.tables.requests[n.tables.counts[REQUESTED]]
        asked["start_s"], asked["chain"] = now_s + transfer["before_s"], chain
        asked["after_s"], asked["latencies"] = transfer["after_s"], transfer["latencies"]
        asked["size_bytes"] = transfer["size_bytes"]
        n.tables.counts[REQUESTED] += 1
    transfer["is_moving"], transfer["to_send"], transfer["to_end"] = 1, count, count
    return True


@compiled
def start_transfers(n: Links, d: Devices, until_s: float) -> bool:
    """Start what starts now, and give what is paced its speed once the moment of its last change is over.

    False if a chain has to be laid out first; the call is then repeated.
    """
    while n.counts[STARTING]:
        if not request(n, n.starting[n.counts[STARTING] - 1], n.times[STARTED]):
            return False
        n.counts[STARTING] -= 1
    if not d.counts[TOLD] or until_s <= d.changed_s[0]:
        return True
    for at in range(d.counts[TOLD]):
        told = d.instances[d.told[at]]
        instance = told["instance"]
        moves = n.transfers[instance]["is_moving"] or told["rate"] == 0
        if not moves and not request(n, instance, d.changed_s[0]):
            return False
    start_chains(n.tables)
    changed = False
    for at in range(d.counts[TOLD]):
        told = d.instances[d.told[at]]
        told["is_told"] = 0
        transfer, speed = n.transfers[told["instance"]], told["rate"]
        for chain in n.running[transfer["first_chain"] : transfer["first_chain"] + transfer["num_chains"]]:
            if chain != NONE and n.tables.chains[chain]["speed"] != speed:
                set_speed(n.tables, chain, speed)
                changed = True
    d.counts[TOLD] = 0
    if changed:
        change_speeds(n.tables, d.changed_s[0])
    return True


@compiled
def advance(n: Links, until_s: float) -> float:
    """Advance until an instance has sent all or ends, but not beyond a time; return it, or NaN for want of room."""
    while True:
        now_s = run(n.tables, until_s)
        if math.isnan(now_s):
            return now_s
        is_over = now_s == until_s
        for at in range(n.tables.counts[SENT]):
            instance = n.chains[n.tables.sent[at]]["instance"]
            transfer = n.transfers[instance]
            transfer["to_send"] -= 1
            if not transfer["to_send"]:
                is_over = True
                if not transfer["is_paced"] and not transfer["latencies"]:
                    push_number(n.early, 0, n.counts[EARLY], instance)
                    n.counts[EARLY] += 1
        for at in range(n.tables.counts[FINISHED]):
            is_over = leave(n, n.tables.done[at]) or is_over
        if is_over:
            n.times[REACHED] = now_s
            return now_s


@compiled
def leave(n: Links, chain: int) -> bool:
    """Let a chain that is done leave its rows to the next of its kind; return whether its instance ends."""
    instance, kind = n.chains[chain]["instance"], n.chains[chain]["kind"]
    n.chains[chain]["after"], n.free[kind] = n.free[kind], chain
    transfer = n.transfers[instance]
    for at in range(transfer["first_chain"], transfer["first_chain"] + transfer["num_chains"]):
        if n.running[at] == chain:
            n.running[at] = NONE
    transfer["to_end"] -= 1
    if transfer["to_end"]:
        return False
    push_number(n.ended, 0, n.counts[ENDED], instance)
    n.counts[ENDED] += 1
    return True


@compiled
def next_early(n: Links) -> int:
    """Take the first of the instances that have sent all and release their streams."""
    n.counts[EARLY] -= 1
    instance = pop_number(n.early, 0, n.counts[EARLY] + 1)
    n.transfers[instance]["is_released"] = 1
    return instance


@compiled
def next_ended(n: Links) -> int:
    """Take the first of the instances that end."""
    n.counts[ENDED] -= 1
    return pop_number(n.ended, 0, n.counts[ENDED] + 1)
