"""Which kernels to measure: a grid of shapes for every operation, or exactly those that a workload runs.

A grid serves interpolation: each size over its usual range, a few octaves apart, and combinations of sizes. Calls that
exceed the device's memory fail one by one. Operations without measurements use the efficiency of similar ones.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaleout.config.checkpoint import Row
from scaleout.errors import ConfigError, shown
from scaleout.program.calls import by_rows
from scaleout.program.operations import CUSTOM, OPERATIONS, Family, Kernel, kernel
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

NOT_MEASURED = frozenset(
    """
    attention_triton_fwd attention_triton_bwd attention_window_fwd attention_window_bwd attention_decode_latent
    add_fused_fwd add_fused_bwd merge_partials_fwd merge_partials_bwd grouped_gemm_accumulate list_in
    list_out list_spread gemm_fp8_blockwise grouped_gemm_fp8_accumulate adagrad embedding_adagrad_sparse
    product_fwd product_bwd softmax_causal_fwd softmax_causal_bwd
    """.split()  # noqa: SIM905 - a list of strings hides them
)
"""Operations of other software (Triton, DeepGEMM, FlashMLA, DeepSpeed, Megatron, FBGEMM), not measured here."""

UNCAPTURED = frozenset(
    {
        "embedding_bwd",
        "embedding_bag_bwd_sparse",
        "interaction_gather_bwd",
        "moe_permute_rows_bwd",
        "embedding_bag_bwd_dense",
        "moe_rows_by_mask",
        "moe_probs_by_mask",
    }
)
"""Operations whose call synchronises with the device, which a CUDA graph cannot capture."""

Axes = Mapping[str, Sequence[int]]

_TOKENS = (16, 256, 1024, 4096, 16384)
_ELEMENTS = tuple(2**power for power in (10, 16, 18, 20, 22, 24, 26, 28))
_RESNET_50 = (
    (3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56), (512, 128, 1, 1, 28),
    (128, 128, 3, 1, 28), (512, 256, 1, 1, 28), (256, 256, 3, 2, 28), (256, 1024, 1, 1, 14), (512, 1024, 1, 2, 28),
    (1024, 256, 1, 1, 14), (256, 256, 3, 1, 14), (1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7),
    (1024, 2048, 1, 2, 14), (2048, 512, 1, 1, 7), (512, 512, 3, 1, 7),
)  # fmt: skip
_ALEXNET = ((3, 64, 11, 4, 224), (64, 192, 5, 1, 27), (192, 384, 3, 1, 13), (384, 256, 3, 1, 13), (256, 256, 3, 1, 13))
CONVOLUTIONS = tuple(dict(zip(("c_in", "c_out", "kernel", "stride", "hw"), each, strict=True))
                     for each in (*_RESNET_50, *_ALEXNET))  # fmt: skip
"""The convolutions of ResNet-50, with strides in its 3 by 3 kernels, and of AlexNet."""

_GEMM: Axes = {
    "M": (1, 16, 128, 1024, 2048, 4096, 8192, 16384),
    "N": (512, 2048, 4096, 8192, 14336),
    "K": (512, 2048, 4096, 8192, 14336),
}
_GROUPS: Axes = {"groups": (8, 64), "M": (128, 1024, 4096), "N": (2048, 8192), "K": (2048, 8192)}
_SEQUENCES = (512, 2048, 8192, 32768)
_ATTENTION: Axes = {"batch": (1, 4), "heads": (8, 32), "seq": _SEQUENCES, "head_dim": (64, 128), "causal": (0, 1)}
_GROUPED: Axes = {
    "batch": (1, 4), "heads": (32,), "kv_heads": (1, 8), "seq": _SEQUENCES, "head_dim": (64, 128), "causal": (1,)
}  # fmt: skip
_DECODE: Axes = {
    "batch": (1, 8, 32, 128), "heads": (32,), "kv_heads": (8, 32), "kv_seq": (1024, 4096, 16384), "head_dim": (128,)
}  # fmt: skip
_HIDDEN: Axes = {"tokens": _TOKENS, "hidden": (1024, 2048, 4096, 8192)}
_VOCAB: Axes = {"tokens": (16, 1024, 4096, 8192), "vocab": (8000, 32000, 128256)}
_ROUTED: Axes = {"tokens": _TOKENS, "hidden": (2048, 4096, 8192), "topk": (2, 8)}
_CHOSEN: Axes = {"tokens": (256, 1024, 4096, 16384), "experts": (8, 64, 256), "topk": (2, 8)}
_BAGS: Axes = {"batch": (512, 2048, 8192), "tables": (4, 16, 64), "dim": (64, 128, 256), "pooling": (1, 20, 70)}
_FEATURES: Axes = {"batch": (512, 2048, 8192), "features": (9, 33, 65, 129), "dim": (64, 128)}

GRIDS: Mapping[str, Axes] = {
    "gemm": _GEMM,
    "gemm_fp8": _GEMM,
    "gemm_fp8_rowwise": _GEMM,
    "batched_gemm": _GROUPS,
    "grouped_gemm": _GROUPS,
    "grouped_gemm_fp8": _GROUPS,
    "gemv": {"M": (4096, 16384, 65536), "N": (4096, 8192, 16384)},
    "attention_fwd": _ATTENTION,
    "attention_bwd": _ATTENTION,
    "attention_gqa_fwd": _GROUPED,
    "attention_gqa_bwd": _GROUPED,
    "attention_fa2_fwd": _GROUPED,
    "attention_fa2_bwd": _GROUPED,
    "attention_decode": _DECODE,
    "cross_entropy_fwd": _VOCAB,
    "cross_entropy_bwd": _VOCAB,
    "cross_entropy_fused_fwd": {"tokens": (1024, 4096), "vocab": (32000, 128256)},
    "cross_entropy_fused_bwd": {"tokens": (1024, 4096), "vocab": (32000, 128256)},
    "rope_fwd": {"tokens": (1024, 8192), "hidden": (1024, 4096, 8192)},
    "rope_bwd_fused": {"tokens": (1024, 8192), "hidden": (1024, 4096, 8192)},
    "softmax_fwd": {"tokens": _TOKENS, "keys": (512, 2048, 8192)},
    "softmax_bwd": {"tokens": _TOKENS, "keys": (512, 2048, 8192)},
    "embedding_bwd": {"tokens": (1024, 4096, 16384), "hidden": (1024, 4096, 8192), "vocab": (32000, 128256)},
    "cache_write": {"tokens": (1, 8, 64, 256), "hidden": (128, 1024, 4096, 16384)},
    "moe_repeat_topk": _ROUTED,
    "moe_sum_topk": _ROUTED,
    "moe_top_k": {"tokens": _TOKENS, "experts": (8, 64, 256), "topk": (2, 8)},
    "moe_top_k_bwd": {"tokens": _TOKENS, "experts": (8, 64, 256), "topk": (2, 8)},
    "moe_sort": {"tokens": (256, 2048, 16384, 131072)},
    "moe_weigh_fwd": _ROUTED,
    "moe_weigh_bwd": _ROUTED,
    **{f"moe_{what}_rows_{way}": _ROUTED for what in ("select", "add", "scale") for way in ("fwd", "bwd")},
    **dict.fromkeys(("moe_rows_by_mask", "moe_probs_by_mask"), _CHOSEN),
    **dict.fromkeys(("moe_capacity_top_k_fwd", "moe_capacity_top_k_bwd"), _CHOSEN),
    "heads_repeat": {"tokens": (1024, 4096, 16384), "heads": (2, 8), "head_dim": (64, 128), "times": (4, 8)},
    "heads_sum": {"tokens": (1024, 4096, 16384), "heads": (2, 8), "head_dim": (64, 128), "times": (4, 8)},
    "heads_cat": {"batch": (1, 4), "heads": (24, 96), "seq": (1024, 4096), "head_dim": (64, 128)},
    "heads_to_rows": {"batch": (1, 4), "heads": (24, 96), "seq": (1024, 4096), "head_dim": (64, 128)},
    "adamw_fused": {"parameters": (10**3, 10**5, 10**6, 10**7, 10**8, 10**9)},
    "adamw_unfused": {"parameters": (10**3, 10**5, 10**6, 10**7, 10**8)},
    "sgd": {"parameters": (10**3, 10**5, 10**6, 10**7, 10**8, 10**9)},
    "embedding_bag_fwd": {**_BAGS, "rows": (100_000,)},
    "embedding_bag_bwd_sparse": _BAGS,
    "embedding_bag_bwd_dense": {**_BAGS, "rows": (200_000,)},
    "embedding_sgd_sparse": _BAGS,
    "permute_for_all_to_all": {"batch": (128, 512, 2048), "tables": (16, 64, 256), "dim": (64, 128, 256)},
    "interaction_gather_fwd": {"batch": (512, 2048, 8192), "features": (9, 33, 65, 129)},
    "interaction_gather_bwd": {"batch": (512, 2048, 8192), "features": (9, 33, 65, 129)},
    "swiglu_fwd": {"elements": _ELEMENTS[2::2]},
    "swiglu_bwd_fused": {"elements": _ELEMENTS[2::2]},
}  # fmt: skip
"""Sizes of the operations with a grid of their own; other grids follow from the parameters."""

_BY_PARAMETERS: Mapping[tuple[str, ...], Axes] = {
    ("tokens", "hidden"): _HIDDEN,
    ("elements",): {"elements": _ELEMENTS},
    ("batch", "features", "dim"): _FEATURES,
}
_CONVOLVED = ("conv2d_fwd", "conv2d_bwd_data", "conv2d_bwd_weight")
_BESIDE_CONVOLUTIONS = ("batch_norm_fwd", "batch_norm_bwd", "pool_fwd", "pool_bwd", "relu_fwd", "relu_bwd", "add")
_RECOMMENDATION = ("interaction_", "embedding_bag", "embedding_sgd", "permute_")
_DTYPES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("bf16", "fp16", "fp32", "tf32"),
    "gemm_fp8": ("fp8_e4m3",),
    "gemm_fp8_rowwise": ("fp8_e4m3",),
    "grouped_gemm_fp8": ("fp8_e4m3",),
    "adamw_unfused": ("fp32",),
    "adamw_fused": ("fp32", "bf16"),
    "accumulate_fp32": ("fp32",),
    "copy_d2d": ("u8",),
    "sgd": ("fp32",),
    **dict.fromkeys(_CONVOLVED, ("bf16", "fp16", "fp32", "tf32")),
    **dict.fromkeys(_BESIDE_CONVOLUTIONS, ("bf16", "fp16", "fp32")),
    **{op: ("fp32",) for op in OPERATIONS if op.startswith(_RECOMMENDATION)},
}
_USUAL = ("bf16",)
_BATCHES = (1, 8, 32, 128, 256)
_MOST_BYTES = 40e9
"""Limit of the data of one call; its buffers and a backward take several times as much."""


def grid(*, quick: bool = False) -> Iterator[Row]:
    """Return the kernels of all operations; `quick` takes the ends and the middle of each range, and one dtype."""
    for op in (op for op in OPERATIONS if op not in NOT_MEASURED):
        dtypes = _DTYPES.get(op, _USUAL)
        for dtype in dtypes[:1] if quick else dtypes:
            for shape in _shapes(op, quick=quick):
                call = kernel(op, dtype=dtype, **shape)
                if call.op == op and call.bytes <= _MOST_BYTES:
                    yield _row(call)


def _shapes(op: str, *, quick: bool) -> Iterator[dict[str, int]]:
    operation = OPERATIONS[op]
    if operation.family is Family.CONVOLUTION:
        for batch in _thin(_BATCHES) if quick else _BATCHES:
            for layer in CONVOLUTIONS[::9] if quick else CONVOLUTIONS:
                yield {"batch": batch, **layer}
        return
    axes = GRIDS.get(op) or _BY_PARAMETERS[operation.parameters]
    ranges = [_thin(values) if quick else values for values in axes.values()]
    combined = list(itertools.product(*ranges))
    for values in combined[:: max(1, len(combined) // 6)] if quick else combined:
        yield dict(zip(axes, values, strict=True))


def _thin(values: Sequence[int]) -> Sequence[int]:
    return values if len(values) < 3 else (values[0], values[len(values) // 2], values[-1])


def of_workload(name_or_file: str, changes: Mapping[str, Any]) -> list[Row]:
    """Return the kernels that a workload runs, each once; or raise `ConfigError` if it cannot be read."""
    program = generate(load_workload(name_or_file, dict(changes)))
    kernels = dict.fromkeys(by_rows(call) for graph in program.graphs for call in graph.kernels if call.op != CUSTOM)
    return [_row(call) for call in kernels]


def _row(call: Kernel) -> Row:
    method = "kernel_durations" if call.op in UNCAPTURED else "graph_replay"
    return {"op": call.op, "dtype": call.dtype, "shape": dict(call.shape), "method": method}


def checked(row: Row) -> Row:
    """Return a row of a kernel with its method of timing; raise `ConfigError` or `GraphError` if it is no kernel."""
    if not {"op", "dtype", "shape"} <= row.keys() or not isinstance(row["shape"], Mapping):
        raise ConfigError(f"a kernel to measure needs the keys op, dtype and shape, not {', '.join(row) or 'none'}")
    for key in ("op", "dtype"):
        if not isinstance(row[key], str) or key in row["shape"]:
            raise ConfigError(f"a kernel to measure has {key} {shown(row[key])}; give a name, outside its shape")
    for name, size in row["shape"].items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise ConfigError(f"{row['op']}: size {name!r} is {shown(size)}; give a whole number")
    made = _row(kernel(row["op"], dtype=row["dtype"], **row["shape"]))
    method = row.get("method", made["method"])
    if method not in ("graph_replay", "kernel_durations"):
        raise ConfigError(f"{row['op']}: unknown method {shown(method)}; use graph_replay or kernel_durations")
    return {**made, "method": method}
