"""Sizes of a call to its FLOPs and to the fewest bytes that it must move.

One function a way of counting; `operations` says which operation counts how. Nothing here knows an operation's name.

Symbols: s the sizes by name; i bytes of one element of the dtype.
"""

from collections.abc import Callable, Mapping

Sizes = Mapping[str, int]


def no_flops(sizes: Sizes) -> int:
    """Count nothing: point-wise arithmetic hides behind the bytes."""
    return 0


def gemm_flops(s: Sizes) -> int:
    """Return the FLOPs of an (M, K) by (K, N) GEMM."""
    return 2 * s["M"] * s["N"] * s["K"]


def gemm_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of both operands and the result."""
    return (s["M"] * s["K"] + s["K"] * s["N"] + s["M"] * s["N"]) * i


def grouped_gemm_flops(s: Sizes) -> int:
    """Return the FLOPs of a GEMM for each group."""
    return s["groups"] * gemm_flops(s)


def grouped_gemm_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the operands and the result of each group."""
    return s["groups"] * gemm_bytes(s, i)


def grouped_accumulate_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the operands of each group, and of its fp32 result, which is read and written."""
    return s["groups"] * ((s["M"] * s["K"] + s["K"] * s["N"]) * i + 8 * s["M"] * s["N"])


def gemv_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of an (M, N) matrix, a vector and the result."""
    return (s["M"] * s["N"] + s["M"] + s["N"]) * i


def gemm_fp8_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of both operands in fp8 and of the result in bf16."""
    return (s["M"] * s["K"] + s["K"] * s["N"]) * i + s["M"] * s["N"] * 2


def conv_out(s: Sizes) -> int:
    """Return the pixels along one side of the result, under "same" padding."""
    return -(-s["hw"] // s["stride"])


def conv_flops(s: Sizes) -> int:
    """Return the FLOPs of a square convolution."""
    return 2 * s["batch"] * conv_out(s) ** 2 * s["c_out"] * s["c_in"] * s["kernel"] ** 2


def conv_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of both activations; the weights, small beside them, are left out as in the measured rows."""
    return s["batch"] * (s["c_in"] * s["hw"] ** 2 + s["c_out"] * conv_out(s) ** 2) * i


def attention_flops(products: int) -> Callable[[Sizes], int]:
    """Return the FLOPs of `products` products of (seq, head_dim) by (head_dim, seq), halved by a causal mask."""

    def flops(s: Sizes) -> int:
        full = products * 2 * s["batch"] * s["heads"] * s["seq"] ** 2 * s["head_dim"]
        return full // 2 if s["causal"] else full

    return flops


def attention_bytes(query_tensors: int, kv_tensors: int) -> Callable[[Sizes, int], int]:
    """Return the bytes of tensors with all heads and of tensors with the key and value heads."""

    def size_bytes(s: Sizes, i: int) -> int:
        heads = query_tensors * s["heads"] + kv_tensors * s.get("kv_heads", s["heads"])
        return s["batch"] * heads * s["seq"] * s["head_dim"] * i

    return size_bytes


def decode_flops(s: Sizes) -> int:
    """Return the FLOPs of one query a sample against its whole cache."""
    return 4 * s["batch"] * s["heads"] * s["kv_seq"] * s["head_dim"]


def decode_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the cache of keys and values, the query and the result."""
    return s["batch"] * 2 * (s["kv_heads"] * s["kv_seq"] + s["heads"]) * s["head_dim"] * i


def per_point(*names: str, items: float = 0, fixed: int = 0) -> Callable[[Sizes, int], int]:
    """Return `items` elements of the dtype and `fixed` bytes for every point of the product of some sizes."""

    def size_bytes(s: Sizes, i: int) -> int:
        points = 1
        for name in names:
            points *= s[name]
        return int(points * (items * i + fixed))

    return size_bytes


def gather_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the lower triangle of each (features, features) product, read and written."""
    return s["batch"] * s["features"] * (s["features"] - 1) * i


def scatter_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the triangle read and the square written."""
    return gather_bytes(s, i) // 2 + s["batch"] * s["features"] ** 2 * i


def bag_bytes(rows_read: int) -> Callable[[Sizes, int], int]:
    """Return the bytes of `rows_read` passes over the pooled rows of each bag, their indices, and one row a bag."""

    def size_bytes(s: Sizes, i: int) -> int:
        pooled = s["pooling"] * (rows_read * s["dim"] * i + 8)
        return s["batch"] * s["tables"] * (pooled + s["dim"] * i)

    return size_bytes


def routed_rows_bytes(s: Sizes, i: int) -> int:
    """Return the bytes of the tokens' rows once and `topk` times."""
    return s["tokens"] * s["hidden"] * (1 + s["topk"]) * i


def expert_scores_bytes(passes: int) -> Callable[[Sizes, int], int]:
    """Return the bytes of `passes` passes over the experts' scores, and of the weights and indices of the chosen."""

    def size_bytes(s: Sizes, i: int) -> int:
        return s["tokens"] * (passes * s["experts"] * i + s["topk"] * (i + 8))

    return size_bytes
