"""More or fewer layers, and layers that run forward again before their backward."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.program.cut import without
from scaleout.program.graph import NONE, Bools, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.operations import RECORDED, TimeSource
from scaleout.program.program import Program
from scaleout.study.edits.recorded import Change, Recorded, operators_of, parse_change
from scaleout.study.edits.repeats import Run, inserted, runs_of, with_units

PASSES = (NodeRole.FORWARD, NodeRole.BACKWARD)


def layers(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Leave out layers from the middle of each stretch of them, or run one of them again."""
    change = parse_change(text, where="--edit layers")
    found: list[int] = []

    def resize(graph: ExecutionGraph) -> ExecutionGraph:
        passes = [runs_of(graph, role, steps=recording.steps) for role in PASSES]
        most = _of_both(passes)
        for run in sorted(chain(*passes), key=lambda run: -run.bounds[0]):
            local = _layers_in(run, change, most)
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
            graph = with_units(graph, run, int(more))
        return graph

    program = recording.program.map_graphs(resize)
    if not found:
        raise ConfigError(f"--edit layers={text}: the recording shows no layers that repeat; record with record_shapes")
    most = max(found)
    taken = f"; {change.old} is taken for those of the whole model" if change.old not in (None, most) else ""
    part = f", of which they are no whole part: each {most} become {most * change.factor}"
    taken += part if change.old is not None and change.old % most else ""
    notes.append(f"layers: {most} that follow each other were found in the order of launches{taken}")
    return _with_parameters(replace(recording, program=program), change, max(found), notes)


def _of_both(passes: Sequence[Sequence[Run]]) -> int:
    """Return the layers that forward has and backward too, of which one may differ from the others; 0 if not told."""
    found = [{run.repeats for run in runs} for runs in passes]
    counts = sorted(set().union(*found))
    return counts[-1] if all(len(each) == 1 for each in found) and counts[-1] - counts[0] == 1 else 0


def _layers_in(run: Run, change: Change, most: int) -> int:
    """Return the layers of a stretch: those found, or one more where the first or last differs from the others."""
    if change.old is None:
        return most or run.repeats
    if change.old < run.repeats:
        raise ConfigError(
            f"--edit layers={change.old}->{change.new}: {run.repeats} layers follow each other on a rank; OLD counts "
            f"those of the whole model: give {run.repeats} or more, or a factor, such as 0.5x"
        )
    fitting = (local for local in (run.repeats, run.repeats + 1) if change.old % local == 0)
    return next(fitting, run.repeats)


def _with_parameters(recording: Recorded, change: Change, layers: int, notes: list[str]) -> Program:
    """Scale what works on all parameters at once: the optimizer, and collectives of more than the model's rest."""
    per_layer = sum(size * (count // layers) for size, count in recording.parameters)
    rest = sum(size * (count % layers) for size, count in recording.parameters)
    if not per_layer:
        notes.append("the recording tells no parameters; its optimizer is left as it is")
        return recording.program
    ratio = float((per_layer * layers * change.factor + rest) / (per_layer * layers + rest))
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
        # more than a layer's or the rest's own shards, which are padded
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


def recompute(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Run each layer's forward again before its backward, or leave out what ran again."""
    if text not in ("full", "none"):
        raise ConfigError(f"--edit recompute={text}: a job recomputes in full or not at all; give full or none")
    recomputed = sum(int(_again(graph).sum()) for graph in recording.program.graphs)
    if text == "none":
        if not recomputed:
            raise ConfigError(
                "--edit recompute=none: no forward of the recording runs again in its backward, as under "
                "torch.utils.checkpoint; there is nothing to leave out"
            )
        notes.append(
            f"recompute: {counted(recomputed, 'kernel')} and collectives that ran again are left "
            f"out; whether what they gave "
            f"fits into memory is not told by a recording"
        )
        return recording.program.map_graphs(lambda graph: without(graph, _again(graph)))
    if recomputed:
        raise ConfigError("--edit recompute=full: the recording recomputes already; record the job without it")
    found = [0]
    program = recording.program.map_graphs(lambda graph: _recomputed(graph, recording.steps, found))
    if not found[0]:
        raise ConfigError("--edit recompute=full: the recording shows no layers that repeat, forward and backward")
    notes.append(
        "recompute: each layer's forward runs again up to what backward needs, as torch.utils.checkpoint does with "
        "use_reentrant=False; a product that ends it does not"
    )
    return program


def _again(graph: ExecutionGraph) -> Bools:
    """(N,) which nodes are of a forward that runs again; parameters that are gathered meanwhile serve backward too."""
    tokens = np.array([bool(call.sizes.get("token_bytes")) for call in graph.kernels] + [False])[graph.kernel]
    carries = tokens & (graph.kernel != NONE)
    return np.asarray(graph.has_role(NodeRole.RECOMPUTE) & ((graph.kind == NodeKind.COMPUTE) | carries))


_SAVES_NOTHING = tuple(RECORDED + name for name in ("aten::add", "aten::add_", "memset"))
_PRODUCTS = ("gemm", "gemm_fp8", "batched_gemm", "grouped_gemm")


def _until_saved(graph: ExecutionGraph, layer: Sequence[int]) -> list[int]:
    """Return the kernels of a layer's forward up to the last one that gives what backward needs.

    A recomputed forward stops there (``torch.utils.checkpoint`` without reentrance, ``early_stop``). Autograd saves a
    product's factors before it runs, and nothing of an addition: those at the end do not run again.
    """
    calls, operator = operators_of(graph)
    end = len(layer)
    while end and operator[layer[end - 1]] != NONE and calls[operator[layer[end - 1]]].op in _SAVES_NOTHING:
        end -= 1
    last = operator[layer[end - 1]] if end else NONE
    if last != NONE and calls[last].op in _PRODUCTS:
        while end and operator[layer[end - 1]] == last:  # of which it may have launched several kernels
            end -= 1
    return list(layer[:end]) or list(layer)


def _recomputed(graph: ExecutionGraph, steps: int, found: list[int]) -> ExecutionGraph:
    """Return a graph whose layers run forward again before their backward, and count them."""
    forward, backward = (runs_of(graph, role, steps=steps) for role in PASSES)
    if not forward or not backward:
        return graph
    unit = forward[0]
    begin, end = unit.bounds[unit.repeats // 2 : unit.repeats // 2 + 2]
    again = _until_saved(
        graph,
        [
            node
            for node in range(begin, end)
            if graph.stream[node] == 0 and graph.kind[node] == NodeKind.COMPUTE and not graph.role[node] & NodeRole.HOST
        ],
    )
    for run in sorted(backward, key=lambda run: -run.bounds[0]):
        layers = max(run.repeats, unit.repeats)
        for each in range(run.repeats - 1, -1, -1):
            times = 1 + (layers - run.repeats if each == 0 else 0)
            graph = inserted(graph, again * times, run.bounds[each])
            found[0] += times
    return graph
