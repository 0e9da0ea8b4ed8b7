"""What a model of kernel times is: a module with a source and a function `times`, called with arrays of calls.

A model answers for those calls of which it knows a time, and says NaN for all others, which go to the next model of
the device. So a model needs to know nothing of the others. `scaleout.cluster.device.kernel_times.MODELS` lists them.

Symbols: N calls of one operation in one dtype.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.spec import Device
from scaleout.program.operations import Kernel

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Key = tuple[str, str]
"""An operation and a dtype."""
Shape = tuple[int, ...]
"""Sizes in the operation's order."""


class Calls(NamedTuple):
    """Several calls of one operation in one dtype; every array has shape (N,)."""

    op: str
    dtype: str
    sizes: Mapping[str, Array]  # name of a size to its values
    flops: Array
    bytes: Array
    warm: Bools  # whether the same buffers are used again and again, so that small data lie in the L2 cache
    launches: float = 1.0  # device kernels that one call launches

    @property
    def key(self) -> Key:
        """The operation and the dtype."""
        return self.op, self.dtype

    def log2_sizes(self) -> Array:
        """Return the sizes in octaves, shape (N, D); a size of zero counts as one half."""
        return np.log2(np.maximum(np.column_stack(list(self.sizes.values())), 0.5))

    def shapes(self) -> list[Shape]:
        """Return the sizes of each call."""
        return list(map(tuple, np.column_stack(list(self.sizes.values())).astype(np.int64).tolist()))

    def select(self, chosen: Bools) -> "Calls":
        """Return those calls that are chosen."""
        sizes = {name: values[chosen] for name, values in self.sizes.items()}
        return self._replace(sizes=sizes, flops=self.flops[chosen], bytes=self.bytes[chosen], warm=self.warm[chosen])


def calls_of(kernels: Sequence[Kernel]) -> Calls:
    """Gather kernels of one operation and dtype; their data are not in the L2 cache."""
    first = kernels[0]
    sizes = np.array([[value for _, value in kernel.shape] for kernel in kernels], dtype=np.float64)
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    names = [name for name, _ in first.shape]
    cold = np.zeros(len(kernels), dtype=bool)
    return Calls(first.op, first.dtype, dict(zip(names, sizes.T, strict=True)), flops, moved, cold)


class KernelTimeModel(Protocol):
    """A model of kernel times. A module with these two names is one."""

    @property
    def SOURCE(self) -> str:  # noqa: N802 - a constant of the module
        """What results call a time of this model: a name of its own, or that of another model."""

    def times(self, device: Device, calls: Calls) -> Array:
        """Return the seconds of calls, each isolated on a device, shape (N,); NaN where the model knows no time."""


def first_answers(models: Iterable[KernelTimeModel], device: Device, calls: Calls) -> tuple[Array, list[str]]:
    """Return the times of calls by the first model that knows one, and its source; NaN and "" where none does."""
    seconds = np.full(len(calls.bytes), np.nan)
    sources = [""] * len(seconds)
    for model in models:
        unknown = np.isnan(seconds)
        if not unknown.any():
            break
        seconds[unknown] = model.times(device, calls.select(unknown))
        for call in np.flatnonzero(unknown & ~np.isnan(seconds)).tolist():
            sources[call] = model.SOURCE
    return seconds, sources
