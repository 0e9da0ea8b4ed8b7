"""The time of GEMMs of groups unlike any measured ones: that of one GEMM with the rows of all groups.

Tiles of as many rows and as deep do the same work, whichever group they are of, so the time does not depend on how
rows are cut into groups, until the matrices of the groups take longer to read than their tiles to compute.

Source: 55 such kernels of an H100 (`traces/h100/kernels.jsonl`) take a tenth longer than single GEMMs of their rows,
28% at the most. They have many rows: kernels of few take their own launches and tiles, see `estimate`.
"""

from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import analytical, interpolated, measured, transferred
from scaleout.cluster.device.kernel_times.estimate import STREAM_SHARE, roofline
from scaleout.cluster.device.kernel_times.measured import table_of
from scaleout.cluster.device.kernel_times.model import Array, Calls, calls_of, first_answers
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Kernel, kernel

SOURCE = "roofline"
"""No GEMM of groups was measured."""


def times(device: Device, calls: Calls) -> Array:
    """Return the seconds of GEMMs of groups, where neither the device nor its reference has measured ones near."""
    op = _single_op(device, calls.op)
    if op == calls.op:
        return np.full(len(calls.bytes), np.nan)
    known_s, _ = first_answers((measured, interpolated), analytical.reference_of(device), calls)
    sizes = _of_all_groups(calls.sizes)
    moved = np.asarray(OPERATIONS[op].bytes(sizes, ITEM_BYTES[calls.dtype]), float)
    one = calls._replace(op=op, sizes=sizes, bytes=moved)
    seconds, _ = first_answers((measured, interpolated, transferred, analytical), device, one)
    least_s = np.maximum(roofline(calls, device) / STREAM_SHARE, analytical.shortest_s(device, calls.op))
    return np.where(np.isnan(known_s), np.maximum(seconds, least_s), np.nan)


def single(device: Device, call: Kernel) -> Kernel:
    """Return the single GEMM whose time a kernel of groups takes; the kernel if it has no groups, or some were near."""
    op = _single_op(device, call.op)
    if op == call.op or not np.isnan(first_answers((measured, interpolated), device, calls_of([call]))[0][0]):
        return call
    return kernel(op, dtype=call.dtype, **_of_all_groups(call.sizes))


def _single_op(device: Device, op: str) -> str:
    """Return the operation of single GEMMs like one of groups; the operation if none, or other groups were measured."""
    found, known = op, {key[0] for each in (device, analytical.reference_of(device)) for key in table_of(each).rows}
    while found in OPERATIONS and "groups" in OPERATIONS[found].parameters and (found == op or found not in known):
        found = OPERATIONS[found].like
    return op if found not in OPERATIONS or "groups" in OPERATIONS[found].parameters else found


def _of_all_groups(sizes: Any) -> dict[str, Any]:
    return {"M": sizes["groups"] * sizes["M"], "N": sizes["N"], "K": sizes["K"]}
