"""Why the fastest plan is the fastest: what it overlaps, what is exposed, how schedules compare; or why there is none.

A collective is exposed for one of four reasons: it runs before the first kernel, or after the last of forward and
backward; kernels ran concurrently but not for as long; or no kernel was ready that did not depend on it. All times
are means over ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple

import numpy as np

from scaleout.analysis.breakdown import Running, covered, told_estimates
from scaleout.analysis.uncertainty import Cause, Interval
from scaleout.config.units import counted, format_bytes
from scaleout.program.fastest import ranked
from scaleout.program.graph import NONE, Floats, NodeRole
from scaleout.simulation.result import Result, Timeline
from scaleout.study.search.best import Choice, EvaluatedPlan
from scaleout.study.search.evaluate import BASELINE
from scaleout.study.search.execution import Execution
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.scheduled import SIMULATED, remember, run_plan
from scaleout.study.search.search import Answer
from scaleout.study.search.space import families
from scaleout.workloads import memory

BEGINNING = "at the beginning of the step"
END = "at the end of the step"
LONGER = "longer than the concurrent kernels"
ISOLATED = "no independent kernel"
REASONS = (BEGINNING, ISOLATED, LONGER, END)
"""Why communication is exposed."""

_ROUNDING = 1e-9
"""Part of a collective below which what is left of it is rounding."""

_AFTERWARDS = NodeRole.REDUCTION | NodeRole.OPTIMIZER
"""Passes that follow forward and backward."""


_TRIES = 64
"""Numbers of ranks below and above the wanted one that are tried for a plan."""


@dataclass(frozen=True)
class Overlap:
    """Communication along an axis in a step, in seconds.

    Attributes
    ----------
    axis : str
        The parallelism axis that process groups lie along; `messages` for what has no group.
    communication_s : float
        Time in which it communicates.
    overlapped_s : float
        The part of it in which kernels run.
    exposed_s : dict
        The rest, by reason.
    """

    axis: str
    communication_s: float
    overlapped_s: float
    exposed_s: dict[str, float]


def overlap_by_axis(result: Result) -> tuple[Overlap, ...]:
    """Say of each axis what is overlapped, the one that communicates longest first.

    Moments in which several axes communicate count for each of them.
    """
    num_ranks = result.program.num_ranks
    totals: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for line in result.timelines:
        names = ["", *(family.axis for family in result.program.groups)]
        computed = _Computed.of(line)
        group = np.where(line.is_communication, line.graph.group, NONE - 1)
        for name in dict.fromkeys(names):
            nodes = np.flatnonzero(np.isin(group, [number - 1 for number, each in enumerate(names) if each == name]))
            if len(nodes):
                share = len(line.ranks) / num_ranks
                totals[name] = totals.get(name, np.zeros(2 + len(REASONS))) + share * _of_nodes(line, nodes, computed)
    found = [
        Overlap(name or "messages", float(row[0]), float(row[1]), dict(zip(REASONS, row[2:].tolist(), strict=True)))
        for name, row in totals.items()
        if row[0] > 0
    ]
    return tuple(ranked(found, key=lambda each: 1 / each.communication_s, order=lambda each: each.axis))


class _Computed(NamedTuple):
    """When kernels of a rank run, and when forward and backward begin and end."""

    kernels: Running
    begin_s: float
    end_s: float

    @classmethod
    def of(cls, line: Timeline) -> "_Computed":
        """Read them off what ran."""
        main = ~line.is_communication & (line.end_s > line.start_s) & ~line.graph.has_role(_AFTERWARDS)
        begin_s, end_s = line.start_s[main].min(initial=np.inf), line.end_s[main].max(initial=0.0)
        return cls(Running.of(line, ~line.is_communication), float(begin_s), float(end_s))


def _of_nodes(line: Timeline, nodes: np.ndarray[tuple[int], np.dtype[np.int64]], computed: _Computed) -> Floats:
    """Return communication, what is overlapped of it, and what is exposed by reason, of some nodes of a rank."""
    start_s, end_s = line.start_s[nodes], line.end_s[nodes]
    communication_s = covered(start_s, end_s)
    order = np.argsort(start_s, kind="stable")
    reach = np.maximum.accumulate(np.r_[0.0, end_s[order]])[:-1]
    begin_s, stop_s = np.maximum(start_s[order], reach), np.maximum(end_s[order], reach)  # each moment once
    overlapped_s = computed.kernels.between(begin_s, stop_s)
    tail = np.clip(computed.end_s, begin_s, stop_s)
    late_s = (stop_s - tail) - computed.kernels.between(tail, stop_s)
    early = stop_s <= computed.begin_s
    rest_s = (stop_s - begin_s) - overlapped_s - late_s
    rest_s[rest_s < _ROUNDING * (stop_s - begin_s)] = 0.0
    partly = overlapped_s > _ROUNDING * (stop_s - begin_s)
    exposed_s = {
        BEGINNING: rest_s[early].sum(),
        ISOLATED: rest_s[~early & ~partly].sum(),
        LONGER: rest_s[~early & partly].sum(),
        END: late_s.sum(),
    }
    return np.array([communication_s, overlapped_s.sum(), *(exposed_s[reason] for reason in REASONS)])


@dataclass(frozen=True)
class Explanation:
    """The fastest plan and its schedule, and what there is to compare with.

    Attributes
    ----------
    overlap : tuple of Overlap
        What it overlaps of each axis.
    same : tuple of EvaluatedPlan
        Its plan under `baseline` and every schedule of the request.
    other : tuple of EvaluatedPlan
        Likewise the plan that is fastest under `baseline`; empty if that is the same plan.
    """

    fastest: EvaluatedPlan
    overlap: tuple[Overlap, ...]
    same: tuple[EvaluatedPlan, ...]
    other: tuple[EvaluatedPlan, ...]

    @property
    def gain(self) -> float:
        """How many times as fast the fastest is as the best plan under `baseline`."""
        return (self.other or self.same)[0].estimate.step_s / self.fastest.estimate.step_s

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {
            "plan": self.fastest.plan._asdict(),
            "schedule": self.fastest.schedule,
            "overlap": list(map(asdict, self.overlap)),
            "same_plan": _rows(self.same),
            "best_plan_under_baseline": _rows(self.other),
            "gain_over_best_under_baseline": self.gain,
        }


def _rows(compared: Sequence[EvaluatedPlan]) -> list[dict[str, Any]]:
    return [
        {
            "plan": found.plan._asdict(),
            "schedule": found.schedule,
            "step_s": found.estimate.step_s,
            "gain": compared[0].estimate.step_s / found.estimate.step_s,
        }
        for found in compared
    ]


def explanation(
    request: SearchRequest, answer: Answer, overlap: Sequence[Overlap], execution: Execution
) -> Explanation:
    """Explain the fastest plan of an answer that has one; what is simulated for it is remembered."""
    fastest, simple = answer.fastest[0], answer.best_under(BASELINE)
    assert simple is not None, "every search evaluates plans under baseline"
    schedules = (BASELINE, *request.schedules)
    choices = [(plan, schedule) for plan in dict.fromkeys((fastest.plan, simple.plan)) for schedule in schedules]
    known = {found.choice: found.estimate for found in answer.evaluated}
    names = {
        choice: (choice[0], SIMULATED if choice[1] == BASELINE else choice[1])
        for choice in choices
        if choice not in known
    }
    remember(request, names, execution, "the fastest plans under every schedule")
    known |= {choice: execution.memory.estimates[name] for choice, name in names.items()}
    found = [EvaluatedPlan(plan, known[plan, schedule], schedule) for plan, schedule in choices]
    return Explanation(fastest, tuple(overlap), tuple(found[: len(schedules)]), tuple(found[len(schedules) :]))


class FastestStep(NamedTuple):
    """What a simulation of the fastest plan shows: its error bars, if the device says any, and what it overlaps.

    `sources` are the shares of the kernels' time by where it comes from, `estimates` what is to be said of them.
    """

    interval: Interval | None
    overlap: tuple[Overlap, ...]
    sources: Mapping[str, float]
    estimates: str


def fastest_step(request: SearchRequest, answer: Answer, execution: Execution) -> FastestStep:
    """Simulate the fastest plan of an answer that has one, where its layers are written already."""
    choice = answer.fastest[0].choice
    ((causes, overlap, sources, estimates),) = execution.mapped(
        "fastest step", _shown, request, [choice], alike=lambda each: each[0].alike
    )
    interval = (
        None if causes is None else Interval(tuple(Cause(**{**each, "rows": tuple(each["rows"])}) for each in causes))
    )
    return FastestStep(interval, tuple(Overlap(*row) for row in overlap), sources, estimates)


def _shown(request: SearchRequest, choices: Sequence[Choice]) -> list[Any]:
    outcomes = [run_plan(request, choice) for choice in choices]
    return [
        (
            None if outcome.interval is None else [asdict(cause) for cause in outcome.interval.causes],
            [astuple(each) for each in overlap_by_axis(outcome.result)],
            (sources := outcome.breakdown.kernel_time_sources),
            told_estimates(outcome.result, sources, device=request.device.name),
        )
        for outcome in outcomes
    ]


def _too_many_states(request: SearchRequest) -> bool:
    """Whether parameters, gradients and optimizer states do not fit, however they are sharded: no batch mends that."""
    needed_bytes = request.base.num_parameters * sum(memory.bytes_of_a_parameter(request.base).values())
    return needed_bytes > request.memory_bytes * request.num_ranks


def why_none(request: SearchRequest, answer: Answer) -> str:
    """Say why no plan was found, and what would be one."""
    base, counts = request.base, answer.counts
    about = f"workload {base.name!r} on {counted(request.num_ranks, 'rank')} with a global batch of {request.batch}"
    held = "".join(f", {key} {value}" for key, value in request.fixed.items())
    if answer.nearest is not None:
        peak_bytes, plan = answer.nearest
        like = request.memory_bytes
        holds, short = (format_bytes(size, like=like) for size in (peak_bytes, peak_bytes - like))
        more = "more ranks" if _too_many_states(request) else "more ranks or a smaller batch"
        return (
            f"no plan of {about}{held} fits {format_bytes(request.memory_bytes)} a rank; the nearest ({plan}) holds "
            f"{holds}, {short} more; give {more}"
        )
    if not counts.enumerated:
        degrees = " x ".join(f"{key} {request.fixed[key]}" for key in request.fixed if key.endswith("_parallel"))
        return (
            f"no plan of {about} has {degrees}; choose degrees whose product divides "
            f"{request.num_ranks}, and no more replicas than sequences"
        )
    sizes = {"layers": base.layers, **base.sizes}
    listed = ", ".join(f"{key} {size}" for key, size in sizes.items())
    listed += f", sequence {base.sequence}"
    reason = f"none of {counts.enumerated} plans of {about}{held} divides: {listed}"
    other = _nearest_ranks(request)
    return f"{reason}; " + (f"the nearest number of ranks with a plan is {other}" if other else "choose other sizes")


def _nearest_ranks(request: SearchRequest) -> int | None:
    for away in range(1, _TRIES):
        for ranks in (request.num_ranks - away, request.num_ranks + away):
            if ranks > 0 and any(f.plans for f in families(request.base, ranks, request.batch, fixed=request.fixed)):
                return ranks
    return None
