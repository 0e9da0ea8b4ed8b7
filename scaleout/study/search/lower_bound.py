"""Lower bounds of the step time of a plan under any schedule: kernels, pipeline and links.

Three times are below every step: the busy time of one pipeline rank, with the forward passes before it and the backward
passes after it; the same path with kernels alone; and, per network dimension, the bytes of all collectives. A group
over several dimensions needs on each at least what its slices exchange, ``(m - 1) / m n``. Latency, pipeline messages
and ring messages count nothing. Weight gradients may be deferred; replicas may scatter gradients.

Symbols: S stages; n bytes of a collective; p members of its group, m along one dimension.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.placement import congruent_members, place
from scaleout.cluster.topology.topology import Topology
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.program.operations import kernel
from scaleout.study.search.cost import Collective, Part, PlanCosts, Site, Work, parts_of, plan_costs_of
from scaleout.study.search.stages import Stage, contents_of, splits_backward, stages_of
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.generate.axes import Axes, GradientSync
from scaleout.workloads.generate.profile import profile_key
from scaleout.workloads.pipeline import PIPELINES, Action

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StageBounds:
    """What each stage takes at least of one micro-batch, and in a step, shape (S,) each.

    Attributes
    ----------
    forward_s, back_s : ndarray
        Forward, and until the gradient of the input is there.
    both_s : ndarray
        Forward and backward, both gradients.
    once_s : ndarray
        What comes on top once a step, or less than 0 if it is spared.
    later_s : ndarray
        Part of the backward for which no other stage ever waits.
    last_s : ndarray
        Reductions, which follow the last micro-batch or run by its gradients.
    begin_s : ndarray
        What comes before the first micro-batch.
    """

    forward_s: Floats
    back_s: Floats
    both_s: Floats
    once_s: Floats
    later_s: Floats
    last_s: Floats
    begin_s: Floats


def stage_bounds_of(stages: Sequence[Stage]) -> StageBounds:
    """Return what stages that are timed take at bounds."""
    columns = []
    for stage in stages:
        forward, whole, inputs, weights = (time.total_s for time in stage.actions)
        split_s = inputs + weights
        if split_s:
            columns.append((forward, min(inputs, whole - stage.after_s), forward + min(whole, split_s), weights))
        else:
            columns.append((forward, whole - stage.after_s, forward + whole, 0.0))
    forward_s, back_s, both_s, later_s = np.array(columns).T
    once_s = np.array([-stage.saved.total_s for stage in stages])
    last_s = np.array([fsum(time.total_s for time in (stage.deferred, *stage.reduced)) for stage in stages])
    begin_s = np.array([stage.gathered.total_s for stage in stages])
    return StageBounds(forward_s, back_s, both_s, once_s, later_s, last_s, begin_s)


def bound_of(workload: LayeredModel, bounds: StageBounds) -> float:
    """Return the longest path through one pipeline rank."""
    stage_of = workload.stages_of_ranks
    m = workload.num_microbatches / PIPELINES[workload.pipeline_schedule].layout.copies
    busy_s = (m * bounds.both_s + bounds.once_s)[stage_of].sum(axis=1)
    last_s = bounds.last_s[stage_of].sum(axis=1)
    begin_s = bounds.begin_s[stage_of].sum(axis=1)
    if len(stage_of) == 1:
        return float(begin_s[0] + busy_s[0] + last_s[0])
    first = stage_of.min(axis=1)
    before_s = np.maximum(np.r_[0.0, np.cumsum(bounds.forward_s)][first], begin_s)
    # Behind its last gradient of an input a pipeline rank may only have gradients of weights left.
    later_s = (m * bounds.later_s)[stage_of].sum(axis=1)
    back_s = np.r_[0.0, np.cumsum(bounds.back_s)][first] - later_s
    return float((before_s + busy_s + np.maximum(back_s, last_s)).max())


_ONCE = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds of which a slice of a group needs no more than one copy of what it takes in."""


@dataclass
class LowerBounds:
    """Lower bounds on a device and a network, with all that was computed of them."""

    costs: PlanCosts
    _seconds: dict[object, Floats] = field(default_factory=dict)
    _needs: dict[tuple[Site, str, str], Floats] = field(default_factory=dict)
    _carried: dict[tuple[Work, Site], Floats] = field(default_factory=dict)

    def kernels_s(self, workload: LayeredModel, *, ordered: bool) -> float:
        """Return the longest path through one pipeline rank under any schedule, of kernels alone.

        `ordered` says whether a rank runs its actions one after another.
        """
        forward_s, whole_s, inputs_s, weights_s, adds_s = self._of_stages(workload, collectives=False)
        later_s, nothing = weights_s + adds_s, np.zeros(len(adds_s))
        bounds = StageBounds(
            forward_s=forward_s,
            back_s=inputs_s,
            both_s=forward_s + np.minimum(whole_s, inputs_s + weights_s) + adds_s,
            once_s=-adds_s,
            later_s=later_s / workload.num_microbatches if ordered else later_s,
            last_s=nothing,
            begin_s=nothing,
        )
        return bound_of(workload, bounds)

    def passes_s(self, workload: LayeredModel) -> float:
        """Return the longest path under `baseline` if nothing synchronises gradients and parameters between layers."""
        forward_s, whole_s, inputs_s, weights_s, adds_s = self._of_stages(workload, collectives=True)
        whole_s, later_s, nothing = whole_s + adds_s, weights_s + adds_s, np.zeros(len(adds_s))
        split = splits_backward(workload.pipeline_schedule)
        bounds = StageBounds(
            forward_s=forward_s,
            back_s=np.minimum(inputs_s, whole_s) if split else whole_s,
            both_s=forward_s + (np.minimum(whole_s, inputs_s + later_s) if split else whole_s),
            once_s=-adds_s,
            later_s=later_s if split else nothing,
            last_s=nothing,
            begin_s=nothing,
        )
        return bound_of(workload, bounds)

    def path_s(self, workload: LayeredModel) -> float:
        """Return the longest path under `baseline`, of stages as they are timed."""
        return bound_of(workload, stage_bounds_of(stages_of(workload, self.costs)))

    def spread_s(self, workload: LayeredModel, *, collectives: bool) -> float:
        """Return the passes of all micro-batches, spread over all pipeline ranks, with `collectives` or kernels alone.

        It is a lower bound of all plans of a family: under `baseline`, or for kernels alone under any schedule.
        """
        forward_s, whole_s, inputs_s, weights_s, _ = self._of_stages(workload, collectives=collectives)
        total_s = float((forward_s + (whole_s if collectives else np.minimum(whole_s, inputs_s + weights_s))).sum())
        return workload.num_microbatches * total_s / workload.pipeline_parallel

    def _of_stages(self, workload: LayeredModel, *, collectives: bool) -> Floats:
        """Return what stages take for a micro-batch: each `Action`, and to add gradients to those before, (5, S)."""
        dtype, fused = workload.gradient_dtype or workload.dtype, workload.fused_accumulation
        split = not collectives or splits_backward(workload.pipeline_schedule)
        mesh = workload.mesh if collectives else None
        about = (profile_key(workload), workload.num_stages == 1, dtype, fused, split, mesh)
        contents = contents_of(workload)
        for content in dict.fromkeys(contents):
            if (about, content) not in self._seconds:
                total = np.zeros(len(Action) + 1)
                for kind, count in content:
                    if (about, kind) not in self._seconds:
                        self._seconds[about, kind] = self._of_part(workload, kind, split=split, collectives=collectives)
                    total += count * self._seconds[about, kind]
                self._seconds[about, content] = total
        return np.array([self._seconds[about, content] for content in contents]).T

    def _of_part(self, workload: LayeredModel, kind: str, *, split: bool, collectives: bool) -> Floats:
        (part,), model = parts_of(workload, (kind,), split=split).values(), self.costs.model
        dtype = workload.gradient_dtype or workload.dtype
        added = () if workload.fused_accumulation else (gradient.num_parameters for gradient in part.gradients)
        adds = {kernel("add", dtype=dtype, elements=number): times for number, times in Counter(added).items()}
        calls = [*(work.kernels for work in part.works), adds]
        model.time_kernels(call for some in calls for call in some)
        seconds = [fsum(times * model.kernel_s(call) for call, times in some.items()) for some in calls]
        if collectives:
            axes = Axes(workload)
            for name in (name for work in part.works for name in work.families):
                axes.number(name)
            seconds[:-1] = [self.costs.work(work, workload, axes).total_s for work in part.works]
        return np.array(seconds)

    def links_s(self, workload: LayeredModel) -> float:
        """Return what the busiest dimension of the network carries in a step, the mean over ranks."""
        axes, m = Axes(workload), workload.num_microbatches
        sharing = axes.sharing
        total = np.zeros(len(self.costs.topology.dimensions))
        kinds = Counter[str]()
        for content in contents_of(workload):
            kinds.update(dict(content))
        for kind, part in _parts(workload, kinds.items()).items():
            for name in (name for work in part.works for name in work.families):
                axes.number(name)
            each_s = [self._works_carry(work, workload, axes) for work in part.works]
            backward_s = each_s[Action.BACKWARD]
            if part.works[Action.WEIGHT_GRADIENT].kernels:
                backward_s = np.minimum(backward_s, each_s[Action.INPUT_GRADIENT] + each_s[Action.WEIGHT_GRADIENT])
            shared_s = self._carries(_shared(workload, part, sharing, axes.names), workload, axes)
            if workload.zero in (0, 3):  # what a schedule may change: shards of replicas, parts of shards with copies
                parts = {name: _split(each, workload.zero) for name, each in sharing.items()}
                as_parts_s = self._carries(_shared(workload, part, parts, axes.names), workload, axes)
                shared_s = np.minimum(shared_s, as_parts_s)
            total += kinds[kind] * (m * (each_s[Action.FORWARD] + backward_s) + shared_s)
        return float(total.max()) / workload.pipeline_parallel

    def _works_carry(self, work: Work, workload: LayeredModel, axes: Axes) -> Floats:
        key = (work, axes.site)
        if key not in self._carried:
            self._carried[key] = self._carries(work.collectives, workload, axes)
        return self._carried[key]

    def _carries(self, collectives: Mapping[Collective, int], workload: LayeredModel, axes: Axes) -> Floats:
        """Return lower bounds of the seconds for which collectives hold each dimension, shape (D,)."""
        total = np.zeros(len(self.costs.topology.dimensions))
        for collective, count in collectives.items():
            key = (axes.site, collective.family, collective.kind)
            if key not in self._needs:
                topology, groups = self.costs.topology, axes.family(collective.family).members
                if congruent_members(topology, groups) is not None:
                    groups = groups[:1]
                each = [_per_byte_s(collective.kind, topology, group) for group in groups]
                self._needs[key] = np.min(each, axis=0)
            total += count * collective.size_bytes * self._needs[key]
        return total


@functools.lru_cache(maxsize=8)
def lower_bounds_of(topology: Topology, device: Device) -> LowerBounds:
    """Return the lower bounds on a topology and a device, with all that this process has computed of them."""
    return LowerBounds(plan_costs_of(topology, device))


def _per_byte_s(kind: str, topology: Topology, group: Sequence[int]) -> Floats:
    """Return the lower bound of the seconds for which a byte of a group's collective holds each dimension, (D,)."""
    placement = place(topology, group)
    along = np.flatnonzero(np.ptp(topology.coordinates(np.array(group)), axis=0)).tolist()
    needs = np.zeros(len(topology.dimensions))
    if len(along) == 1:
        needs[along] = lower_bound_s(kind, 1.0, placement)
    elif placement.regular and placement.topology is None:
        for number, extent in zip(along, placement.extents, strict=True):
            others = placement.num_ranks / extent.size if kind in _ONCE else 1.0
            if kind in (*_ONCE, "all_to_all"):
                needs[number] = lower_bound_s(kind, 1.0 / others, replace(placement, extents=(extent,)))
    return needs


def _parts(workload: LayeredModel, content: Iterable[tuple[str, int]]) -> dict[str, Part]:
    return parts_of(workload, (kind for kind, _ in content), split=workload.mode == "training")


def _shared(
    workload: LayeredModel, part: Part, sharing: Mapping[str, GradientSync], names: Sequence[str]
) -> dict[Collective, int]:
    """Return what sums the gradients of a part in a step, and gathers the parameters that others have stepped."""
    found = Counter[Collective]()
    for gradient in part.gradients:
        shared, size_bytes = sharing[gradient.bucket], gradient.num_parameters * workload.gradient_bytes
        times = workload.num_microbatches if workload.zero >= 2 else 1
        copies = () if workload.replicas_at_end else shared.sums_replicas(size_bytes - size_bytes % shared.degree)
        for call in (*shared.reduces(size_bytes), *copies):
            found[Collective(call.kind, call.size_bytes, names[call.group])] += times
    for name, number in part.parameters.items():
        for call in sharing[name].gathers(number * workload.item_bytes, zero=workload.zero):
            found[Collective(call.kind, call.size_bytes, names[call.group])] += 1
    return dict(found)


def _split(sharing: GradientSync, zero: int) -> GradientSync:
    return replace(sharing, sharded=True) if zero == 0 else replace(sharing, partitioned=sharing.num_replicas > 1)
