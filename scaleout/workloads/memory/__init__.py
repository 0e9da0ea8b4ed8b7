"""Workload to the bytes that its ranks hold: persistent state, and activations as micro-batches pass.

What a layer holds is counted as its forward is written (`generate.profile`). How many micro-batches are in flight
follows from the order of the pipeline schedule, so nothing is simulated. Left out: transient memory of forward, the
allocator's fragments, and the libraries' own memory. See docs/models/memory.md.

Symbols: p pipeline ranks; v model chunks of a rank; K moments at which the memory of a rank can be highest.
Source: Korthikanti et al., arXiv:2205.05198 (activations); Rajbhandari et al., ZeRO, arXiv:1910.02054 (states).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.workloads.families.layered import ENDS, Content, LayeredModel
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.memory.parts import Held, units_of_stages
from scaleout.workloads.memory.persistent import standing
from scaleout.workloads.pipeline import PIPELINES, Action, Slot, orders
from scaleout.workloads.pipeline.blocks import blocks

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Slots of all ranks during which their memory can be highest, by rank.

    Attributes
    ----------
    first : (p,)
        Where each rank begins.
    in_flight : (K, v)
        Micro-batches whose activations are kept.
    again : (K, v)
        Whether a backward runs that may compute parts again, one at a time.
    waiting : (K, v)
        Micro-batches of which all that is recomputed is held, for the gradients of weights.
    """

    first: Index
    rank: Index
    slot: Index
    in_flight: Index
    again: Index
    waiting: Index


def moments_of(workload: LayeredModel) -> Moments:
    """Return the moments at which the memory of a workload's ranks can be highest."""
    return _moments(
        workload.pipeline_schedule, workload.pipeline_parallel, workload.num_microbatches, workload.chunks,
        workload.microbatch_group,
    )  # fmt: skip


@functools.lru_cache(maxsize=512)
def _moments(name: str, p: int, m: int, v: int, group: int | None) -> Moments:
    found = blocks(name, stages=p, microbatches=m, chunks=v, group=group)
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


Floats = npt.NDArray[np.float64]

KINDS = (
    "parameters",
    "gradients",
    "optimizer_states",
    "communication_buffers",
    "kv_cache",
    "activations",
    "recomputed_activations",
    "temporary_results",
)
"""What memory is held for."""


@dataclass(frozen=True)
class Peak:
    """The most that a rank holds, and when.

    Attributes
    ----------
    rank : int
        Its rank in the pipeline.
    bytes_of : mapping
        Bytes of each of `KINDS`.
    in_flight : tuple of int
        Micro-batches whose activations it holds then, for each of its chunks; empty without a backward.
    slot : Slot
        What it runs then; empty without a backward.
    slot_number, num_slots : int
        Which of its slots that is.
    """

    rank: int
    bytes_of: Mapping[str, float]
    in_flight: tuple[int, ...] = ()
    slot: Slot = ()
    slot_number: int = 0
    num_slots: int = 0

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return sum(self.bytes_of.values())

    @property
    def moment(self) -> str:
        """The moment in words."""
        if not self.slot:
            return "all of the pass"
        steps = " and ".join(
            f"{step.action.name.lower().replace('_', ' ')} of micro-batch {step.microbatch}"
            + (f", chunk {step.chunk}" if len(self.in_flight) > 1 else "")
            for step in self.slot
        )
        flying = " + ".join(map(str, self.in_flight))
        return f"step {self.slot_number + 1} of {self.num_slots} ({steps}), {flying} micro-batches in flight"


def peak(workload: LayeredModel) -> Peak:
    """Return the most that any rank of a job holds, and when, from the order of its pipeline alone."""
    ledger = Ledger.of(workload)
    return ledger.peak_of(int(ledger.peak_bytes.argmax()))


def peaks(workload: LayeredModel) -> list[Peak]:
    """Return the most that each pipeline rank holds, and when."""
    ledger = Ledger.of(workload)
    return [ledger.peak_of(rank) for rank in range(workload.pipeline_parallel)]


@dataclass(frozen=True, eq=False)
class Ledger:
    """What each pipeline rank holds.

    Attributes
    ----------
    stages : sequence of sequence of Held
        For each rank, its chunks.
    standing : sequence of mapping
        For each rank, the bytes of each of `KINDS` that it holds all through a step.
    activation_bytes, recomputed_bytes, transient_bytes : (p,)
        At the moment when they are highest together.
    peak_bytes : (p,)
        With what stands.
    peak_moment : (p,)
        Which moment of `moments_of` that is.
    """

    workload: LayeredModel
    stages: Sequence[Sequence[Held]]
    standing: Sequence[Mapping[str, float]]
    activation_bytes: Floats
    recomputed_bytes: Floats
    transient_bytes: Floats
    peak_bytes: Floats
    peak_moment: Index

    @classmethod
    def of(cls, workload: LayeredModel) -> "Ledger":
        """Count them."""
        units = units_of_stages(workload)
        numbers = _stages_of_places(workload.pipeline_schedule, workload.pipeline_parallel, workload.chunks)
        of_stage = [sum((held.times(count) for held, count in stage), Held()) for stage in units]
        stages = [[of_stage[number] for number in rank] for rank in numbers]
        axes = Axes(workload)
        sharing = (axes.dense(), axes.experts())
        contents = workload.contents
        alike: dict[tuple[Content, ...], Mapping[str, float]] = {}
        of_place = []
        for rank in numbers:
            key = tuple(contents[number] for number in rank)
            if key not in alike:
                cached = sum(
                    count * workload.cache_bytes(kind) for content in key for kind, count in content if kind not in ENDS
                )
                alike[key] = standing(workload, [units[number] for number in rank], sharing, cached_bytes=cached)
            of_place.append(alike[key])
        kept, again, made, moment = _highest(workload, stages)
        total = np.array([sum(each.values()) for each in of_place]) + kept + again + made
        return cls(workload, stages, of_place, kept, again, made, total, moment)

    def peak_of(self, rank: int) -> Peak:
        """Return the most that a pipeline rank holds."""
        passing = (self.activation_bytes, self.recomputed_bytes, self.transient_bytes)
        bytes_of = {
            **self.standing[rank],
            **{kind: float(b[rank]) for kind, b in zip(KINDS[-3:], passing, strict=True)},
        }
        if self.workload.mode != "training":
            return Peak(rank, bytes_of)
        moments, row = moments_of(self.workload), int(self.peak_moment[rank])
        order = orders(
            self.workload.pipeline_schedule,
            stages=self.workload.pipeline_parallel,
            microbatches=self.workload.num_microbatches,
            chunks=self.workload.chunks,
            group=self.workload.microbatch_group,
        )[rank]
        slot = int(moments.slot[row])
        return Peak(rank, bytes_of, tuple(moments.in_flight[row].tolist()), order[slot], slot, len(order))


def _highest(workload: LayeredModel, stages: Sequence[Sequence[Held]]) -> tuple[Floats, Floats, Floats, Index]:
    """Return the most that each rank holds as micro-batches pass, and at which moment, shape (p,) each."""
    if workload.mode != "training":
        layers = [held for stage in units_of_stages(workload) for held, _ in stage]
        one = max(held.kept_bytes + held.recompute_bytes for held in layers)
        p = len(stages)
        return np.full(p, one), np.zeros(p), np.zeros(p), np.zeros(p, np.int64)
    kept, again, all_again, temporary = (
        np.array([[getattr(held, name) for held in rank] for rank in stages])
        for name in ("kept_bytes", "recompute_bytes", "all_recompute_bytes", "transient_bytes")
    )
    moments = moments_of(workload)
    of = moments.rank
    held = (moments.in_flight * kept[of]).sum(axis=1)
    recomputed = np.zeros(len(held))
    if again.any():
        recomputed = (moments.again * again[of] + moments.waiting * all_again[of]).sum(axis=1)
    made = (moments.again * temporary[of]).sum(axis=1)
    total = held + recomputed + made
    at = np.flatnonzero(total == np.maximum.reduceat(total, moments.first)[of])
    first = at[np.searchsorted(of[at], np.arange(len(stages)))]
    return held[first], recomputed[first], made[first], first


@functools.lru_cache(maxsize=512)
def _stages_of_places(name: str, p: int, v: int) -> tuple[tuple[int, ...], ...]:
    pipeline = PIPELINES[name]
    return tuple(tuple(pipeline.stage_of(rank, chunk, p, v) for chunk in range(v)) for rank in range(p))
