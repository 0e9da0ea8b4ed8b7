"""A pipeline's micro-batches run more or less often, and gradients accumulated over several a step."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.errors import ConfigError
from scaleout.program.cut import without
from scaleout.program.graph import ExecutionGraph, NodeKind, NodeRole
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import Program
from scaleout.program.recorded import UNTOLD
from scaleout.study.edits.communication import gradients_of, in_buckets
from scaleout.study.edits.layers import PASSES
from scaleout.study.edits.recorded import Change, Recorded, parse_change
from scaleout.study.edits.repeats import Run, repeated, runs_of, steps_of, with_units


def microbatches(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Run a pipeline's micro-batches more or less often: where forward and backward of one repeat."""
    return _repeated(recording, f"--edit microbatches={text}", parse_change(text, where="--edit microbatches"), notes)


def _repeated(recording: Recorded, where: str, change: Change, notes: list[str]) -> Program:
    """Leave out micro-batches from the middle of each step, or run one of them again."""
    found = [_units(graph, recording.steps) for graph in recording.program.graphs]
    counts = {units for mine in found for _, units in mine}
    if len(counts) != 1 or not all(found):
        raise ConfigError(
            f"{where}: the recording shows no micro-batches that repeat alike on all ranks; record a job "
            f"that has several"
        )
    (units,) = counts
    if change.old is not None and change.old % units:
        raise ConfigError(f"{where}: the recording shows {units} micro-batches a step; give {units}->NEW")
    more = units * (change.factor - 1)
    if more.denominator != 1:
        raise ConfigError(
            f"{where}: the recording shows {units} micro-batches a step, or rounds of several, which {change.factor} "
            f"does not scale to a whole number; choose another"
        )
    fewest = min(run.repeats for mine in found for run, _ in mine)
    if fewest < -more or units + more < 1:
        raise ConfigError(
            f"{where}: of {units} micro-batches a step {fewest} follow each other alike on each rank, and no more than "
            f"these can be left out; keep more"
        )
    notes.append(f"micro-batches: {units} a step, or rounds of several, were found in the order of launches")
    runs = iter(found)

    def resize(graph: ExecutionGraph) -> ExecutionGraph:
        for run, _ in sorted(next(runs), key=lambda each: -each[0].bounds[0]):
            graph = with_units(graph, run, int(more))
        return graph

    return recording.program.map_graphs(resize)


def _units(graph: ExecutionGraph, steps: int) -> list[tuple[Run, int]]:
    """Return what repeats by micro-batch in each step, and how many times in all; nothing where steps differ.

    A step has so many times its FLOPs, or where no sizes were recorded so many times its kernels. Where passes
    alternate it is a forward and a backward, of which a pipeline of virtual stages runs several before they repeat;
    where all forwards precede, forward and backward each.
    """
    both = NodeRole.FORWARD | NodeRole.BACKWARD
    within, sized = steps_of(graph, steps), bool(graph.flops.any())
    for told, passes in product((True, False), ((both,), PASSES)):
        found = [
            (run, roles)
            for roles in passes
            for run in runs_of(graph, roles, steps=steps, messages=True, told=told)
            if not sized or graph.flops[run.bounds[0] : run.bounds[1]].any()
        ]
        if len(found) == len(within) * len(passes) and all(_holds(graph, run, roles) for run, roles in found):
            break
    else:
        return []
    counted = []
    for run, roles in found:
        work = np.where(graph.has_role(roles), graph.flops if sized else graph.kind == NodeKind.COMPUTE, 0)
        begin, end = next((each for each in within if each[0] <= run.bounds[0] < each[1]), (0, len(graph)))
        unit = int(work[run.bounds[0] : run.bounds[1]].sum())
        counted.append((run, round(float(work[begin:end].sum()) / max(unit, 1))))
    return counted


def _holds(graph: ExecutionGraph, run: Run, roles: int) -> bool:
    """Whether a unit has kernels of each of some passes."""
    unit = graph.role[run.bounds[0] : run.bounds[1]]
    return all((unit & role).any() for role in PASSES if role & roles)


def accumulate(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Run forward and backward several times a step; only the last time reduces gradients."""
    change = parse_change(text, where="--edit accumulate")
    if change.factor < 1:  # the last reduces gradients, and stays
        return _repeated(recording, f"--edit accumulate={text}", change, notes)
    if change.factor.denominator != 1:
        raise ConfigError(f"--edit accumulate={text}: a step is run as a whole again; give a whole factor, such as 2x")
    times = int(change.factor) - 1
    adds_s = _adding_s(recording)
    if not adds_s:
        notes.append("what adding up gradients takes is not known on this device, and is left out")

    def accumulate(graph: ExecutionGraph) -> ExecutionGraph:
        for begin, end in reversed(steps_of(graph, recording.steps)):
            longer = repeated(graph, begin, end, times, before=begin)
            size = end - begin
            reduces = gradients_of(longer)
            # and what they waited for that nothing explains
            waits = (np.array(longer.names, object) == UNTOLD) & np.isin(longer.stream, longer.stream[reduces])
            reduces |= (waits & (longer.stream != 0)) | in_buckets(longer)
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
