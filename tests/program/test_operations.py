"""Operations: counts that agree with the measured rows, and refusals by message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.errors import ConfigError, GraphError
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, custom, kernel

sizes = st.integers(1, 2**14)


# One row of each operation whose counts the measurements publish: (op, dtype, shape, FLOPs, bytes).
PUBLISHED = [
    ("gemm", "bf16", {"M": 1, "N": 512, "K": 512}, 524288, 526336),
    ("gemv", "bf16", {"M": 32768, "N": 8192}, 536870912, 536952832),
    ("gemm_fp8", "fp8_e4m3", {"M": 16, "N": 8192, "K": 8192}, 2147483648, None),
    (
        "attention_fwd",
        "bf16",
        {"batch": 1, "heads": 32, "seq": 2048, "head_dim": 128, "causal": True},
        34359738368,
        67108864,
    ),
    (
        "attention_bwd",
        "bf16",
        {"batch": 1, "heads": 32, "seq": 2048, "head_dim": 128, "causal": True},
        85899345920,
        134217728,
    ),
    ("layer_norm_fwd", "bf16", {"tokens": 1024, "hidden": 4096}, 0, 16777216),
    ("layer_norm_bwd", "bf16", {"tokens": 1024, "hidden": 1024}, 0, 6291456),
    ("rms_norm_fwd", "bf16", {"tokens": 1024, "hidden": 8192}, 0, 33554432),
    ("add", "bf16", {"elements": 8388608}, 0, 50331648),
    ("gelu_fwd", "bf16", {"elements": 12582912}, 0, 50331648),
    ("adamw_fused", "fp32", {"parameters": 1000000}, 0, 28000000),
    ("copy_d2d", "u8", {"elements": 1048576}, 0, 2097152),
    (
        "conv2d_fwd",
        "bf16",
        {"batch": 8, "c_in": 3, "c_out": 64, "kernel": 7, "stride": 2, "hw": 224},
        1888223232,
        15253504,
    ),
    (
        "conv2d_bwd_data",
        "bf16",
        {"batch": 8, "c_in": 64, "c_out": 64, "kernel": 1, "stride": 1, "hw": 56},
        205520896,
        6422528,
    ),
]


@pytest.mark.parametrize(("op", "dtype", "shape", "flops", "size_bytes"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_counts_agree_with_the_published_ones(op, dtype, shape, flops, size_bytes):
    found = kernel(op, dtype=dtype, **shape)
    assert found.flops == flops
    assert size_bytes is None or found.bytes == size_bytes


def test_embedding_bag_reads_rows_and_indices_and_writes_one_row_a_bag():
    found = kernel("embedding_bag_fwd", dtype="fp32", batch=2, tables=3, dim=4, pooling=5, rows=100)
    assert found.bytes == 2 * 3 * (5 * 4 * 4 + 5 * 8 + 4 * 4)


def test_full_attention_does_twice_the_flops_of_causal():
    shape = {"batch": 2, "heads": 8, "seq": 512, "head_dim": 64}
    causal, full = (kernel("attention_fwd", dtype="bf16", causal=flag, **shape) for flag in (True, False))
    assert full.flops == 2 * causal.flops
    assert full.bytes == causal.bytes


def test_grouped_heads_shrink_the_cache_that_decoding_reads():
    shape = {"batch": 8, "heads": 32, "kv_seq": 4096, "head_dim": 128}
    every, grouped = (
        kernel("attention_decode", dtype="bf16", **shape),
        kernel("attention_decode", dtype="bf16", kv_heads=8, **shape),
    )
    assert dict(every.shape)["kv_heads"] == 32
    assert every.flops == grouped.flops
    assert 3.9 < every.bytes / grouped.bytes < 4.0


def test_gemm_of_an_fp8_dtype_gives_bf16():
    found = kernel("gemm", dtype="fp8_e4m3", M=16, N=32, K=64)
    assert found.op == "gemm_fp8"
    assert found.bytes == 16 * 64 + 64 * 32 + 16 * 32 * 2


@given(st.sampled_from(sorted(OPERATIONS)), st.sampled_from(sorted(ITEM_BYTES)), st.data())
def test_every_operation_moves_bytes_and_keeps_its_order_of_sizes(op, dtype, data):
    shape = {name: data.draw(sizes) for name in reversed(OPERATIONS[op].parameters)}
    if "features" in shape:
        shape["features"] += 1  # pairs need two
    found = kernel(op, dtype=dtype, **shape)
    assert found.bytes > 0
    assert found.flops >= 0
    assert tuple(name for name, _ in found.shape) == OPERATIONS[found.op].parameters
    assert found == kernel(op, dtype=dtype, **shape)
    assert hash(found) == hash(kernel(op, dtype=dtype, **shape))


def test_every_operation_named_by_another_exists():
    assert {operation.like for operation in OPERATIONS.values()} - {""} <= set(OPERATIONS)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (GraphError, "unknown operation 'gemmm'; did you mean 'gemm'", lambda: kernel("gemmm", dtype="bf16", M=1)),
        (ConfigError, "unknown dtype 'bf61'; did you mean 'bf16'", lambda: kernel("gemm", dtype="bf61", M=1)),
        (GraphError, "gemm needs the size 'K'", lambda: kernel("gemm", dtype="bf16", M=1, N=2)),
        (GraphError, "than a node can count", lambda: kernel("gemm", dtype="bf16", M=2**53 + 1, N=2048, K=2048)),
        (GraphError, "layer_norm_fwd has no size 'token'", lambda: kernel("layer_norm_fwd", dtype="bf16", token=1)),
        (GraphError, "size 'M' is 0; it must be at least 1", lambda: kernel("gemm", dtype="bf16", M=0, N=2, K=3)),
        (GraphError, "give a whole number", lambda: kernel("gemm", dtype="bf16", M=1.5, N=2, K=3)),
        (GraphError, "must not be negative", lambda: custom(dtype="bf16", flops=-1, bytes=0)),
        (ConfigError, "custom kernel: unknown dtype", lambda: custom(dtype="half", flops=1, bytes=0)),
    ],
)
def test_bad_input_is_refused_by_message(error, message, call):
    with pytest.raises(error, match=message):
        call()
