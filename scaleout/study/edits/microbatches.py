"""A pipeline's micro-batches run more or less often, and gradients accumulated over several a step."""

from collections.abc import Sequence

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.errors import ConfigError
from scaleout.program.cut import without
from scaleout.program.graph import ExecutionGraph, NodeKind, NodeRole
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import Program
from scaleout.program.recorded import UNTOLD
from scaleout.study.edits.communication import gradients_of
from scaleout.study.edits.layers import PASSES
from scaleout.study.edits.recorded import Recorded, parse_change
from scaleout.study.edits.repeats import repeated, runs_of, steps_of, with_units


def microbatches(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Run a pipeline's micro-batches more or less often: where forward and backward of one repeat."""
    change = parse_change(text, where="--edit microbatches")
    if change.old is None or change.new is None:
        raise ConfigError(f"--edit microbatches={text}: say from how many to how many, such as 8->16")
    old, more = change.old, change.new - change.old

    def resize(graph: ExecutionGraph) -> ExecutionGraph:
        both = runs_of(graph, NodeRole.FORWARD | NodeRole.BACKWARD, messages=True)
        if not both or max(run.repeats for run in both) < old // 2:
            both = [run for role in PASSES for run in runs_of(graph, role, messages=True)]
        if not both or min(run.repeats for run in both) - 1 < -more:
            raise ConfigError(
                f"--edit microbatches={text}: the recording shows "
                f"{max((run.repeats for run in both), default=0)} micro-batches that repeat; at least one stays"
            )
        for run in sorted(both, key=lambda run: -run.bounds[0]):
            graph = with_units(graph, run, more)
        return graph

    return recording.program.map_graphs(resize)


def accumulate(recording: Recorded, text: str, notes: list[str]) -> Program:
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
        for begin, end in reversed(steps_of(graph)):
            longer = repeated(graph, begin, end, times, before=begin)
            size = end - begin
            reduces = gradients_of(longer)
            # and what they waited for that nothing explains
            waits = (np.array(longer.names, object) == UNTOLD) & np.isin(longer.stream, longer.stream[reduces])
            reduces |= waits & (longer.stream != 0)
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
