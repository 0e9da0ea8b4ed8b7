"""Kernels of a graph as columns: what they are but for their counts, and the FLOPs and bytes of each.

Traces of other tools may tell other counts for every node: then a graph has as many kernels as nodes. Columns hold
those without an object for each; a `Kernel` is made where one is asked for.

A recorded operator may have launched several kernels. Each has the operator's sizes, by which it is modelled, and its
own share of the operator's FLOPs and bytes, which is what it did.

Symbols: K kernels.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

import numpy as np
import numpy.typing as npt

from scaleout.program.operations import CUSTOM, ITEM_BYTES, RECORDED, Kernel, kernel
from scaleout.program.recorded import RECORDED_SIZES, TABLE_SIZES, recorded, recorded_table_gradient

Ints = npt.NDArray[np.int64]


class KernelColumns(Sequence[Kernel]):
    """A sequence of kernels without an object for each.

    Attributes
    ----------
    kinds : tuple of Kernel
        What kernels are, whatever their counts.
    kind : ndarray of int64, shape (K,)
        Which of `kinds` each is.
    flops, bytes : ndarray of int64, shape (K,)
    """

    def __init__(self, kinds: Sequence[Kernel], kind: Ints, flops: Ints, size_bytes: Ints) -> None:
        self.kinds, self.kind, self.flops, self.bytes = tuple(kinds), kind, flops, size_bytes

    def __len__(self) -> int:
        return len(self.kind)

    @overload
    def __getitem__(self, index: int) -> Kernel: ...
    @overload
    def __getitem__(self, index: slice | Ints) -> "KernelColumns": ...
    def __getitem__(self, index: int | slice | Ints) -> "Kernel | KernelColumns":
        if isinstance(index, slice | np.ndarray):
            return KernelColumns(self.kinds, self.kind[index], self.flops[index], self.bytes[index])
        kind: Kernel = self.kinds[int(self.kind[index])]
        flops, size_bytes = int(self.flops[index]), int(self.bytes[index])
        if (flops, size_bytes) == (kind.flops, kind.bytes):
            return kind
        return replace(kind, flops=flops, bytes=size_bytes)

    @property
    def is_custom(self) -> npt.NDArray[np.bool_]:
        """Whether FLOPs and bytes are all that is known of each, (K,)."""
        return np.array([kind.op == CUSTOM for kind in self.kinds], bool)[self.kind]

    def rows(self) -> tuple[list[int], list[int], list[int]]:
        """Return kinds, FLOPs and bytes, K of each."""
        return self.kind.tolist(), self.flops.tolist(), self.bytes.tolist()

    def of_operations(self) -> list[Kernel]:
        """Return those of which more is known, in order."""
        return [self[index] for index in np.flatnonzero(~self.is_custom).tolist()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self)} kernels of {len(self.kinds)} kinds>"


def columns_of(kernels: Sequence[Kernel]) -> KernelColumns:
    """Return kernels as columns, each as a kind of its own where they were objects."""
    if isinstance(kernels, KernelColumns):
        return kernels
    counts = np.array([(kernel.flops, kernel.bytes) for kernel in kernels], np.int64).reshape(-1, 2)
    return KernelColumns(kernels, np.arange(len(kernels)), counts[:, 0], counts[:, 1])


def entire(call: Kernel) -> Kernel:
    """Return what the operator of a kernel did in all, as its sizes tell; of custom kernels nothing else is known."""
    if call.op == CUSTOM:
        return call
    if not call.op.startswith(RECORDED):
        return kernel(call.op, dtype=call.dtype, **call.sizes).counting(call.tokens)
    name, sizes = call.op.removeprefix(RECORDED), call.sizes
    if all(sizes.get(size, 0) > 0 for size in TABLE_SIZES):
        return recorded_table_gradient(name, dtype=call.dtype, **{size: sizes[size] for size in TABLE_SIZES})
    return recorded(name, dtype=call.dtype, **{size: sizes.get(size, 0) for size in RECORDED_SIZES})


def as_much_of(call: Kernel, like: Kernel) -> Kernel:
    """Return a kernel that does as large a share of an operator of other sizes as another does of its own."""
    whole = entire(like)
    if (whole.flops, whole.bytes) == (like.flops, like.bytes):
        return call
    shares = (like.flops / whole.flops if whole.flops else 1.0, like.bytes / whole.bytes if whole.bytes else 1.0)
    return replace(call, flops=round(call.flops * shares[0]), bytes=round(call.bytes * shares[1]))


def of_weight(call: Kernel) -> Kernel:
    """Return the GEMM of a weight's gradient; it says that tokens are summed over, where `by_rows` makes another of it.

    Elsewhere nothing depends on it.
    """
    summed = call.counting("K") if call.op in _PRODUCTS else call
    return summed if by_rows(summed) is not summed else call


def by_rows(call: Kernel) -> Kernel:
    """Return the GEMM of (M, K) by (K, N), both row by row in memory, that takes as long on matrix units as a call.

    A weight's gradient multiplies (K, M), transposed, by (K, N): whole loads of 16 bytes are to be M and N, not the K
    tokens. So K is rounded up to whole loads, and an M of no whole loads takes the place of N.

    Source: traces/h100/gemm-layouts.jsonl. With K of 1001 to 8196 and no multiple of 8 gradients take 0.9 to 1.1 times
    as long as with the multiple next to it, other products 2.6 to 6.6 times; with such an M gradients 3.0 to 5.3 times.
    """
    load = 16 // ITEM_BYTES[call.dtype]
    if call.tokens != "K" or call.op not in _PRODUCTS or load != 8:
        return call
    rows, cols, depth = (call.sizes[size] for size in "MNK")
    if depth % load == 0 and (rows % load == 0 or rows == 1):
        return call
    if rows % load and rows > 1:
        rows, cols = cols, rows
    return kernel(call.op, dtype=call.dtype, **{**call.sizes, "M": rows, "N": cols, "K": -(-depth // load) * load})


_PRODUCTS = ("gemm", "batched_gemm", "grouped_gemm", "grouped_gemm_accumulate")
