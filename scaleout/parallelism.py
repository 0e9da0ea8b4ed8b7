"""The mesh of parallelism axes: degrees to ranks and process groups.

Rank order, innermost (neighbouring ranks) first: tensor, context, expert, expert_data, pipeline. The ranks that
share a model's dense parameters, the `data` axis, are the product of expert and expert_data: experts are spread
over data-parallel ranks (GShard, arXiv:2006.16668), so `expert` divides `data`.
"""

from dataclasses import dataclass, fields

import numpy as np

from scaleout.errors import ConfigError
from scaleout.program import GroupFamily

AXES = ("tensor", "context", "expert", "expert_data", "pipeline")
"""Axes of the mesh, innermost first."""

_COMPOSITE = {"data": ("expert", "expert_data"), "world": AXES}


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism; their product is the number of ranks.

    Raises
    ------
    ConfigError
        If a degree is under 1 or `expert` does not divide `data`.
    """

    tensor: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        for axis in fields(self):
            if getattr(self, axis.name) < 1:
                raise ConfigError(f"{axis.name}_parallel is {getattr(self, axis.name)}; give a degree of 1 or more")
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
        """Return the size of an axis, `data` and `world` included."""
        sizes = dict(zip(AXES, self._shape(), strict=True))
        return int(np.prod([sizes[part] for part in _COMPOSITE.get(axis, (axis,))]))

    def groups(self, axis: str) -> GroupFamily:
        """Return the process groups along an axis: ranks that differ in that axis's coordinate only."""
        parts = _COMPOSITE.get(axis, (axis,))
        shape = self._shape()
        # Ranks with the innermost axis last, as NumPy numbers them.
        ranks = np.arange(self.num_ranks).reshape(shape[::-1])
        along = [len(AXES) - 1 - AXES.index(part) for part in reversed(parts)]
        ranks = np.moveaxis(ranks, along, range(len(AXES) - len(along), len(AXES)))
        rows = ranks.reshape(-1, self.degree(axis)).tolist()
        return GroupFamily(axis, tuple(tuple(row) for row in rows))

    def _shape(self) -> tuple[int, ...]:
        return (self.tensor, self.context, self.expert, self.data // self.expert, self.pipeline)
