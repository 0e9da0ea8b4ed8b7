"""Shared devices in columns: what `shared_devices` does, compiled.

Kernels that run on a device and transfers that have arrived at it lie in slots, so that who waits for whom is a mask of
bits. A slowdown that is not in the tables is asked for: the loop returns, and goes on when the caller has added it.

Symbols: M instances, T transfers, P pairs of a transfer and a device, D devices, W slots, K kinds of kernels, C widths.
"""

import math
from typing import NamedTuple

import numpy as np

from scaleout.network.flow.compiling import Table, inlined
from scaleout.program.graph import NONE, Floats, Ints
from scaleout.simulation.contention import SAME
from scaleout.simulation.core.heaps import place, pop, push, remove

CHANGED, ENDS, SPARED, MISSED, OVERFLOW, TOLD = range(6)

ONE = np.uint64(1)
EMPTY = np.uint64(0)
NOTHING = -1.0  # how much no kernel slows a transfer down

INSTANCE = np.dtype(
    [(name, "f8") for name in ("left_s", "rate", "since_s", "started_s")]
    + [("held_by", "u8"), ("spares", "u8"), ("communicator", "i8"), ("instance", "i4"), ("device", "i4")]
    + [(name, "i4") for name in ("key", "first_pair", "last_pair", "waits", "held_sms", "position")]
    + [(name, "i1") for name in ("rated", "slot", "width", "races", "won", "has_spares", "is_told")]
)
"""A transfer, or a kernel that runs, of which slot w of device d has row ``T + W d + w``. A kernel has a `device`, a
`slot` there while it runs, and a `key`, its kind; a transfer pairs with devices, of which so many wait for kernels.
`rated` is 0 before it starts, 2 once its rate is set and else 1. `held_by` are the slots of
transfers that have held SMs since it started, `spares` of those that hold only SMs that it does not need. `position` is
that in the heap of ends."""

KERNEL_CALL = np.dtype([("call_s", "f8")] + [(name, "i4") for name in ("device", "key", "row", "task")])
"""Of a kernel: when the host issues it, where it runs, its kind, its row while it does, else `NONE`, and its task."""

PAIR = np.dtype([("device", "i4"), ("instance", "i4"), ("slot", "i1"), ("posted", "i1")])
"""Of a transfer and a device; its slot is `NONE` as long as the transfer has not arrived there."""

DEVICE = np.dtype([("kernels", "u8"), ("arrivals", "u8"), ("freed_s", "f8"), ("raced_s", "f8"), ("is_changed", "i1")])
"""Slots in use, when a transfer ended there last, and when a kernel ended there that had won a race."""

SLOT = np.dtype([("behind", "u8"), ("racing", "u8"), ("arrived_s", "f8"), ("kernel", "i4"), ("pair", "i4")])
"""A kernel's, and that of a transfer, with the slots of the kernels that it waits for and of those that it races."""

KIND = np.dtype([("tiles", "f8"), ("isolated_s", "f8"), ("first_entry", "i8"), ("kernel", "i8")])
"""Of kernels: thread blocks of a GEMM, else NaN; isolated time; the first of its `slowdowns`; and which kernel."""

SLOWDOWN = np.dtype([("code", "u8"), ("slowed", "f8"), ("after", "i8")])
"""Of a kernel where so many channels are held; see `held` for the code. `after` is the kernel's next."""

MISSING = np.dtype([("kind", "i8"), ("code", "u8")])
"""A slowdown that is asked for."""


class Devices(NamedTuple):
    """What shares devices; `slows` is the slowdown of a transfer of each width by each kind of kernel, (K, C)."""

    instances: Table
    calls: Table
    """(M,) instances that are no kernels; `transfer` is the row of those that share devices."""
    kernels: Table  # (A,), the instances from M on
    pairs: Table
    devices: Table
    slots: Table
    kinds: Table
    slowdowns: Table
    missed: Table
    pair_of_task: Table
    widths: Ints
    slows: Floats
    slowest: Floats
    """Of each transfer a tree, from twice its first pair on: node k is the larger of 2 k and 2 k + 1, pairs last."""
    limits: Floats  # for how long a kernel may have been issued and yet not be queued; the SMs of a device
    changed: Ints
    ends: Table
    spared_s: Floats
    spared: Ints
    told: Table  # transfers that links time, whose rate has changed and is their speed there
    counts: Ints
    changed_s: Floats


@inlined
def lowest(mask: np.uint64) -> int:
    """Return the number of the lowest bit that is set."""
    bit = 0
    while not (mask >> np.uint64(bit)) & ONE:
        bit += 1
    return bit


@inlined
def change(d: Devices, device: int, now_s: float) -> None:
    """Note that something has changed on a device."""
    d.changed_s[0] = now_s
    if not d.devices[device]["is_changed"]:
        d.devices[device]["is_changed"] = 1
        d.changed[d.counts[CHANGED]] = device
        d.counts[CHANGED] += 1


@inlined
def wait_for(d: Devices, device: int, slot: int, behind: np.uint64, racing: np.uint64) -> None:
    """Set the kernels that a transfer waits for on a device, and those that it races."""
    which = d.pairs[d.slots[device, slot]["pair"]]["instance"]
    d.instances[which]["waits"] -= (d.slots[device, slot]["behind"] | d.slots[device, slot]["racing"]) != EMPTY
    d.slots[device, slot]["behind"], d.slots[device, slot]["racing"] = behind, racing
    d.instances[which]["waits"] += (behind | racing) != EMPTY


@inlined
def forget(d: Devices, device: int, bit: np.uint64, behind: bool, racing: bool) -> None:
    """Let no transfer on a device wait for a kernel any more."""
    rest = d.devices[device]["arrivals"]
    while rest:
        slot = lowest(rest)
        rest &= rest - ONE
        wait_for(
            d, device, slot,
            d.slots[device, slot]["behind"] & ~bit if behind else d.slots[device, slot]["behind"],
            d.slots[device, slot]["racing"] & ~bit if racing else d.slots[device, slot]["racing"],
        )  # fmt: skip


@inlined
def free_slot(d: Devices, taken: np.uint64) -> int:
    """Return a slot that is free; the first if none is, which is told the caller."""
    slots = d.slots.shape[1]
    for slot in range(slots):
        if not (taken >> np.uint64(slot)) & ONE:
            return slot
    d.counts[OVERFLOW] = 1
    return 0


@inlined
def add_arrival(d: Devices, pair: int, ahead: bool, event_s: float) -> None:
    """Let a transfer arrive at a device, behind the kernels that leave it nothing if it is to wait."""
    device, which = d.pairs[pair]["device"], d.pairs[pair]["instance"]
    slot = free_slot(d, d.devices[device]["arrivals"])
    mine = ONE << np.uint64(slot)
    behind = EMPTY
    rest = d.devices[device]["kernels"] if ahead else EMPTY
    while rest:
        bit = lowest(rest)
        rest &= rest - ONE
        found = d.slots[device, bit]["kernel"]
        if d.instances[found]["has_spares"]:
            d.instances[found]["spares"] |= mine
        else:
            behind |= ONE << np.uint64(bit)
    d.pairs[pair]["slot"] = slot
    d.devices[device]["arrivals"] |= mine
    d.slots[device, slot]["pair"] = pair
    d.slots[device, slot]["behind"], d.slots[device, slot]["racing"] = behind, EMPTY
    d.instances[which]["waits"] += behind != EMPTY
    d.slots[device, slot]["arrived_s"] = event_s


@inlined
def arrive(d: Devices, instance: int, task: int, now_s: float) -> None:
    """Let a member arrive at a transfer: it waits for the kernels that run there, then its channels hold SMs."""
    transfer = d.calls[instance]["transfer"]
    pair = d.pair_of_task[task] if transfer != NONE else NONE
    if pair == NONE:
        return
    device = d.pairs[pair]["device"]
    if d.pairs[pair]["slot"] == NONE:
        races = d.instances[transfer]["races"] and d.devices[device]["freed_s"] != now_s
        add_arrival(d, pair, True, now_s if races else math.nan)
    change(d, device, now_s)


@inlined
def begin(d: Devices, instance: int, now_s: float) -> None:
    """Start what is no kernel."""
    transfer = d.calls[instance]["transfer"]
    if transfer == NONE:
        return
    d.instances[transfer]["since_s"] = d.instances[transfer]["started_s"] = now_s
    for pair in range(d.instances[transfer]["first_pair"], d.instances[transfer]["last_pair"]):
        if d.pairs[pair]["slot"] == NONE:
            add_arrival(d, pair, not d.pairs[pair]["posted"], math.nan)
        change(d, d.pairs[pair]["device"], now_s)
    d.instances[transfer]["rated"] = 1


@inlined
def take_slot(d: Devices, number: int, now_s: float) -> int:
    """Let a kernel run in a slot of its device, and return its row."""
    call = d.kernels[number]
    device, key = call["device"], call["key"]
    slot = free_slot(d, d.devices[device]["kernels"])
    kernel = len(d.instances) - d.slots.size + device * d.slots.shape[1] + slot
    call["row"] = d.slots[device, slot]["kernel"] = kernel
    d.devices[device]["kernels"] |= ONE << np.uint64(slot)
    row = d.instances[kernel]
    row["instance"], row["device"], row["slot"], row["key"] = len(d.calls) + number, device, slot, key
    row["held_by"], row["spares"], row["has_spares"], row["won"], row["held_sms"] = EMPTY, EMPTY, 0, 0, 0
    row["left_s"], row["rate"], row["since_s"], row["started_s"] = d.kinds[key]["isolated_s"], 0.0, now_s, now_s
    row["position"], row["rated"] = NONE, 1
    return int(kernel)


@inlined
def begin_kernel(d: Devices, number: int, now_s: float) -> None:
    """Start a kernel, which transfers hold SMs of that have arrived before, and race others for."""
    kernel = take_slot(d, number, now_s)
    device = d.instances[kernel]["device"]
    mine = ONE << np.uint64(d.instances[kernel]["slot"])
    change(d, device, now_s)
    if not d.devices[device]["arrivals"]:
        return
    queued = 0 < d.kernels[number]["call_s"] <= now_s - d.limits[0]
    if d.devices[device]["raced_s"] == now_s:
        rest = d.devices[device]["arrivals"]
        while rest:
            at = lowest(rest)
            rest &= rest - ONE
            if d.slots[device, at]["arrived_s"] == now_s:
                wait_for(d, device, at, d.slots[device, at]["behind"] | mine, d.slots[device, at]["racing"])
    code = held(d, device, EMPTY)
    total = 0
    for kind in range(2 * len(d.widths)):
        total += int((code >> np.uint64(8 * kind)) & np.uint64(255)) * d.widths[kind >> 1]
    d.instances[kernel]["held_sms"] = total
    rest = d.devices[device]["arrivals"]
    while rest:
        at = lowest(rest)
        rest &= rest - ONE
        if d.slots[device, at]["behind"]:
            continue
        d.instances[kernel]["held_by"] |= ONE << np.uint64(at)
        if queued and d.slots[device, at]["arrived_s"] == now_s:
            wait_for(d, device, at, EMPTY, d.slots[device, at]["racing"] | mine)
            if not d.instances[kernel]["won"]:
                d.instances[kernel]["won"] = 1
                spare_later(d, now_s + d.instances[kernel]["left_s"], kernel, True)


@inlined
def spare_later(d: Devices, time_s: float, kernel: int, in_race: bool) -> None:
    """Note when a kernel leaves SMs to transfers."""
    push(d.spared_s, d.spared, d.counts[SPARED], time_s, 2 * d.instances[kernel]["instance"] + in_race)
    d.counts[SPARED] += 1


@inlined
def ending(d: Devices) -> int:
    """Return the instance that ends next."""
    return int(d.instances[d.ends[0]["which"]]["instance"])


@inlined
def next_end_s(d: Devices) -> float:
    """Return when the next kernel or transfer ends; infinite if none runs."""
    return d.ends[0]["key"] if d.counts[ENDS] else math.inf


@inlined
def spares(d: Devices, until_s: float) -> bool:
    """Free SMs of the next kernel that leaves some before anything ends: late blocks, or it won a race and ended."""
    if not d.counts[SPARED] or d.spared_s[0] > until_s or d.spared_s[0] >= next_end_s(d):
        return False
    now_s, number = d.spared_s[0], d.spared[0]
    pop(d.spared_s, d.spared, d.counts[SPARED])
    d.counts[SPARED] -= 1
    kernel, in_race = d.kernels[(number >> 1) - len(d.calls)]["row"], number & 1
    if kernel == NONE:
        return True
    device, mine = d.instances[kernel]["device"], ONE << np.uint64(d.instances[kernel]["slot"])
    if not in_race:
        d.instances[kernel]["has_spares"], d.instances[kernel]["spares"] = 1, EMPTY
        rest = d.devices[device]["arrivals"]
        while rest:
            at = lowest(rest)
            rest &= rest - ONE
            if d.slots[device, at]["behind"] & mine:
                d.instances[kernel]["spares"] |= ONE << np.uint64(at)
    forget(d, device, mine, not in_race, bool(in_race))
    change(d, device, now_s)
    return True


@inlined
def end(d: Devices, instance: int, now_s: float) -> None:
    """End a kernel or a transfer."""
    number = instance - len(d.calls)
    which = d.kernels[number]["row"] if number >= 0 else d.calls[instance]["transfer"]
    d.instances[which]["rated"] = 0
    d.counts[ENDS] = remove(d.ends, d.counts[ENDS], d.instances, which)
    if number >= 0:
        device, mine = d.instances[which]["device"], ONE << np.uint64(d.instances[which]["slot"])
        d.devices[device]["kernels"] &= ~mine
        d.kernels[number]["row"] = NONE
        if d.instances[which]["won"]:
            d.devices[device]["raced_s"] = now_s
        if d.devices[device]["arrivals"]:
            forget(d, device, mine, True, True)
            change(d, device, now_s)
        return
    for pair in range(d.instances[which]["first_pair"], d.instances[which]["last_pair"]):
        device, mine = d.pairs[pair]["device"], ONE << np.uint64(d.pairs[pair]["slot"])
        d.devices[device]["arrivals"] &= ~mine
        d.devices[device]["freed_s"] = now_s
        rest = d.devices[device]["kernels"]
        while rest:
            bit = lowest(rest)
            rest &= rest - ONE
            found = d.slots[device, bit]["kernel"]
            d.instances[found]["spares"] &= ~mine
            if d.instances[found]["held_by"] & mine:
                d.instances[found]["held_by"] &= ~mine
                if not d.instances[found]["held_by"]:
                    regain(d, found, now_s)
        change(d, device, now_s)


@inlined
def regain(d: Devices, kernel: int, now_s: float) -> None:
    """Let a GEMM use all SMs that it lacked because transfers held them since it started."""
    key, num_sms, every = d.instances[kernel]["key"], d.instances[kernel]["held_sms"], int(d.limits[1])
    tiles, alone_s = d.kinds[key]["tiles"], d.kinds[key]["isolated_s"]
    left = every - num_sms
    if math.isnan(tiles) or not 0 < num_sms < every or tiles <= left:
        return
    held_s = now_s - d.instances[kernel]["started_s"]
    tile_s = alone_s / math.ceil(tiles / every)
    late = held_s / tile_s
    first = math.floor((tiles + num_sms * late) / every)
    whole, count = first, max(0, math.floor(first - late) - 1)
    while late + count < first:
        count += 1
    at = 0.0
    while True:
        at = min(float(whole), late + count)
        if left * math.floor(at + SAME) + num_sms * math.floor(at - late + SAME) >= tiles:
            break
        whole, count = whole + (whole == at), count + (late + count == at)
    whole_s = max(held_s, alone_s, tile_s * at)
    others_s = min(whole_s, max(alone_s, held_s, tile_s * math.floor(at + SAME)))
    d.instances[kernel]["left_s"], d.instances[kernel]["since_s"], d.instances[kernel]["rate"] = (
        whole_s - held_s,
        now_s,
        0.0,
    )
    if others_s < whole_s:
        spare_later(d, d.instances[kernel]["started_s"] + others_s, kernel, False)


@inlined
def moves(d: Devices, transfer: int) -> bool:
    """Whether a transfer has started and waits for no kernel anywhere."""
    return bool(d.instances[transfer]["rated"] > 0 and d.instances[transfer]["waits"] == 0)


@inlined
def held(d: Devices, device: int, spared: np.uint64) -> np.uint64:
    """Return how many of the library's kernels of each width hold SMs on a device, still and moving bytes.

    Eight bits a number. Transfers of one communicator are one kernel, as wide as the widest.
    """
    code = EMPTY
    rest = d.devices[device]["arrivals"] & ~spared
    while rest:
        at = lowest(rest)
        rest &= rest - ONE
        if d.slots[device, at]["behind"]:
            continue
        which = d.pairs[d.slots[device, at]["pair"]]["instance"]
        width, is_moving = d.instances[which]["width"], moves(d, which)
        others = rest if d.instances[which]["communicator"] != NONE else EMPTY
        while others:
            other = lowest(others)
            others &= others - ONE
            found = d.pairs[d.slots[device, other]["pair"]]["instance"]
            same = d.instances[found]["communicator"] == d.instances[which]["communicator"]
            if same and not d.slots[device, other]["behind"]:
                width = max(width, d.instances[found]["width"])
                is_moving = is_moving or moves(d, found)
                rest &= ~(ONE << np.uint64(other))
        code += ONE << np.uint64(8 * (2 * width + (1 if is_moving else 0)))
    return code


@inlined
def kernel_rate(d: Devices, kernel: int) -> float:
    """Return the rate of a kernel; NaN if the tables do not have it, which is told the caller."""
    spared = d.instances[kernel]["spares"] if d.instances[kernel]["has_spares"] else EMPTY
    code = held(d, d.instances[kernel]["device"], spared)
    if code == EMPTY:
        return 1.0
    entry = d.kinds[d.instances[kernel]["key"]]["first_entry"]
    while entry != NONE:
        if d.slowdowns[entry]["code"] == code:
            return float(1.0 / d.slowdowns[entry]["slowed"])
        entry = d.slowdowns[entry]["after"]
    missed = d.counts[MISSED]
    if missed < len(d.missed):
        d.missed[missed]["kind"], d.missed[missed]["code"] = d.instances[kernel]["key"], code
        d.counts[MISSED] = missed + 1
    return math.nan


@inlined
def slow_down(d: Devices, pair: int) -> None:
    """Note how much the kernels of a device slow a transfer down: a leaf of the tree of the most of its devices."""
    which = d.pairs[pair]["instance"]
    first, width = d.instances[which]["first_pair"], d.instances[which]["width"]
    slows = NOTHING
    rest = d.devices[d.pairs[pair]["device"]]["kernels"]
    while rest:
        bit = lowest(rest)
        rest &= rest - ONE
        kernel = d.slots[d.pairs[pair]["device"], bit]["kernel"]
        slows = max(slows, d.slows[d.instances[kernel]["key"], width])
    root, at = 2 * first, pair - first + d.instances[which]["last_pair"] - first
    d.slowest[root + at] = slows
    while at > 1:
        at >>= 1
        slows = max(d.slowest[root + 2 * at], d.slowest[root + 2 * at + 1])
        if d.slowest[root + at] == slows:
            break
        d.slowest[root + at] = slows


@inlined
def transfer_rate(d: Devices, transfer: int) -> float:
    """Return the rate of a transfer: none while it waits somewhere, else what the slowest channel leaves."""
    if d.instances[transfer]["waits"]:
        return 0.0
    slows = d.slowest[2 * d.instances[transfer]["first_pair"] + 1]
    return 1.0 if slows == NOTHING else 1.0 / slows


@inlined
def set_rate(d: Devices, which: int, rate: float) -> None:
    """Let a kernel or a transfer go at a rate from the last change on."""
    now_s, before = d.changed_s[0], d.instances[which]["rate"]
    if rate == before and d.instances[which]["rated"] == 2:
        return
    done_s = (now_s - d.instances[which]["since_s"]) * before
    left_s = max(0.0, d.instances[which]["left_s"] - done_s)
    d.instances[which]["left_s"], d.instances[which]["since_s"] = left_s, now_s
    d.instances[which]["rate"], d.instances[which]["rated"] = rate, 2
    if math.isinf(left_s):
        if not d.instances[which]["is_told"]:
            d.instances[which]["is_told"] = 1
            d.told[d.counts[TOLD]] = which
            d.counts[TOLD] += 1
    elif rate > 0:
        d.counts[ENDS] = place(d.ends, d.counts[ENDS], d.instances, which, now_s + left_s / rate)
    else:
        d.counts[ENDS] = remove(d.ends, d.counts[ENDS], d.instances, which)


@inlined
def set_rates(d: Devices) -> bool:
    """Set the rates of all that runs where something has changed; False if the tables lack some."""
    for number in range(d.counts[CHANGED]):
        device = d.changed[number]
        rest = d.devices[device]["kernels"]
        while rest:
            bit = lowest(rest)
            rest &= rest - ONE
            kernel = d.slots[device, bit]["kernel"]
            rate = kernel_rate(d, kernel)
            if not math.isnan(rate):
                set_rate(d, kernel, rate)
        rest = d.devices[device]["arrivals"]
        while rest:
            at = lowest(rest)
            rest &= rest - ONE
            slow_down(d, d.slots[device, at]["pair"])
    for number in range(d.counts[CHANGED]):
        device = d.changed[number]
        rest = d.devices[device]["arrivals"]
        while rest:
            at = lowest(rest)
            rest &= rest - ONE
            transfer = d.pairs[d.slots[device, at]["pair"]]["instance"]
            if d.instances[transfer]["rated"]:
                set_rate(d, transfer, transfer_rate(d, transfer))
    if d.counts[MISSED]:
        return False
    for number in range(d.counts[CHANGED]):
        d.devices[d.changed[number]]["is_changed"] = 0
    d.counts[CHANGED] = 0
    return True
