"""Simulated steps to error bars: how far off a time may be, what that comes from, and what to measure next.

``ln(actual / predicted)`` of a step is the sum over what errs as one (all kernels of a class on a device, all
collectives over a kind of link, the host) of its share of a chain of nodes times its own, and of what concerns the
whole step. These are independent of each other, and either side adds up in quadrature, as errors are skewed. A step is
its longest chain, and so either end is the greatest that any chain has. The spreads are those of the device's file, or
of its reference device's, and of the communication library's. Knows no measured step. See docs/models/uncertainty.md.

Symbols: w share of the makespan; s spread, of 90% of all cases.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from scaleout.analysis.breakdown import critical_nodes
from scaleout.analysis.chains import Chain, Chains, Work
from scaleout.cluster.device.kernel_times import source_names
from scaleout.cluster.device.sections import Spread
from scaleout.cluster.device.spec import CLASSES, Device, load_device
from scaleout.cluster.topology.peers import peer_of
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Topology
from scaleout.program.calls import by_rows
from scaleout.program.graph import COLLECTIVES, NONE, NodeKind, NodeRole
from scaleout.program.operations import CUSTOM, ITEM_BYTES, OPERATIONS, Kernel
from scaleout.simulation.columns import distinct
from scaleout.simulation.result import Result, Timeline

CONFIDENCE = 0.9
"""Share of all cases that lie within an interval."""

STEP = "software: what no part of the step explains"
"""The cause that concerns a step as a whole."""

UNALIGNED_GEMM = "unaligned gemm"
"""The class of GEMMs with rows of no multiple of 16 bytes, a load."""
ITEM_ALIGNMENT = 16

HOST_STEPS = ("pace", "data_parallel", "perceptron", "loop")
"""Steps by which `scaleout measure host` finds what calls cost."""


class Call(NamedTuple):
    """A collective or message on the critical path: over how many ranks, which link, and whether within a node."""

    kind: str
    size_bytes: int
    ranks: int
    link: str  # kind of the outermost that it crosses
    innermost: bool  # whether it crosses no other


@dataclass(frozen=True)
class Shares:
    """What a chain of nodes consists of, such as a step's critical path, in parts of its length; they add up to 1.

    `kernels` are by where their time comes from; `host` is what nothing but the host held up.
    """

    kernels: Mapping[tuple[Kernel, str], float]
    calls: Mapping[Call, float]
    host: float = 0.0
    given: float = 0.0  # of kernels of a trace, whose times are not predicted


@dataclass(frozen=True)
class Cause:
    """What errs as one: its share of the critical path, what it adds to either side, and rows that take it away."""

    cause: str
    share: float
    faster: float
    slower: float
    rows: tuple[Mapping[str, Any], ...] = ()
    work: Work | None = None  # the kind that it concerns; None for all

    @property
    def variance(self) -> float:
        """What it adds to the square of the interval."""
        return self.faster**2 + self.slower**2


@dataclass(frozen=True)
class Interval:
    """How far off a step's time may be in 90% of all cases, by what causes it, the largest first."""

    causes: tuple[Cause, ...]

    @cached_property
    def faster(self) -> float:
        """``ln(predicted / low)``."""
        return math.hypot(*(each.faster for each in self.causes))

    @cached_property
    def slower(self) -> float:
        """``ln(high / predicted)``."""
        return math.hypot(*(each.slower for each in self.causes))

    def of(self, seconds: float) -> tuple[float, float]:
        """Return the least and the greatest time."""
        return seconds * math.exp(-self.faster), seconds * math.exp(self.slower)

    def beside(self, cause: Cause) -> "Interval":
        """Return the error bars with one more cause."""
        return _largest_first((*self.causes, cause))

    @property
    def measurement(self) -> Cause | None:
        """The cause of which a measurement would narrow the interval most; None if there is nothing to measure."""
        return next((each for each in self.causes if each.rows), None)

    @property
    def narrowed(self) -> float:
        """By which share that measurement, if nothing of its cause were left, would narrow the interval."""
        rest = Interval(tuple(each for each in self.causes if each is not self.measurement))
        whole = self.faster + self.slower
        return 1 - (rest.faster + rest.slower) / whole if whole else 0.0

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """What `scaleout measure` is to measure, what narrows the interval most first."""
        return [row for each in self.causes for row in each.rows]

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the numbers of a step of some seconds as plain values."""
        low_s, high_s = self.of(seconds)
        names = ("cause", "share", "faster", "slower")
        return {
            "step_low_s": low_s,
            "step_high_s": high_s,
            "causes": [{name: getattr(each, name) for name in names} for each in self.causes],
            **({} if self.measurement is None else {"next_measurement": self.measurement.cause}),
        }


def spread_of(device: Device) -> Spread:
    """Return the spread of a device: what its file states, and for all else what those of its reference devices do."""
    stated, seen = [device.spread], {device.name}
    while device.efficiency_from not in seen:
        device = load_device(device.efficiency_from)
        seen.add(device.name)
        stated.append(device.spread)
    found: dict[str, Any] = {}
    for spread in filter(None, reversed(stated)):
        for name in spread.model_fields_set:
            own = getattr(spread, name)
            found[name] = {**found.get(name, {}), **own} if isinstance(own, dict) else own
    return Spread.model_construct(**found)


def interval(result: Result, device: Device, topology: Topology) -> Interval | None:
    """Return the error bars of a simulated step; None where no spread of a whole step is known of the device."""
    spread = spread_of(device)
    if spread.step_slower is None or not result.makespan_s:
        return None

    def ends(chain: Chain) -> _Ends:
        found = _interval(shares_of(result, topology, chain), device, topology, spread)
        shorter = min(math.log(chain.length_s / result.makespan_s), 0.0)
        return _Ends(shorter - found.faster, shorter + found.slower, found)

    chains = Chains(result)
    own = low = high = ends(critical_chain(result))
    for work, (faster, slower) in _widest(result, topology, spread).items():
        others = [each for each in own.bars.causes if each.work != work]
        most = slower * chains.most_s[work] / result.makespan_s
        if math.hypot(most, *(each.slower for each in others)) > own.high + _WIDE:
            high = max(high, ends(chains.longest({work: math.exp(slower)})), key=lambda each: each.high)
        if math.hypot(*(each.faster for each in others)) < -own.low - _WIDE:
            low = max(low, ends(chains.longest({work: math.exp(-faster)})), key=lambda each: each.low)
    return own.bars if own is low is high else _joined(own, low.low, high)


_WIDE = 0.01
"""By how much more of the step a chain of nothing but a kind of work, or without it, has to err to be sought."""


class _Ends(NamedTuple):
    """Either end of a chain, ``ln(end / makespan)``, and what they come from."""

    low: float
    high: float
    bars: Interval


def _widest(result: Result, topology: Topology, spread: Spread) -> dict[Work, tuple[float, float]]:
    """Return how far work of a kind is off together: all links as the one known least, kernels in the mean."""
    library = dict(topology.library.spread) if topology.library else {}
    known = [library.get(each.link or each.kind) for each in topology.dimensions]
    faster = max((own.faster if own else spread.links_faster or 0.0 for own in known), default=0.0)
    slower = max((own.slower if own else spread.links_slower or 0.0 for own in known), default=0.0)
    kernels = math.hypot(spread.machine or 0.0, _mean_of_kernels(result, spread))
    return {
        Work.COMMUNICATION: (faster, slower),
        Work.HOST: (spread.host_faster or 0.0, spread.host_slower or 0.0),
        Work.KERNELS: (kernels, kernels),
    }


def _mean_of_kernels(result: Result, spread: Spread) -> float:
    """Return how far kernels are off, by where their times come from, a mean over these times."""
    transferred = [max(each.values(), default=0.0) for each in (spread.transferred, spread.transferred_each)]
    off = dict.fromkeys(("measured", *_GIVEN), 0.0)
    off["interpolated"] = max(spread.interpolated.values(), default=0.0)
    sources = np.concatenate([line.graph.time_source[line.is_kernel] for line in result.timelines])
    lasts_s = np.concatenate([line.duration_s[line.is_kernel] for line in result.timelines])
    first, names = int(sources.min(initial=0)), source_names()
    total_s = np.bincount(sources - first, lasts_s)
    of_each = [off.get(names.get(first + number, ""), math.hypot(*transferred)) for number in range(len(total_s))]
    return float(total_s @ of_each) / (float(total_s.sum()) or 1.0)


def _joined(own: _Ends, low: float, high: _Ends) -> Interval:
    """Return the error bars from a low to a high end: of what errs on the critical path, and on the other chain.

    Where a chain that is shorter as predicted has the end, its causes add to it what is left of them.
    """
    slower = high.high / high.bars.slower if high.bars.slower else 0.0
    faster = low / own.low if own.low else 0.0
    causes = {each.cause: replace(each, faster=each.faster * faster, slower=0.0) for each in own.bars.causes}
    for each in high.bars.causes:
        mine = causes.get(each.cause, replace(each, share=0.0, faster=0.0))
        causes[each.cause] = replace(mine, slower=each.slower * slower, rows=each.rows or mine.rows)
    return _largest_first(causes.values())


def replay_interval(spread: float, edits: Collection[str] = ()) -> Interval | None:
    """Return the error bars of a replay of what was recorded, edited or not; None if one of the edits was not measured.

    `spread` is the standard deviation of the logarithm of the recorded steps; 0 of a single one.
    """
    if not MEASURED_EDITS.issuperset(edits):
        return None
    of_steps = _QUANTILE * spread
    causes = (Cause(REPLAY, 1.0, REPLAY_ERROR, REPLAY_ERROR), Cause(RECORDED_STEPS, 1.0, of_steps, of_steps))
    return _largest_first((*causes, *[EDIT] * bool(edits)))


REPLAY, RECORDED_STEPS = "replay of recorded times", "recorded steps about their mean"
REPLAY_ERROR = 0.002
"""Of replays of the public recordings, none of which was fitted: figures/public_recordings.md."""
_QUANTILE = 1.645
"""Standard deviations on either side that hold `CONFIDENCE` of a normal distribution."""
MEASURED_EDITS = frozenset(("batch", "sequence", "layers", "accumulate", "recompute", "bucket", "data", "chunks"))
_EDIT_ERROR = 0.022
"""Of 30 measured edits of recordings, of these kinds, 28 err by less: figures/recordings.md."""
EDIT = Cause("edits of a recording", 1.0, _EDIT_ERROR, _EDIT_ERROR)


def _largest_first(causes: Iterable[Cause]) -> Interval:
    return Interval(tuple(sorted((each for each in causes if each.variance), key=lambda each: -each.variance)))


def interval_of(shares: Shares, device: Device, topology: Topology) -> Interval:
    """Return the error bars of a step that consists of some shares.

    What no part explains is work of the device that is not modelled: where the host holds up a step, that hides.
    """
    return _interval(shares, device, topology, spread_of(device))


def _interval(shares: Shares, device: Device, topology: Topology, spread: Spread) -> Interval:
    on_device = 1.0 - shares.given - shares.host
    causes = [
        *_of_kernels(shares.kernels, device, spread),
        *_of_calls(shares.calls, topology, spread),
        _host(shares.host, device, spread),
        _software(on_device, spread),
    ]
    return _largest_first(causes)


def _software(share: float, spread: Spread) -> Cause:
    """Return what the families of steps that were compared vary by, and besides one that was not."""
    ends = (spread.step_faster or 0.0, spread.step_slower or 0.0)
    faster, slower = (share * math.hypot(end, spread.framework or 0.0) for end in ends)
    return Cause(STEP, share, faster, slower)


def _host(share: float, device: Device, spread: Spread) -> Cause:
    rows = tuple({"experiment": "host", "step": step} for step in HOST_STEPS)
    faster, slower = (share * (found or 0.0) for found in (spread.host_faster, spread.host_slower))
    return Cause(f"calls of the host of {device.name}", share, faster, slower, rows, Work.HOST)


def _of_kernels(kernels: Mapping[tuple[Kernel, str], float], device: Device, spread: Spread) -> Iterable[Cause]:
    """Yield what kernels add: the machine, and by class those that lie between measured ones, or are transferred."""
    total = math.fsum(kernels.values())
    machine = total * (spread.machine or 0.0)
    yield Cause(f"differences between machines of {device.name}", total, machine, machine, (), Work.KERNELS)
    for name in (*dict.fromkeys(CLASSES.values()), UNALIGNED_GEMM, CUSTOM):
        of_class = {key: share for key, share in kernels.items() if class_of(key[0]) == name}
        between = {key: share for key, share in of_class.items() if key[1] == "interpolated"}
        off = math.hypot(*between.values()) * spread.interpolated.get(name, 0.0)
        known_as, share = f"{name} kernels between those measured on {device.name}", math.fsum(between.values())
        yield Cause(known_as, share, off, off, _rows(between), Work.KERNELS)
        other = {key: share for key, share in of_class.items() if key[1] not in ("measured", "interpolated")}
        share, known = math.fsum(other.values()), "memory" if name == CUSTOM else name
        each = math.hypot(*other.values()) * spread.transferred_each.get(known, 0.0)
        off = math.hypot(share * spread.transferred.get(known, 0.0), each)
        how = "of given FLOPs and bytes, at the roofline of" if name == CUSTOM else "not measured on"
        yield Cause(f"{name} kernels {how} {device.name}", share, off, off, _rows(other), Work.KERNELS)


def _rows(kernels: Mapping[tuple[Kernel, str], float]) -> tuple[Mapping[str, Any], ...]:
    """Return the kernels as rows to measure, the largest share first."""
    largest = sorted(kernels, key=lambda key: -kernels[key])
    return tuple(
        {"experiment": "kernels", "op": each.op, "dtype": each.dtype, "shape": dict(each.shape)}
        for each, _ in largest
        if each.op in OPERATIONS
    )


def class_of(kernel: Kernel) -> str:
    """Return the class in which a kernel errs; GEMMs whose rows are not aligned differ most between devices.

    Custom kernels, of which FLOPs and bytes are given and no operation, are taken to err as memory's do.
    """
    if kernel.op not in OPERATIONS:
        return CUSTOM
    found = CLASSES[OPERATIONS[kernel.op].family]
    aligned = ITEM_ALIGNMENT // ITEM_BYTES[kernel.dtype] or 1
    odd = found == "gemm" and any(kernel.sizes.get(name, aligned) % aligned for name in "NK")
    return UNALIGNED_GEMM if odd else found


def _of_calls(calls: Mapping[Call, float], topology: Topology, spread: Spread) -> Iterable[Cause]:
    """Yield what collectives and messages add, by the kind of the outermost link that they cross."""
    known = dict(topology.library.spread) if topology.library else {}
    by_link: dict[str, dict[Call, float]] = {}
    for call, share in calls.items():
        by_link.setdefault(call.link, {})[call] = share
    for link, found in by_link.items():
        share = math.fsum(found.values())
        own = known.get(link)
        faster, slower = (own.faster, own.slower) if own else (spread.links_faster or 0.0, spread.links_slower or 0.0)
        largest = sorted((call for call in found if call.innermost), key=lambda call: -found[call])
        rows = (
            {"experiment": "collectives", "collective": call.kind, "ranks": call.ranks, "bytes": call.size_bytes}
            for call in largest
        )
        name = f"collectives over {link}" if own else f"collectives over {link}, of which no library knows"
        yield Cause(name, share, share * faster, share * slower, tuple(rows), Work.COMMUNICATION)


def critical_chain(result: Result) -> Chain:
    """Return the chain that decides the makespan."""
    nodes, times = critical_nodes(result)
    return Chain(np.array(nodes, np.int64), -np.diff(times), times[-1])


def shares_of(result: Result, topology: Topology, chain: Chain) -> Shares:
    """Divide a chain of a step's nodes among kernels, collectives and the host."""
    nodes, lasts = chain.nodes, chain.lasts_s / chain.length_s
    where = np.searchsorted(result.offsets, nodes, side="right") - 1
    indices = nodes - result.offsets[where]
    kernels: dict[tuple[Kernel, str], float] = {}
    calls: dict[Call, float] = {}
    host, given = chain.host_s / chain.length_s, 0.0
    for number in np.unique(where).tolist():
        line, on_line = result.timelines[number], where == number
        index, share = indices[on_line], lasts[on_line]
        communicates = line.is_communication[index]
        runs = ~communicates & (line.graph.kernel[index] != NONE)
        issues = ~communicates & ~runs & line.graph.has_role(NodeRole.HOST)[index]
        host += float(share[issues].sum())
        given += float(share[~communicates & ~runs & ~issues].sum())
        for call, part in _calls(result, line, topology, index[communicates], share[communicates]):
            calls[call] = calls.get(call, 0.0) + part
        for key, part in _kernels(line, index[runs], share[runs]):
            if key[1] in _GIVEN:
                given += part
            else:
                kernels[key] = kernels.get(key, 0.0) + part
    return Shares(kernels, calls, host, given)


_GIVEN = ("given", "recorded", "scaled")
"""Sources of kernel times that are not predicted."""


def _kernels(line: Timeline, index: "np.ndarray[Any, Any]", share: "np.ndarray[Any, Any]") -> Iterable[Any]:
    """Yield each kernel with the source of its time, and the share of its calls."""
    graph, names = line.graph, source_names()
    columns = graph.kernel[index], graph.time_source[index]
    first, which = distinct(*columns)
    totals = np.bincount(which, share, len(first))
    for kernel, source, total in zip(*(column[first].tolist() for column in columns), totals.tolist(), strict=True):
        yield (by_rows(graph.kernels[kernel]), names.get(source, "")), total


def _calls(
    result: Result, line: Timeline, topology: Topology, index: "np.ndarray[Any, Any]", share: "np.ndarray[Any, Any]"
) -> Iterable[tuple[Call, float]]:
    """Yield each collective and message that crosses a dimension, and its share."""
    graph, rank = line.graph, line.ranks[0]
    columns = (graph.kind, graph.collective, graph.group, graph.peer, graph.bytes)
    first, which = distinct(*(column[index] for column in columns))
    totals = np.bincount(which, share, len(first))
    for node, total in zip(index[first].tolist(), totals.tolist(), strict=True):
        members: Sequence[int] = ()
        if graph.kind[node] != NodeKind.COLLECTIVE:
            members, kind = (rank, peer_of(result.program, rank, graph, node)), "send"
        else:
            kind = COLLECTIVES[int(graph.collective[node])]
            members = range(result.program.num_ranks)
            if graph.group[node] != NONE:
                members = result.program.groups[int(graph.group[node])].of(rank)
        extents = place(topology, sorted(set(members))).extents
        if extents:
            outermost = extents[-1].dimension
            link, innermost = outermost.link or outermost.kind, outermost == topology.dimensions[0]
            yield Call(kind, int(graph.bytes[node]), len(members), link, innermost), total
