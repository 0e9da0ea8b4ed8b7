"""Regions of a GEMM's output that are tracked and sent as one: cut where stages end, and where chunks do.

All ranks of a ring run the same GEMM, each a chunk further than the next, so that a rank makes a chunk when the
ranks before it have sent theirs. A rank's first chunk goes straight into the next rank's memory; those after it are
added to what has arrived, and sent on, but the last, which stays. A region starts at `begin` and ends at `end` of its
chunk, in bytes; `place` says as which of its rank's chunks it is made.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scaleout.schedule.t3.gemm import Staged


@dataclass(frozen=True)
class Region:
    """Part of a chunk that one stage makes."""

    stage: int
    place: int
    begin: float
    end: float

    @property
    def size_bytes(self) -> float:
        """How long it is."""
        return self.end - self.begin


TRIGGER_BYTES = 2.0**19
"""What copy engines send as one, at most: sixteen tiles of 128 x 128 numbers of 16 bits. Tracking is finer still (T3
tracks wavefronts); what matters is that it is much less than a chunk, so that its parts follow each other."""


def regions_of(staged: Staged, size_bytes: float, chunks: int, *, trigger_bytes: float = TRIGGER_BYTES) -> list[Region]:
    """Return the regions of a GEMM's output, in the order in which they are made.

    Parameters
    ----------
    size_bytes : float
        Of the output, all partial tiles of a split GEMM counted once.
    chunks : int
        How many there are, one for each rank.
    trigger_bytes : float
        What a stage makes of a chunk is cut into equal regions of so many bytes at most.
    """
    stage_ends = np.cumsum(staged.tiles) / staged.tiles.sum() * size_bytes
    chunk = size_bytes / chunks
    ends = np.sort(np.concatenate([stage_ends, chunk * np.arange(1, chunks + 1)]))
    ends = ends[np.diff(ends, prepend=0.0) > chunk * 1e-9]
    regions, begin = [], 0.0
    for end in map(float, ends):
        place = min(int((begin + end) / 2 / chunk), chunks - 1)
        made = min(int(np.searchsorted(stage_ends, end * (1 - 1e-12))), len(stage_ends) - 1)
        cuts = np.linspace(begin, end, math.ceil((end - begin) / trigger_bytes) + 1) - place * chunk
        regions += [Region(made, place, float(low), float(high)) for low, high in pairwise(cuts)]
        begin = end
    return regions
