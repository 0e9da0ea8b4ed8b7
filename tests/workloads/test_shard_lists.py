"""ZeRO-3 through lists of shards: what is gathered and reduced, in which order, and how long the host's loops last."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.host import issue
from scaleout.cluster.device.spec import load_device
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.workloads.families import FAMILIES
from scaleout.workloads.generate import generate

HEADER = {"name": "lists", "description": "a test", "source": "none", "topology": "ring-128", "device": "h200"}
MODEL = {
    "kind": "transformer", "hidden": 512, "layers": 2, "heads": 8, "ffn": 2048, "norm": "layer_norm", "biases": True,
    "sequence": 64, "batch_per_replica": 1, "zero": 3, "prefetch": 0, "data_parallel": 4,
}  # fmt: skip
H200 = load_device("h200")


def graph_of(**keys):
    values = HEADER | MODEL | keys
    (graph,) = generate(FAMILIES["transformer"].model_validate(values)).graphs
    return graph


def sizes(graph, kind):
    """Bytes of the collectives of a kind, in order."""
    nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist()
    return [int(graph.bytes[node]) for node in nodes if COLLECTIVES[graph.collective[node]] == kind]


def weights(h=512, ffn=2048):
    """The four matrices of a layer, in bytes; norms and biases have fewer than 1e5 elements and stay whole."""
    return [2 * count for count in (3 * h * h, h * h, h * ffn, ffn * h)]


def whole(h=512, ffn=2048, layers=2):
    """Norms and biases of layers and the last norm, in elements: what stays whole."""
    return [*((h, h, 3 * h, h, h, h, ffn, h) * layers), h, h]


def loops(graph, op):
    """The nodes of a loop over a list."""
    return [node for node in range(len(graph)) if graph.operation(node) == op]


def test_each_matrix_is_gathered_by_itself_in_forward_and_backward():
    found = sizes(graph_of(shard_lists=True), "all_gather")
    assert found == [*(4 * weights()), 2 * sum(whole())]
    assert len(sizes(graph_of(), "all_gather")) == 6  # two layers and the last norm, at once, forward and backward


def test_what_stays_whole_is_gathered_behind_the_optimizer_and_spread_tensor_by_tensor():
    graph = graph_of(shard_lists=True)
    (spread,) = loops(graph, "list_spread")
    gather = spread - 1
    assert graph.kernels[graph.kernel[spread]].sizes == {"elements": sum(whole()), "tensors": 4 * len(whole())}
    assert graph.names[gather] == "whole_all_gather"
    assert all(graph.operation(node) != "adamw_fused" for node in range(gather, len(graph)))


def test_a_large_layer_that_is_computed_again_is_gathered_three_times_but_for_its_last_matrix():
    keys = {"hidden": 8192, "heads": 64, "ffn": 65536, "layers": 1, "shard_lists": True}
    once = weights(8192, 65536)
    assert sum(once) / 2 > 10**9
    assert sizes(graph_of(**keys), "all_gather")[:-1] == 2 * once
    assert sizes(graph_of(**keys, recompute="full"), "all_gather")[:-1] == [*once, *once, *once[:-1]]


@settings(max_examples=10, deadline=None)
@given(layers=st.integers(1, 3), ranks=st.sampled_from([2, 4, 8]), recompute=st.sampled_from(["none", "full"]))
def test_as_many_bytes_of_gradients_are_reduced_and_nothing_runs_beside_a_gather(layers, ranks, recompute):
    keys = {"layers": layers, "data_parallel": ranks, "recompute": recompute}
    plain, lists = graph_of(**keys), graph_of(**keys, shard_lists=True)
    assert sum(sizes(lists, "reduce_scatter")) == sum(sizes(plain, "reduce_scatter"))
    assert len(sizes(lists, "reduce_scatter")) == 12 * layers + 2  # four matrices, their biases, norms; the last norm
    gathered, reduced = loops(lists, "list_out"), loops(lists, "list_in")
    assert all(lists.kernels[lists.kernel[node]].sizes["tensors"] == ranks for node in (*gathered, *reduced))
    assert len(gathered) == len(sizes(lists, "all_gather")) - 1
    assert len(reduced) == len(sizes(lists, "reduce_scatter"))


def test_the_next_kernel_of_backward_waits_for_the_reduction_of_a_gradient():
    graph = graph_of(shard_lists=True)
    reductions = [node for node in range(len(graph)) if graph.names[node] == "gradients_reduce_scatter"]
    waited = {int(node) for node in graph.dependencies}
    in_layers = [node for node in reductions if graph.layer[node] >= 0]
    assert len(set(in_layers) & waited) >= len(in_layers) // 2  # of each weight and its bias the second at least


@pytest.mark.parametrize("keys", [{}, {"data_parallel": 2, "pipeline_parallel": 2, "pipeline_schedule": "zb_h1"}])
def test_kernels_wait_for_reductions_of_their_own_micro_batch(keys):
    """Random jobs found first kernels that waited for the number of a node of another micro-batch's graph."""
    program = generate(
        FAMILIES["transformer"].model_validate(
            HEADER | MODEL | keys | {"shard_lists": True, "batch_per_replica": 3, "microbatch": 1, "vocabulary": 1024}
        )
    )
    for graph in program.graphs:
        sources = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_offsets))
        reductions = np.array([name == "gradients_reduce_scatter" for name in graph.names])
        far = reductions[graph.dependencies] & (graph.layer[graph.dependencies] >= 0)
        kernels = (graph.kind == NodeKind.COMPUTE) & [
            graph.operation(node) != "adamw_fused" for node in range(len(graph))
        ]
        assert (sources - graph.dependencies)[far & kernels[sources]].max(initial=0) < 30


def test_a_loop_lasts_as_long_as_its_views_and_copies_however_small_the_tensors():
    program = generate(FAMILIES["transformer"].model_validate(HEADER | MODEL | {"shard_lists": True}))
    timed = time_kernels(program, H200)
    (graph,), (kernels,) = issue(timed, H200, host="eager").graphs, timed.graphs
    view_s, copy_s = H200.host_launch_s["view_loop"], H200.host_launch_s["pointwise_loop"]
    assert graph.duration_s[loops(graph, "list_in")] == pytest.approx(4 * (2 * view_s + copy_s))
    spread = loops(graph, "list_spread")
    assert graph.duration_s[spread] == pytest.approx(4 * len(whole()) * (3 * view_s + copy_s))
    out = loops(graph, "list_out")  # its copies were issued beside the gather
    launched_s = kernels.duration_s[out] + 4 * H200.launch_gap_s
    assert graph.duration_s[out] == pytest.approx(launched_s + 4 * 1.5 * view_s)


def test_what_is_gathered_through_lists_is_copied_out_of_them_and_of_no_buffer():
    """A random job of lists with the copies of eager FSDP once ended in a clone of no elements."""
    graph = graph_of(layout_copies=True, shard_lists=True)
    names = [graph.names[node] for node in np.flatnonzero(graph.kind == NodeKind.COMPUTE).tolist()]
    assert not any("copy_out" in name for name in names)
    assert any("parameters_out_of_list" in name for name in names)
