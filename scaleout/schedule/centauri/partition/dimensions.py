"""Along which dimensions operations may be cut: the type of each dimension, and the size that counts it.

Parts along another dimension (OD) are independent; those along a contraction dimension (CD) have to be added up; along
a none-split dimension (ND) an operation is not cut. Knows no graphs.
Source: Chen et al., Centauri, Sec. 3.1.3, Table 3.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple


class DimensionType(StrEnum):
    """The paper's types."""

    OD = "OD"
    CD = "CD"
    ND = "ND"


class Dimension(NamedTuple):
    """One dimension of an operation's workload, in the paper's order; `size` is empty where no size counts it alone."""

    type: DimensionType
    size: str


_OD, _CD, _ND = DimensionType

_GEMM = (Dimension(_OD, "M"), Dimension(_CD, "K"), Dimension(_OD, "N"))  # [A, B] x [B, C]
_ELEMENTWISE = (Dimension(_OD, "elements"), Dimension(_OD, "elements"))  # [A, B], all in one size

DIMENSIONS: Mapping[str, tuple[Dimension, ...]] = {
    **dict.fromkeys(
        ("gemm", "gemm_fp8", "gemm_fp8_rowwise", "batched_gemm", "grouped_gemm", "grouped_gemm_accumulate"), _GEMM
    ),
    **dict.fromkeys(
        (
            "add", "mul_scalar", "dropout_fwd", "dropout_bwd", "relu_fwd", "relu_bwd", "gelu_fwd", "gelu_bwd",
            "silu_fwd", "silu_bwd", "cast_to_fp8", "cast_to_fp8_twice",
        ),
        _ELEMENTWISE,
    ),
    # Of a row's columns one half gates the other.
    **dict.fromkeys(
        ("swiglu_fwd", "swiglu_fwd_unfused", "swiglu_bwd", "swiglu_bwd_fused"),
        (Dimension(_OD, "elements"), Dimension(_ND, "")),
    ),
    **dict.fromkeys(
        ("softmax_fwd", "softmax_bwd", "softmax_causal_fwd", "softmax_causal_bwd"),
        (Dimension(_OD, "tokens"), Dimension(_ND, "keys")),
    ),
    **dict.fromkeys(
        ("layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd"),
        (Dimension(_OD, "tokens"), Dimension(_ND, "hidden")),
    ),
    # Not in the paper, and only what they are cut along: tables or samples are pooled one by one, and a mixture's rows
    # are tokens'.
    **dict.fromkeys(
        ("embedding_bag_fwd", "permute_for_all_to_all"), (Dimension(_OD, "tables"), Dimension(_OD, "batch"))
    ),
    **dict.fromkeys(("embedding_bag_bwd_sparse", "embedding_sgd_sparse"), (Dimension(_OD, "tables"),)),
    "embedding_bag_bwd_dense": (Dimension(_CD, "batch"),),
    **dict.fromkeys(
        ("moe_permute_rows", "moe_regroup_rows", "moe_repeat_topk", "moe_sum_topk"), (Dimension(_OD, "tokens"),)
    ),
}  # fmt: skip
"""Operation to its dimensions; those in one size are cut in whole rows, which lie together."""


@lru_cache
def sizes_of(op: str, kind: DimensionType) -> tuple[str, ...]:
    """Return the sizes that count an operation's dimensions of a type, in order.

    >>> sizes_of("gemm", DimensionType.OD), sizes_of("layer_norm_fwd", DimensionType.ND)
    (('M', 'N'), ('hidden',))
    """
    return tuple(dict.fromkeys(each.size for each in DIMENSIONS[op] if each.type is kind and each.size))
