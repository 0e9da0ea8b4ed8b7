"""Workload to the bytes that its ranks hold: persistent state, and activations as micro-batches pass.

What a layer holds is counted as its forward is written (`generate.profile`). ZeRO divides persistent state. How many
micro-batches are in flight follows from the order of the pipeline schedule, so nothing is simulated. Left out:
transient memory of forward, the allocator's fragments, and the libraries' own memory. See docs/models/memory.md.

Symbols: p pipeline ranks; v model chunks of a rank; K moments at which the memory of a rank can be highest.
Source: Korthikanti et al., arXiv:2205.05198 (activations); Rajbhandari et al., ZeRO, arXiv:1910.02054 (states); FSDP,
arXiv:2304.11277 (gathered units); Liu et al., arXiv:2310.01889 (what a ring holds).
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.config.family import ModelFamily, WholeModel
from scaleout.workloads.config.layered import ENDS, Content, LayeredModel
from scaleout.workloads.config.style import FP8
from scaleout.workloads.generate.axes import Axes, GradientSync
from scaleout.workloads.memory.parts import SHARDED_FROM, Contained, Held, Units, contained_in
from scaleout.workloads.pipeline import PIPELINES, Action, Slot, orders
from scaleout.workloads.pipeline.blocks import blocks

Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


_STATES_OF_OPTIMIZER = {"adamw": 2, "sgd": 0, "none": 0}
"""Numbers that an optimizer keeps for each parameter."""

_ONLY_PASSES = frozenset(("recompute", "pipeline_schedule", "virtual_stages"))
"""Keys of a plan that what persists through a step does not depend on, but for whether there are several stages."""


@dataclass(frozen=True)
class _Job:
    """What decides the terms of what persists; the workload is any that has this key."""

    key: tuple[object, ...]
    workload: LayeredModel = field(compare=False)


@dataclass(frozen=True)
class _Terms:
    """What a rank of a job holds of its parameters, whichever they are; of the dense bucket, and of the experts'."""

    sizes: Mapping[str, int]  # bytes of a parameter by kind
    divided: Mapping[str, tuple[int, int]]  # into how many parts a kind is
    sharded: tuple[bool, bool]  # whether whole parameters are gathered for a layer, or their gradients reduced
    passed_bytes: int  # buffers of activations

    @classmethod
    def of(cls, workload: LayeredModel) -> "_Terms":
        """Take them from a workload."""
        axes, sizes = Axes(workload), bytes_of_a_parameter(workload)
        sharing = axes.dense(), axes.experts()
        divided = {kind: _divided(workload, kind, sharing) for kind in sizes}
        return cls(sizes, divided, (sharing[0].shards > 1, sharing[1].shards > 1), _passed_bytes(workload))


def _terms_of(workload: LayeredModel) -> _Terms:
    names = (name for name in type(workload).model_fields if name not in _ONLY_PASSES)
    return _terms(_Job((type(workload), workload.num_stages > 1, *map(workload.__dict__.get, names)), workload))


@functools.lru_cache(maxsize=4096)
def _terms(job: _Job) -> _Terms:
    return _Terms.of(job.workload)


def _persistent_bytes(
    workload: LayeredModel, terms: _Terms, held: Sequence[Contained], cached_bytes: int
) -> Mapping[str, float]:
    """Return the bytes of all kinds but activations that a rank holds, of which some are cached in inference."""
    units = [each.units for each in held]
    dense, experts = (sum(count * parameters[n] for stage in units for parameters, _, count in stage) for n in range(2))
    found = {
        kind: float(size * -(-dense // terms.divided[kind][0]) + size * -(-experts // terms.divided[kind][1]))
        for kind, size in terms.sizes.items()
    }
    found["parameters"] -= (workload.item_bytes - ITEM_BYTES[FP8]) * sum(each.total.in_fp8 for each in held)
    shapes = frozenset().union(*(weights for stage in units for _, weights, _ in stage))
    found["gradients"] += float(workload.item_bytes * sum(outputs * inputs for outputs, inputs in shapes))
    buckets = _copied_buckets(workload, found["gradients"])
    return found | {
        "communication_buffers": terms.passed_bytes + buckets + _whole_buffers(workload, units, terms.sharded),
        "kv_cache": float(cached_bytes),
    }


def _copied_buckets(workload: LayeredModel, gradients_bytes: float) -> float:
    """Return the bytes of buckets that gradients of so many bytes are copied into."""
    copies = workload.copied_buckets and workload.zero < SHARDED_FROM["gradients"]
    return gradients_bytes if copies and workload.data_parallel * workload.context_parallel > 1 else 0.0


def _divided(workload: LayeredModel, kind: str, sharing: tuple[GradientSync, GradientSync]) -> tuple[int, int]:
    """Return into how many parts a kind is divided; gradients that wait for the end of the step are whole shards."""
    if workload.zero < SHARDED_FROM[kind]:
        return 1, 1
    dense, experts = sharing
    whole = kind == "parameters" or (kind == "gradients" and workload.replicas_at_end)
    return (dense.shards, experts.shards) if whole else (dense.owners, experts.owners)


def bytes_of_a_parameter(workload: LayeredModel) -> Mapping[str, int]:
    """Return what a parameter takes, by kind: itself, its gradient and the optimizer's states of it."""
    trains = workload.mode == "training"
    return {
        "parameters": workload.item_bytes,
        "gradients": workload.gradient_bytes if trains else 0,
        "optimizer_states": _state_bytes(workload) if trains else 0,
    }


def _state_bytes(workload: LayeredModel) -> int:
    """Return the bytes of an optimizer's states of one parameter, a copy of it in fp32 included."""
    states = _STATES_OF_OPTIMIZER[workload.optimizer]
    single = ITEM_BYTES["fp32"]
    copies = int(workload.optimizer != "none" and workload.master_weights and workload.item_bytes < single)
    return ITEM_BYTES[workload.moment_dtype] * states + single * copies


def _passed_bytes(workload: LayeredModel) -> int:
    """Return the bytes of the buffers of activations that a rank communicates from and into."""
    if workload.transient_memory:
        return 0  # what is exchanged is kept, or made by backward
    passed_on = 2 * workload.local_tokens * workload.hidden * workload.item_bytes if workload.num_stages > 1 else 0
    if workload.sequence_parallel:
        passed_on //= workload.tensor_parallel
    return workload.exchanged_bytes + passed_on


def _whole_buffers(workload: LayeredModel, units: Sequence[Units], sharded: tuple[bool, bool]) -> float:
    """Return the bytes of gathered parameters and of gradients before they are sharded; of layers, those take turns."""
    if workload.zero < 2:
        return 0.0
    item_bytes, of_dense, of_experts = workload.item_bytes, *sharded
    whole = [
        [
            item_bytes * (of_dense * dense + of_experts * experts)
            for (dense, experts), _, count in stage
            for _ in range(count)
        ]
        for stage in units
    ]
    gathered, bucket = 0, 0.0
    if workload.zero == 3 and workload.reshard_after_forward:
        gathered = max(_widest(stage, 1 + max(workload.prefetch, workload.gathered_ahead)) for stage in whole)
    elif workload.zero == 3:
        gathered = sum(map(sum, whole))
    if workload.mode == "training":
        ratio = workload.gradient_bytes / item_bytes
        everything, largest = ratio * sum(map(sum, whole)), ratio * max(map(max, filter(None, whole)), default=0)
        if workload.transient_memory:
            largest = 0.0  # each part's backward has its own
        least = 0.0 if math.isinf(workload.bucket_bytes) else workload.bucket_bytes  # a layer's, largest
        bucket = min(everything, max(least, largest))
    return gathered + bucket


def _widest(sizes: Sequence[int], width: int) -> int:
    """Return the largest sum of as many neighbours."""
    ends = np.cumsum([0, *sizes])
    width = min(width, len(sizes))
    return int((ends[width:] - ends[:-width]).max()) if width else 0


@dataclass(frozen=True, eq=False)
class Moments:
    """Slots of all ranks during which their memory can be highest, by rank."""

    first: Index  # (p,) the first moment of each rank
    rank: Index  # (K,)
    slot: Index  # (K,)
    in_flight: Index  # (K, v) micro-batches whose activations are kept
    recomputes: Index  # (K, v) whether a backward runs that may recompute parts, one at a time
    waiting: Index  # (K, v) micro-batches of which all that is recomputed is held, for the gradients of weights


def moments_of(workload: LayeredModel) -> Moments:
    """Return the moments at which the memory of a workload's ranks can be highest."""
    return _moments(workload.pipeline_schedule, **workload.pipeline_sizes)


@functools.lru_cache(maxsize=512)
def _moments(name: str, **sizes: Any) -> Moments:
    found = blocks(name, **sizes)
    p, v = found.num_ranks, found.num_chunks
    kept = np.concatenate(found.in_flight())
    after_inputs = kept - np.concatenate(found.in_flight(Action.INPUT_GRADIENT))
    action, chunk = found.what // (p * v), found.what % v
    runs = np.zeros((len(Action) + 1, len(kept), v), np.int64)
    for step in range(2):
        runs[action[:, step], np.arange(len(kept)), chunk[:, step]] = 1
    rank = np.repeat(np.arange(p), np.diff(found.offsets))
    slot = np.arange(len(kept)) - found.offsets[rank]
    waiting = after_inputs + runs[Action.INPUT_GRADIENT]
    columns = np.column_stack([rank, slot, kept, runs[Action.BACKWARD], waiting])
    for column in range(2, 2 + v):  # of moments that differ in one chunk only, the fullest
        others = [index for index in range(columns.shape[1]) if index not in (1, column)]
        # Rows in order of all others, the fullest first, then the earliest.
        rows = np.lexsort((columns[:, 1], -columns[:, column], *columns[:, others].T))
        sorted_rows = columns[rows]
        new = np.r_[True, (np.diff(sorted_rows[:, others], axis=0) != 0).any(axis=1)]
        columns = sorted_rows[new]
    columns = columns[np.lexsort((columns[:, 1], columns[:, 0]))]
    rank, slot, parts = columns[:, 0], columns[:, 1], columns[:, 2:].reshape(-1, 3, v)
    return Moments(np.searchsorted(rank, np.arange(p)), rank, slot, parts[:, 0], parts[:, 1], parts[:, 2])


KINDS = (
    "parameters",
    "gradients",
    "optimizer_states",
    "communication_buffers",
    "kv_cache",
    "activations",
    "recomputed_activations",
    "transient_memory",
)
"""What memory is held for."""


@dataclass(frozen=True)
class Peak:
    """The most that a rank of the pipeline holds, and when: during a slot, if there is a backward."""

    rank: int
    bytes_of: Mapping[str, float]  # of each of `KINDS`
    in_flight: tuple[int, ...] = ()  # micro-batches whose activations it holds then, for each of its chunks
    slot: Slot = ()  # what it runs then
    slot_number: int = 0
    num_slots: int = 0
    named: str = ""  # of a model without stages, the moment in words

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return fsum(self.bytes_of.values())

    @property
    def place(self) -> str:
        """The rank in words: of a pipeline, or of a model without stages."""
        return f"{'rank' if self.named else 'pipeline rank'} {self.rank}"

    @property
    def moment(self) -> str:
        """The moment in words."""
        if not self.slot:
            return self.named or "all of the pass"
        steps = " and ".join(
            f"{step.action.name.lower().replace('_', ' ')} of micro-batch {step.microbatch}"
            + (f", chunk {step.chunk}" if len(self.in_flight) > 1 else "")
            for step in self.slot
        )
        flying = " + ".join(map(str, self.in_flight))
        what = "micro-batch" if sum(self.in_flight) == 1 else "micro-batches"
        return f"step {self.slot_number + 1} of {self.num_slots} ({steps}), {flying} {what} in flight"


def peak(workload: ModelFamily) -> Peak:
    """Return the most that any rank of a job holds, and when; of layers from the order of its pipeline alone."""
    if isinstance(workload, WholeModel):
        return _highest_moment(workload)
    assert isinstance(workload, LayeredModel), "a family is of layers or whole"
    ledger = Ledger.of(workload)
    return ledger.peak_of(ledger.highest)


@functools.lru_cache(maxsize=64)  # jobs that differ in their network or schedule alone have the same
def _highest_moment(workload: WholeModel) -> Peak:
    found = (
        Peak(each.rank, {kind: each.bytes_of.get(kind, 0.0) for kind in KINDS}, named=each.name)
        for each in workload.moments()
    )
    return max(found, key=lambda each: each.total_bytes)


def peaks(workload: LayeredModel) -> list[Peak]:
    """Return the most that each pipeline rank holds, and when."""
    ledger = Ledger.of(workload)
    return [ledger.peak_of(rank) for rank in range(workload.pipeline_parallel)]


def _cached_bytes(workload: LayeredModel, contents: Sequence[Content]) -> int:
    """Return what layers of a rank cache of all its sequences, in inference."""
    if workload.mode == "training":
        return 0
    sequences = workload.batch_per_replica // PIPELINES[workload.pipeline_schedule].layout.copies
    layers = ((kind, count) for content in contents for kind, count in content if kind not in ENDS)
    return sequences * sum(count * workload.cache_bytes(kind) for kind, count in layers)


@dataclass(frozen=True, eq=False)
class Ledger:
    """What each pipeline rank holds; what passes is that of the moment when it is highest in all, shape (p,)."""

    workload: LayeredModel
    contained: Sequence[Sequence[Contained]]  # for each rank, its chunks
    persistent: Sequence[Mapping[str, float]]  # for each rank, the bytes of each of `KINDS` all through a step
    activation_bytes: Floats
    recomputed_bytes: Floats
    transient_bytes: Floats
    peak_bytes: Floats  # with the persistent state
    peak_moment: Index  # which moment of `moments_of` that is
    stepped: Mapping[str, float] | None = None  # where the optimizer's step is the highest, what it holds otherwise

    @classmethod
    def of(cls, workload: LayeredModel) -> "Ledger":
        """Count them."""
        numbers, contents = workload.stages_of_ranks.tolist(), workload.contents
        of_content = contained_in(workload, contents)
        contents_of_rank = [tuple(contents[number] for number in rank) for rank in numbers]
        terms, alike = _terms_of(workload), {}
        for mine in dict.fromkeys(contents_of_rank):
            held = tuple(of_content[content] for content in mine)
            alike[mine] = held, _persistent_bytes(workload, terms, held, _cached_bytes(workload, mine))
        ranks, persistent = zip(*(alike[mine] for mine in contents_of_rank), strict=True)
        if workload.mode == "training":
            kept, recomputed, transient, moment = _highest(ranks, workload.pipeline_schedule, **workload.pipeline_sizes)
        else:
            one = max(part.kept_bytes + part.recompute_bytes for each in of_content.values() for part, _ in each.parts)
            kept, recomputed, transient = np.full(len(numbers), one), np.zeros(len(numbers)), np.zeros(len(numbers))
            moment = np.zeros(len(numbers), np.int64)
        stepped = None
        if workload.mode == "training" and workload.dropped_gradients and workload.num_microbatches == 1 == len(ranks):
            passing = float(kept[0] + recomputed[0] + transient[0])
            persistent, stepped = ({**persistent[0], "gradients": 0.0},), _stepped(workload, persistent[0], passing)
        if stepped is not None:
            kept = recomputed = transient = np.zeros(1)
        total = np.array([fsum({**each, **(stepped or {})}.values()) for each in persistent])
        total += kept + recomputed + transient
        return cls(workload, ranks, persistent, kept, recomputed, transient, total, moment, stepped)

    @property
    def stages(self) -> list[list[Held]]:
        """What each chunk of each rank holds, all its parts together."""
        return [[each.total for each in rank] for rank in self.contained]

    @property
    def highest(self) -> int:
        """The pipeline rank that holds most."""
        return int(self.peak_bytes.argmax())

    def bytes_of(self, rank: int) -> Mapping[str, float]:
        """Return the bytes of each of `KINDS` that a pipeline rank holds at its peak."""
        passing = (self.activation_bytes, self.recomputed_bytes, self.transient_bytes)
        return {
            **self.persistent[rank],
            **{kind: float(b[rank]) for kind, b in zip(KINDS[-3:], passing, strict=True)},
            **(self.stepped or {}),
        }

    def peak_of(self, rank: int) -> Peak:
        """Return the most that a pipeline rank holds, and when."""
        bytes_of = self.bytes_of(rank)
        if self.workload.mode != "training":
            return Peak(rank, bytes_of)
        if self.stepped is not None:
            return Peak(rank, bytes_of, named="the optimizer's step")
        moments, row = moments_of(self.workload), int(self.peak_moment[rank])
        order = orders(self.workload.pipeline_schedule, **self.workload.pipeline_sizes)[rank]
        slot = int(moments.slot[row])
        return Peak(rank, bytes_of, tuple(moments.in_flight[row].tolist()), order[slot], slot, len(order))


def _stepped(workload: LayeredModel, persistent: Mapping[str, float], passing: float) -> Mapping[str, float] | None:
    """Return what the optimizer's step holds otherwise, or None if backward's beginning is higher.

    It holds all gradients, nothing that was gathered and, unfused, a root of every second moment.
    """
    roots = ITEM_BYTES[workload.moment_dtype] / max(_state_bytes(workload), 1)
    found = {
        "gradients": persistent["gradients"],
        "communication_buffers": _copied_buckets(workload, persistent["gradients"]),
        "transient_memory": persistent["optimizer_states"] * roots * (workload.optimizer_kernels == "unfused"),
    }
    others = persistent["communication_buffers"] + passing
    return found if fsum(found.values()) > others else None


@functools.lru_cache(maxsize=16384)
def _highest(
    held: tuple[tuple[Contained, ...], ...], schedule: str, /, **sizes: Any
) -> tuple[Floats, Floats, Floats, Index]:
    """Return the most that each rank holds as micro-batches pass, and at which moment, shape (p,) each."""
    kept, recompute, all_recompute, transient, freed = (
        np.array([[getattr(each.total, name) for each in rank] for rank in held])
        for name in ("kept_bytes", "recompute_bytes", "all_recompute_bytes", "transient_bytes", "freed_bytes")
    )
    moments = _moments(schedule, **sizes)
    of = moments.rank
    flying = (moments.in_flight * kept[of] - moments.recomputes * freed[of]).sum(axis=1)
    recomputed = np.zeros(len(flying))
    if recompute.any():
        recomputed = (moments.recomputes * recompute[of] + moments.waiting * all_recompute[of]).sum(axis=1)
    made = (moments.recomputes * transient[of]).sum(axis=1)
    total = flying + recomputed + made
    at = np.flatnonzero(total == np.maximum.reduceat(total, moments.first)[of])
    first = at[np.searchsorted(of[at], np.arange(len(held)))]
    return flying[first], recomputed[first], made[first], first
