"""Pipeline schedules to the moments at which the memory of a rank can be highest, whatever a micro-batch holds.

Symbols: p places of the pipeline; v model chunks of a rank; m micro-batches; K moments of all places.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.pipelines import Action
from scaleout.pipelines.blocks import blocks
from scaleout.workload import Transformer

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Slots of all places during which their memory can be highest, by place.

    Attributes
    ----------
    first : (p,)
        Where each place begins.
    place, slot : (K,)
    in_flight : (K, v)
        Micro-batches whose activations are kept.
    again : (K, v)
        Whether a backward runs that may compute parts again, one at a time.
    waiting : (K, v)
        Micro-batches of which all that is computed again is held, for the gradients of weights.
    """

    first: Index
    place: Index
    slot: Index
    in_flight: Index
    again: Index
    waiting: Index


def moments_of(workload: Transformer) -> Moments:
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
    place = np.repeat(np.arange(p), np.diff(found.offsets))
    slot = np.arange(len(kept)) - found.offsets[place]
    waiting = after_inputs + runs[Action.INPUT_GRADIENT]
    columns = np.column_stack([place, slot, kept, runs[Action.BACKWARD], waiting])
    for column in range(2, 2 + v):  # of moments that differ in one chunk only, the fullest
        others = [index for index in range(columns.shape[1]) if index not in (1, column)]
        # Rows in order of all others, the fullest first, then the earliest.
        rows = np.lexsort((columns[:, 1], -columns[:, column], *columns[:, others].T))
        sorted_rows = columns[rows]
        new = np.r_[True, (np.diff(sorted_rows[:, others], axis=0) != 0).any(axis=1)]
        columns = sorted_rows[new]
    columns = columns[np.lexsort((columns[:, 1], columns[:, 0]))]
    place, slot, parts = columns[:, 0], columns[:, 1], columns[:, 2:].reshape(-1, 3, v)
    return Moments(np.searchsorted(place, np.arange(p)), place, slot, parts[:, 0], parts[:, 1], parts[:, 2])
