"""Plans that are simulated under a schedule, the most promising first.

A candidate fits the memory and has a lower bound among the fastest. Its promise, the step time with the communication
of gradients and parameters overlapped, only orders the candidates. Under `baseline` the plans that an answer
shows are simulated too, as `evaluate` leaves contention and clocks out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import fsum
from typing import NamedTuple

from scaleout.analysis.bounds import of_memory
from scaleout.program.fastest import fastest, ranked
from scaleout.schedule import in_order
from scaleout.study.job import Job, Outcome, annotated, prepare, run, simulated
from scaleout.study.search.best import ROUNDING, Best, Choice, EvaluatedPlan, fastest_first
from scaleout.study.search.branch_and_bound import evaluated_plans
from scaleout.study.search.evaluate import Estimate
from scaleout.study.search.execution import Execution
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.space import Family, Plan


def estimate_of(outcome: Outcome) -> Estimate:
    """Say what a simulated step takes, as `run` does; see `evaluate.Estimate`."""
    result, workload, device, found = outcome.result, outcome.workload, outcome.device, outcome.efficiency
    assert workload is not None
    assert device is not None
    assert found is not None
    step_s, compute_s = result.makespan_s, outcome.breakdown.compute_s
    bubble_s = found.bubble * step_s
    return Estimate.of(
        workload, device, step_s, compute_s=compute_s, exposed_s=found.exposed_s, bubble_s=bubble_s,
        host_s=max(0.0, step_s - compute_s - fsum(found.exposed_s.values()) - bubble_s),
        memory_limited_s=compute_s * of_memory(result, device)[0],
    )  # fmt: skip


def estimate_under(request: SearchRequest, choice: Choice) -> Estimate:
    """Simulate a plan under a schedule, and say what a step takes.

    Plans of which the schedule makes the same workload, as it shards what they do not, are simulated once.
    """
    known, found = request.figures.simulated, list[Estimate]()
    job = _job(request, choice)
    for prepared in prepare(job):
        key = (prepared.work, job.schedule, request.memory_bytes, repr(job.options))
        if key not in known:
            known[key] = estimate_of(simulated(prepared, annotated(prepared)))
        found.append(known[key])
    return fastest(found, key=lambda estimate: estimate.step_s)


def run_plan(request: SearchRequest, choice: Choice) -> Outcome:
    """Simulate a plan under a schedule, which may fill as much memory as a rank of the request may hold."""
    return run(_job(request, choice))


def _job(request: SearchRequest, choice: Choice) -> Job:
    plan, schedule = choice
    device = request.device
    if device.usable_bytes != request.memory_bytes:
        device = replace(device, memory_bytes=request.memory_bytes, reserved_bytes=0.0)
    return Job(request.workload(plan), device, request.topology, schedule, request.options)


SIMULATED = "baseline, simulated"
"""Name under which the memory of a search has plans that are simulated under `baseline`."""


def remember(request: SearchRequest, names: Mapping[Choice, Choice], execution: Execution, what: str) -> None:
    """See that the memory has the estimates of some choices, each under its name there; `what` says what they are."""
    new = [choice for choice, name in names.items() if name not in execution.memory.estimates]
    simulations = execution.simulate(estimate_under, request, new)
    for number, (choice, estimate) in enumerate(simulations, start=1):
        execution.tell(number, len(new), f"simulations of {what}", execution.so_far.best or Best(1))
        assert estimate is not None, "all are wanted"
        plan, schedule = names[choice]
        execution.memory.add(EvaluatedPlan(plan, estimate, schedule))


class Evaluated(NamedTuple):
    """Plans under `baseline`: all, and those that were simulated, among which the answer's are."""

    plans: list[EvaluatedPlan]
    simulated: list[EvaluatedPlan]


def simulated_plans(request: SearchRequest, found: Iterable[EvaluatedPlan], execution: Execution) -> Evaluated:
    """Simulate plans under `baseline` until the fastest are, and the front.

    What they take is what `run` answers, to the bit.
    """
    plans = {each.choice: each for each in found}
    known, wanted = execution.memory.estimates, set[Choice]()
    while True:
        best = Best(request.top)
        best.add(plans.values())
        execution.found(best, "simulations of the fastest, estimated from blocks", under=request.schedules)
        new = {each.choice for each in (*best.fastest, *best.near)} - wanted
        if not new:
            return Evaluated(fastest_first(plans.values()), fastest_first(plans[choice] for choice in wanted))
        remember(request, {choice: (choice[0], SIMULATED) for choice in new}, execution, "the fastest plans")
        plans |= {choice: EvaluatedPlan(choice[0], known[choice[0], SIMULATED]) for choice in new}
        wanted |= new


def under_baseline(
    request: SearchRequest, some: Sequence[Family], bounds: Sequence[float], execution: Execution
) -> tuple[Evaluated, list[tuple[float, Plan]]]:
    """Return plans under `baseline`: those that the answer does not rule out, and of the others what does not fit.

    Estimates know no contention and rule out too much. So families are looked at once more, against simulated times.
    """
    estimated, _ = evaluated_plans(request, some, bounds, execution, Best(request.top))
    simulated = Best(request.top)
    simulated.add(first := simulated_plans(request, estimated, execution).simulated)
    simulated.closed = True
    wanted, too_large = evaluated_plans(request, some, bounds, execution, simulated)
    every = {each.choice: each for each in (*wanted, *first)}
    return simulated_plans(request, every.values(), execution), too_large


@dataclass(frozen=True)
class Candidate:
    """A plan that fits and may be among the fastest, with its promise and its lower bound."""

    promise_s: float
    bound_s: float
    plan: Plan


@dataclass(frozen=True)
class Simulated:
    """What became of plans under the schedules besides `baseline`; a plan counts once for each schedule.

    Attributes
    ----------
    found : tuple of EvaluatedPlan
        What was simulated and fits.
    choices : int
        All plans whose sizes divide, times the schedules.
    bounded : int
        That cannot be among the fastest by their lower bounds, or do not fit.
    left : int
        That were not simulated, as enough of greater promise were.
    lower_bound_s : float or None
        The lowest bound of those left that may be faster than the fastest; none if there is no such plan.
    """

    found: tuple[EvaluatedPlan, ...]
    choices: int
    bounded: int
    left: int
    lower_bound_s: float | None


def candidates_of(request: SearchRequest, some: Sequence[Family], *, last_s: float) -> list[tuple[float, float, Plan]]:
    """Return which plans of families fit and may take less than the last of the fastest, as fields of `Candidate`."""
    figures, ordered = request.figures, all(map(in_order, request.schedules))
    lower_bounds = figures.lower_bounds
    kernels_s = cache(lambda plan: lower_bounds.kernels_s(request.blocks(plan), ordered=ordered))
    links_s: dict[tuple[Plan, int], float] = {}
    found = []
    for plan, lighter in ((plan, family.lighter(plan)) for family in some for plan in family.plans):
        if any(kernels_s(each) * ROUNDING > last_s for each in lighter):
            continue
        workload = request.blocks(plan)
        # Over all stages the bytes are the same however they are scheduled, but for what stages exchange.
        stages = workload.num_stages if workload.scatters else min(workload.num_stages, 2)
        key = (plan._replace(pipeline_schedule="", virtual_stages=None), stages)
        if key not in links_s:
            links_s[key] = lower_bounds.links_s(workload)
        bound_s = max(kernels_s(lighter[1]), links_s[key])
        if bound_s * ROUNDING <= last_s and figures.peak_bytes(plan) <= request.memory_bytes:
            found.append((max(bound_s, figures.passes_s(lighter[1])), bound_s, plan))
    return found


def _most_promising(found: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in order of their promise, then their lower bound, then their plan."""
    by_bound = ranked(found, key=lambda each: each.bound_s, order=lambda each: tuple(map(str, each.plan)))
    place = {each.plan: number for number, each in enumerate(by_bound)}
    return ranked(found, key=lambda each: each.promise_s, order=lambda each: place[each.plan])


def simulate_best(
    request: SearchRequest, candidates: Sequence[Candidate], num_plans: int, best: Best, execution: Execution
) -> Simulated:
    """Simulate the fastest plan so far and the candidates of greatest promise under every schedule.

    What they take is added to the best. Which these are follows from the plans alone, so the answer is the same however
    many processes there are.
    """
    so_far = best.fastest[0].plan if best.fastest else None
    wanted = _most_promising([each for each in candidates if best.may_have(each.bound_s)])
    wanted.sort(key=lambda each: each.plan != so_far)
    first, rest = wanted[: request.simulations], wanted[request.simulations :]
    bounds = {(each.plan, schedule): each.bound_s for each in first for schedule in request.schedules}
    known, fitting, num_done = execution.memory.estimates, dict[Choice, EvaluatedPlan](), 0

    def add(choice: Choice, estimate: Estimate) -> None:
        each = EvaluatedPlan(choice[0], estimate, choice[1])
        execution.memory.add(each)
        if estimate.peak_bytes <= request.memory_bytes:
            fitting[choice] = each
            best.add([each])

    for choice in [choice for choice in bounds if choice in known]:
        add(choice, known[choice])
    new = [choice for choice in bounds if choice not in known]
    simulations = execution.simulate(estimate_under, request, new, wanted=lambda choice: best.may_have(bounds[choice]))
    for num_done, (choice, estimate) in enumerate(simulations, start=len(bounds) - len(new) + 1):
        if estimate is not None:
            add(choice, estimate)
        untried = f"{len(bounds) - num_done:,} of {len(bounds):,} simulations under {', '.join(request.schedules)}"
        execution.found(best, untried)
        simulated = f"simulations under {', '.join(request.schedules)}, {len(fitting):,} of them fit"
        execution.tell(num_done, len(bounds), simulated, best)
    # What was simulated before a faster one was known depends on what is done when, and does not count.
    found = [fitting[choice] for choice, bound_s in bounds.items() if best.may_have(bound_s) and choice in fitting]
    times = len(request.schedules)
    left = [each for each in rest if best.may_have(each.bound_s)]
    faster = [each.bound_s for each in left if each.bound_s < best.fastest[0].estimate.step_s * ROUNDING]
    total = num_plans * times
    bounded = total - len(found) - times * len(left)
    return Simulated(tuple(found), total, bounded, times * len(left), min(faster, default=None))
