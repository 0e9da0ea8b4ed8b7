"""How long equal chunks of a kernel take on a device, each at its own size: of generated and of recorded kernels.

The time of the whole is given, and chunks take what kernels of their sizes take over one of the whole size. Added is
what a program in chunks does besides: a gap before each launch, copies of indices that lie among those of other chunks,
and sums of weights' gradients. See docs/models/centauri.md.
"""

from functools import lru_cache
from math import prod

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.program.operations import Kernel, kernel
from scaleout.schedule.centauri.partition.dimensions import DIMENSIONS, DimensionType, sizes_of
from scaleout.schedule.centauri.partition.segments import ACCUMULATING, ALONG
from scaleout.schedule.centauri.partition.workload import shares


def dimension_of(call: Kernel, *, of_weight: bool = False) -> str:
    """Return the size along which a kernel is cut: the one that counts tokens or samples, where it is named."""
    if call.tokens:
        return call.tokens.partition("*")[0]
    return sizes_of(call.op, DimensionType.CD)[0] if of_weight else ALONG[call.op]


def edges_of_chunks(count: int) -> tuple[float, ...]:
    """Return where equal chunks begin and end, from 0 to 1."""
    return tuple(number / count for number in range(count + 1))


def chunk_times(
    device: Device, call: Kernel, dimension: str, whole_s: float, count: int, *, gap_s: float = 0.0
) -> list[float]:
    """Return how long each of equal chunks of a kernel takes that in all takes `whole_s`, with `gap_s` before it."""
    own_s = shares(device, call, dimension, edges_of_chunks(count))
    times_s = [gap_s + (whole_s - gap_s) * share for share in own_s]
    if call.op == "embedding_bag_fwd" and dimension == "batch" and call.sizes["tables"] > 1:
        copy_s = gap_s + _indices_s(device, call, count)
        times_s = [chunk_s + copy_s for chunk_s in times_s]
    summed = call.op in DIMENSIONS and dimension in sizes_of(call.op, DimensionType.CD)
    added_s = addition_s(device, call) if summed and call.op != ACCUMULATING else 0.0
    return [times_s[0], *(chunk_s + added_s for chunk_s in times_s[1:])]


@lru_cache(maxsize=1024)
def _indices_s(device: Device, call: Kernel, count: int) -> float:
    """Return how long it takes to copy a chunk's indices, 8 bytes each, which lie among all of the batch by table."""
    sizes = {"batch": -(-call.sizes["batch"] // count), "tables": call.sizes["tables"], "dim": call.sizes["pooling"]}
    return float(kernel_times(device, [kernel("permute_for_all_to_all", dtype="fp64", **sizes)])[0][0])


@lru_cache(maxsize=1024)
def addition_s(device: Device, call: Kernel) -> float:
    """Return how long it takes to add the gradient of a weight or of tables to what is there."""
    sizes = next(names for names in _OF_WEIGHTS if names[-1] in call.sizes)
    elements = prod(call.sizes.get(size, 1) for size in sizes)
    return float(kernel_times(device, [kernel("add", dtype=call.dtype, elements=elements)])[0][0])


_OF_WEIGHTS = (("tables", "rows", "dim"), ("rows", "width"), ("groups", "M", "N"))
"""Sizes of a gradient: of tables, of one that was recorded, and of a weight; each is known by its last."""
