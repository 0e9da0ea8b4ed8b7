"""Direct collectives on a fully connected network: each stage's output goes straight to the ranks that want it.

Every rank has a link to each of the p - 1 others. One p-th of a stage's output stays, the rest is stored into the
others' memory by the product itself, over all links at once: nothing is read to be sent, and of a reduce-scatter
nothing is left to do but the additions where it arrives. An all-to-all is the same without additions.

Without tracking the collective is a kernel behind the product: a reduce-scatter sends one p-th over each link, then
reads the p copies and writes their sum; an all-to-all reads and writes once.

Source: T3, Secs. 7.1 and 7.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from scaleout.schedule.t3.gemm import constants_of, stage
from scaleout.schedule.t3.memory import COMPUTE_FIRST, Traffic
from scaleout.schedule.t3.overlap import overlap
from scaleout.schedule.t3.regions import Region
from scaleout.schedule.t3.ring import Ring
from scaleout.schedule.t3.sublayer import Outcome, Sublayer


def _exchange_s(layer: Sublayer) -> float:
    """Time in which every rank sends one p-th of the output to each other one."""
    ring = layer.ring
    return layer.product.output_bytes / ring.ranks / ring.link_bytes_per_s + ring.latency_s


def _gathered(layer: Sublayer) -> Traffic:
    """Bytes of a direct all-gather: the own chunk is read for each of the others, theirs are written."""
    others_bytes = layer.product.output_bytes * (layer.ring.ranks - 1) / layer.ring.ranks
    return Traffic(gather_reads=others_bytes, gather_writes=others_bytes)


def sequential(layer: Sublayer, *, adds: bool) -> Outcome:
    """One after the other: a direct reduce-scatter with its all-gather, or an all-to-all."""
    size, ranks, device = layer.product.output_bytes, layer.ring.ranks, layer.device
    staged = stage(layer.product, device, alone_s=layer.alone_s)
    product_s = staged.alone_s(device.memory_bytes_per_s)
    others_bytes = size * (ranks - 1) / ranks
    traffic = Traffic(float(staged.read_bytes.sum()), float(staged.write_bytes.sum()), others_bytes, others_bytes)
    scatter_s, gather_s = _exchange_s(layer), 0.0
    if adds:
        added = Traffic(scatter_reads=size, scatter_writes=size / ranks)
        scatter_s += added.total / device.memory_bytes_per_s
        gather_s = _exchange_s(layer)
        traffic += added + _gathered(layer)
    return Outcome(product_s, scatter_s, gather_s, product_s + scatter_s, traffic)


def tracked(layer: Sublayer, *, adds: bool) -> Outcome:
    """Store each stage's output where it belongs, as it is made; the all-gather of a reduce-scatter comes after."""
    device, ranks = layer.device, layer.ring.ranks
    staged = stage(layer.product, device, alone_s=layer.alone_s, bypassed=True)
    ends = np.cumsum(staged.output_bytes) * (ranks - 1) / ranks
    begins = np.concatenate([[0.0], ends[:-1]])
    regions = [Region(index, 0, *map(float, cut)) for index, cut in enumerate(zip(begins, ends, strict=True))]
    done = overlap(
        staged,
        regions,
        ring=Ring(2, (ranks - 1) * layer.ring.link_bytes_per_s, layer.ring.latency_s),
        constants=constants_of(device),
        policy=layer.policy or COMPUTE_FIRST,
        memory_bytes_per_s=device.memory_bytes_per_s,
        adds=adds,
    )
    alone = sequential(layer, adds=adds)
    traffic = done.traffic + (_gathered(layer) if adds else Traffic())
    return replace(alone, product_s=done.product_s, fused_s=done.end_s, traffic=traffic, overlapped=done)


DIRECT: Mapping[str, Callable[[Sublayer], Outcome]] = {
    "direct": lambda layer: sequential(layer, adds=True),
    "t3-direct": lambda layer: tracked(layer, adds=True),
    "all-to-all": lambda layer: sequential(layer, adds=False),
    "t3-all-to-all": lambda layer: tracked(layer, adds=False),
}
"""Name to what it makes of a sub-layer whose ranks are fully connected, each link as fast as the ring's."""
