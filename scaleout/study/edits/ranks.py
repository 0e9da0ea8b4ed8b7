"""More or fewer ranks along an axis of a recorded job, each with its batch.

Ranks that the recording lacks are clones, and groups along the axis grow (`groups`). Of a collective, the share of its
bytes that leaves a rank grows as ``(p - 1) / p``, at the recorded rate. What a rank's kernels do follows the axis:

- data: where parameters are sharded, the optimizer and copies into gathers and out of reductions scale as ``p / p'``.
- tensor: what ranks share out of GEMMs, attention and all between scales as ``p / p'`` (`shards`).
- expert: experts on a rank scale as ``p / p'``, and the tokens of each as ``p' / p``; shards of other parameters, where
  the same groups gather them, as under data.

Symbols: p ranks of a group before, p' after. See docs/models/recordings.md.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.program.calls import as_much_of
from scaleout.program.graph import COLLECTIVES, NONE, Bools, ExecutionGraph, Floats, NodeKind, NodeRole
from scaleout.program.operations import RECORDED, Kernel, TimeSource, kernel
from scaleout.program.program import Program
from scaleout.study.edits.communication import between_exchanges, in_buckets
from scaleout.study.edits.groups import Axis, activation_sums, axis_of, grown
from scaleout.study.edits.recorded import Recorded, operators_of, shortest
from scaleout.study.edits.shards import parameters_ratio, resharded, resized_bytes, shards_of, wholes_of
from scaleout.study.edits.sizes import with_changes

_GATHER = COLLECTIVES.index("all_gather")
_SCATTER = COLLECTIVES.index("reduce_scatter")
_EXCHANGE = COLLECTIVES.index("all_to_all")


def data(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Change the number of data-parallel ranks; shards of parameters change with it."""
    axis = axis_of(recording.program, "data", text)
    if "expert" in axis.carries:
        raise ConfigError(
            f"{axis.where}: the recorded groups of {counted(axis.old, 'rank')} exchange tokens as "
            f"well as they reduce gradients; "
            f"alone, more data-parallel ranks would reduce experts' gradients in groups that were not recorded; "
            f"--edit expert={text} changes both"
        )
    _only(axis, "data")
    sharded = _sharded(recording.program, axis)
    ratio = Fraction(axis.old, axis.new) if sharded else Fraction(1)
    notes.append(
        f"data: {axis.told}, "
        + (f"with shards of parameters {float(ratio):.3g} times as large" if sharded else "each with all parameters")
    )

    def changes(graph: ExecutionGraph) -> dict[int, Kernel]:
        shards = _changed(graph, _beside_shards(graph, axis), lambda call: resized_bytes(call, ratio))
        idle = in_buckets(graph) & (axis.new == 1)  # a single rank has nothing to reduce with
        return shards | _changed(graph, idle, lambda call: resized_bytes(call, Fraction(0)))

    return _with_ranks(recording, axis, changes, ratio, notes)


def tensor(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Change the number of tensor-parallel ranks: what each holds of every layer."""
    axis = axis_of(recording.program, "tensor", text)
    _only(axis, "tensor")
    ratio = Fraction(axis.old, axis.new)
    wholes = wholes_of(recording.program, axis)
    found = {id(graph): shards_of(graph, axis, wholes) for graph in recording.program.graphs}
    weights = {size for each in found.values() for size in each.weights}
    if not weights:
        raise ConfigError(f"{axis.where}: no GEMM has a side that its groups gather or sum; record with record_shapes")
    share, told = parameters_ratio(recording.parameters, weights, axis.old, ratio)
    notes.append(f"tensor: {axis.told}; {told}")
    unknown = [call for each in found.values() for call in each.unknown.elements()]
    if unknown:
        sizes = " x ".join(f"{name}={size}" for name, size in unknown[0].shape)
        notes.append(
            f"{len(unknown)} GEMMs, such as {sizes}, have no side that the groups gather or sum; they are taken to be "
            f"whole on every rank"
        )

    def changes(graph: ExecutionGraph) -> dict[int, Kernel]:
        shared = found[id(graph)].of_node
        mine = {
            node: resharded(graph.kernels[graph.kernel[node]], size, ratio, axis.where)
            for node, size in enumerate(shared)
            if size
        }
        gradients = _parameter_collectives(graph, axis, *range(len(COLLECTIVES)), of_others=True)
        return mine | _changed(graph, gradients, lambda call: resized_bytes(call, share))

    return _with_ranks(recording, axis, changes, share, notes)


def expert(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Change the number of expert-parallel ranks: experts on a rank, and the tokens that each gets."""
    axis = axis_of(recording.program, "expert", text)
    _only(axis, "expert", "data")
    ratio = Fraction(axis.old, axis.new)
    products = {id(graph): _products(graph, axis, recording.steps) for graph in recording.program.graphs}
    experts = {
        graph.kernels[graph.kernel[node]].sizes.get("groups", 1)
        for graph in recording.program.graphs
        for node in np.flatnonzero(products[id(graph)]).tolist()
    }
    if not experts or any((each * ratio).denominator != 1 for each in experts):
        told = f"{', '.join(map(str, sorted(experts)))} experts on a rank" if experts else "no GEMMs between exchanges"
        raise ConfigError(f"{axis.where}: the recording has {told}; choose a number of ranks that shares them out")
    weights = {
        _weight(graph.kernels[graph.kernel[node]])
        for graph in recording.program.graphs
        for node in np.flatnonzero(products[id(graph)] & graph.has_role(NodeRole.FORWARD)).tolist()
    }
    share, told = parameters_ratio(recording.parameters, weights, axis.old, ratio)
    sharded = "data" in axis.carries and _sharded(recording.program, axis)
    if sharded:
        share, told = ratio, f"shards of all other parameters are {float(ratio):.3g} times as large"
    both = ", which reduce gradients as well, so that there are as many more data-parallel ranks"
    notes.append(f"expert: {axis.told}{both if 'data' in axis.carries else ''}; {told}")

    def changes(graph: ExecutionGraph) -> dict[int, Kernel]:
        shards = _beside_shards(graph, axis) if sharded else np.zeros(len(graph), bool)
        copies = _changed(graph, shards, lambda call: resized_bytes(call, ratio))
        return copies | _changed(graph, products[id(graph)], lambda call: _shared_out(call, ratio))

    return _with_ranks(recording, axis, changes, share, notes)


def _only(axis: Axis, *served: str) -> None:
    others = axis.carries - {*served}
    if others:
        raise ConfigError(
            f"{axis.where}: the recorded groups of {axis.old} ranks are {' and '.join(sorted(axis.carries))}-parallel "
            f"at once, and what belongs to which is not told; record the job with groups of their own"
        )


def _changed(graph: ExecutionGraph, mask: Bools, change: Callable[[Kernel], Kernel]) -> dict[int, Kernel]:
    nodes = np.flatnonzero(mask & (graph.kernel != NONE)).tolist()
    return {node: change(graph.kernels[graph.kernel[node]]) for node in nodes}


def _sharded(program: Program, axis: Axis) -> bool:
    """Return whether groups along the axis gather parameters, of which each rank then holds or steps a shard."""
    return any(_parameter_collectives(graph, axis, _GATHER).any() for graph in program.graphs)


def _parameter_collectives(graph: ExecutionGraph, axis: Axis, *kinds: int, of_others: bool = False) -> Bools:
    """(N,) which collectives of some kinds carry parameters or gradients, over groups along the axis or all others."""
    tokens = np.array([bool(call.sizes.get("token_bytes")) for call in graph.kernels] + [False])[graph.kernel]
    mine = np.isin(graph.group, [*axis.along]) != of_others
    carries = (graph.kind == NodeKind.COLLECTIVE) & np.isin(graph.collective, kinds) & mine & ~tokens
    return np.asarray(carries & ~activation_sums(graph))


def _beside_shards(graph: ExecutionGraph, axis: Axis) -> Bools:
    """(N,) which kernels copy shards of parameters: as those do that a gather waits for, or that wait for a reduction.

    Copies out of gathers and into reductions move whole parameters.
    """
    needed = _needed(graph, _parameter_collectives(graph, axis, _GATHER))
    freed = _waiting(graph, _parameter_collectives(graph, axis, _SCATTER))
    wholes = _waiting(graph, _parameter_collectives(graph, axis, _GATHER)) | _needed(
        graph, _parameter_collectives(graph, axis, _SCATTER)
    )
    parameters = np.array(
        [call.op.startswith(RECORDED) and not call.sizes["token_bytes"] for call in graph.kernels] + [False]
    )[graph.kernel]
    parameters &= (graph.kind == NodeKind.COMPUTE) & ~graph.has_role(NodeRole.HOST | NodeRole.OPTIMIZER)
    operations = np.array([call.op for call in graph.kernels] + [""], object)[graph.kernel]
    what = [*zip(operations.tolist(), graph.stream.tolist(), strict=True)]
    shards = {what[node] for node in np.flatnonzero(parameters & (needed | freed)).tolist()}
    shards -= {what[node] for node in np.flatnonzero(parameters & wholes).tolist()}
    return np.asarray(parameters & np.array([each in shards for each in what], bool))


def _needed(graph: ExecutionGraph, by: Bools) -> Bools:
    """(N,) which nodes some others wait for."""
    users = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
    found = np.zeros(len(graph), bool)
    found[graph.dependencies[by[users]]] = True
    return found


def _waiting(graph: ExecutionGraph, on: Bools) -> Bools:
    """(N,) which nodes wait for some others."""
    users = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
    found = np.zeros(len(graph), bool)
    found[users[on[graph.dependencies]]] = True
    return found


def _products(graph: ExecutionGraph, axis: Axis, steps: int) -> Bools:
    """(N,) which nodes are GEMMs of experts: between exchanges, those of several experts where there are such."""
    inside = between_exchanges(graph, steps) & (graph.kernel != NONE)
    grouped, plain = (
        inside & np.array([call.op in names for call in graph.kernels] + [False])[graph.kernel]
        for names in (("batched_gemm", "grouped_gemm"), ("gemm",))
    )
    if grouped.any():
        return np.asarray(grouped)
    forward = graph.has_role(NodeRole.FORWARD)
    works = np.flatnonzero(~graph.has_role(NodeRole.HOST))
    _, operator = operators_of(graph)
    again = np.r_[False, np.diff(operator[works]) == 0][: len(works)]  # an operator may launch several kernels
    calls = int((plain & forward)[works[~again]].sum())
    exchanges = int(((graph.collective == _EXCHANGE) & forward).sum())
    if calls > 3 * (exchanges // 2):  # into two halves, and out of them
        raise ConfigError(f"{axis.where}: experts' GEMMs were recorded one by one, which cannot be shared out anew")
    return np.asarray(plain)


def _weight(call: Kernel) -> int:
    """Return the elements of the weights of a GEMM of experts: all sizes but the one that counts tokens."""
    sizes = call.sizes
    elements = sizes["M"] * sizes["N"] * sizes["K"] // sizes[call.tokens or "M"]
    return elements * sizes.get("groups", 1)


def _shared_out(call: Kernel, ratio: Fraction) -> Kernel:
    """Return a GEMM of so many times as many experts, each with as many tokens fewer."""
    shape = {name: size for name, size in call.shape if name != "groups"}
    tokens = call.tokens or "M"
    shape[tokens] = max(1, round(shape[tokens] / ratio))
    groups = int(call.sizes.get("groups", 1) * ratio)
    if groups == 1:
        return as_much_of(kernel("gemm", dtype=call.dtype, **shape).counting(call.tokens), call)
    op = "batched_gemm" if call.op == "gemm" else call.op
    return as_much_of(kernel(op, dtype=call.dtype, groups=groups, **shape).counting(call.tokens), call)


def _with_ranks(
    recording: Recorded,
    axis: Axis,
    changes: Callable[[ExecutionGraph], dict[int, Kernel]],
    share: Fraction,
    notes: list[str],
) -> Program:
    """Return the program with its kernels changed, an optimizer of so many times the parameters, and groups grown."""
    program = recording.program
    short_s, start_s = shortest(program, recording.device)
    larger, resized = grown(program, axis)
    leaving = np.ones((len(COLLECTIVES), len(program.groups) + 1))  # and one for nodes without a group
    for family in resized:
        before, after = (len(each.groups[family].members[0]) for each in (program, larger))
        leaving[:, family] = [_leaving(kind, after) / _leaving(kind, before) for kind in COLLECTIVES]

    def change(graph: ExecutionGraph) -> ExecutionGraph:
        optimizes = graph.has_role(NodeRole.OPTIMIZER) & (graph.kind == NodeKind.COMPUTE)
        updates = _changed(graph, optimizes, lambda call: resized_bytes(call, share))
        changed = with_changes(graph, recording.device, changes(graph) | updates, short_s, start_s)
        unsized = optimizes & (graph.kernel == NONE)
        changed = _stretched(changed, np.where(unsized, float(share), 1.0), short_s)
        collectives = graph.kind == NodeKind.COLLECTIVE  # whose latency grows with their ranks as well
        return _stretched(changed, np.where(collectives, leaving[graph.collective, graph.group], 1.0), 0.0)

    notes.append(
        f"{counted(larger.num_ranks, 'rank')}, clones of the {program.num_ranks} recorded where "
        f"there are more; without "
        f"--topology collectives over them move what leaves a rank at the recorded rate"
    )
    return larger.map_graphs(change)


def _leaving(kind: str, ranks: int) -> float:
    """Return how much of a collective's bytes leaves a rank, up to a constant of its kind."""
    return float(ranks > 1) if kind in ("broadcast", "reduce", "barrier") else (ranks - 1) / ranks


def _stretched(graph: ExecutionGraph, ratio: Floats, fixed_s: float) -> ExecutionGraph:
    """Return the graph with times changed beyond what any such node takes; (N,) ratios, of which 0 leaves nothing."""
    fixed = np.where(ratio > 0, np.minimum(fixed_s, graph.duration_s), 0.0)
    return graph.with_columns(
        duration_s=np.where(ratio == 1.0, graph.duration_s, fixed + (graph.duration_s - fixed) * ratio),
        time_source=np.where(ratio == 1.0, graph.time_source, int(TimeSource.SCALED)),
    )
