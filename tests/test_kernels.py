"""Kernel times: measured, interpolated or roofline, and never from nothing."""

import numpy as np
import pytest

from scaleout.device import load_device
from scaleout.errors import GraphError
from scaleout.kernels import TimeSource, kernel_time, kernel_times
from scaleout.operations import OPERATIONS, custom, kernel

H200 = load_device("h200")


def test_measured_kernel_takes_its_measured_time():
    found = kernel_time(H200, kernel("gemm", dtype="bf16", M=1, N=512, K=512))
    assert found == (pytest.approx(3.472e-6), TimeSource.MEASURED)


def test_kernel_between_measurements_is_interpolated():
    found = kernel_time(H200, kernel("gemm", dtype="bf16", M=2048, N=3000, K=4096))
    assert found.source is TimeSource.INTERPOLATED


@pytest.mark.parametrize("name", ["h200", "h100", "a100-80g", "v100", "mi210"])
def test_every_operation_has_a_time_on_every_device(name):
    device = load_device(name)
    calls = [
        kernel(op, dtype="fp16", **dict.fromkeys(OPERATIONS[op].parameters, 96))
        for op in OPERATIONS
        if op != "gemm_fp8"
    ]
    seconds, sources = kernel_times(device, calls)
    assert np.all(np.isfinite(seconds))
    assert np.all(seconds > 1e-7)
    if name != "h200":
        assert set(sources) == {TimeSource.ROOFLINE}


def test_kernel_without_work_is_refused():
    with pytest.raises(GraphError, match="no time and no FLOPs"):
        kernel_time(H200, custom(dtype="fp32", flops=0, bytes=0))
