"""The schedule `fused`: pairs are fused where a simulated step is shorter, else the program stays as it was given.

Pairs that are alike (pass, collective, kernels; over all layers and micro-batches) are one candidate. All candidates
together are tried first, then without one after the other, those that save least first, as long as that is shorter or
nothing was shorter yet. So the schedule is never slower than what it was given, and ends where that does.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.config.units import counted
from scaleout.errors import SimulationError
from scaleout.program.fastest import is_faster, ranked
from scaleout.program.graph import ExecutionGraph
from scaleout.program.program import Program
from scaleout.schedule.decision import Decision, Planned, collectives
from scaleout.schedule.fusion.pair_cost import FusedCost
from scaleout.schedule.fusion.passes import candidates, fuse, fused, likeness
from scaleout.schedule.pairs import Pair
from scaleout.schedule.steps import step
from scaleout.simulation.result import Result

Kinds = frozenset[tuple[object, ...]]
"""Candidates, by what their pairs have in common."""

_NAMES = 3
"""Names of kernels of a candidate that are told."""


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
        """Say what a step takes with candidates fused and without, and of each what a pair of it saves, isolated."""
        taken = best.kinds if is_faster(best.step_s, given.step_s) else frozenset()
        pairs: dict[tuple[object, ...], tuple[ExecutionGraph, list[tuple[Pair, FusedCost]]]] = {}
        for graph, mine in zip(self.program.graphs, self.found, strict=True):
            alike: defaultdict[tuple[object, ...], list[tuple[Pair, FusedCost]]] = defaultdict(list)
            for pair, cost, kind in mine:
                alike[kind].append((pair, cost))
            for kind, those in alike.items():
                pairs[kind] = max(pairs.get(kind, (graph, [])), (graph, those), key=lambda each: len(each[1]))
        what = f"{len(taken)} of {counted(len(pairs), 'kind')} of pairs"
        if taken:
            whole = Decision(what, "fused", best.step_s, {"not fused": given.step_s})
        else:
            fused_s = {} if best.result is None else {"fused": best.step_s}
            whole = Decision(what, "not fused", given.step_s, fused_s)
        return (whole, *(self._of_pairs(*pairs[kind], whole, fused=kind in taken) for kind in pairs))

    def _of_pairs(
        self, graph: ExecutionGraph, pairs: Sequence[tuple[Pair, FusedCost]], whole: Decision, *, fused: bool
    ) -> Decision:
        """Say of pairs of a role that are alike which kernels they have, and what each takes fused and not.

        On a device that does not say how work-groups run only the step is known, of `whole`.
        """
        node, count = pairs[0][0].collective, len(pairs)
        family = self.program.groups[graph.group[node]].name
        what = collectives(graph.operation(node), int(graph.bytes[node]), family)
        kernels = [kernel for pair, _ in pairs for kernel in pair.kernels]
        operations = ", ".join(dict.fromkeys(map(graph.operation, kernels)))
        what = f"{what}, {'after' if pairs[0][0].produces else 'before'} {operations}"
        called = [*dict.fromkeys(_called(graph, kernel) for kernel in kernels)]
        names = ", ".join(called[:_NAMES] + ["..."] * (len(called) > _NAMES))
        isolated_s = fsum(cost.isolated_s for _, cost in pairs) / count
        if not math.isfinite(isolated_s):
            unknown = f"{self.machine.device.name} has no work_groups, so fusing is taken to cost nothing"
            choice = "fused" if fused else "not fused"
            return replace(whole, about=what, count=count, choice=choice, reason=unknown, called=names)
        saved_s = fsum(cost.saves_s for _, cost in pairs)
        fused_s = isolated_s - saved_s / count
        alike: dict[str, Any] = {"time_of": "each, isolated", "count": count, "called": names}
        if fused:
            return Decision(what, "fused", fused_s, {"not fused": isolated_s}, saved_s=saved_s, **alike)
        reason = "a step would be longer"
        return Decision(what, "not fused", isolated_s, {"fused": fused_s}, reason=reason, **alike)


def _called(graph: ExecutionGraph, node: int) -> str:
    """Say what a kernel is called over all layers, where that is not its operation, and in which phase it is."""
    name = graph.names[node].removeprefix(f"layer_{graph.layer[node]}_")
    name = "" if name == graph.operation(node) else name
    phase = graph.phases[graph.phase[node]]
    return " ".join([name] * bool(name) + [f"in {phase}"] * bool(phase))
