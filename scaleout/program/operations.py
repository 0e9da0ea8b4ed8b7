"""Operations that a device runs as one kernel call: sizes to FLOPs and to the fewest bytes that must move.

The bytes are those between memory and the SMs, every input read once and every output written once. A multiply-add is
two FLOPs; only GEMMs and convolutions count. A causal mask halves the FLOPs of attention, and its backward does 2.5
times the FLOPs of its forward (it recomputes the scores: five GEMMs for two). Indices are int64; a bag's offsets are
not counted. Knows neither devices nor times.

Symbols: s the sizes by name; i bytes of one element of the dtype. Source: agrees with every measured row that counts.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

from scaleout.config.reading import nearest
from scaleout.errors import ConfigError, GraphError

Sizes = Mapping[str, int]
"""Sizes of a call by name."""

ITEM_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2} | dict.fromkeys(
    ("fp8_e4m3", "fp8_e5m2", "int8", "u8"), 1
)
"""Bytes of one element of each dtype; `tf32` is fp32 data in the matrix units' 19-bit arithmetic."""


class Family(StrEnum):
    """What limits an operation, and so which operations resemble each other."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    DECODE = "attention of decode"  # reads its cache once: memory limits it
    ROWS = "rows"
    ELEMENTWISE = "elementwise"
    GATHER = "gather"


class Operation(NamedTuple):
    """One row of `OPERATIONS`."""

    family: Family  # what it resembles, for operations without measurements
    parameters: tuple[str, ...]  # names of the sizes, in the order of `Kernel.shape`
    flops: Callable[[Sizes], int]  # sizes to FLOPs
    bytes: Callable[[Sizes, int], int]  # sizes and the bytes of one element to the fewest bytes that must move
    # the operation whose efficiency is transferred while this one is not measured; empty for any of its family
    like: str = ""
    defaults: Mapping[str, str] = {}  # a size that may be left out, to the name of the size that it then equals


class TimeSource(IntEnum):
    """Where the duration of a kernel comes from, as a graph counts it; `UNKNOWN` until a device has timed it.

    Models of kernel times may add sources; `kernel_times.source_names` has them all.
    """

    UNKNOWN = -1
    MEASURED = 0
    INTERPOLATED = 1
    ROOFLINE = 2
    GIVEN = 3
    RECORDED = 4  # as a recording of the job has it
    SCALED = 5  # a recorded time, for another size of the same kernel


@dataclass(frozen=True)
class Kernel:
    """One call of an operation on a device: what `kernel_times` turns into a time.

    Build it with `kernel`, or with `custom` where only FLOPs and bytes are known.
    """

    op: str  # a name in `OPERATIONS`, or "custom"
    dtype: str = field(hash=False)  # calls are hashed often, and few differ in this, shape or tokens alone
    shape: tuple[tuple[str, int], ...] = field(hash=False)  # the sizes, in the operation's order
    flops: int
    bytes: int  # the fewest that must move
    tokens: str = field(default="", hash=False)  # sizes that count tokens or samples, by ``*``, where it matters
    sizes: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", dict(self.shape))

    def counting(self, tokens: str) -> "Kernel":
        """Return the call with the sizes that count a batch's tokens named."""
        return replace(self, tokens=tokens)


def _no_flops(sizes: Sizes) -> int:
    """Count nothing: point-wise arithmetic takes less time than its bytes."""
    return 0


def _gemm(*, result_bytes: int = 0, grouped: bool = False, like: str = "") -> Operation:
    """Multiply (M, K) by (K, N), once or for each group.

    `result_bytes` move for each element of the result; as many as an element has, if not given.
    """

    def flops(s: Sizes) -> int:
        return 2 * s.get("groups", 1) * s["M"] * s["N"] * s["K"]

    def size_bytes(s: Sizes, i: int) -> int:
        return s.get("groups", 1) * ((s["M"] + s["N"]) * s["K"] * i + s["M"] * s["N"] * (result_bytes or i))

    return Operation(Family.GEMM, (*(("groups",) if grouped else ()), "M", "N", "K"), flops, size_bytes, like)


def _gemv_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of an (M, N) matrix, a vector and the result."""
    return (s["M"] * s["N"] + s["M"] + s["N"]) * i


def _conv_out(s: Sizes) -> int:
    """Return the pixels along one side of the result, under "same" padding."""
    return -(-s["hw"] // s["stride"])


def _conv_flops(s: Sizes) -> int:
    """Return the FLOPs of a square convolution."""
    return 2 * s["batch"] * _conv_out(s) ** 2 * s["c_out"] * s["c_in"] * s["kernel"] ** 2


def _conv_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of both activations; the weights, small in comparison, are left out as in the measured rows."""
    return s["batch"] * (s["c_in"] * s["hw"] ** 2 + s["c_out"] * _conv_out(s) ** 2) * i


def _attention(parameters: tuple[str, ...], *, backward: bool = False, like: str = "") -> Operation:
    """Run GEMMs of (seq, head_dim) by (head_dim, seq), halved by a causal mask.

    Forward reads q, k, v and writes o; backward reads those and do, and writes dq, dk, dv.
    """
    gemms, tensors = (5, 4) if backward else (2, 2)  # as many tensors with all heads as with key and value heads

    def flops(s: Sizes) -> int:
        full = gemms * 2 * s["batch"] * s["heads"] * s["seq"] ** 2 * s["head_dim"]
        return full // 2 if s["causal"] else full

    def size_bytes(s: Sizes, i: int) -> int:
        heads = tensors * s["heads"] + tensors * s.get("kv_heads", s["heads"])
        return s["batch"] * heads * s["seq"] * s["head_dim"] * i

    return Operation(Family.ATTENTION, parameters, flops, size_bytes, like)


def _windowed(*, backward: bool = False) -> Operation:
    """Run causal attention whose tokens see the last `window` keys each, their own among them, and fewer at the start.

    Of S keys in all and W in the window, ``S W - W^2 / 2`` pairs: with ``W = S`` half of all, as a causal mask leaves.
    """
    whole = _attention(("batch", "heads", "kv_heads", "seq", "window", "head_dim"), backward=backward)

    def flops(s: Sizes) -> int:
        seen = min(s["window"], s["seq"])
        pairs_twice = 2 * s["seq"] * seen - seen**2
        return (5 if backward else 2) * s["batch"] * s["heads"] * pairs_twice * s["head_dim"]

    return whole._replace(flops=flops, like=f"attention_gqa_{'bwd' if backward else 'fwd'}")


def _gather_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the lower triangle of each (features, features) matrix, read and written."""
    return s["batch"] * s["features"] * (s["features"] - 1) * i


def _scatter_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the triangle read and the square written."""
    return _gather_bytes(s, i) // 2 + s["batch"] * s["features"] ** 2 * i


def _bag_bytes(rows_read: int) -> Callable[[Sizes, int], int]:
    """Return the bytes of `rows_read` passes over the pooled rows of each bag, their indices, and one row a bag."""

    def size_bytes(s: Sizes, i: int) -> int:
        pooled = s["pooling"] * (rows_read * s["dim"] * i + 8)
        return s["batch"] * s["tables"] * (pooled + s["dim"] * i)

    return size_bytes


def _repeated(sizes: str, like: str = "", family: Family = Family.GATHER) -> Operation:
    """Move elements of all sizes but the last once, and as often as that says."""
    *of, times = sizes.split()

    def size_bytes(s: Sizes, i: int) -> int:
        return math.prod(s[name] for name in of) * (1 + s[times]) * i

    return Operation(family, (*of, times), _no_flops, size_bytes, like)


def _elementwise(
    items: float,
    *,
    fixed: int = 0,
    like: str = "",
    family: Family = Family.ELEMENTWISE,
    sizes: tuple[str, ...] = ("elements",),
) -> Operation:
    """Move `items` elements of the dtype and `fixed` bytes for every point of the sizes."""

    def size_bytes(s: Sizes, i: int) -> int:
        return int(math.prod(s[name] for name in sizes) * (items * i + fixed))

    return Operation(family, sizes, _no_flops, size_bytes, like)


def _rows(items: float, family: Family = Family.ROWS, columns: str = "hidden", like: str = "") -> Operation:
    return _elementwise(items, like=like, family=family, sizes=("tokens", *columns.split()))


def _interaction(per_feature: int, single: int, like: str) -> Operation:
    """Move each feature vector `per_feature` times and `single` more vectors a sample."""

    def size_bytes(s: Sizes, i: int) -> int:
        return s["batch"] * (per_feature * s["features"] + single) * s["dim"] * i

    return Operation(Family.ROWS, _FEATURES, _no_flops, size_bytes, like)


def _interaction_bmm(gemms: int) -> Operation:
    """Multiply the feature vectors of each sample by each other, or the gradient of that by them."""

    def flops(s: Sizes) -> int:
        return 2 * gemms * s["batch"] * s["features"] ** 2 * s["dim"]

    def size_bytes(s: Sizes, i: int) -> int:
        return s["batch"] * (gemms * s["dim"] + s["features"]) * s["features"] * i

    return Operation(Family.GEMM, _FEATURES, flops, size_bytes)


_FEATURES = ("batch", "features", "dim")
_CONVOLUTION = Operation(
    Family.CONVOLUTION, ("batch", "c_in", "c_out", "kernel", "stride", "hw"), _conv_flops, _conv_bytes
)
_ATTENTION = ("batch", "heads", "seq", "head_dim", "causal")
_GROUPED = ("batch", "heads", "kv_heads", "seq", "head_dim", "causal")
_OWN_HEADS = {"kv_heads": "heads"}
_HEADS = _elementwise(2, family=Family.ROWS, sizes=("batch", "heads", "seq", "head_dim"))
_LIST = Operation(Family.ELEMENTWISE, ("elements", "tensors"), _no_flops, lambda s, i: 2 * s["elements"] * i, "clone")
_BAG = ("batch", "tables", "dim", "pooling")
_ROUTED = "tokens hidden topk"
_SCORES = ("tokens", "experts", "topk")


def _scores(passes: int, like: str) -> Operation:
    """Move all experts' scores `passes` times, and the weights and indices of those chosen."""

    def size_bytes(s: Sizes, i: int) -> int:
        return s["tokens"] * (passes * s["experts"] * i + s["topk"] * (i + 8))

    return Operation(Family.ROWS, _SCORES, _no_flops, size_bytes, like)


OPERATIONS: Mapping[str, Operation] = {
    # GEMMs. gemm: (M, K) by (K, N); gemv: an (M, N) matrix by a vector; gemm_fp8 gives bf16.
    "gemm": _gemm(),
    "gemm_fp8": _gemm(result_bytes=2),
    # Other kernels: with a scale for each row of either operand, or for 128 of its elements (DeepGEMM's).
    **dict.fromkeys(("gemm_fp8_rowwise", "gemm_fp8_blockwise"), _gemm(result_bytes=2, like="gemm_fp8")),
    # GEMMs of groups: cuBLAS's of as many rows each, CUTLASS's of any; _accumulate adds to fp32 results that are there.
    **dict.fromkeys(("batched_gemm", "grouped_gemm"), _gemm(grouped=True, like="gemm")),
    "grouped_gemm_accumulate": _gemm(result_bytes=8, grouped=True, like="gemm"),
    "grouped_gemm_fp8": _gemm(result_bytes=2, grouped=True, like="gemm_fp8"),
    "grouped_gemm_fp8_accumulate": _gemm(result_bytes=8, grouped=True, like="grouped_gemm_fp8"),
    "gemv": Operation(Family.GEMM, ("M", "N"), lambda s: 2 * s["M"] * s["N"], _gemv_bytes),
    "moe_router_64_experts": Operation(
        Family.ROWS,
        ("tokens", "hidden"),
        lambda s: 2 * s["tokens"] * s["hidden"] * 64,
        lambda s, i: (s["tokens"] * s["hidden"] + 64 * s["hidden"] + 64 * s["tokens"]) * i,
    ),
    "interaction_bmm_fwd": _interaction_bmm(1),
    "interaction_bmm_bwd": _interaction_bmm(2),
    **dict.fromkeys(("conv2d_fwd", "conv2d_bwd_data", "conv2d_bwd_weight"), _CONVOLUTION),
    "attention_fwd": _attention(_ATTENTION),
    "attention_bwd": _attention(_ATTENTION, backward=True),
    "attention_gqa_fwd": _attention(_GROUPED, like="attention_fwd"),
    "attention_gqa_bwd": _attention(_GROUPED, backward=True, like="attention_bwd"),
    "attention_window_fwd": _windowed(),
    "attention_window_bwd": _windowed(backward=True),
    # FlashAttention 2, and FlashAttention 1 in Triton: the same work, in kernels that reach less of a device.
    "attention_fa2_fwd": _attention(_GROUPED, like="attention_fwd")._replace(defaults=_OWN_HEADS),
    "attention_fa2_bwd": _attention(_GROUPED, backward=True, like="attention_bwd")._replace(defaults=_OWN_HEADS),
    "attention_triton_fwd": _attention(_ATTENTION, like="attention_fwd"),
    "attention_triton_bwd": _attention(_ATTENTION, backward=True, like="attention_bwd"),
    # Attention to some keys merged with that to others, in fp32: outputs rescaled; backward, gradients added up.
    "merge_partials_fwd": _elementwise(18, like="add"),
    "merge_partials_bwd": _elementwise(15, like="add"),
    # A query a sample against its cache; latent: the rank's and rotary widths of a token, read once for all heads.
    "attention_decode": Operation(
        Family.DECODE,
        ("batch", "heads", "kv_heads", "kv_seq", "head_dim"),
        lambda s: 4 * s["batch"] * s["heads"] * s["kv_seq"] * s["head_dim"],
        lambda s, i: s["batch"] * 2 * (s["kv_heads"] * s["kv_seq"] + s["heads"]) * s["head_dim"] * i,
        defaults=_OWN_HEADS,
    ),
    "attention_decode_latent": Operation(
        Family.DECODE,
        ("batch", "heads", "kv_seq", "rank", "rotary"),
        lambda s: 2 * s["batch"] * s["heads"] * s["kv_seq"] * (2 * s["rank"] + s["rotary"]),
        lambda s, i: s["batch"] * ((s["kv_seq"] + s["heads"]) * (s["rank"] + s["rotary"]) + s["heads"] * s["rank"]) * i,
        "attention_decode",
    ),
    # Row by row: normalisation, loss, rotary embedding, mixture-of-experts routing.
    **dict.fromkeys(("layer_norm_fwd", "rms_norm_fwd", "rope_fwd_unfused"), _rows(2)),
    **dict.fromkeys(("layer_norm_bwd", "rms_norm_bwd"), _rows(3)),
    # Square, mean, multiplication and scale, each a kernel, in fp32 between two casts; backward, the gradient of each.
    "rms_norm_unfused_fwd": _rows(20, like="add"),
    "rms_norm_unfused_bwd": _rows(40, like="add"),
    "cross_entropy_fwd": _rows(1, columns="vocab"),
    "cross_entropy_bwd": _rows(2, columns="vocab"),
    "cross_entropy_fused_fwd": _rows(1, columns="vocab", like="layer_norm_fwd"),
    "cross_entropy_fused_bwd": _rows(2, columns="vocab", like="layer_norm_fwd"),
    "softmax_fwd": _rows(2, columns="keys", like="layer_norm_fwd"),
    "softmax_bwd": _rows(3, columns="keys", like="layer_norm_bwd"),
    "softmax_causal_fwd": _rows(1.5, columns="keys", like="layer_norm_fwd"),
    "softmax_causal_bwd": _rows(2, columns="keys", like="layer_norm_fwd"),
    "rope_fwd": _rows(2, like="add"),
    "rope_bwd_fused": _rows(2, like="rope_fwd"),
    # In fp32: both halves times cosines and sines, sums and cat, each a kernel, between two casts; backward likewise.
    **dict.fromkeys(("rope_bwd", "rope_fp32_fwd", "rope_fp32_bwd"), _rows(2, like="rope_fwd_unfused")),
    # Heads of keys or values copied for all query heads; backward, gradients of the copies added up.
    "heads_repeat": _repeated("tokens heads head_dim times", "moe_repeat_topk"),
    "heads_sum": _repeated("tokens heads head_dim times", "moe_sum_topk"),
    "embedding_fwd": _rows(2, Family.GATHER),
    # The gradient of an embedding table is dense: all its rows are cleared, those looked up are added to.
    "embedding_bwd": Operation(
        Family.GATHER,
        ("tokens", "hidden", "vocab"),
        _no_flops,
        lambda s, i: (2 * s["tokens"] + s["vocab"]) * s["hidden"] * i,
        "moe_permute_rows",
    ),
    "moe_permute_rows": _rows(2, Family.GATHER),
    # Routing by plain tensor operations, several kernels each: ids of experts sorted; gradients of indexing added up in
    # zeros; rows written by index into zeros; rows copied between the orders of ranks and experts; rows times weights.
    "moe_sort": _elementwise(0, fixed=24, family=Family.GATHER, sizes=("tokens",)),
    "moe_permute_rows_bwd": _rows(4, Family.GATHER, like="moe_permute_rows"),
    "moe_scatter_rows": _rows(5, Family.GATHER, like="moe_permute_rows"),
    **dict.fromkeys(("moe_regroup_rows", "cache_write"), _rows(2, Family.GATHER, like="moe_permute_rows")),
    **dict.fromkeys(("moe_weigh_fwd", "moe_scale_rows_fwd"), _rows(2, Family.GATHER, "hidden topk", "moe_repeat_topk")),
    **dict.fromkeys(("moe_weigh_bwd", "moe_scale_rows_bwd"), _rows(5, Family.GATHER, "hidden topk", "moe_repeat_topk")),
    # By masks: rows chosen and added up by an index, expanded over each row.
    **dict.fromkeys(("moe_select_rows_fwd", "moe_select_rows_bwd"), _repeated(_ROUTED, "moe_permute_rows")),
    **dict.fromkeys(("moe_add_rows_fwd", "moe_add_rows_bwd"), _repeated(_ROUTED, "moe_permute_rows")),
    "moe_repeat_topk": _repeated(_ROUTED),
    "moe_sum_topk": _repeated(_ROUTED, family=Family.ROWS),
    # Softmax over a token's scores, the k largest, and weights scaled to one; with a capacity; what a mask chooses.
    "moe_top_k": _scores(1, "moe_router_64_experts"),
    "moe_top_k_bwd": _scores(2, "moe_router_64_experts"),
    **dict.fromkeys(("moe_capacity_top_k_fwd", "moe_rows_by_mask", "moe_probs_by_mask"), _scores(1, "moe_top_k")),
    "moe_capacity_top_k_bwd": _scores(2, "moe_top_k_bwd"),
    # Copies of PyTorch in backward, where heads were cut out of one GEMM: the gradients of queries, keys and values
    # into one tensor, heads first, then that one into the GEMM's layout.
    **dict.fromkeys(("heads_cat", "heads_to_rows"), _HEADS),
    # Element by element; `elements` counts the result.
    **dict.fromkeys(("add", "accumulate_fp32", "swiglu_fwd_unfused"), _elementwise(3)),
    **dict.fromkeys(("mul_scalar", "clone", "copy_d2d", "gelu_fwd", "silu_fwd", "relu_fwd"), _elementwise(2)),
    # A tensor copied into a list of so many, out of one, or piece by piece to where each belongs, one call each.
    **dict.fromkeys(("list_in", "list_out", "list_spread"), _LIST),
    "fill": _elementwise(1, like="sum_all"),
    **dict.fromkeys(("gelu_bwd", "silu_bwd", "relu_bwd"), _elementwise(3)),
    "dropout_fwd": _elementwise(2, fixed=1),  # and a mask of one byte an element
    "dropout_bwd": _elementwise(2, fixed=1, like="dropout_fwd"),
    "cast_to_fp32": _elementwise(1, fixed=4),
    "sum_all": _elementwise(1),
    "cast_to_fp8": _elementwise(1, fixed=1, like="clone"),
    "cast_to_fp8_twice": _elementwise(1, fixed=2, like="clone"),  # in both layouts
    # What an addition adds to the kernel of a norm that it is fused with: the other summand, and forward the sum.
    "add_fused_fwd": _elementwise(2, like="add"),
    "add_fused_bwd": _elementwise(1, like="add"),
    "swiglu_fwd": _elementwise(3, like="add"),
    # Batch normalisation reads its input for the moments and once more; backward so input and gradient. Pooling:
    # `elements` counts the larger side, a quarter of which leave a window that strides by two. Neither is a stream.
    "batch_norm_fwd": _elementwise(3, family=Family.ROWS),
    "batch_norm_bwd": _elementwise(5, family=Family.ROWS),
    **dict.fromkeys(("pool_fwd", "pool_bwd"), _elementwise(1.25, family=Family.ROWS)),
    "swiglu_bwd": _elementwise(5, like="silu_bwd"),
    "swiglu_bwd_fused": _elementwise(5, like="swiglu_fwd"),
    # Optimiser steps. AdamW: the parameter and two moments read and written, the gradient read.
    "adamw_fused": _elementwise(7, sizes=("parameters",)),
    # Operation by operation: two moments scaled and added to, the root, two scalars, and the quotient.
    "adamw_unfused": _elementwise(20, like="adamw_fused", sizes=("parameters",)),
    "sgd": _elementwise(3, like="accumulate_fp32", sizes=("parameters",)),
    # Adagrad: the parameter and its sum of squares read and written, the gradient read.
    "adagrad": _elementwise(5, like="sgd", sizes=("parameters",)),
    # Recommendation models: pooled embedding tables and the feature interaction.
    "embedding_bag_fwd": Operation(Family.GATHER, (*_BAG, "rows"), _no_flops, _bag_bytes(1)),
    "embedding_bag_bwd_sparse": Operation(Family.GATHER, _BAG, _no_flops, _bag_bytes(1)),
    # As large as the tables, which are cleared; rows are sorted, added up by parts, and written.
    "embedding_bag_bwd_dense": Operation(
        Family.GATHER,
        (*_BAG, "rows"),
        _no_flops,
        lambda s, i: s["tables"] * s["rows"] * s["dim"] * i + _bag_bytes(2)(s, i),
        "embedding_bag_bwd_sparse",
    ),
    # Every gradient row is read, and its table row read and written; for Adagrad its sums of squares, too.
    "embedding_sgd_sparse": Operation(Family.GATHER, _BAG, _no_flops, _bag_bytes(3), "embedding_bag_bwd_sparse"),
    "embedding_adagrad_sparse": Operation(Family.GATHER, _BAG, _no_flops, _bag_bytes(5), "embedding_bag_bwd_sparse"),
    # A cross layer's product with its first input; backward both gradients, one of them added up.
    "product_fwd": _elementwise(3, like="add"),
    "product_bwd": _elementwise(6, like="add"),
    "permute_for_all_to_all": _elementwise(2, family=Family.ROWS, sizes=("batch", "tables", "dim")),
    # The gather takes the lower triangle of each (features, features) matrix; its backward writes the square.
    "interaction_gather_fwd": Operation(Family.GATHER, ("batch", "features"), _no_flops, _gather_bytes),
    "interaction_gather_bwd": Operation(Family.GATHER, ("batch", "features"), _no_flops, _scatter_bytes),
    "interaction_sum_fwd": _interaction(1, 1, "moe_sum_topk"),
    "interaction_sum_bwd": _interaction(1, 1, "moe_repeat_topk"),
    **dict.fromkeys(("interaction_cat_fwd", "interaction_cat_bwd"), _interaction(2, 0, "permute_for_all_to_all")),
}
"""Name of every operation to its sizes, FLOPs and bytes."""


@functools.lru_cache(maxsize=4096)
def _counted(op: str, dtype: str, shape: tuple[tuple[str, int], ...]) -> Kernel:
    operation, sizes = OPERATIONS[op], dict(shape)
    found = Kernel(op, dtype, shape, operation.flops(sizes), operation.bytes(sizes, ITEM_BYTES[dtype]))
    if max(found.flops, found.bytes) >= 2**63:  # a graph's columns hold no more
        raise GraphError(f"{op} of {sizes} has more FLOPs or bytes than a node can count (2**63); choose smaller sizes")
    return found


@functools.lru_cache(maxsize=16384, typed=True)
def kernel(op: str, *, dtype: str, **shape: int) -> Kernel:
    """Describe one call of an operation, with its FLOPs and fewest bytes.

    A ``gemm`` of an fp8 dtype is a ``gemm_fp8``; in ``tf32``, what multiplies no matrices is in ``fp32``.

    Parameters
    ----------
    op, dtype : str
        Names in `OPERATIONS` and `ITEM_BYTES`.
    **shape : int
        The operation's sizes; `causal` is a truth value, all others are at least 1.

    Raises
    ------
    ConfigError
        If the dtype is not known.
    GraphError
        If the operation is not known, a size is missing, foreign, no positive whole number, or too large to count.

    Examples
    --------
    >>> call = kernel("gemm", dtype="bf16", M=1024, N=4096, K=512)
    >>> call.flops, call.bytes
    (4294967296, 13631488)
    """
    if dtype not in ITEM_BYTES:
        raise ConfigError(f"{op}: unknown dtype {dtype!r}; {nearest(dtype, ITEM_BYTES)}")
    if op == "gemm" and dtype.startswith("fp8"):
        op = "gemm_fp8"
    operation = OPERATIONS.get(op)
    if operation is None:
        raise GraphError(f"unknown operation {op!r}; {nearest(op, OPERATIONS)}")
    dtype = "fp32" if dtype == "tf32" and operation.family not in (Family.GEMM, Family.CONVOLUTION) else dtype
    foreign = [name for name in shape if name not in operation.parameters]
    if foreign:
        raise GraphError(f"{op} has no size {foreign[0]!r}; {nearest(foreign[0], operation.parameters)}")
    given = {**{name: shape[same] for name, same in operation.defaults.items() if same in shape}, **shape}
    missing = [name for name in operation.parameters if name not in given]
    if missing:
        raise GraphError(f"{op} needs the size {missing[0]!r}; it takes {', '.join(operation.parameters)}")
    return _counted(op, dtype, tuple((name, _size(op, name, given[name])) for name in operation.parameters))


def custom(*, dtype: str, flops: int, bytes: int) -> Kernel:  # noqa: A002 - the field's own name
    """Describe a kernel of which only FLOPs and bytes are known, such as a node of a foreign trace.

    A ConfigError says that the dtype is not known, a GraphError that a count is negative.
    """
    if dtype not in ITEM_BYTES:
        raise ConfigError(f"custom kernel: unknown dtype {dtype!r}; {nearest(dtype, ITEM_BYTES)}")
    if flops < 0 or bytes < 0:
        raise GraphError(f"custom kernel: FLOPs ({flops}) and bytes ({bytes}) must not be negative")
    return Kernel(CUSTOM, dtype, (), flops, bytes)


RECORDED = "recorded:"
"""What the names of operations begin with that `recorded` makes."""
CUSTOM = "custom"
"""The operation of kernels that `custom` makes."""


def _size(op: str, name: str, value: int) -> int:
    """Check one size and give it as a plain int."""
    whole = int(value) if isinstance(value, int) or hasattr(value, "__index__") else None
    if whole is None:
        raise GraphError(f"{op}: size {name!r} is {value!r}; give a whole number")
    if name == "causal":
        return int(bool(whole))
    if whole < 1:
        raise GraphError(f"{op}: size {name!r} is {whole}; it must be at least 1")
    return whole
