"""Stages as sums of parts: what each action of a stage takes, and how its gradients are reduced.

As in the generators, gradients fill buckets in the order in which backward makes them, across parts. A reduction after
the last kernel of an action occupies the rank, but nobody who depends on the action's output waits for it.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from scaleout.program.operations import Kernel, kernel
from scaleout.study.search.cost import Collective, Part, PlanCosts, TimeBreakdown, Work, parts_of
from scaleout.workloads.config.layered import EMBEDDING, HEAD, Content, LayeredModel
from scaleout.workloads.generate.axes import Axes, Call, GradientSync
from scaleout.workloads.generate.profile import profile_key
from scaleout.workloads.generate.units import RECEIVES, SENDS
from scaleout.workloads.pipeline import PIPELINES, Action, orders


def contents_of(workload: LayeredModel) -> list[Content]:
    """Return what each stage of a model holds, first to last."""
    contents = workload.contents
    if not workload.scatters:
        return contents
    last = len(contents) - 1
    return [((RECEIVES, 1),) * (n > 0) + some + ((SENDS, 1),) * (n < last) for n, some in enumerate(contents)]


@dataclass(frozen=True)
class Stage:
    """What a stage takes, of one micro-batch where nothing else is said.

    Attributes
    ----------
    actions : tuple of TimeBreakdown
        What each `Action` takes, gradients being added to those that are there.
    after_s : float
        Of `Action.BACKWARD`: reductions behind its last kernel, for which only the rank itself waits.
    saved : TimeBreakdown
        What the first gradients of weights of a step are spared: there are none yet to be added to.
    deferred : TimeBreakdown
        Reductions at the end of the step.
    reduced : tuple of TimeBreakdown
        Reductions by the last gradients of weights of a step, and those of them behind their last kernel.
    gathered : TimeBreakdown
        What gathers stepped parameters at the beginning of the step.
    issues : function
        Makes `issued_s`, for which only searches under an eager host ask.
    partial_parameters : int
        Parameters of which each tensor-parallel rank makes a part of the gradient.
    first, last : bool
        Whether it holds the embedding, or the head.
    parameters : mapping
        Name of a bucket to the parameters that it holds.
    """

    actions: tuple[TimeBreakdown, ...]
    after_s: float
    saved: TimeBreakdown
    deferred: TimeBreakdown
    reduced: tuple[TimeBreakdown, TimeBreakdown]
    gathered: TimeBreakdown
    issues: Callable[[], tuple[float, ...]]
    partial_parameters: int
    first: bool
    last: bool
    parameters: Mapping[str, int]

    @functools.cached_property
    def issued_s(self) -> tuple[float, ...]:
        """What each `Action` takes where the host issues its calls one by one."""
        return self.issues()


def stages_of(workload: LayeredModel, costs: PlanCosts) -> list[Stage]:
    """Return the stages of a model, first to last; those that are alike are one object, for all plans."""
    contents = contents_of(workload)
    split = splits_backward(workload.pipeline_schedule)
    about = (
        profile_key(workload), Axes(workload).site, workload.zero, workload.gradient_bucket, workload.gradient_dtype,
        workload.fused_accumulation, split, workload.num_stages == 1,
        workload.overlap_gradient_reduce, workload.overlap_parameter_gather,
    )  # fmt: skip
    ledger = None
    for content in dict.fromkeys(contents):
        if (about, content) not in costs.stages:
            if ledger is None:
                ledger = Ledger.of(workload, costs)
                costs.model.time_kernels(ledger.kernels())
            costs.stages[about, content] = ledger.stage(content)
    return [costs.stages[about, content] for content in contents]


@dataclass(frozen=True)
class Ledger:
    """What the stages of one plan are made of, and what that costs."""

    workload: LayeredModel
    costs: PlanCosts
    axes: Axes
    parts: Mapping[str, Part]
    sharing: Mapping[str, GradientSync]

    @classmethod
    def of(cls, workload: LayeredModel, costs: PlanCosts) -> "Ledger":
        """Look up the parts of a plan."""
        axes = Axes(workload)
        kinds = dict.fromkeys(kind for content in set(contents_of(workload)) for kind, _ in content)
        parts = parts_of(workload, kinds, split=splits_backward(workload.pipeline_schedule))
        sharing = axes.sharing
        for part in parts.values():
            for work in part.works:
                for family in work.families:
                    axes.number(family)
        return cls(workload, costs, axes, parts, sharing)

    def kernels(self) -> Iterator[Kernel]:
        """All kernels of all parts."""
        for part in self.parts.values():
            for work in part.works:
                yield from work.kernels
            yield from (self._add(gradient.num_parameters) for gradient in part.gradients)

    def stage(self, content: Content) -> Stage:
        """Add up the parts of a stage."""
        parts = [(self.parts[kind], count) for kind, count in content]
        adds = Counter[int]()  # how often so many parameters are added
        if self.workload.mode == "training" and not self.workload.fused_accumulation:
            for part, count in parts:
                for gradient in part.gradients:
                    adds[gradient.num_parameters] += count
        saved = self.costs.kernels({self._add(number): count for number, count in adds.items()})
        nothing = (TimeBreakdown(), TimeBreakdown())
        at_once = self.workload.zero >= 2
        by_last = self.workload.overlap_gradient_reduce and not at_once
        with_gradients = (Action.BACKWARD, Action.WEIGHT_GRADIENT)[
            : 1 + splits_backward(self.workload.pipeline_schedule)
        ]
        reduced = {Action.BACKWARD: self._reduced(content, whole=True)}
        if at_once:
            reduced |= {action: self._reduced(content, whole=False) for action in with_gradients[1:]}
        actions = [TimeBreakdown.total((self._work(part.works[action]), n) for part, n in parts) for action in Action]
        for action in with_gradients:
            extra = reduced[action] if at_once else ()
            actions[action] = TimeBreakdown.total((time, 1) for time in (actions[action], saved, *extra))
        parameters = Counter[str]()
        for part, count in parts:
            parameters.update({name: count * number for name, number in part.parameters.items()})
        kinds = [kind for kind, _ in content]
        return Stage(
            tuple(actions),
            after_s=reduced[Action.BACKWARD][1].total_s if at_once else 0.0,
            saved=saved,
            deferred=TimeBreakdown.total(
                (each, 1) for each in (nothing if at_once or by_last else reduced[Action.BACKWARD])
            ),
            reduced=reduced[Action.BACKWARD] if by_last else nothing,
            gathered=self._gathered(content),
            issues=lambda: tuple(
                self._issued_s(action, content, time.total_s) for action, time in zip(Action, actions, strict=True)
            ),
            partial_parameters=sum(count * part.partial_parameters for part, count in parts),
            first=EMBEDDING in kinds,
            last=HEAD in kinds,
            parameters=parameters,
        )

    def _work(self, work: Work) -> TimeBreakdown:
        return self.costs.work(work, self.workload, self.axes)

    def _issued_s(self, action: Action, content: Content, total_s: float) -> float:
        """Return what an action takes if the host issues it part by part, from when it waits for nothing."""
        start = self.costs.start_s(backward=action != Action.FORWARD)
        host_s = device_s = start
        parts_s = 0.0
        for kind, count in content if action == Action.FORWARD else reversed(content):
            work = self.parts[kind].works[action]
            part_s, issue_s = self._work(work).total_s, self.costs.host_s(work)
            gaps_s = self.costs.device.launch_gap_s * sum(work.kernels.values())
            for _ in range(count):
                done_s = max(device_s, host_s) + part_s + gaps_s
                host_s += issue_s
                device_s = max(done_s, host_s)
                parts_s += part_s
        return device_s + total_s - parts_s

    def _add(self, num_parameters: int) -> Kernel:
        return kernel("add", dtype=self.workload.gradient_dtype or self.workload.dtype, elements=num_parameters)

    def _reduced(self, content: Content, *, whole: bool) -> tuple[TimeBreakdown, TimeBreakdown]:
        """Return the reductions of a stage's gradients, and those of them behind the last kernel of its backward.

        Layers of a run that find the buckets as the one before did reduce the same.
        """
        waiting, found = dict.fromkeys(self.sharing, 0), (Counter[tuple[str, int]](), Counter[tuple[str, int]]())
        runs = list(content)
        while runs and not self.parts[runs[0][0]].gradients:
            del runs[0]
        for number, (kind, count) in enumerate(reversed(runs)):
            last = int(number == len(runs) - 1)  # of whose layers the last one ends backward
            left = count
            while left:
                before, times = dict(waiting), 1
                reduced = self._reduced_by(self.parts[kind], waiting, whole=whole, last=last == left)
                if waiting == before:
                    times = max(left - last, 1)
                for late, name, size_bytes in reduced:
                    found[late][name, size_bytes] += times
                left -= times
        found[True].update(dict.fromkeys(waiting.items(), 1))
        return self._reductions(found[False]), self._reductions(found[True])

    def _reduced_by(
        self, part: Part, waiting: dict[str, int], *, whole: bool, last: bool
    ) -> list[tuple[bool, str, int]]:
        """Let gradients of a part fill the buckets; return whether each is reduced behind the `last` kernel."""
        found = []
        gradient_bytes, bucket_bytes = self.workload.gradient_bytes, self.workload.bucket_bytes
        for gradient in part.gradients:
            name = gradient.bucket
            waiting[name] += gradient.num_parameters * gradient_bytes
            if waiting[name] >= bucket_bytes:
                found.append((last and gradient.ends, name, waiting[name]))
                waiting[name] = 0
        if self.workload.zero == 3 and whole:
            for name, size_bytes in waiting.items():
                found.append((last, name, size_bytes))
                waiting[name] = 0
        return found

    def _reductions(self, buckets: Mapping[tuple[str, int], int]) -> TimeBreakdown:
        """Return what reduces buckets of so many bytes, each so many times."""
        found = Counter[Collective]()
        for (name, size_bytes), times in buckets.items():
            sharing = self.sharing[name]
            calls = [*sharing.reduces(size_bytes)]
            if not self.workload.replicas_at_end:
                calls += sharing.sums_replicas(size_bytes)
            for call in calls:
                found[self._named(call)] += times
        return self._time_of(found)

    def _gathered(self, content: Content) -> TimeBreakdown:
        """Return what gathers the parameters of a stage part by part, as `generators.stage.Stage.gathers`."""
        workload = self.workload
        if not (workload.overlap_parameter_gather and workload.mode == "training"):
            return TimeBreakdown()
        gathers = Counter[Collective]()
        for kind, count in content:
            for name, number in self.parts[kind].parameters.items():
                for call in self.sharing[name].gathers(number * workload.item_bytes, zero=workload.zero):
                    gathers[self._named(call)] += count
        return self._time_of(gathers)

    def _named(self, call: Call) -> Collective:
        return Collective(call.kind, call.size_bytes, self.axes.names[call.group])

    def _time_of(self, collectives: Mapping[Collective, int]) -> TimeBreakdown:
        exposed_s: dict[str, float] = {}
        for each, count in collectives.items():
            seconds = count * self.costs.collective_s(each, self.workload, self.axes)
            exposed_s[each.family] = exposed_s.get(each.family, 0.0) + seconds
        return TimeBreakdown(0.0, exposed_s)


@functools.cache
def splits_backward(schedule: str) -> bool:
    """Whether a schedule splits the backward into input and weight gradients, as its smallest order shows."""
    chunks = PIPELINES[schedule].num_chunks or 2
    slots = (slot for order in orders(schedule, stages=2, microbatches=8, chunks=chunks) for slot in order)
    return any(step.action == Action.INPUT_GRADIENT for slot in slots for step in slot)
