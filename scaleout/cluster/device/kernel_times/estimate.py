"""The analytical estimate of the time of calls: what their operation does on a device's SMs, caches and memory.

It has the steps of a time (launches, fit into the L2 cache, tiles and their waves, roofline), so that measured time
over estimate is smooth in the sizes. It must be right in shape, not in level: its constants are few round numbers,
chosen once on an H200. Knows no measurement. See docs/models/kernel-times.md.

Symbols: N calls; M, N, K sizes of a GEMM; a tile is the block of the result that one SM works on.
Source: tiles and the 64-deep step along K as in the names of cuBLAS's Hopper kernels; waves as in Nvidia's Matrix
Multiplication Background User's Guide.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.kernel_times.model import Array, Calls
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Family


def on_matrix_units(calls: Calls) -> bool:
    """Whether calls are GEMMs of two-byte operands, which run on matrix units."""
    return calls.op in ("gemm", "batched_gemm", "grouped_gemm") and ITEM_BYTES[calls.dtype] == 2


def roofline(calls: Calls, device: Device) -> Array:
    """Return the time at peak rates, ``max(FLOPs / peak, bytes / bandwidth)``, shape (N,)."""
    bound = calls.bytes / device.memory_bytes_per_s
    return np.maximum(bound, calls.flops / device.peak(calls.dtype)) if np.any(calls.flops > 0) else bound


_LAUNCH_S = 1.0e-6
"""Time of a device kernel that does next to nothing: launch, a round trip to memory, drain."""
STREAM_SHARE = 0.88
"""Share of the peak bandwidth that a long stream reaches."""
_L2_SPEED = 1.7
"""Bandwidth of the L2 cache over that of the memory."""
_L2_SHARE = 0.85
"""Bytes that a kernel may move, over the size of the L2 cache, before they push each other out."""
_ARITHMETIC = frozenset({"gelu_fwd", "gelu_bwd", "silu_fwd", "silu_bwd"})
_GAIN_FROM_L2 = {op for op, operation in OPERATIONS.items() if operation.family is Family.ELEMENTWISE} | {
    "embedding_fwd",
    "moe_permute_rows",
    "rms_norm_bwd",
}
"""Operations that are as fast as their data arrive."""


def waits_for_arithmetic(op: str, dtype: str) -> bool:
    """Whether an element-wise operation waits for its own arithmetic, such as conversions of two-byte types."""
    return op == "dropout_fwd" or (op in _ARITHMETIC and ITEM_BYTES[dtype] < 4)


def _move_s(calls: Calls, device: Device) -> Array:
    """Time to move the bytes: those that lie in the L2 cache from there, the others from memory."""
    memory_s = calls.bytes / (STREAM_SHARE * device.memory_bytes_per_s)
    if calls.op not in _GAIN_FROM_L2 or waits_for_arithmetic(calls.op, calls.dtype):
        return np.asarray(memory_s)
    hits = calls.warm / (1.0 + (calls.bytes / (_L2_SHARE * device.l2_bytes)) ** 10)
    return np.asarray(memory_s * (1.0 - hits * (1.0 - STREAM_SHARE / _L2_SPEED)))


def work_bound(calls: Calls, device: Device) -> Array:
    """Return the time of the FLOPs at the rate that a long stream reaches."""
    if not np.any(calls.flops > 0):
        return np.zeros(len(calls.bytes))
    return np.asarray(calls.flops / (STREAM_SHARE * device.peak(calls.dtype)))


def stream_bound(calls: Calls, device: Device) -> Array:
    """Return the time of bytes or FLOPs, whichever takes longer, at the rates of a long stream."""
    return np.maximum(_move_s(calls, device), work_bound(calls, device))


def _stream(calls: Calls, device: Device) -> Array:
    """Estimate the launches, then the roofline at the rates of a long stream."""
    return np.asarray(_LAUNCH_S * calls.launches + stream_bound(calls, device))


_ENTRY_S = {"embedding_bag_bwd_sparse": 0.6e-9, "interaction_gather_bwd": 0.24e-9}


def _scatter(calls: Calls, device: Device) -> Array:
    """Estimate the stream or the indices, whichever takes longer: a scatter sorts its indices, at any width of rows."""
    s = calls.sizes
    if "pooling" in s:
        entries = s["batch"] * s["tables"] * s["pooling"]
    else:
        entries = s["batch"] * s["features"] * (s["features"] - 1) / 2
    indexed_s = _LAUNCH_S * calls.launches + entries * _ENTRY_S[calls.op]
    return np.asarray(np.maximum(_stream(calls, device), indexed_s))


_CHUNK = 65536


def _optimiser(calls: Calls, device: Device) -> Array:
    """Estimate the stream, but no less than one SM needs for its chunk of parameters at its share of the bandwidth."""
    chunk_bytes = calls.bytes * np.minimum(1.0, _CHUNK / calls.sizes["parameters"])
    one_sm_s = chunk_bytes * device.num_sms / device.memory_bytes_per_s
    return np.asarray(_LAUNCH_S + np.maximum(_move_s(calls, device), one_sm_s))


class _Units(NamedTuple):
    """How the kernels of one kind of arithmetic unit tile a GEMM."""

    launch_s: float  # launch, first loads and the last write
    fill_s: float  # more for each wave of tiles
    load_bytes_per_s: float  # rate at which an SM gets the operands of its tile
    split_s: float  # extra latency of a sum over splits of K
    partial: float  # traffic of that sum, in 4-byte results a split, that is not overlapped


_MATRIX_UNITS = _Units(3.0e-6, 0.1e-6, 215e9, 3.0e-6, 0.5)
_VECTOR_UNITS = _Units(1.0e-6, 2.0e-6, 30e9, 1.0e-6, 0.25)
_TILES = (
    (256, 128), (128, 256), (192, 128), (128, 192), (128, 128), (64, 256), (256, 64), (128, 64), (64, 128), (64, 64),
)  # fmt: skip
_SMALL_TILES = ((64, 32), (32, 64), (32, 32))
_SPLITS = (1, 2, 4, 8, 16)
_STEP = 64
_STEP_S = 75e-9
"""Shortest time of one step along K: what the pipeline of loads cannot hide."""
_TENSOR_SHARE = 0.95
"""Share of an SM's peak that a step sustains."""
_LAST_WAVE = 0.1
"""How much of an unfilled last wave is lost; schedulers of persistent kernels fill most of it."""


def _units_of(calls: Calls) -> _Units:
    return _VECTOR_UNITS if calls.dtype in ("fp32", "fp64") else _MATRIX_UNITS


def _step_s(tile_rows: Array, tile_cols: Array, calls: Calls, device: Device) -> Array:
    """Return the time of a step along K of tiles: the smooth maximum of arithmetic, loads and the latency."""
    item_bytes = {"fp32": 4, "tf32": 4, "fp64": 8, "bf16": 2, "fp16": 2}.get(calls.dtype, 1)
    sm_flops_per_s = _TENSOR_SHARE * device.peak(calls.dtype) / device.num_sms
    work_s = 2 * tile_rows * tile_cols * _STEP / sm_flops_per_s
    load_s = (tile_rows + tile_cols) * _STEP * item_bytes / _units_of(calls).load_bytes_per_s
    return np.asarray(np.sqrt(np.sqrt((work_s**2) ** 2 + (load_s**2) ** 2 + _STEP_S**4)))


def _tiling(rows: Array, cols: Array, depth: Array, calls: Calls, device: Device) -> tuple[Array, Array]:
    """Return the time of the best tiling of a (rows, depth) by (depth, cols) GEMM, and its thread blocks, shape (N,).

    ``waves (fill + steps * step)``, with ``waves = tiles * splits / SMs``, rounded up in part. Tiles of groups run
    together, and none is split.
    """
    units = _units_of(calls)
    tilings = _TILES + _SMALL_TILES if units is _VECTOR_UNITS else _TILES
    ways = (1,) if "groups" in calls.sizes else _SPLITS
    tile_rows, tile_cols, splits = np.array([(*tile, by) for tile in tilings for by in ways]).T[:, :, None]  # (T, 1)
    step_s = _step_s(tile_rows, tile_cols, calls, device)
    groups = calls.sizes.get("groups", 1)
    blocks = groups * np.ceil(rows / tile_rows) * np.ceil(cols / tile_cols) * splits  # (T, N)
    share = blocks / device.num_sms
    waves = np.maximum(1.0, share + _LAST_WAVE * (np.ceil(share) - share))
    partial_bytes = units.partial * (splits + 1) * rows * cols * 4
    sum_s = np.where(splits > 1, units.split_s + partial_bytes / device.memory_bytes_per_s, 0.0)
    seconds = waves * (units.fill_s + np.ceil(depth / splits / _STEP) * step_s) + sum_s
    best = seconds.argmin(axis=0), np.arange(len(rows))
    return seconds[best], blocks[best]


def _tiled(
    rows: Array, cols: Array, depth: Array, calls: Calls, device: Device, *, left: Device | None = None
) -> Array:
    """Return the time of a GEMM by its best tiling, with its launch, but no less than its bytes take.

    Where only part of a device is left, the tiling stays, and waves are ``tiles * splits / SMs + 1``: late blocks last.
    """
    best, blocks = _tiling(rows, cols, depth, calls, device)
    if left is not None:
        best *= np.where(blocks > left.num_sms, (blocks / left.num_sms + 1) / np.ceil(blocks / device.num_sms), 1.0)
    return np.asarray(_units_of(calls).launch_s + np.maximum(best, _move_s(calls, left or device)))


def _gemm(calls: Calls, device: Device, left: Device | None = None) -> Array:
    """Estimate a GEMM by its best tiling over the SMs, of which only part may be left."""
    return _tiled(calls.sizes["M"], calls.sizes["N"], calls.sizes["K"], calls, device, left=left)


_GROUPED_TILES = (64, 128), (128, 256)
"""Tiles of CUTLASS's kernel of groups, as PyTorch has it: the small ones for up to 128 rows a group, or columns."""
_GROUPED_LAUNCH_S = 7.0e-6
"""Launch of that kernel, of the one before it that writes each group's sizes and pointers, and what they wait."""
_GROUPED_FILL_S = 2.0e-6
"""More for each of its tiles: a group's descriptors of memory, first loads, and a result that nothing hides.

Both as the grouped calls on H200 have it (traces/h200/gap-kernels.jsonl), not measured on other devices.
"""


def _grouped(calls: Calls, device: Device) -> Array:
    """Estimate whole waves of one tile over all groups: an SM has every 132nd, whichever group it is of."""
    rows, cols, depth, groups = (calls.sizes[name] for name in ("M", "N", "K", "groups"))
    small = (rows <= 128) | (cols <= 128)
    tile_rows, tile_cols = (np.where(small, *sides) for sides in zip(*_GROUPED_TILES, strict=True))
    blocks = groups * np.ceil(rows / tile_rows) * np.ceil(cols / tile_cols)
    waves = np.ceil(blocks / device.num_sms)
    tiles_s = waves * np.ceil(depth / _STEP) * _step_s(tile_rows, tile_cols, calls, device)
    return np.asarray(_GROUPED_LAUNCH_S + waves * _GROUPED_FILL_S + np.maximum(tiles_s, _move_s(calls, device)))


_CHANNELS_BYTES = 128
"""Channels that a step of a convolution on matrix units reads of one pixel; fewer are padded to as many."""
_PADDING_SHARE = 0.4
"""Share of the bandwidth that cuDNN's copies reach which add channels to whole loads, or drop them.

As convolutions of random channels on H200 have it (traces/h200/gap-kernels.jsonl).
"""


def is_plain_product(calls: Calls) -> npt.NDArray[np.bool_]:
    """Whether each convolution is a GEMM of pixels by channels, which cuDNN leaves to cuBLAS, shape (N,)."""
    return np.asarray((calls.sizes["kernel"] == 1) & (calls.sizes["stride"] == 1))


def _convolution(calls: Calls, device: Device) -> Array:
    """Estimate a convolution as a GEMM: pixels by channels, summed over the window; and copies that pad channels."""
    s = calls.sizes
    pixels, sums = s["batch"] * s["hw"] ** 2, s["batch"] * np.ceil(s["hw"] / s["stride"]) ** 2
    window = s["kernel"] ** 2
    c_in, c_out, copied_s = s["c_in"], s["c_out"], np.zeros(len(pixels))
    if _units_of(calls) is _MATRIX_UNITS:
        item_bytes, plain = ITEM_BYTES[calls.dtype], is_plain_product(calls)
        width, load = _CHANNELS_BYTES / item_bytes, 16 / item_bytes
        c_in, c_out = (np.where(plain, each, width * np.ceil(each / width)) for each in (c_in, c_out))
        odd = pixels * s["c_in"] * (s["c_in"] % load != 0) + sums * s["c_out"] * (s["c_out"] % load != 0)
        copied_s = np.where(plain, 0.0, 2 * item_bytes * odd / (_PADDING_SHARE * device.memory_bytes_per_s))
    if calls.op == "conv2d_bwd_data":
        made_s = _tiled(pixels, s["c_in"], c_out * window / s["stride"] ** 2, calls, device)
    elif calls.op == "conv2d_bwd_weight":
        made_s = _tiled(c_in * window, s["c_out"], sums, calls, device)
    else:
        made_s = _tiled(sums, s["c_out"], c_in * window, calls, device)
    return np.asarray(made_s + copied_s)


_BLOCK = 128
"""Rows of queries, or of keys in the backward, that one thread block works on."""
_HEAD_STEP = 64
"""Heads are padded to a multiple of this."""
_ATTENTION_SHARE = 0.65
"""Share of an SM's peak that the two chained GEMMs sustain."""


def padded_head(head_dim: Array) -> Array:
    """Return the width of a head to which attention kernels pad it."""
    return np.asarray(np.ceil(head_dim / _HEAD_STEP) * _HEAD_STEP)


def _blocks_s(calls: Calls, device: Device, flops: Array, share: float) -> Array:
    """Return the time of an even share of the blocks for each SM, and the tail of the longest block.

    To start, to mask and to write takes a block as long as one more block of keys.
    """
    s = calls.sizes
    sm_flops_per_s = share * device.peak(calls.dtype) / device.num_sms
    blocks = s["batch"] * s["heads"] * np.ceil(s["seq"] / _BLOCK)
    block_s = flops / blocks * (1 + _BLOCK * (1 + s["causal"]) / s["seq"]) / sm_flops_per_s
    longest_s = block_s * (1 + s["causal"])
    even_s = block_s * blocks / device.num_sms
    return np.asarray(even_s + np.maximum(0.5 * longest_s, longest_s - even_s))


def _attention(calls: Calls, device: Device) -> Array:
    """Estimate the blocks, and the backward's conversions."""
    flops = calls.flops * padded_head(calls.sizes["head_dim"]) / calls.sizes["head_dim"]
    prepare_s = _move_s(calls, device) if calls.op.endswith("bwd") else 0.0
    return np.asarray(_LAUNCH_S * (1 + calls.launches) + _blocks_s(calls, device, flops, _ATTENTION_SHARE) + prepare_s)


_FLASH2_SHARE = 0.35
"""Share of an SM's peak that FlashAttention 2 sustains, with instructions of Ampere."""
_FLASH2_STEP = 32
"""Its heads are padded to a multiple of this, its queries and keys to whole blocks."""
_FLASH2_LAUNCHES = 7
"""Device kernels of its backward; six more repeat keys and values of grouped heads and add up their gradients."""
_FLASH2_BYTES = 12, 16
"""Bytes for each element of the queries: their gradient in fp32, cleared, added up, cast; keys and values repeated."""


def _flash2(calls: Calls, device: Device) -> Array:
    """Estimate the blocks of FlashAttention 2 as PyTorch carries it, and what its backward moves beside them."""
    s = calls.sizes
    head_dim = np.ceil(s["head_dim"] / _FLASH2_STEP) * _FLASH2_STEP
    seq = np.ceil(s["seq"] / _BLOCK) * _BLOCK
    flops = calls.flops * head_dim / s["head_dim"] * (seq / s["seq"]) ** 2
    launches, prepare_s = np.full(len(flops), 1 + calls.launches), np.zeros(len(flops))
    if calls.op.endswith("bwd"):
        grouped = s["heads"] > s["kv_heads"]
        launches += _FLASH2_LAUNCHES - 1 + 6 * grouped
        moved = (_FLASH2_BYTES[0] + _FLASH2_BYTES[1] * grouped) * s["batch"] * s["heads"] * s["seq"] * s["head_dim"]
        prepare_s = _move_s(calls, device) + moved / (STREAM_SHARE * device.memory_bytes_per_s)
    return np.asarray(_LAUNCH_S * launches + _blocks_s(calls, device, flops, _FLASH2_SHARE) + prepare_s)


_KEYS = 128
"""Keys of a step of attention to a cache."""
_KEYS_S = 1.0e-6, 4.5e-6
"""Time of such a step of a thread block, for heads of up to `_WIDE_HEAD` and for wider ones, which spill."""
_START_S = 3.0e-6
"""Time in which such a block gets its query and writes its result."""
_WIDE_HEAD = 128
_SPLIT_KEYS = 512
"""Keys from which on they are split among blocks where SMs idle: by the greatest power of two that has room."""


def decode_head(head_dim: Array) -> Array:
    """Return the width to which attention to a cache pads a head: 64, 128 or 256."""
    return np.asarray(_HEAD_STEP * 2.0 ** np.ceil(np.log2(np.maximum(1.0, head_dim / _HEAD_STEP))))


def _decode(calls: Calls, device: Device) -> Array:
    """Estimate waves of blocks, one for each sample and head of keys: memory limits full ones, steps also the last.

    Heads are padded to 64, 128 or 256; an SM has room for two blocks of 128.
    """
    s = calls.sizes
    blocks, steps = s["batch"] * s["kv_heads"], s["kv_seq"] / _KEYS
    room = np.minimum(device.num_sms / blocks, steps)
    splits = np.where(s["kv_seq"] >= _SPLIT_KEYS, 2.0 ** np.floor(np.log2(np.maximum(1.0, room))), 1.0)
    width = decode_head(s["head_dim"])
    at_once = device.num_sms * np.maximum(1.0, 2 * _WIDE_HEAD / width)
    last = blocks * splits % at_once
    block_s = steps / splits * np.where(width > _WIDE_HEAD, *_KEYS_S[::-1])
    moved_s = calls.bytes / (blocks * splits) / (STREAM_SHARE * device.memory_bytes_per_s)
    full_s = (blocks * splits - last) / at_once * (_START_S + np.maximum(block_s, at_once * moved_s))
    last_s = np.where(last > 0, _START_S + np.maximum(block_s, last * moved_s), 0.0)
    return np.asarray(_LAUNCH_S * (calls.launches + 2 * (splits > 1)) + full_s + last_s)


_ESTIMATES: Mapping[str, Callable[[Calls, Device], Array]] = {
    **dict.fromkeys(("gemm", "gemm_fp8", "gemm_fp8_rowwise", "batched_gemm"), _gemm),
    "grouped_gemm": _grouped,
    **dict.fromkeys(("conv2d_fwd", "conv2d_bwd_data", "conv2d_bwd_weight"), _convolution),
    **dict.fromkeys(("attention_fwd", "attention_bwd", "attention_gqa_fwd", "attention_gqa_bwd"), _attention),
    **dict.fromkeys(("attention_fa2_fwd", "attention_fa2_bwd"), _flash2),
    "attention_decode": _decode,
    **dict.fromkeys(("interaction_gather_bwd", "embedding_bag_bwd_sparse"), _scatter),
    "adamw_fused": _optimiser,
}
"""Operation to its estimate; all others are streams."""


def is_in_blocks(op: str) -> bool:
    """Whether an operation is estimated as thread blocks over the SMs."""
    return _ESTIMATES.get(op) in (_gemm, _grouped, _convolution, _attention, _flash2)


def is_tiled_gemm(op: str) -> bool:
    """Whether an operation is estimated as a GEMM in tiles."""
    return _ESTIMATES.get(op) is _gemm


def estimate(calls: Calls, device: Device) -> Array:
    """Return the estimated seconds of calls isolated on a device, shape (N,)."""
    return _ESTIMATES.get(calls.op, _stream)(calls, device)


def contended_estimate(calls: Calls, device: Device, left: Device) -> Array:
    """Return the estimated seconds of calls where concurrent work leaves only part of a device, shape (N,)."""
    return _gemm(calls, device, left) if is_tiled_gemm(calls.op) else estimate(calls, left)


def thread_blocks(calls: Calls, device: Device) -> Array | None:
    """Return the thread blocks of GEMMs, one for each tile of each split, shape (N,); None for other operations."""
    if not is_tiled_gemm(calls.op):
        return None
    return _tiling(calls.sizes["M"], calls.sizes["N"], calls.sizes["K"], calls, device)[1]


def aligned(calls: Calls) -> Calls:
    """Return calls with the rows of GEMMs on matrix units as wide as whole loads."""
    if not on_matrix_units(calls):
        return calls
    width = 16 // ITEM_BYTES[calls.dtype]
    wide = {name: width * np.ceil(calls.sizes[name] / width) for name in "NK"}
    return calls._replace(sizes={**calls.sizes, **wide})


_ROW_OF_A_WARP = {"softmax_fwd": 2048, "softmax_bwd": 1024, "cross_entropy_fwd": 2048, "cross_entropy_bwd": 1024}
"""Elements of a row that PyTorch gives to one warp at most: 16 rows of 2,048 take 8 us, of 2,158 or 8,192 3 to 4."""
_ROW_IN_REGISTERS, _ROW_IN_SHARED_BYTES = 9216, 48 * 1024
"""Elements of a longer row that its block keeps in registers in the forward, and bytes that fit its shared memory.

PyTorch's kernels as their times change on H200 (traces/h200/gap-kernels.jsonl); 48 KiB a block has by default in CUDA.
"""
NUM_CLASSES = 4
UNALIGNED = 1
"""The class of calls whose rows are no multiple of the width of a load."""
_ROWS = ("hidden", "vocab", "keys")
"""Names of the length of a row, in operations that work row by row."""
_FEW_ROWS = 16
"""Rows of a table that PyTorch looks up at most by a kernel of its own: 16 take 5 us, 17 take 1.5."""


def kernel_classes(calls: Calls) -> npt.NDArray[np.int64]:
    """Return which class of kernel the library picks for each call, shape (N,).

    0 usual, 1 unaligned, 2 special shape, 3 GEMMs of two-byte operands whose rows have an odd number of elements,
    convolutions of unaligned channels that are GEMMs, and rows of a softmax in registers.
    Unaligned are rows or heads of no multiple of 16 bytes (a load), in embedding tables of 128 bytes (a cache line);
    a row that no shared memory holds is read as often as an unaligned one.
    """
    sizes, item_bytes = calls.sizes, ITEM_BYTES[calls.dtype]
    aligned = 16 // item_bytes
    other = odd = np.zeros(len(calls.bytes), dtype=bool)
    if "c_in" in sizes:
        unaligned = (sizes["c_in"] % aligned != 0) | (sizes["c_out"] % aligned != 0)
        unaligned = unaligned & (calls.dtype not in ("fp32", "fp64"))
        odd = unaligned & is_plain_product(calls)
    elif "pooling" in sizes:
        unaligned = sizes["dim"] * item_bytes % 128 != 0
    elif "head_dim" in sizes:
        unaligned = sizes["head_dim"] % aligned != 0
        other = (sizes["head_dim"] > 128) & calls.op.endswith("bwd")
    elif "K" in sizes:
        rows, cols, depth = (sizes[name] for name in "MNK")
        unaligned = (cols % aligned != 0) | (depth % aligned != 0)
        odd = ((cols % 2 != 0) | (depth % 2 != 0)) & (item_bytes == 2)
        other = (np.minimum(cols, depth) == 1) | ((rows == 1) & (aligned == 4))
    elif calls.op == "gemv":
        unaligned = sizes["N"] % aligned != 0
    else:
        row = next((name for name in _ROWS if name in sizes and not calls.op.startswith("embedding")), None)
        unaligned = other if row is None else sizes[row] % aligned != 0
        other = other | ((calls.op == "embedding_fwd") & (sizes.get("tokens", np.inf) <= _FEW_ROWS))
        if row is not None:
            other = other | (sizes[row] <= _ROW_OF_A_WARP.get(calls.op, 0))
        if calls.op in _ROW_OF_A_WARP and row is not None:
            unaligned = unaligned | (sizes[row] * item_bytes >= _ROW_IN_SHARED_BYTES)
            odd = (sizes[row] <= _ROW_IN_REGISTERS) & calls.op.endswith("fwd")
    return np.where(other, 2, np.where(odd, 3, unaligned.astype(np.int64)))
