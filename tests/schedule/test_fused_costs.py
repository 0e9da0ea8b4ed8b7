"""What fusing costs in a graph, where the machine is known: occupancy, calls, flags, slices, and whether it pays."""

from dataclasses import replace

import numpy as np
import pytest

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.graph import GraphBuilder, NodeKind
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.schedule.fusion.embedding import Pooling, most_work_groups, pooling_s

POOL = kernel("embedding_bag_fwd", dtype="fp32", batch=256, tables=8, dim=256, pooling=70, rows=1000)
GEMM = kernel("gemm", dtype="bf16", M=64, N=48, K=40)
GEMV = kernel("gemv", dtype="bf16", M=100, N=30)
US = 1e-6


def fused(call, kind, compute_s, size_bytes, *, device="h200", topology="h200-node-4", roles=(1.0,)):
    """Graphs of a kernel and its collective, fused on a machine; roles differ in the kernel's time."""
    cluster = load_topology(topology)
    graphs = []
    for factor in roles:
        graph = GraphBuilder()
        made = graph.add(
            (), name=call.op, kernel=graph.kernel_index(call), flops=call.flops, bytes=call.bytes,
            duration_s=factor * compute_s, time_source=TimeSource.GIVEN,
        )  # fmt: skip
        graph.collective(kind, size_bytes, group=0, after=[made])
        graphs.append(graph.build())
    world = GroupFamily("world", (tuple(range(cluster.num_ranks)),))
    program = Program("pair", tuple(graphs), np.arange(cluster.num_ranks) % len(graphs), (world,))
    return apply_schedule(program, "fused", machine=Machine(load_device(device), cluster)).graphs


def slices_of(graph):
    return int((graph.kind == NodeKind.COLLECTIVE).sum())


def compute_s(graph):
    return float(graph.duration_s[graph.kind == NodeKind.COMPUTE].sum())


def test_a_fused_kernel_pays_for_its_occupancy_and_calls():
    """On H200 fewer work-groups, which keep books, take longer, and each slice over the network costs its last finisher
    a call of 1.7 us."""
    (graph,) = fused(POOL, "all_to_all", 2e-3, 10**8, topology="mi210-pair")
    h200, bag, most = load_device("h200"), Pooling(70, 256, "fp32"), most_work_groups(load_device("h200"))
    slots = int(h200.work_groups.fused_occupancy * most)
    own_s = pooling_s(h200, replace(bag, other_s=h200.work_groups.book_keeping_s), slots) / slots
    ratio = own_s / (pooling_s(h200, bag, most) / most)
    assert ratio > 1.002
    assert compute_s(graph) == pytest.approx(2e-3 * ratio + slices_of(graph) * 1.7 * US)
    assert graph.payload_bytes == 10**8


def test_a_kernel_over_all_tables_crowds_the_memory_as_the_fused_one_does():
    """On MI210 the library's kernel holds an eighth more work-groups, and loses more by that: here calls alone."""
    (graph,) = fused(POOL, "all_to_all", 2e-3, 10**8, device="mi210", topology="mi210-pair")
    mi210, bag = load_device("mi210"), Pooling(70, 256, "fp32", written=1.0)
    assert pooling_s(mi210, replace(bag, other_s=1e-6), 728) / 728 < pooling_s(mi210, bag, 832) / 832
    assert compute_s(graph) == pytest.approx(2e-3 + slices_of(graph) * 2 * US)


def test_over_direct_links_flags_take_the_place_of_calls():
    """100 us of the library's GEMM take 111 in Triton and 14% more as it stores to peers; an all-reduce has two
    rounds of flags of 4.3 us, an all-to-all has one. Measured are 128 to 133% of cuBLAS."""
    (graph,) = fused(GEMM, "all_reduce", 100 * US, 20_000_000)
    assert compute_s(graph) == pytest.approx(1.11 * 1.14 * 100 * US + 2 * 4.3 * US)
    (graph,) = fused(GEMM, "all_to_all", 100 * US, 40_000_000)
    assert compute_s(graph) == pytest.approx(1.11 * 1.14 * 100 * US + 4.3 * US)
    (graph,) = fused(GEMV, "all_reduce", 100 * US, 20_000_000)  # bound by memory, whoever wrote it
    assert compute_s(graph) == pytest.approx(100 * US + 2 * 4.3 * US)


def test_what_would_be_slower_fused_is_left_alone():
    """A GEMM of 1 ms with 15 us of collective: 27% of it are more than all that there is to hide."""
    (graph,) = fused(GEMM, "all_reduce", 1e-3, 10_000)
    assert len(graph) == 2
    (graph,) = fused(GEMM, "all_reduce", 1e-3, 10_000, device="h100")  # nothing is known of its work-groups
    assert compute_s(graph) == 1e-3
    assert slices_of(graph) == 32


@pytest.mark.parametrize(
    ("kernel_s", "size_bytes", "slices"), [(2e-3, 10**8, 8), (1e-3, 5 * 10**8, 32), (1e-4, 10**9, 4)]
)
def test_slices_are_as_few_as_overlap_needs(kernel_s, size_bytes, slices):
    """One slice of the shorter of kernel and link is at most 2% of the longer."""
    (graph,) = fused(POOL, "all_to_all", kernel_s, size_bytes)
    assert slices_of(graph) == slices


def test_roles_that_differ_agree_on_the_slices():
    """A slow rank's kernel asks for other slices than the others'; all take the most."""
    graphs = fused(POOL, "all_to_all", 1e-3, 5 * 10**8, roles=(1.0, 4.0))
    counts = {slices_of(graph) for graph in graphs}
    assert len(counts) == 1
    assert counts.pop() > slices_of(fused(POOL, "all_to_all", 4e-3, 5 * 10**8)[0])
