"""Buckets of gradients joined, and exchanges cut into chunks with the kernels between them."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.config.documents import whole
from scaleout.config.units import BYTES, format_bytes, parse
from scaleout.errors import ConfigError
from scaleout.program.cut import without
from scaleout.program.graph import COLLECTIVES, NONE, Bools, ExecutionGraph, Floats, Ints, NodeKind, NodeRole, compress
from scaleout.program.operations import RECORDED, Kernel, TimeSource, kernel
from scaleout.program.program import Program
from scaleout.program.recorded import REDUCER
from scaleout.study.edits.layers import PASSES
from scaleout.study.edits.recorded import Recorded, operators_of, shortest
from scaleout.study.edits.repeats import steps_of
from scaleout.study.edits.sizes import ratios_of, resized, with_kernels


def gradients_of(graph: ExecutionGraph) -> Bools:
    """(N,) which collectives reduce gradients: those of backward that carry no activations."""
    tokens = np.array([bool(call.sizes.get("token_bytes")) for call in graph.kernels] + [False])[graph.kernel]
    kinds = [COLLECTIVES.index(kind) for kind in ("all_reduce", "reduce_scatter")]
    sums = (graph.kind == NodeKind.COLLECTIVE) & np.isin(graph.collective, kinds)
    return np.asarray(sums & ~tokens & graph.has_role(NodeRole.BACKWARD | NodeRole.FORWARD))


def bucket(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Join buckets of gradients that follow each other until they are as large as wanted."""
    size_bytes = parse(text, BYTES)
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
    found = [0]

    def cut(graph: ExecutionGraph) -> ExecutionGraph:
        calls = [resized(call, Fraction(1, parts), Fraction(1)) for call in graph.kernels]
        ratios = ratios_of(recording.device, graph.kernels, calls)
        one = with_kernels(graph, calls, ratios, short_s, start_s, waits=1.0)
        inside = (between_exchanges(graph, recording.steps) | _with_tables(graph, recording.steps)) & (
            graph.kernel != NONE
        )
        found[0] += int(inside.any())
        return graph.with_columns(
            duration_s=np.where(
                inside,
                parts * one.duration_s + (parts - 1) * _added_s(recording.device, graph, inside),
                graph.duration_s,
            ),
            time_source=np.where(inside, int(TimeSource.SCALED), graph.time_source),
        )

    program = recording.program.map_graphs(cut)
    if not found[0]:
        raise ConfigError(f"--edit chunks={text}: the recording has no exchange (all-to-all) with its way back")
    notes.append(
        "chunks run one after another, as they do on one stream; what could overlap on several is not credited"
    )
    return program


def in_buckets(graph: ExecutionGraph) -> Bools:
    """(N,) which kernels move gradients into buckets to be reduced."""
    moves = [call.op.startswith(RECORDED + REDUCER) for call in graph.kernels]
    return np.asarray(np.array([*moves, False])[graph.kernel] & (graph.kind == NodeKind.COMPUTE))


def between_exchanges(graph: ExecutionGraph, steps: int) -> Bools:
    """(N,) which nodes are exchanges, or run between one and its way back in the same pass."""
    inside = np.zeros(len(graph), bool)
    for exchanges in _exchanges(graph, steps):
        for begin, end in zip(exchanges[::2], exchanges[1::2], strict=False):
            inside[begin : end + 1] = True
    return inside & ~graph.has_role(NodeRole.HOST)


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


def _added_s(device: Device | None, graph: ExecutionGraph, inside: Bools) -> Floats:
    """(N,) time to add a part's gradient of a weight or a table to that of the parts before it; 0 for other nodes.

    Of an operator of several kernels one holds it: of those whose name is there least often the longest.
    """
    added_s = np.zeros(len(graph))
    calls, operator = operators_of(graph)
    for index, call in enumerate(calls):
        elements = _elements(call)
        mine = np.flatnonzero(inside & (operator == index)).tolist()
        if device is None or not elements or not mine:
            continue
        names = Counter(graph.names[node] for node in mine)
        chosen = max(names, key=lambda name: (-names[name], max(_of_name(graph, mine, name))))
        add = kernel("add", dtype=call.dtype, elements=elements)
        added_s[[node for node in mine if graph.names[node] == chosen]] = kernel_times(device, [add])[0][0]
    return added_s


def _of_name(graph: ExecutionGraph, nodes: Sequence[int], name: str) -> list[float]:
    return [float(graph.duration_s[node]) for node in nodes if graph.names[node] == name]


def _elements(call: Kernel) -> int:
    """Return the elements of the weight or table whose gradient a kernel computes; 0 for other kernels."""
    if "lookups" in call.sizes:
        return call.sizes["rows"] * call.sizes["width"]
    return call.sizes["M"] * call.sizes["N"] * call.sizes.get("groups", 1) if call.tokens == "K" else 0
