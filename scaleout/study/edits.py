"""What-ifs of a recorded job: its batch, sequence, layers or steps changed, kernel by kernel.

A kernel whose sizes are recorded takes its recorded time, times what our model says of the new size over the old one;
one of which only bytes are known takes as much longer as it moves more, beyond the time of the shortest kernels. Layers
and micro-batches are found as what repeats in the order of launches, and are left out or run again. The host is left
out where it held nothing up: recording slows it, and its time is not the job's.

See docs/models/recordings.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.config.documents import number, whole
from scaleout.config.reading import nearest
from scaleout.config.units import BYTES, parse
from scaleout.errors import ConfigError
from scaleout.program.cut import without
from scaleout.program.graph import (
    COLLECTIVES,
    NEUTRAL,
    NONE,
    Bools,
    ExecutionGraph,
    Floats,
    Ints,
    NodeKind,
    NodeRole,
    compress,
)
from scaleout.program.operations import RECORDED, Kernel, TimeSource, kernel, recorded
from scaleout.program.program import Program

_HOST_BOUND = 0.1
"""Of the step, how much the GPU may wait for the host for the host to be left out of an edit."""
_SHORT = 0.05
"""The quantile of kernels' times that is taken for what any kernel takes."""


class Change(NamedTuple):
    """A number that changes: by a factor, and from what to what where that was said."""

    factor: Fraction
    old: int | None = None
    new: int | None = None


@dataclass(frozen=True)
class Recorded:
    """A recording to edit: what its metadata tells beside the program."""

    program: Program
    device: Device | None
    host_bound: float = 0.0  # share of the time in which the GPU waited for the host
    parameters: tuple[tuple[int, int], ...] = ()  # number of elements, and how many parameters have as many


@dataclass
class Edited:
    """The program of an edited job, and what the reader must know of it."""

    program: Program
    notes: list[str]


def parse_change(text: str, *, where: str) -> Change:
    """Read ``2x`` or ``OLD->NEW``.

    >>> parse_change("3->1", where="batch")
    Change(factor=Fraction(1, 3), old=3, new=1)
    """
    old_text, arrow, new_text = text.partition("->")
    if arrow:
        old, new = whole(old_text.strip()), whole(new_text.strip())
        if old and new:
            return Change(Fraction(new, old), old, new)
    elif text.endswith("x") and (factor := number(text[:-1])) is not None and 0 < factor <= 1e6:
        return Change(Fraction(factor).limit_denominator(10**6))
    raise ConfigError(f"{where}={text}: write a factor, such as 2x, or OLD->NEW, such as 4->8")


def edited(recording: Recorded, edits: Mapping[str, str]) -> Edited:
    """Carry out the edits of a recording, in the order of `EDITS`.

    Raises
    ------
    ConfigError
        If an edit is unknown, cannot be read, or the recording does not have what it changes.
    """
    unknown = [key for key in edits if key not in EDITS]
    if unknown:
        raise ConfigError(f"--edit {unknown[0]}={edits[unknown[0]]}: no such edit; {nearest(unknown[0], EDITS)}")
    notes: list[str] = []
    program = recording.program
    if edits and recording.host_bound < _HOST_BOUND:
        program = program.map_graphs(_without_host)
        notes.append(
            f"the GPU waited {recording.host_bound:.1%} of the time for the host, which the edited job leaves out: "
            f"where it is faster than its host, it takes longer than said"
        )
    for key, edit in EDITS.items():
        if key in edits:
            program = edit(replace(recording, program=program), edits[key], notes)
    return Edited(program, notes)


def _without_host(graph: ExecutionGraph) -> ExecutionGraph:
    names = np.array(graph.names, object)
    host = graph.has_role(NodeRole.HOST) & (names == "host")
    return graph.with_columns(duration_s=np.where(host, 0.0, graph.duration_s))


# ---- batch and sequence: kernels of other sizes


def _scaled(recording: Recorded, batch: Fraction, sequence: Fraction) -> Program:
    """Return the program with other numbers of sequences and of tokens in one."""
    short_s, start_s = _short(recording.program)

    def scale(graph: ExecutionGraph) -> ExecutionGraph:
        calls = [_resized(call, batch, sequence) for call in graph.kernels]
        ratios = _ratios(recording.device, graph.kernels, calls)
        return _with_kernels(graph, calls, ratios, short_s, start_s, waits=float(batch * sequence))

    return recording.program.map_graphs(scale)


def _resized(call: Kernel, batch: Fraction, sequence: Fraction) -> Kernel:
    tokens = batch * sequence
    if call.op.startswith(RECORDED):
        sizes = call.sizes
        scaled = round(sizes["token_bytes"] * tokens)
        name = call.op.removeprefix(RECORDED)
        return recorded(name, dtype=call.dtype, token_bytes=scaled, other_bytes=sizes["other_bytes"])
    if not call.tokens:
        return call
    shape = dict(call.shape)
    if call.tokens == "batch*seq":
        shape |= {"batch": _whole(shape["batch"] * batch), "seq": _whole(shape["seq"] * sequence)}
    else:
        shape[call.tokens] = _whole(shape[call.tokens] * tokens)
    return kernel(call.op, dtype=call.dtype, **shape).counting(call.tokens)


def _whole(size: Fraction) -> int:
    return max(1, round(size))


def _ratios(device: Device | None, old: Sequence[Kernel], new: Sequence[Kernel]) -> Floats:
    """Return how many times as long each kernel takes: as modelled on the device, or as its FLOPs and bytes say."""
    ratios = np.ones(len(old))
    changed = [index for index, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
    modelled = [index for index in changed if not old[index].op.startswith(RECORDED)]
    for index in changed:
        one, other = old[index], new[index]
        ratios[index] = other.flops / one.flops if one.flops else other.bytes / max(one.bytes, 1)
    if device is not None and modelled:
        before_s, _ = kernel_times(device, [old[index] for index in modelled])
        after_s, _ = kernel_times(device, [new[index] for index in modelled])
        ratios[modelled] = after_s / before_s
    return ratios


def _short(program: Program) -> tuple[float, float]:
    """Return what any kernel takes, and what any collective takes, however little it does."""
    kernels, communication = [np.zeros(0)], [np.zeros(0)]
    for graph in program.graphs:
        timed = np.isfinite(graph.duration_s) & (graph.duration_s > 0) & ~graph.has_role(NodeRole.HOST)
        kernels.append(graph.duration_s[timed & (graph.kind == NodeKind.COMPUTE)])
        communication.append(graph.duration_s[timed & (graph.kind != NodeKind.COMPUTE)])
    found = [np.concatenate(each) for each in (kernels, communication)]
    return (
        float(np.quantile(found[0], _SHORT)) if len(found[0]) else 0.0,
        float(found[1].min()) if len(found[1]) else 0.0,
    )


def _with_kernels(
    graph: ExecutionGraph, calls: Sequence[Kernel], ratios: Floats, short_s: float, start_s: float, *, waits: float
) -> ExecutionGraph:
    """Return the graph with other kernels; what nobody told a kernel waited for lasts as much longer as `waits` says."""
    known = graph.kernel != NONE
    ratio = np.where(known, np.append(ratios, 1.0)[graph.kernel], 1.0)
    by_bytes = np.array([call.op.startswith(RECORDED) for call in calls] + [False])[graph.kernel] & known
    fixed_s = np.where(graph.kind == NodeKind.COMPUTE, short_s, start_s)
    fixed_s = np.where(by_bytes, np.minimum(fixed_s, graph.duration_s), 0.0)
    duration_s = np.where(ratio == 1.0, graph.duration_s, fixed_s + (graph.duration_s - fixed_s) * ratio)
    untold = np.array(graph.names, object) == "untold wait"
    duration_s = np.where(untold, duration_s * waits, duration_s)
    columns: dict[str, Any] = {
        "duration_s": duration_s,
        "time_source": np.where((ratio != 1.0) | untold, int(TimeSource.SCALED), graph.time_source),
        "kernels": tuple(calls),
    }
    for name in ("flops", "bytes"):
        values = np.array([getattr(call, name) for call in calls] + [0], np.int64)[graph.kernel]
        columns[name] = np.where(known, values, getattr(graph, name))
    return graph.with_columns(**columns)


def _batch(recording: Recorded, text: str, notes: list[str]) -> Program:
    return _scaled(recording, parse_change(text, where="--edit batch").factor, Fraction(1))


def _sequence(recording: Recorded, text: str, notes: list[str]) -> Program:
    return _scaled(recording, Fraction(1), parse_change(text, where="--edit sequence").factor)


# ---- layers and steps: what repeats


class _Run(NamedTuple):
    """A unit that repeats: where each of its repetitions begins in the graph, and where the last one ends."""

    bounds: tuple[int, ...]  # (repetitions + 1,) indices of nodes

    @property
    def repeats(self) -> int:
        """How many times the unit stands."""
        return len(self.bounds) - 1


def _runs(graph: ExecutionGraph, roles: int, *, messages: bool = False) -> list[_Run]:
    """Find the unit that repeats in each stretch of passes, by the kernels of the compute stream.

    A stretch ends at a message to or from another rank, unless units may hold `messages`.
    """
    main = np.flatnonzero((graph.stream == 0) & ~graph.has_role(NodeRole.HOST) & (graph.kind < NodeKind.SEND))
    chosen = graph.has_role(roles)[main].astype(np.int64)
    _, names = np.unique(graph.names, return_inverse=True)
    rows = np.stack([graph.kernel[main], graph.collective[main], names[main]])
    what = np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1)
    if not messages:
        passed = np.r_[0, np.cumsum(graph.kind >= NodeKind.SEND)]
        chosen = chosen * (1 + passed[main])
    edges = np.flatnonzero(np.diff(np.r_[0, chosen, 0]))
    found = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        run = _longest(what[begin:end]) if chosen[begin] else None
        if run is not None:
            first, period, repeats = run
            starts = [begin + first + period * each for each in range(repeats + 1)]
            found.append(_Run(tuple(int(main[start - 1]) + 1 if start else 0 for start in starts)))
    return found


def _longest(what: Ints) -> tuple[int, int, int] | None:
    """Return begin, length and number of the repetitions that cover most of a sequence, of the shortest unit."""
    best: tuple[int, int, int] | None = None
    covered = 0
    for period in range(2, len(what) // 2 + 1):
        same = np.r_[False, what[:-period] == what[period:], False]
        edges = np.flatnonzero(same[1:] != same[:-1])
        lengths = edges[1::2] - edges[::2]
        if not len(lengths) or lengths.max() < period:
            continue
        longest = int(lengths.argmax())
        repeats = int(lengths[longest]) // period + 1
        if repeats * period > covered * 1.05:
            covered, best = repeats * period, (int(edges[::2][longest]), period, repeats)
    return best if best is not None and 2 * covered >= len(what) // 2 else None


def repeated(graph: ExecutionGraph, begin: int, end: int, times: int, *, before: int) -> ExecutionGraph:
    """Return a graph in which nodes `begin` to `end` run `times` more, one after another.

    A copy waits for the copy before it where the nodes waited for those from `before` to `begin`: each for the one of
    its stream at the same place. What waited for the nodes waits for the last copy.
    """
    size, more = end - begin, (end - begin) * times
    place = _places(graph, begin, end)
    twin = {key: begin + index for index, key in enumerate(place)}
    of_previous = dict(zip(range(before, begin), _places(graph, before, begin), strict=True))
    rows: list[list[int]] = [graph.dependencies_of(node).tolist() for node in range(end)]
    for copy in range(1, times + 1):
        for node in range(begin, end):
            row = []
            for need in rows[node] if copy == 1 else rows[node]:
                if need >= begin:
                    row.append(need + copy * size)
                elif need in of_previous and of_previous[need] in twin:
                    row.append(twin[of_previous[need]] + (copy - 1) * size)
                else:
                    row.append(need)
            rows.append(sorted(set(row)))
    for node in range(end, len(graph)):
        needs = graph.dependencies_of(node).tolist()
        rows.append(sorted({need + more if need >= begin else need for need in needs}))
    take = np.r_[np.arange(end), np.tile(np.arange(begin, end), times), np.arange(end, len(graph))].astype(np.int64)
    offsets, dependencies = compress(rows)
    return graph.with_columns(
        names=tuple(graph.names[node] for node in take.tolist()),
        dependency_offsets=offsets,
        dependencies=dependencies,
        **{name: getattr(graph, name)[take] for name in NEUTRAL},
    )


def _places(graph: ExecutionGraph, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the stream of each node, and how many of the stream follow it before the end."""
    counts: dict[int, int] = {}
    found = []
    for stream in graph.stream[begin:end][::-1].tolist():
        counts[stream] = counts.get(stream, 0) + 1
        found.append((stream, counts[stream]))
    return found[::-1]


def _layers(recording: Recorded, text: str, notes: list[str]) -> Program:
    change = parse_change(text, where="--edit layers")
    found: list[int] = []

    def resize(graph: ExecutionGraph) -> ExecutionGraph:
        runs = sorted((run for role in _PASSES for run in _runs(graph, role)), key=lambda run: -run.bounds[0])
        for run in runs:
            local = _layers_in(run, change)
            more = local * (change.factor - 1)
            if more.denominator != 1:
                raise ConfigError(
                    f"--edit layers={text}: {local} layers follow each other on a rank, which {change.factor} does not "
                    f"scale to a whole number; choose another"
                )
            if -more > run.repeats - 1:
                raise ConfigError(
                    f"--edit layers={text}: {run.repeats} layers that are alike were found on a rank, and at least one "
                    f"stays; keep more"
                )
            found.append(local)
            graph = _with_units(graph, run, int(more))
        return graph

    program = recording.program.map_graphs(resize)
    if not found:
        raise ConfigError(f"--edit layers={text}: the recording shows no layers that repeat; record with record_shapes")
    notes.append(f"layers: {max(found)} that follow each other were found in the order of launches")
    return _with_parameters(replace(recording, program=program), change, max(found), notes)


_PASSES = (NodeRole.FORWARD, NodeRole.BACKWARD)


def _layers_in(run: _Run, change: Change) -> int:
    """Return the layers of a stretch: those found, or one more where the first or last differs from the others."""
    if change.old is None:
        return run.repeats
    stages = max(1, round(change.old / run.repeats - 0.3))
    return change.old // stages if change.old % stages == 0 else run.repeats


def _with_units(graph: ExecutionGraph, run: _Run, more: int) -> ExecutionGraph:
    middle = run.repeats // 2
    if more < 0:
        first = min(middle, run.repeats + more)
        first = max(1, min(first, run.repeats + more)) if run.repeats + more >= 1 else 0
        mask = np.zeros(len(graph), bool)
        mask[run.bounds[first] : run.bounds[first - more]] = True
        return without(graph, mask)
    if more > 0:
        begin, end = run.bounds[middle], run.bounds[middle + 1]
        return repeated(graph, begin, end, more, before=run.bounds[middle - 1] if middle else begin)
    return graph


def _with_parameters(recording: Recorded, change: Change, layers: int, notes: list[str]) -> Program:
    """Scale what works on all parameters at once: the optimizer, and collectives of more than the model's rest."""
    old = change.old or layers
    per_layer = sum(size * (count // old) for size, count in recording.parameters)
    rest = sum(size * (count % old) for size, count in recording.parameters)
    if not per_layer:
        notes.append("the recording tells no parameters; its optimizer is left as it is")
        return recording.program
    ratio = float((per_layer * old * change.factor + rest) / (per_layer * old + rest))
    notes.append(
        f"parameters: {per_layer:,} a layer and {rest:,} besides, so that the optimizer takes {ratio:.3f} times as long"
    )

    def scale(graph: ExecutionGraph) -> ExecutionGraph:
        elements = np.array(
            [
                call.sizes["other_bytes"] / _ITEM.get(call.dtype, 2) if call.op.startswith(RECORDED) else 0
                for call in graph.kernels
            ]
            + [0]
        )[graph.kernel]
        optimizer = graph.has_role(NodeRole.OPTIMIZER) & (graph.kind == NodeKind.COMPUTE)
        whole_model = (graph.kind != NodeKind.COMPUTE) & (elements > 1.02 * max(rest, per_layer))
        chosen = optimizer | whole_model
        return graph.with_columns(
            duration_s=np.where(chosen, graph.duration_s * ratio, graph.duration_s),
            bytes=np.where(whole_model, (graph.bytes * ratio).astype(np.int64), graph.bytes),
            kernel=np.where(whole_model, NONE, graph.kernel),
            time_source=np.where(chosen, int(TimeSource.SCALED), graph.time_source),
        )

    return recording.program.map_graphs(scale)


_ITEM = {"fp64": 8, "fp32": 4, "int8": 1}


def _accumulate(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Run forward and backward several times a step; only the last time reduces gradients."""
    change = parse_change(text, where="--edit accumulate")
    if change.factor < 1 or change.factor.denominator != 1:
        raise ConfigError(
            f"--edit accumulate={text}: a recording can be accumulated more often only; give a whole factor"
        )
    times = int(change.factor) - 1
    adds_s = _adding_s(recording)
    if not adds_s:
        notes.append("what adding up gradients takes is not known on this device, and is left out")

    def accumulate(graph: ExecutionGraph) -> ExecutionGraph:
        for begin, end in reversed(_steps(graph)):
            longer = repeated(graph, begin, end, times, before=begin)
            size = end - begin
            reduces = _gradients(longer)
            mask = np.zeros(len(longer), bool)
            mask[begin : begin + times * size] = reduces[begin : begin + times * size]
            graph = without(_with_adds(longer, [begin + size * (copy + 1) for copy in range(times)], adds_s), mask)
        return graph

    return recording.program.map_graphs(accumulate)


def _adding_s(recording: Recorded) -> float:
    """Time to add a micro-batch's gradients to those of the ones before it."""
    elements = sum(size * count for size, count in recording.parameters)
    if recording.device is None or not elements:
        return 0.0
    return float(kernel_times(recording.device, [kernel("accumulate_fp32", dtype="fp32", elements=elements)])[0][0])


def _with_adds(graph: ExecutionGraph, at: Sequence[int], adds_s: float) -> ExecutionGraph:
    """Let the first kernel of the compute stream at or behind each index take longer."""
    main = np.flatnonzero((graph.stream == 0) & (graph.kind == NodeKind.COMPUTE))
    duration_s, source = graph.duration_s.copy(), graph.time_source.copy()
    for index in at:
        node = main[min(int(np.searchsorted(main, index)), len(main) - 1)]
        duration_s[node] += adds_s
        source[node] = TimeSource.SCALED
    return graph.with_columns(duration_s=duration_s, time_source=source)


def _gradients(graph: ExecutionGraph) -> Bools:
    """(N,) which collectives reduce gradients: those of backward that carry no activations."""
    tokens = np.array([bool(call.sizes.get("token_bytes")) for call in graph.kernels] + [False])[graph.kernel]
    kinds = [COLLECTIVES.index(kind) for kind in ("all_reduce", "reduce_scatter")]
    sums = (graph.kind == NodeKind.COLLECTIVE) & np.isin(graph.collective, kinds)
    return np.asarray(sums & ~tokens & graph.has_role(NodeRole.BACKWARD | NodeRole.FORWARD))


def _steps(graph: ExecutionGraph) -> list[tuple[int, int]]:
    """Return where forward and backward of each step begin and end: up to its optimizer."""
    main = np.flatnonzero((graph.stream == 0) & ~graph.has_role(NodeRole.HOST))
    works = graph.has_role(NodeRole.FORWARD | NodeRole.BACKWARD)[main]
    optimizes = graph.has_role(NodeRole.OPTIMIZER)[main]
    found, begin = [], 0
    ends = np.flatnonzero(optimizes & ~np.r_[False, optimizes[:-1]])
    for end in [*ends.tolist(), *([] if len(ends) else [len(main)])]:
        if works[begin:end].any():
            first = int(main[begin - 1]) + 1 if begin else 0
            found.append((first, int(main[end - 1]) + 1))
        later = np.flatnonzero(~optimizes[end:])
        begin = end + int(later[0]) if len(later) else len(main)
    return found


# ---- buckets of gradients


def _bucket(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Join buckets of gradients that follow each other until they are as large as wanted."""
    size_bytes = parse(text, BYTES)
    start_s = _short(recording.program)[1]
    split = [0]
    rate_s = _fastest(recording.program, start_s)

    def join(graph: ExecutionGraph) -> ExecutionGraph:
        reduces = np.flatnonzero(_gradients(graph) & (graph.collective == COLLECTIVES.index("all_reduce")))
        if not len(reduces):
            raise ConfigError("--edit bucket: the recording reduces no gradients in backward; it is no DDP job")
        duration_s, sizes, source = graph.duration_s.copy(), graph.bytes.copy(), graph.time_source.copy()
        gone = np.zeros(len(graph), bool)
        held: list[int] = []
        steps = np.searchsorted([end for _, end in _steps(graph)], reduces)
        for position, node in enumerate(reduces.tolist()):
            held.append(node)
            split[0] += int(graph.bytes[node]) > 2 * size_bytes
            last = position + 1 == len(reduces) or steps[position + 1] != steps[position]
            if last or sum(int(graph.bytes[each]) for each in held) >= size_bytes:
                if len(held) > 1:
                    sizes[node] = sum(int(graph.bytes[each]) for each in held)
                    duration_s[node], source[node] = start_s + rate_s * int(sizes[node]), TimeSource.SCALED
                    gone[held[:-1]] = True
                held = []
        kernels = np.where(sizes != graph.bytes, NONE, graph.kernel)
        return _joined(graph.with_columns(duration_s=duration_s, bytes=sizes, time_source=source, kernel=kernels), gone)

    program = recording.program.map_graphs(join)
    if split[0]:
        notes.append(
            f"{split[0]} recorded buckets are larger than {text}: a bucket is not split, as one gradient is not"
        )
    return program


def _fastest(program: Program, start_s: float) -> float:
    """Return the least time a byte of gradients took, beyond the start: of a bucket that no kernel slowed down."""
    rates = [
        (graph.duration_s[node] - start_s) / graph.bytes[node]
        for graph in program.graphs
        for node in np.flatnonzero(_gradients(graph) & (graph.bytes > 0)).tolist()
    ]
    large = max((int(graph.bytes[_gradients(graph)].max(initial=0)) for graph in program.graphs), default=0)
    known = [
        (graph.duration_s[node] - start_s) / graph.bytes[node]
        for graph in program.graphs
        for node in np.flatnonzero(_gradients(graph) & (graph.bytes > large // 4)).tolist()
    ]
    return float(max(0.0, min(known or rates or [0.0])))


def _joined(graph: ExecutionGraph, gone: Bools) -> ExecutionGraph:
    """Leave out collectives that were joined to the next one that stays: who waited for them waits for that."""
    stays = np.flatnonzero((graph.kind == NodeKind.COLLECTIVE) & ~gone)
    into = {node: int(stays[np.searchsorted(stays, node)]) for node in np.flatnonzero(gone).tolist()}
    rows = []
    for node in range(len(graph)):
        needs = {
            into[need] if need in into and into[need] < node else need for need in graph.dependencies_of(node).tolist()
        }
        rows.append(sorted(needs))
    for node, later in into.items():
        rows[later] = sorted({*rows[later], *graph.dependencies_of(node).tolist()} - {later})
    offsets, dependencies = compress(rows)
    return without(graph.with_columns(dependency_offsets=offsets, dependencies=dependencies), gone)


# ---- micro-batches, chunks and recomputation


def _microbatches(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Run a pipeline's micro-batches more or less often: where forward and backward of one repeat."""
    change = parse_change(text, where="--edit microbatches")
    if change.old is None or change.new is None:
        raise ConfigError(f"--edit microbatches={text}: say from how many to how many, such as 8->16")
    more = change.new - change.old

    def resize(graph: ExecutionGraph) -> ExecutionGraph:
        both = _runs(graph, NodeRole.FORWARD | NodeRole.BACKWARD, messages=True)
        if not both or max(run.repeats for run in both) < change.old // 2:
            both = [run for role in _PASSES for run in _runs(graph, role, messages=True)]
        if not both or min(run.repeats for run in both) - 1 < -more:
            raise ConfigError(
                f"--edit microbatches={text}: the recording shows "
                f"{max((run.repeats for run in both), default=0)} micro-batches that repeat; at least one stays"
            )
        for run in sorted(both, key=lambda run: -run.bounds[0]):
            graph = _with_units(graph, run, more)
        return graph

    return recording.program.map_graphs(resize)


def _chunks(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Cut each exchange, its way back and the kernels between them into equal parts, one after another."""
    parts = whole(text)
    if parts is None or not 1 <= parts <= 1024:
        raise ConfigError(f"--edit chunks={text}: give a number of parts from 1 to 1024")
    short_s, start_s = _short(recording.program)
    found = [0]

    def cut(graph: ExecutionGraph) -> ExecutionGraph:
        calls = [_resized(call, Fraction(1, parts), Fraction(1)) for call in graph.kernels]
        ratios = _ratios(recording.device, graph.kernels, calls)
        one = _with_kernels(graph, calls, ratios, short_s, start_s, waits=1.0)
        inside = _between_exchanges(graph)
        found[0] += int(inside.any())
        adds = np.array([_added_s(recording.device, call) for call in graph.kernels] + [0.0])[graph.kernel]
        changed = inside & (one.duration_s != graph.duration_s)
        return graph.with_columns(
            duration_s=np.where(changed, parts * one.duration_s + (parts - 1) * adds, graph.duration_s),
            time_source=np.where(changed, int(TimeSource.SCALED), graph.time_source),
        )

    program = recording.program.map_graphs(cut)
    if not found[0]:
        raise ConfigError(f"--edit chunks={text}: the recording has no exchange (all-to-all) with its way back")
    notes.append(
        "chunks run one after another, as they do on one stream; what could overlap on several is not credited"
    )
    return program


def _between_exchanges(graph: ExecutionGraph) -> Bools:
    """(N,) which nodes are exchanges, or run between one and its way back."""
    inside = np.zeros(len(graph), bool)
    for role in _PASSES:
        exchanges = np.flatnonzero(
            (graph.kind == NodeKind.COLLECTIVE)
            & (graph.collective == COLLECTIVES.index("all_to_all"))
            & graph.has_role(role)
        )
        for begin, end in zip(exchanges[::2].tolist(), exchanges[1::2].tolist(), strict=False):
            inside[begin : end + 1] = True
    return inside & ~graph.has_role(NodeRole.HOST)


def _added_s(device: Device | None, call: Kernel) -> float:
    """Time to add a part's gradient of a weight to that of the parts before it; 0 for other kernels."""
    if device is None or call.tokens != "K":
        return 0.0
    elements = call.sizes["M"] * call.sizes["N"] * call.sizes.get("groups", 1)
    return float(kernel_times(device, [kernel("add", dtype=call.dtype, elements=elements)])[0][0])


def _recompute(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Run each layer's forward again before its backward."""
    if text != "full":
        raise ConfigError(f"--edit recompute={text}: a recording can be made to recompute in full only; give full")
    found = [0]

    def recompute(graph: ExecutionGraph) -> ExecutionGraph:
        forward, backward = _runs(graph, NodeRole.FORWARD), _runs(graph, NodeRole.BACKWARD)
        if not forward or not backward:
            return graph
        unit = forward[0]
        begin, end = unit.bounds[unit.repeats // 2 : unit.repeats // 2 + 2]
        again = [
            node
            for node in range(begin, end)
            if graph.stream[node] == 0 and graph.kind[node] == NodeKind.COMPUTE and not graph.role[node] & NodeRole.HOST
        ]
        for run in sorted(backward, key=lambda run: -run.bounds[0]):
            layers = max(run.repeats, unit.repeats)
            for each in range(run.repeats - 1, -1, -1):
                times = 1 + (layers - run.repeats if each == 0 else 0)
                graph = _inserted(graph, again * times, run.bounds[each])
                found[0] += times
        return graph

    program = recording.program.map_graphs(recompute)
    if not found[0]:
        raise ConfigError("--edit recompute=full: the recording shows no layers that repeat, forward and backward")
    return program


def _inserted(graph: ExecutionGraph, copied: Sequence[int], at: int) -> ExecutionGraph:
    """Return the graph with copies of kernels, one after another on the compute stream, before index `at`."""
    main = np.flatnonzero((graph.stream == 0) & ~graph.has_role(NodeRole.HOST))
    place = int(np.searchsorted(main, at))
    before = int(main[place - 1]) if place else NONE
    following = int(main[place]) if place < len(main) else NONE
    more = len(copied)
    rows = [graph.dependencies_of(node).tolist() for node in range(at)]
    rows += [[at + index - 1] if index else ([before] if before != NONE else []) for index in range(more)]
    for node in range(at, len(graph)):
        needs = {need + more if need >= at else need for need in graph.dependencies_of(node).tolist()}
        rows.append(sorted(needs | ({at + more - 1} if node == following else set())))
    take = np.r_[np.arange(at), np.array(copied, np.int64), np.arange(at, len(graph))].astype(np.int64)
    offsets, dependencies = compress(rows)
    columns = {name: getattr(graph, name)[take] for name in NEUTRAL}
    columns["role"] = columns["role"].copy()
    columns["role"][at : at + more] = int(NodeRole.BACKWARD | NodeRole.RECOMPUTE)
    columns["time_source"] = columns["time_source"].copy()
    columns["time_source"][at : at + more] = int(TimeSource.SCALED)
    names = tuple(graph.names[node] for node in take.tolist())
    return graph.with_columns(names=names, dependency_offsets=offsets, dependencies=dependencies, **columns)


EDITS: dict[str, Callable[[Recorded, str, list[str]], Program]] = {
    "layers": _layers,
    "microbatches": _microbatches,
    "recompute": _recompute,
    "chunks": _chunks,
    "batch": _batch,
    "sequence": _sequence,
    "bucket": _bucket,
    "accumulate": _accumulate,
}
"""What can be edited, in the order in which it is done."""
