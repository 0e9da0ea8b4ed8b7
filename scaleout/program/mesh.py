"""The mesh of parallelism axes: degrees to ranks and process groups.

Default rank order, innermost (neighbouring ranks) first: tensor, context, data, pipeline. Experts are spread over
data-parallel ranks (GShard, arXiv:2006.16668): the data axis is expert, then expert_data, the ranks that hold the same
experts. Ranks with the same dense parameters differ in context and data: the `replica` axis, over which gradients are
reduced and states sharded; for experts it is `expert_replica`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from scaleout.errors import ConfigError
from scaleout.program.program import GroupFamily

RANK_ORDER = ("tensor", "context", "data", "pipeline")
"""Axes whose order over the ranks can be chosen, innermost first."""

AXES = ("tensor", "context", "expert", "expert_data", "pipeline")
"""All axes of the mesh, innermost first."""

_COMPOSITE = {
    "data": ("expert", "expert_data"),
    "replica": ("context", "expert", "expert_data"),
    "expert_replica": ("context", "expert_data"),
    "world": AXES,
}

_COUNTS_FOR = dict.fromkeys(("expert_data", "replica", "expert_replica"), "data")
"""Axis to the one that its communication counts for, where that is another."""


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism; their product is the number of ranks."""

    tensor: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    pipeline: int = 1
    # `RANK_ORDER` in the order that ranks are numbered, innermost first; meshes are hashed often, and few differ in it.
    order: tuple[str, ...] = field(default=RANK_ORDER, hash=False)

    def __post_init__(self) -> None:
        for axis in (*RANK_ORDER, "expert"):
            if getattr(self, axis) < 1:
                raise ConfigError(f"{axis}_parallel is {getattr(self, axis)}; give a degree of 1 or more")
        if self.data % self.expert:
            raise ConfigError(
                f"expert_parallel {self.expert} does not divide data_parallel {self.data}; experts are spread over "
                f"data-parallel ranks, so choose a divisor of {self.data}"
            )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.tensor * self.context * self.data * self.pipeline

    def degree(self, axis: str) -> int:
        """Return the size of an axis, composite ones such as `data` and `world` included."""
        return math.prod(map(self._sizes.__getitem__, _parts(axis)))

    def coordinates(self, axis: str) -> npt.NDArray[np.int64]:
        """Return each rank's coordinate along an axis of `AXES`, shape ``(R,)``."""
        names = self._axes
        inner = int(np.prod([self._sizes[name] for name in names[: names.index(axis)]], dtype=np.int64))
        return np.arange(self.num_ranks) // inner % self._sizes[axis]

    def groups(self, axis: str) -> GroupFamily:
        """Return the process groups along an axis: ranks that differ in that axis's coordinate only."""
        return _family(axis, self._rows(axis), axis)

    def split(self, axis: str, size: int) -> tuple[GroupFamily, GroupFamily]:
        """Cut each group of an axis into shard groups of `size` neighbours, and replica groups across them.

        The first family, ``<axis>_shard``, has groups of `size` ranks, the second, ``<axis>_copy``, of the axis's
        degree over `size`.
        """
        cut = self._rows(axis).reshape(-1, self.degree(axis) // size, size)
        inner, outer = cut.reshape(-1, size), np.swapaxes(cut, 1, 2).reshape(-1, cut.shape[1])
        return _family(f"{axis}_shard", inner, axis), _family(f"{axis}_copy", outer, axis)

    def at(self, name: str, pipeline_ranks: Sequence[Sequence[int]]) -> GroupFamily:
        """Return a family with one group for each pipeline and list of pipeline ranks."""
        rows = [self._rows("pipeline")[:, list(some)].tolist() for some in pipeline_ranks]
        return GroupFamily(name, tuple(tuple(row) for found in rows for row in found), "pipeline")

    @property
    def _axes(self) -> list[str]:
        """`AXES` as ranks are numbered."""
        return [part for axis in self.order for part in _parts(axis)]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        sizes = (self.tensor, self.context, self.expert, self.data // self.expert, self.pipeline)
        return dict(zip(AXES, sizes, strict=True))

    def _rows(self, axis: str) -> npt.NDArray[np.int64]:
        """Groups along an axis, shape (groups, degree), each in the order of its ranks."""
        names = self._axes
        # Ranks with the innermost axis last, as NumPy numbers them.
        ranks = np.arange(self.num_ranks).reshape([self._sizes[name] for name in reversed(names)])
        parts = [name for name in names if name in _parts(axis)]
        along = [len(names) - 1 - names.index(part) for part in reversed(parts)]
        ranks = np.moveaxis(ranks, along, range(len(names) - len(along), len(names)))
        return ranks.reshape(-1, self.degree(axis))


def counts_for(axis: str) -> str:
    """Return the axis for which communication along an axis counts; see `GroupFamily.axis`."""
    return _COUNTS_FOR.get(axis, axis)


def _family(name: str, rows: npt.NDArray[np.int64], axis: str) -> GroupFamily:
    return GroupFamily(name, tuple(map(tuple, rows.tolist())), counts_for(axis))


def _parts(axis: str) -> tuple[str, ...]:
    return _COMPOSITE.get(axis, (axis,))
