"""Where the stages of a model lie on the ranks of a pipeline: (rank, chunk) to virtual stage and back.

A *path* is one way of microbatches through all stages of the model. Most layouts have one; where two directions run
over the same ranks there are two, and every stage then lies on two ranks. Which chunk of which rank makes the input
of another follows from the stage numbers along a path.

Symbols: p ranks (stages of the pipeline); v model chunks of a rank.
"""

from collections.abc import Callable
from dataclasses import dataclass


def _only(_chunk: int) -> int:
    return 0


@dataclass(frozen=True)
class Layout:
    """Virtual stages over ranks and chunks.

    Attributes
    ----------
    stage_of : function
        From rank, chunk, p and v to the virtual stage.
    place_of : function
        From path, virtual stage, p and v to the rank and chunk that hold it.
    path_of : function
        From chunk to the path that its microbatches take.
    copies : int
        Ranks that hold each stage, which is the number of paths.
    """

    stage_of: Callable[[int, int, int, int], int]
    place_of: Callable[[int, int, int, int], tuple[int, int]]
    path_of: Callable[[int], int] = _only
    copies: int = 1

    def num_stages(self, p: int, v: int) -> int:
        """Return the number of virtual stages that the model is cut into."""
        return p * v // self.copies

    def before(self, rank: int, chunk: int, p: int, v: int) -> tuple[int, int] | None:
        """Return the rank and chunk that make the input of a chunk, or None for the first stage."""
        return self._along(rank, chunk, p, v, -1)

    def after(self, rank: int, chunk: int, p: int, v: int) -> tuple[int, int] | None:
        """Return the rank and chunk that take the output of a chunk, or None for the last stage."""
        return self._along(rank, chunk, p, v, 1)

    def _along(self, rank: int, chunk: int, p: int, v: int, by: int) -> tuple[int, int] | None:
        stage = self.stage_of(rank, chunk, p, v) + by
        return self.place_of(self.path_of(chunk), stage, p, v) if 0 <= stage < self.num_stages(p, v) else None


LOOP = Layout(
    stage_of=lambda rank, chunk, p, _v: chunk * p + rank,
    place_of=lambda _path, stage, p, _v: (stage % p, stage // p),
)
"""Down the ranks, once for each chunk; with one chunk the plain pipeline."""

VEE = Layout(
    stage_of=lambda rank, chunk, p, _v: rank if chunk == 0 else 2 * p - 1 - rank,
    place_of=lambda _path, stage, p, _v: (stage, 0) if stage < p else (2 * p - 1 - stage, 1),
)
"""Down the ranks and up again: the first and the last stage lie on rank 0, and the last rank hands over to itself."""

TWO_WAY = Layout(
    stage_of=lambda rank, chunk, p, _v: rank if chunk == 0 else p - 1 - rank,
    place_of=lambda path, stage, p, _v: (stage if path == 0 else p - 1 - stage, path),
    path_of=lambda chunk: chunk,
    copies=2,
)
"""Two copies of the model: microbatches of chunk 0 flow down the ranks, those of chunk 1 up."""
