"""The schedule `centauri`: partition every communication where that pays, and overlap what is left.

Each all-reduce, all-gather and reduce-scatter passes the partition space in the paper's order and the operation tier.
Then trials, each taken where a simulated step is shorter: levels concurrently, nothing cut, gradients reduced in
chunks, the layer tier's order, finer chunks, and the program as it was. See docs/models/centauri.md.
Source: Chen et al., Centauri, ASPLOS 2024.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from scaleout.cluster.machine import Machine
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.program.fastest import is_faster
from scaleout.program.program import Program
from scaleout.schedule.centauri.layer_tier import best_order
from scaleout.schedule.centauri.operation_tier import Weights, cut, finer
from scaleout.schedule.centauri.partition.group import Levels, partition_groups, substitute
from scaleout.schedule.centauri.partition.workload import Chain, check_cut
from scaleout.schedule.cost import ProgramCosts, Trial, cost_model_for
from scaleout.schedule.decision import Decision, Planned, collective_counts, collectives
from scaleout.schedule.overlap import overlap
from scaleout.schedule.steps import or_baseline

_PARTITIONED = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")

DIMENSIONS = ("primitive", "group", "workload", "order", "model", "gradients")
"""Dimensions of the partition space, in the order in which they are applied; the layer tier's order of backward; the
model tier, with which the paper ends; and gradients that are reduced in chunks."""


def plan_of(option: str) -> Callable[[Program, Machine | None], Planned]:
    """Return the plan that goes no further than one of `DIMENSIONS`, as in the paper's ablation.

    With ``workload=M`` or ``workload=N`` only chains are cut whose GEMMs are cut along that dimension; ``model-group``
    leaves one dimension out. A ConfigError says that an option or a dimension is unknown, or that GEMMs may not be cut
    along it.
    """
    until, equals, along = option.partition("=")
    last, _, without = until.partition("-")
    for each in (last, without or last):
        if each not in DIMENSIONS:
            raise ConfigError(f"unknown dimension {each!r} of centauri's partition space; {nearest(each, DIMENSIONS)}")
    if equals and last != "workload":
        raise ConfigError(f"centauri:{option}: only GEMMs are cut along a dimension that is named; give workload=M")
    if equals:
        check_cut(along)
    taken = DIMENSIONS[: DIMENSIONS.index(last) + 1]
    return partial(plan, dimensions=[each for each in taken if each != without], along=along)


def plan(
    program: Program,
    machine: Machine | None = None,
    *,
    dimensions: Collection[str] = DIMENSIONS,
    along: str = "",
) -> Planned:
    """Return the program partitioned where that pays, along some of `DIMENSIONS`, and overlapped; it needs a machine.

    GEMMs are cut `along` one dimension, or along all along which they may be.
    """
    costs = ProgramCosts(program, cost_model_for("centauri", machine), divides="group" in dimensions)
    way = _Way(costs, Weights(costs, costs.best_s), cuts="workload" in dimensions, along=along)
    chosen = _Chosen(way, way.tried(way.substituted(program)))
    levels = ("by levels that are shorter side by side", "by levels that are shorter one after another")
    chosen = chosen.or_else(_side_by_side(way), "collectives over nodes", levels)
    chosen = chosen.or_else(chosen.way.whole(), "GEMMs and the collectives next to them", ("whole", "cut"))
    before = chosen
    if "workload" in dimensions and along != "N":
        exchanged = ("in chunks with the kernels next to them", "whole")
        chosen = chosen.or_else(chosen.way.exchanging(), "all-to-alls", exchanged)
    if "gradients" in dimensions:
        reduced = ("reduced in chunks as they are made", "reduced whole")
        chosen = chosen.or_else(chosen.way.recut(Weights.with_gradients), "gradients", reduced)
    if "order" in dimensions:
        ordered, words = best_order(chosen.trial, chosen.way.tried)
        chosen = replace(chosen, trial=ordered, words=chosen.words + words)
    finely = ("halves, quarters and eighths too", "as Algorithm 1 has them")
    chosen = chosen.or_else(chosen.way.recut(lambda weights: weights.with_ways(finer)), "chunks", finely)
    best = chosen.trial
    words = _decisions(program, chosen.way.costs) + chosen.words + best.decisions
    if chosen.way.divides():  # else what cuts nothing is as under overlap
        kept = Trial(costs, program, overlap(program))
        if is_faster(kept.step_s, best.step_s):
            words = (Decision("all collectives", "as under overlap", kept.step_s, {"partitioned": best.step_s}),)
            best = kept
    cuts_exchanges = before is not chosen and chosen.way.weights.exchanges
    whole = Planned(before.trial.scheduled, before.words, before.trial.known) if cuts_exchanges else None
    return or_baseline(Planned(best.scheduled, words, best.known, whole), program, costs.machine)


@dataclass(frozen=True)
class _Way:
    """A way to partition a program: what collectives cost, how chunks are weighed, whether and along what it cuts."""

    costs: ProgramCosts
    weights: Weights
    cuts: bool
    along: str = ""

    def substituted(self, program: Program) -> Program:
        return substitute(program, chosen=self.costs.substitutes)

    def tried(self, program: Program) -> Trial:
        cuts_any = self.cuts or self.weights.exchanges
        scheduled, cuts = cut(program, self.weights, chosen=self._chooses) if cuts_any else (program, ())
        scheduled = partition_groups(scheduled, self.costs.machine, chosen=self.costs.by_levels)
        return Trial(self.costs, program, overlap(scheduled), cuts)

    def whole(self) -> "_Way":
        """Return the way that cuts no GEMM."""
        return replace(self, cuts=False) if self.cuts else self

    def recut(self, change: Callable[[Weights], Weights]) -> "_Way":
        """Return the way with chunks weighed otherwise; itself if nothing would be cut otherwise."""
        weights = change(self.weights) if self.cuts else self.weights
        return self if weights is self.weights else replace(self, weights=weights)

    def exchanging(self) -> "_Way":
        """Return the way that cuts all-to-alls too; itself if there are none."""
        weights = self.weights.with_exchanges()
        return self if weights is self.weights else replace(self, weights=weights)

    def divides(self) -> bool:
        """Whether any collective is substituted or carried out by levels."""
        costs = self.costs
        return any(costs.substitutes(*each) or costs.by_levels(*each) for each in collective_counts(costs.program))

    def _chooses(self, chain: Chain) -> bool:
        return self.cuts and all(self.along in ("", piece.dimension) for piece in chain.pieces)


@dataclass(frozen=True)
class _Chosen:
    """The way that was chosen so far, its trial, and what was decided on the way to it."""

    way: _Way
    trial: Trial
    words: tuple[Decision, ...] = ()

    def or_else(self, way: _Way, about: str, choices: tuple[str, str]) -> "_Chosen":
        """Return what another way comes to, if a step is shorter for it; `choices` name it and this."""
        if way is self.way:
            return self
        same_costs, old = way.costs is self.way.costs, self.trial
        rival = way.tried(old.ordered if same_costs else way.substituted(self.way.costs.program)).beside(old)
        if not is_faster(rival.step_s, old.step_s):
            return self
        return _Chosen(way, rival, (*self.words, Decision(about, choices[0], rival.step_s, {choices[1]: old.step_s})))


def _side_by_side(way: _Way) -> _Way:
    """Return the way with levels that are shorter than the whole while many collectives are on them."""
    old = way.costs
    new = ProgramCosts(old.program, old.cost_model, divides=old.divides, concurrent=True)
    kinds = {
        (f, "reduce_scatter" if kind == "all_reduce" else kind, n) for f, kind, n in collective_counts(old.program)
    }
    if all(new.by_levels(*each) == old.by_levels(*each) for each in kinds):
        return way
    return replace(way, costs=new, weights=Weights(new, new.best_s))


_WHOLE = "by the whole group"
"""What a collective is that is not partitioned over groups; in time it may be cut all the same."""


def _decisions(program: Program, costs: ProgramCosts) -> tuple[Decision, ...]:
    """Say what primitives and groups become, for each size of each kind."""
    found = []
    for (family, kind, size_bytes), count in sorted(collective_counts(program).items()):
        if kind not in _PARTITIONED:
            continue
        levels = costs.levels(family)
        whole_s, after_s, choice = costs.whole_s(family, kind, size_bytes), 0.0, _WHOLE
        if costs.substitutes(family, kind, size_bytes):
            choice, after_s = "reduce_scatter and all_gather", costs.substituted_s(family, size_bytes)
        if costs.by_levels(family, "reduce_scatter" if kind == "all_reduce" else kind, size_bytes):
            sizes = " x ".join(map(str, levels.sizes[::-1])) if isinstance(levels, Levels) else ""
            choice = f"{choice} by levels {sizes}" if choice != _WHOLE else f"by levels {sizes}"
        after_s = after_s or costs.best_s(family, kind, size_bytes)
        reason = levels if isinstance(levels, str) else ""
        about, others_s = collectives(kind, size_bytes, program.groups[family].name), {_WHOLE: whole_s}
        others_s = {} if choice == _WHOLE else others_s
        found.append(Decision(about, choice, after_s, others_s, "each, isolated", reason, count))
    return tuple(found)
