"""All plans of a job: degrees of parallelism whose product is the ranks, and the other keys of a step.

The global batch is fixed: more replicas have fewer sequences each. `fits` says in whole numbers what validation of the
workload would say, which a test checks.

Symbols: N ranks; B sequences in a step, over all replicas.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.config.training import as_even, too_many
from scaleout.workloads.pipeline import PIPELINES

LEAST_TOKENS = 1024
"""Context parallelism is tried while each rank keeps this many tokens of a sequence: fewer overlap no ring message."""


class Plan(NamedTuple):
    """The keys of a workload that a search chooses."""

    tensor_parallel: int
    context_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: int
    microbatch: int
    pipeline_schedule: str
    virtual_stages: int | None
    recompute: str
    zero: int
    sequence_parallel: bool

    @property
    def microbatch_size(self) -> int:
        """Sequences of a micro-batch, as a workload names them."""
        return self.microbatch

    @property
    def alike(self) -> tuple[int | bool, ...]:
        """Equal for plans whose layers do the same, but for what is recomputed and sharded."""
        layer = self.tensor_parallel, self.context_parallel, self.expert_parallel
        return (*layer, self.microbatch, self.sequence_parallel)

    def __str__(self) -> str:
        """Write the plan in a line, leaving out what it does not use."""
        words = [f"tp {self.tensor_parallel}", f"pp {self.pipeline_parallel}", f"dp {self.data_parallel}"]
        words += [f"cp {self.context_parallel}"] if self.context_parallel > 1 else []
        words += [f"ep {self.expert_parallel}"] if self.expert_parallel > 1 else []
        words.append(f"microbatch {self.microbatch}")
        if self.pipeline_parallel > 1:
            words.append(self.pipeline_schedule + (f" x{self.virtual_stages}" if self.virtual_stages else ""))
        words += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        words += [f"zero {self.zero}"] if self.zero else []
        words += ["sequence parallel"] if self.sequence_parallel else []
        return ", ".join(words)


def workload_of(plan: Plan, base: LayeredModel, batch: int) -> LayeredModel:
    """Return the workload that runs a plan which `fits`.

    Its stages are those of the model where they are as many, else as even as can be.
    """
    stages = _num_stages(plan)
    own, uneven = base.stage_layers, stages < base.layers and base.layers % stages
    layers = own if len(own) == stages else as_even(base.layers, stages) if uneven else ()
    return base.changed({**plan._asdict(), "stage_layers": layers, "batch_per_replica": batch // plan.data_parallel})


class Family(NamedTuple):
    """Plans whose stages do the work of the first one, micro-batch for micro-batch, or more.

    Attributes
    ----------
    plans : tuple of Plan
        Those that `fits` lets through; they differ in schedule, virtual stages, and in what is recomputed and sharded,
        of which the first one does the least.
    num_plans : int
        How many there are with those that do not.
    """

    plans: tuple[Plan, ...]
    num_plans: int

    @property
    def alike(self) -> tuple[int | bool, ...]:
        """As of its plans."""
        return self.plans[0].alike

    def lighter(self, plan: Plan) -> tuple[Plan, Plan]:
        """Return two plans that do no more than one of the family: of all on its timeline the least, and more closely.

        Parameters that are sharded are gathered and gradients reduced on top of the same kernels and collectives; what
        is recomputed runs on top as well.
        """
        closely = plan._replace(zero=self.plans[0].zero)
        return closely._replace(recompute=self.plans[0].recompute), closely


def families(
    base: LayeredModel, num_ranks: int, batch: int, *, fixed: Mapping[str, Any] | None = None
) -> Iterator[Family]:
    """Yield all plans of a workload on N ranks, by families.

    Parameters
    ----------
    base : LayeredModel
        The model, and all keys that no plan chooses.
    num_ranks, batch : int
        N and B.
    fixed : mapping, optional
        Keys of `Plan` that are not to be chosen, and their values; and `stage_layers`, for plans of as many stages.
    """
    held = fixed or {}

    def choose(key: str, values: Sequence[Any]) -> Sequence[Any]:
        return (held[key],) if key in held else values

    for tensor in choose("tensor_parallel", divisors(num_ranks)):
        for pipeline in choose("pipeline_parallel", divisors(num_ranks // tensor)):
            for context in choose("context_parallel", _contexts(base, num_ranks // (tensor * pipeline))):
                data = num_ranks // (tensor * pipeline * context)
                if tensor * pipeline * context * data == num_ranks and data in choose("data_parallel", (data,)):
                    yield from _of_degrees(base, batch, (tensor, context, pipeline, data), choose)


_Choose = Callable[[str, Sequence[Any]], Sequence[Any]]
"""From a key and the values that make sense to those that are tried."""


def _of_degrees(
    base: LayeredModel, batch: int, degrees: tuple[int, int, int, int], choose: _Choose
) -> Iterator[Family]:
    tensor, context, pipeline, data = degrees
    levels = choose("zero", (0, 1, 2, 3) if data * context > 1 else (0,))
    schedules = _schedules(base, pipeline, choose)
    for expert, microbatch, sequence in product(
        choose("expert_parallel", divisors(data) if base.has_experts else (1,)),
        choose("microbatch", divisors(batch // data)),
        choose("sequence_parallel", (False, True) if tensor > 1 else (False,)),
    ):
        found = [
            Plan(tensor, context, pipeline, data, expert, microbatch, schedule, chunks, recompute, zero, sequence)
            for recompute, zero in product(choose("recompute", base.recomputes), levels)
            for schedule, chunks in schedules
        ]
        if found:
            whole = divides(found[0], base, batch)
            wanted = choose("stage_layers", ())
            plans = (plan for plan in found if whole and fits(plan, base, batch))
            staged = (plan for plan in plans if all(len(layers) == _num_stages(plan) for layers in wanted))
            yield Family(tuple(staged), len(found))


def _contexts(base: LayeredModel, num_ranks: int) -> tuple[int, ...]:
    return tuple(n for n in divisors(num_ranks) if n == 1 or base.sequence >= n * LEAST_TOKENS)


def _schedules(base: LayeredModel, pipeline: int, choose: _Choose) -> list[tuple[str, int | None]]:
    """Return the schedules worth a try, with their virtual stages where these are free; one rank needs none."""
    found: list[tuple[str, int | None]] = []
    for name in choose("pipeline_schedule", tuple(PIPELINES) if pipeline > 1 else ("1f1b",)):
        free = name in PIPELINES and PIPELINES[name].num_chunks is None
        most = -(-base.layers // pipeline)
        found += [(name, chunks) for chunks in (choose("virtual_stages", divisors(most)[1:]) if free else (None,))]
    return found


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors, the smallest first.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def fits(plan: Plan, base: LayeredModel, batch: int) -> bool:
    """Whether the sizes of a model divide as a plan needs; the same as making a workload of it, in a microsecond."""
    microbatches = batch // plan.data_parallel // plan.microbatch
    return divides(plan, base, batch) and _shards(plan, base) and _stages(plan, base, microbatches)


def divides(plan: Plan, base: LayeredModel, batch: int) -> bool:
    """Whether batch, widths, tokens and experts divide, which is the same for all plans of a family."""
    data = plan.data_parallel
    return batch % data == 0 and (batch // data) % plan.microbatch == 0 and base.refusal(plan) is None


def _shards(plan: Plan, base: LayeredModel) -> bool:
    replicas = plan.data_parallel * plan.context_parallel
    shards = base.shard_ranks or replicas
    if plan.zero == 0:
        return base.shard_ranks is None and not base.overlap_parameter_gather
    if base.overlap_parameter_gather and plan.zero == 3 and not 1 < shards < replicas:
        return False
    return replicas % shards == 0 and (shards == replicas or plan.expert_parallel == 1)


def _stages(plan: Plan, base: LayeredModel, microbatches: int) -> bool:
    pipeline, p = PIPELINES[plan.pipeline_schedule], plan.pipeline_parallel
    chunks = pipeline.num_chunks or plan.virtual_stages or 2
    if base.microbatch_group is not None:
        if pipeline.in_groups is None:
            return False
        pipeline = pipeline.in_groups(base.microbatch_group)
    if too_many(base.layers, microbatches, plan.context_parallel) or pipeline.check(p, microbatches, chunks):
        return False
    return _num_stages(plan) <= base.layers or len(base.stage_layers) == _num_stages(plan)


def _num_stages(plan: Plan) -> int:
    pipeline = PIPELINES[plan.pipeline_schedule]
    return pipeline.layout.num_stages(plan.pipeline_parallel, pipeline.num_chunks or plan.virtual_stages or 2)
