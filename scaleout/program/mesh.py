"""The mesh of parallelism axes: degrees to ranks and process groups.

Default rank order, innermost (neighbouring ranks) first: tensor, context, data, pipeline. Experts are spread over
data-parallel ranks (GShard, arXiv:2006.16668): the data axis is expert, then expert_data, the ranks that hold the same
experts. Ranks with the same dense parameters differ in context and data: the `replica` axis, over which gradients are
reduced and states sharded; for experts it is `expert_replica`.

With `expert_tensor` experts have a layout of their own over the ranks of a stage, whatever those do outside experts:
expert_tensor, expert, expert_data, innermost first (Megatron-Core's parallel folding, arXiv:2504.14960, 3.2).
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
    "expert_tensor": ("tensor",),
    "world": AXES,
}

_COUNTS_FOR = {**dict.fromkeys(("expert_data", "replica", "expert_replica"), "data"), "expert_tensor": "tensor"}
"""Axis to the one that its communication counts for, where that is another."""

_FOLDED = {"expert": "expert", "expert_tensor": "tensor", "expert_data": "expert_data", "expert_replica": "expert_data"}
"""Axis of experts to the one of their own layout, where they have one."""


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
    expert_tensor: int | None = None  # ranks that share an expert's matrices, if experts have a layout of their own

    def __post_init__(self) -> None:
        for axis in (*RANK_ORDER, "expert"):
            if getattr(self, axis) < 1:
                raise ConfigError(f"{axis}_parallel is {getattr(self, axis)}; give a degree of 1 or more")
        if self.expert_tensor is not None:
            self._check_folded(self.expert_tensor * self.expert)
        elif self.data % self.expert:
            raise ConfigError(
                f"expert_parallel {self.expert} does not divide data_parallel {self.data}; experts are spread over "
                f"data-parallel ranks, so choose a divisor of {self.data}"
            )

    def _check_folded(self, ranks: int) -> None:
        stage = self.tensor * self.context * self.data
        if ranks < 1 or stage % ranks:
            raise ConfigError(
                f"expert_tensor_parallel {self.expert_tensor} x expert_parallel {self.expert} does not divide the "
                f"{stage} ranks of a stage (tensor_parallel x context_parallel x data_parallel); choose a divisor"
            )
        if self.pipeline > 1 and self.order[-1] != "pipeline":
            raise ConfigError(
                f"expert_tensor_parallel lays experts out over the ranks of a stage, which rank_order "
                f"{', '.join(self.order)} does not number one after another; put pipeline last"
            )

    @cached_property
    def _folded(self) -> "Mesh | None":
        """The layout of experts, if it is their own; its tensor axis is `expert_tensor`."""
        if self.expert_tensor is None:
            return None
        data = self.tensor * self.context * self.data // self.expert_tensor
        return Mesh(tensor=self.expert_tensor, data=data, expert=self.expert, pipeline=self.pipeline)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.tensor * self.context * self.data * self.pipeline

    def degree(self, axis: str) -> int:
        """Return the size of an axis, composite ones such as `data` and `world` included."""
        if self._folded is not None and axis in _FOLDED:
            return self._folded.degree(_FOLDED[axis])
        return math.prod(map(self._sizes.__getitem__, _parts(axis)))

    def coordinates(self, axis: str) -> npt.NDArray[np.int64]:
        """Return each rank's coordinate along an axis of `AXES`, shape ``(R,)``."""
        if self._folded is not None and axis in _FOLDED:
            return self._folded.coordinates(_FOLDED[axis])
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
        expert = self.expert if self.expert_tensor is None else 1
        sizes = (self.tensor, self.context, expert, self.data // expert, self.pipeline)
        return dict(zip(AXES, sizes, strict=True))

    def _rows(self, axis: str) -> npt.NDArray[np.int64]:
        """Groups along an axis, shape (groups, degree), each in the order of its ranks."""
        if self._folded is not None and axis in _FOLDED:
            return self._folded._rows(_FOLDED[axis])
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
