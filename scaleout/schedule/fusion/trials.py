"""The schedule `fused`: pairs are fused where a simulated step is shorter, else the program stays as it was given.

Pairs that are alike (pass, collective, kernels; over all layers and micro-batches) are one candidate. All candidates
together are tried first, then without one after the other, those that save least first, as long as that is shorter or
nothing was shorter yet. So the schedule is never slower than what it was given, and ends where that does.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from scaleout.cluster.machine import Machine
from scaleout.errors import SimulationError
from scaleout.program.fastest import is_faster, ranked
from scaleout.program.program import Program
from scaleout.schedule.decision import Decision, Planned, collectives
from scaleout.schedule.fusion.pair_cost import FusedCost
from scaleout.schedule.fusion.passes import candidates, fuse, fused, likeness
from scaleout.schedule.pairs import Pair
from scaleout.schedule.steps import step
from scaleout.simulation.result import Result

Kinds = frozenset[tuple[object, ...]]
"""Candidates, by what their pairs have in common."""


def plan(program: Program, machine: Machine | None = None) -> Planned:
    """Fuse what makes a simulated step shorter; without a machine there is nothing to simulate, and all is fused."""
    if machine is None:
        return Planned(fuse(program))
    trials = _Trials(program, machine)
    if not trials.savings_s:
        return Planned(program)
    given, best = trials.of(frozenset()), trials.of(frozenset(trials.savings_s))
    order = list(trials.savings_s)
    for kind in ranked(order, key=trials.savings_s.__getitem__, order=order.index):
        if len(best.kinds) == 1:
            break
        rival = trials.of(best.kinds - {kind})
        if is_faster(rival.step_s, best.step_s):
            best = rival
        elif is_faster(best.step_s, given.step_s):
            break
    if not is_faster(best.step_s, given.step_s):
        return Planned(program, trials.decisions(given, best), given.result)
    return Planned(best.program, trials.decisions(given, best), best.result)


@dataclass(frozen=True)
class _Trial:
    """A program with some candidates fused, and its simulated step; none if it cannot finish."""

    kinds: Kinds
    program: Program
    result: Result | None

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return math.inf if self.result is None else self.result.makespan_s


@dataclass(frozen=True)
class _Trials:
    """What may be fused in a program on a machine."""

    program: Program
    machine: Machine

    @cached_property
    def found(self) -> list[list[tuple[Pair, FusedCost, tuple[object, ...]]]]:
        """Pairs of each role that pay, their costs, and the candidates that they belong to."""
        roles = zip(self.program.graphs, candidates(self.program, self.machine), strict=True)
        return [[(pair, cost, likeness(graph, pair)) for pair, cost in mine] for graph, mine in roles]

    @cached_property
    def savings_s(self) -> dict[tuple[object, ...], float]:
        """What all pairs of each candidate save, isolated, in the role that has most of them."""
        most: dict[tuple[object, ...], float] = {}
        for mine in self.found:
            saved: defaultdict[tuple[object, ...], float] = defaultdict(float)
            for _, cost, kind in mine:
                saved[kind] += cost.saves_s
            most |= {kind: max(seconds, most.get(kind, 0.0)) for kind, seconds in saved.items()}
        return most

    def of(self, kinds: Kinds) -> _Trial:
        """Simulate a step with some candidates fused."""
        chosen = [[(pair, cost) for pair, cost, kind in mine if kind in kinds] for mine in self.found]
        program = fused(self.program, chosen) if kinds else self.program
        try:
            return _Trial(kinds, program, step(program, self.machine))
        except SimulationError:
            if not kinds:
                raise
            return _Trial(kinds, program, None)

    def decisions(self, given: _Trial, best: _Trial) -> tuple[Decision, ...]:
        """Say which candidates are fused, and what a step takes with them and without."""
        pairs: dict[tuple[object, ...], tuple[int, str]] = {}
        for graph, mine in zip(self.program.graphs, self.found, strict=True):
            for kind, count in Counter(kind for _, _, kind in mine).items():
                pair = next(pair for pair, _, its in mine if its == kind)
                node, kernels = pair.collective, dict.fromkeys(map(graph.operation, pair.kernels))
                family = self.program.groups[graph.group[node]].name
                what = collectives(count, graph.operation(node), int(graph.bytes[node]), family)
                pairs[kind] = max(pairs.get(kind, (0, "")), (count, f"{what}, with {', '.join(kernels)}"))
        shorter = is_faster(best.step_s, given.step_s)
        return tuple(
            Decision(what, "fused", given.step_s, best.step_s, "a step")
            if shorter and kind in best.kinds
            else Decision(what, "as it was", given.step_s, given.step_s, "a step would be longer fused")
            for kind, (_, what) in pairs.items()
        )
