"""Buckets of gradients joined, and exchanges cut into chunks with the kernels between them."""

from fractions import Fraction
from math import fsum

import numpy as np

from scaleout.cluster.device.spec import Device
from scaleout.config.documents import whole
from scaleout.config.units import BYTES, format_bytes, parse
from scaleout.errors import ConfigError
from scaleout.program.calls import entire
from scaleout.program.cut import without
from scaleout.program.graph import COLLECTIVES, NONE, Bools, ExecutionGraph, Floats, Ints, NodeKind, NodeRole, compress
from scaleout.program.operations import RECORDED, TimeSource
from scaleout.program.program import Program
from scaleout.program.recorded import REDUCER
from scaleout.schedule.centauri.partition.chunk_times import addition_s, chunk_times, dimension_of, edges_of_chunks
from scaleout.schedule.rewrite import Rewrite
from scaleout.study.edits.layers import PASSES
from scaleout.study.edits.recorded import Recorded, shortest
from scaleout.study.edits.repeats import steps_of
from scaleout.study.edits.sizes import TOLD, ratios_of, resized, with_kernels


def gradients_of(graph: ExecutionGraph) -> Bools:
    """(N,) which collectives reduce gradients: those of backward that carry no activations."""
    tokens = np.array([bool(call.sizes.get("token_bytes")) for call in graph.kernels] + [False])[graph.kernel]
    kinds = [COLLECTIVES.index(kind) for kind in ("all_reduce", "reduce_scatter")]
    sums = (graph.kind == NodeKind.COLLECTIVE) & np.isin(graph.collective, kinds)
    return np.asarray(sums & ~tokens & graph.has_role(NodeRole.BACKWARD | NodeRole.FORWARD))


def bucket(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Join buckets of gradients that follow each other until they are as large as wanted."""
    size_bytes = parse(text, BYTES)
    if size_bytes < 1:
        raise ConfigError(f"--edit bucket={text}: a bucket of 0 B holds nothing; give 1 B or more")
    start_s = shortest(recording.program, recording.device)[1]
    split = found = 0
    rate_s = _fastest(recording.program, start_s)

    def join(graph: ExecutionGraph) -> ExecutionGraph:
        nonlocal split, found
        reduces = np.flatnonzero(gradients_of(graph) & (graph.collective == COLLECTIVES.index("all_reduce")))
        found += len(reduces)
        if not len(reduces):
            raise ConfigError("--edit bucket: the recording reduces no gradients in backward; it is no DDP job")
        duration_s, sizes, source = graph.duration_s.copy(), graph.bytes.copy(), graph.time_source.copy()
        gone = np.zeros(len(graph), bool)
        held: list[int] = []
        steps = _steps(graph, recording.steps)[reduces]
        for position, node in enumerate(reduces.tolist()):
            held.append(node)
            split += int(graph.bytes[node]) > 2 * size_bytes
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
    if split:
        size = format_bytes(size_bytes)
        notes.append(
            f"{split} of {found} recorded buckets are more than twice {size}: a bucket is not split, as one gradient "
            f"is not"
        )
    return program


def _fastest(program: Program, start_s: float) -> float:
    """Return the least time a byte of gradients took, beyond the start: of a bucket that no kernel slowed down."""
    seen = [(graph, np.flatnonzero(gradients_of(graph) & (graph.bytes > 0)).tolist()) for graph in program.graphs]
    large = max((int(graph.bytes[node]) for graph, nodes in seen for node in nodes), default=0)
    rates = [
        (graph.duration_s[node] - start_s) / graph.bytes[node]
        for graph, nodes in seen
        for node in nodes
        if graph.bytes[node] > large // 4  # of small ones the start is most
    ]
    return float(max(0.0, min(rates, default=0.0)))


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


def chunks(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Cut each exchange, its way back and the kernels between them into equal parts, one after another."""
    parts = whole(text)
    if parts is None or not 1 <= parts <= 1024:
        raise ConfigError(f"--edit chunks={text}: give a number of parts from 1 to 1024")
    short_s, start_s = shortest(recording.program, recording.device)
    found, total_s, unknown_s = 0, 0.0, [0.0, 0.0]

    def cut(graph: ExecutionGraph) -> ExecutionGraph:
        nonlocal found, total_s
        calls = [resized(call, Fraction(1, parts), Fraction(1)) for call in graph.kernels]
        ratios = ratios_of(recording.device, graph.kernels, calls)
        one = with_kernels(graph, calls, ratios, short_s, start_s, waits=1.0)
        spans = between_exchanges(graph, recording.steps) | _with_tables(graph, recording.steps)
        inside = spans & (graph.kernel != NONE)
        found += int(inside.any())
        by_bytes = np.array([call.op.startswith(RECORDED) for call in graph.kernels] + [False])[graph.kernel]
        computes = spans & (graph.kind == NodeKind.COMPUTE)
        total_s += float(graph.duration_s[computes].sum())
        for place, chosen in enumerate((by_bytes, graph.kernel == NONE)):
            unknown_s[place] += float(graph.duration_s[computes & chosen].sum())
        once_s, slope = parts * one.duration_s, np.zeros(len(graph))
        if recording.device is not None and parts > 1:
            once_s, slope = _in_chunks(recording.device, graph, once_s, parts)
        times = np.where(_regroups(graph, recording.steps) & (parts > 1), 2, 1)
        timed = graph.with_columns(
            duration_s=np.where(inside, times * (once_s + slope * graph.duration_s), graph.duration_s),
            time_source=np.where(inside, int(TimeSource.SCALED), graph.time_source),
        )
        return _collectives_in_chunks(timed, inside, parts)

    program = recording.program.map_graphs(cut)
    if not found:
        raise ConfigError(f"--edit chunks={text}: the recording has no exchange (all-to-all) with its way back")
    notes.append(
        "chunks run one after another, as they do on one stream; what could overlap on several is not credited"
    )
    reasons = (
        "known by their bytes alone: each chunk takes what any kernel takes, and its share of the rest",
        "of which no size is recorded: they stay as recorded",
    )
    notes += [
        f"chunks: {seconds / total_s:.1%} of the time of kernels that are cut is of those {reason}"
        for seconds, reason in zip(unknown_s, reasons, strict=True)
        if seconds > TOLD * total_s
    ]
    return program


def _in_chunks(device: Device, graph: ExecutionGraph, by_bytes_s: Floats, parts: int) -> tuple[Floats, Floats]:
    """Return what all chunks of each node take together: seconds, and seconds for each second of the whole; (N,) each.

    A kernel with known sizes takes what its chunks would on the device, as in a generated job; of an operator of
    several kernels each its part. Others take `by_bytes_s`; to the gradient of a table the chunks before are added.
    """
    once_s, slope = np.zeros(len(graph.kernels) + 1), np.zeros(len(graph.kernels) + 1)
    known = np.zeros(len(graph.kernels) + 1, bool)
    for index, call in enumerate(graph.kernels):
        operator = entire(call)
        part = call.bytes / operator.bytes if operator.bytes else 1.0
        if call.op.startswith(RECORDED):
            once_s[index] = (parts - 1) * part * addition_s(device, operator) if "width" in call.sizes else 0.0
        elif call.tokens:
            along = dimension_of(operator)
            nothing_s, second_s = (
                fsum(chunk_times(device, operator, along, whole_s, parts, gap_s=device.launch_gap_s))
                for whole_s in (0.0, 1.0)
            )
            once_s[index], slope[index], known[index] = part * nothing_s, second_s - nothing_s, True
    return np.where(known, 0.0, 1.0)[graph.kernel] * by_bytes_s + once_s[graph.kernel], slope[graph.kernel]


def _collectives_in_chunks(graph: ExecutionGraph, inside: Bools, parts: int) -> ExecutionGraph:
    """Write each collective as chunks, one after another, so that a network times them as small as they are."""
    new, upto = Rewrite(graph), 0
    for node in np.flatnonzero(inside & (graph.kind == NodeKind.COLLECTIVE)).tolist():
        new.keep(upto, node)
        after = [new.needs(node), *[()] * (parts - 1)]
        names = [f"chunk_{number}" for number in range(parts)]
        new.done[node] = new.add_kernel(node, edges_of_chunks(parts), after, names)[-1]
        upto = node + 1
    new.keep(upto, len(graph))
    return new.build()


def in_buckets(graph: ExecutionGraph) -> Bools:
    """(N,) which kernels move gradients into buckets to be reduced."""
    moves = [call.op.startswith(RECORDED + REDUCER) for call in graph.kernels]
    return np.asarray(np.array([*moves, False])[graph.kernel] & (graph.kind == NodeKind.COMPUTE))


def between_exchanges(graph: ExecutionGraph, steps: int) -> Bools:
    """(N,) which nodes are exchanges, or run between one and its way back in the same pass."""
    inside = np.zeros(len(graph), bool)
    for begin, end in _there_and_back(graph, steps):
        inside[begin : end + 1] = True
    return inside & ~graph.has_role(NodeRole.HOST)


def _there_and_back(graph: ExecutionGraph, steps: int) -> list[tuple[int, int]]:
    """Return exchanges with their ways back."""
    return [
        pair for exchanges in _exchanges(graph, steps) for pair in zip(exchanges[::2], exchanges[1::2], strict=False)
    ]


def _regroups(graph: ExecutionGraph, steps: int) -> Bools:
    """(N,) which kernels copy all that an exchange with a way back brings into another order.

    Chunks do so twice: each is cut out of what is to be sent, a slice of every rank's, by such a copy before it.
    """
    found = np.zeros(len(graph), bool)
    for begin, _ in _there_and_back(graph, steps):
        node = next((user for user in graph.users_of(begin) if graph.kernel[user] != NONE), NONE)
        if node != NONE and "copy" in graph.operation(node) and graph.bytes[node] == 2 * graph.bytes[begin]:
            found[node] = True
    return found


def _with_tables(graph: ExecutionGraph, steps: int) -> Bools:
    """(N,) which nodes are exchanges without a way back, look up in tables what these carry, or add up its gradients.

    In forward that is from the first lookup to the exchange, in backward from it to the last table; products, of which
    tables have none, are left out.
    """
    inside = np.zeros(len(graph), bool)
    of_tables = np.array(["embedding" in call.op for call in graph.kernels] + [False])[graph.kernel]
    products = np.array([not call.op.startswith((RECORDED, "embedding")) for call in graph.kernels] + [False])[
        graph.kernel
    ]
    step_of = _steps(graph, steps)
    for exchanges in _exchanges(graph, steps):
        if len(exchanges) % 2:
            last = exchanges[-1]
            mine = of_tables & (step_of == step_of[last]) & graph.has_role(int(graph.role[last]))
            nodes = [last, *np.flatnonzero(mine).tolist()]
            inside[min(nodes) : max(nodes) + 1] = True
    return np.asarray(inside & ~products & ~graph.has_role(NodeRole.HOST))


def _exchanges(graph: ExecutionGraph, steps: int) -> list[list[int]]:
    """Return the exchanges of each pass of each step."""
    exchange = (graph.kind == NodeKind.COLLECTIVE) & (graph.collective == COLLECTIVES.index("all_to_all"))
    step_of = _steps(graph, steps)
    return [
        np.flatnonzero(exchange & graph.has_role(role) & (step_of == step)).tolist()
        for role in PASSES
        for step in np.unique(step_of[exchange]).tolist()
    ]


def _steps(graph: ExecutionGraph, steps: int) -> Ints:
    """(N,) the step that each node is of."""
    return np.asarray(np.searchsorted([end for _, end in steps_of(graph, steps)], np.arange(len(graph)), side="right"))
