"""A recorded job as it is simulated: replayed as it ran, or its kernels on another network.

A replay takes the recorded time of every kernel, and of every collective once its ranks are there; what ran at the same
time has slowed each other down already, so nothing contends anew.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from scaleout.analysis.uncertainty import EDIT, Interval, replay_interval
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.documents import number, whole
from scaleout.errors import ConfigError
from scaleout.program.cut import without_phase
from scaleout.program.graph import NONE, Bools, ExecutionGraph, NodeKind
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program
from scaleout.program.recorded import BEFORE
from scaleout.schedule import SCHEDULES, passes_of
from scaleout.simulation.options import SimulationOptions
from scaleout.simulation.result import Result
from scaleout.study.comparison import Comparison
from scaleout.study.edits import Recorded, with_axes
from scaleout.study.edits.slowdown import nowhere
from scaleout.study.job import Failure, Outcome


def described(program: Program, facts: Mapping[str, str], device: Device | str) -> Recorded:
    """Return the steps of a recording, and what its metadata tells."""
    counts = [pair.partition("x") for pair in facts.get("parameters", "").split()]
    parameters = tuple((whole(size) or 0, whole(count) or 0) for size, _, count in counts)
    host_bound = number(facts.get("host_bound", "0")) or 0.0
    steps = with_axes(program.map_graphs(without_phase(BEFORE)))
    count = max(1, whole(facts.get("recorded_steps", "")) or 1)
    return Recorded(steps, device if isinstance(device, Device) else None, host_bound, count, parameters)


def replayed(program: Program, options: SimulationOptions) -> tuple[Topology, SimulationOptions]:
    """Return a network that takes no part in a replay, and options without contention.

    `ConfigError` if the options are about the network.
    """
    plain = SimulationOptions()
    named = {"network": "--network", "algorithms": "--algorithm", "injection_bytes_per_s": "--injection",
             "placement": "--placement"}  # fmt: skip
    for name, option in named.items():
        if getattr(options, name) != getattr(plain, name):
            raise ConfigError(f"{option}: a replay takes the recorded times of collectives; give --topology as well")
    return nowhere(program.num_ranks), replace(options, contention=False)


def check_schedules(names: Sequence[str], *, on_network: bool) -> None:
    """Refuse schedules that make other collectives of the recorded ones where no network times them."""
    for name in names:
        passes_of(name)
        if not on_network and rewrites(name):
            raise ConfigError(
                f"--schedule {name}: a recording does not tell how long the collectives take that it would make; give "
                f"--topology as well"
            )


def rewrites(name: str) -> bool:
    """Whether a schedule rewrites graphs, or weighs costs and may do so."""
    parts = [SCHEDULES[part.partition(":")[0]] for part in name.split("+")]
    return any(part.rewrites or part.decides for part in parts)


PLAIN = ("recorded", "baseline", "overlap:always")
"""Schedules that do nothing to a program but place what it has on streams."""


def without_unchanged(compared: Comparison, simulate: Callable[[Sequence[str]], Comparison]) -> Comparison:
    """Move schedules that change nothing of a recording from the outcomes to the failures.

    Those are all but `PLAIN` under which every kernel and collective starts and ends as under one of `PLAIN`, to the
    bit; `simulate` gives those. `ConfigError` if no outcome is left.
    """
    judged = [each for each in compared.outcomes if each.schedule not in (*PLAIN, "overlap")]
    plain = simulate(PLAIN).outcomes if judged else ()
    failures = list(compared.failures)
    unchanged = set()
    for each in judged:
        same = next((one.schedule for one in plain if _is_same_step(one.result, each.result)), None)
        if same is not None:
            unchanged.add(each.schedule)
            error = ConfigError(
                f"changes nothing of this recording: every kernel and collective starts and ends as under {same}, as "
                f"nothing was found that it acts on, such as a collective next to a kernel that it could be joined to "
                f"or cut with, or nothing would gain; leave it out"
            )
            failures.append(Failure(each.schedule, error))
    kept = tuple(each for each in compared.outcomes if each.schedule not in unchanged)
    if not kept:
        raise ConfigError(str(failures[0]))
    return replace(compared, outcomes=kept, failures=tuple(failures))


def _is_same_step(one: Result, other: Result) -> bool:
    """Whether all nodes of two steps have the same names and times."""
    return len(one.timelines) == len(other.timelines) and all(
        mine.graph.names == others.graph.names
        and np.array_equal(mine.start_s, others.start_s)
        and np.array_equal(mine.end_s, others.end_s)
        for mine, others in zip(one.timelines, other.timelines, strict=True)
    )


def on_network(program: Program) -> Program:
    """Return a recording's program with collectives and messages that a network times.

    `ConfigError` if the size of one is not known.
    """
    found = program.map_graphs(_untimed)
    unsized = {
        name
        for graph in found.graphs
        for name in np.array(graph.names)[(graph.kind != NodeKind.COMPUTE) & (graph.bytes == 0)].tolist()
    }
    if unsized:
        raise ConfigError(
            f"the recording does not tell the size of {len(unsized)} kinds of collective, such as {min(unsized)[:60]}; "
            f"replay it without --topology, or record it with record_shapes=True"
        )
    return found


def _untimed(graph: ExecutionGraph) -> ExecutionGraph:
    communicates = graph.kind != NodeKind.COMPUTE
    return graph.with_columns(
        duration_s=np.where(communicates, np.nan, graph.duration_s),
        time_source=np.where(communicates, int(TimeSource.UNKNOWN), graph.time_source),
        kernel=np.where(communicates, NONE, graph.kernel),
    )


def with_edits(compared: Comparison, edits: Sequence[str], *, replay: bool) -> Comparison:
    """Say of a comparison what was edited, and of a replay that collectives and contention are as recorded.

    What a network's model lacks is then not missing.
    """
    model = compared.provenance
    if model is not None and edits:
        model = replace(model, inputs={**model.inputs, "changes": [*edits, *model.inputs.get("changes", ())]})
    if model is not None and replay:
        model = replace(model, network="recorded", notes=())
    return replace(compared, provenance=model)


def with_interval(
    compared: Comparison, facts: Mapping[str, str], edits: Collection[str], *, predicts: bool
) -> Comparison:
    """Give outcomes of a recording the error bars of replays and edits.

    Where nothing but the edits is predicted they are those of replays, and of edits such as were measured; else those
    of what is predicted, beside those of the edits.
    """
    replays = None if predicts else replay_interval(number(facts.get("recorded_spread", "0")) or 0.0, edits)

    def bars(outcome: Outcome) -> Interval | None:
        if replays is not None and outcome.schedule == "recorded":
            return replays
        return outcome.interval.beside(EDIT) if edits and outcome.interval is not None else None

    return replace(compared, outcomes=tuple(replace(each, given=bars(each)) for each in compared.outcomes))


def with_shares(compared: Comparison, facts: Mapping[str, str], notes: tuple[str, ...]) -> Comparison:
    """Say of a comparison what was recorded, and of each outcome how much of its time was recorded or scaled."""
    outcomes = tuple(replace(each, shares=_shares(each.result)) for each in compared.outcomes)
    recorded_s, steps = number(facts.get("recorded_s", "")), whole(facts.get("recorded_steps", ""))
    return replace(compared, outcomes=outcomes, recorded_s=recorded_s, steps=steps, notes=notes)


def _shares(result: Result) -> dict[str, float]:
    """Return how much of the time of kernels and collectives was recorded, scaled and modelled; the sum is 1.

    Parts of recorded kernels that a schedule cut are scaled.
    """
    seconds = dict.fromkeys(("recorded", "scaled", "modelled"), 0.0)
    for line in result.timelines:
        source = line.graph.time_source
        recorded = (source == TimeSource.RECORDED) & ~_cut(line.graph)
        scaled = np.isin(source, (TimeSource.RECORDED, TimeSource.SCALED)) & ~recorded
        works = line.is_kernel | line.is_communication
        for name, chosen in (("recorded", recorded), ("scaled", scaled), ("modelled", ~recorded & ~scaled)):
            seconds[name] += len(line.ranks) * float(line.duration_s[works & chosen].sum())
    total = sum(seconds.values())
    return {f"{name}_share": value / total if total else 0.0 for name, value in seconds.items()}


def _cut(graph: ExecutionGraph) -> Bools:
    """(N,) which nodes are parts of a kernel's call."""
    parts = np.zeros(len(graph), bool)
    for name in ("flops", "bytes"):
        whole = np.array([getattr(call, name) for call in graph.kernels] + [0], np.int64)[graph.kernel]
        parts |= whole != getattr(graph, name)
    return np.asarray(parts & (graph.kernel != NONE) & (graph.kind == NodeKind.COMPUTE))
