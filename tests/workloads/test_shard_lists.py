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
    """The four matrices of a layer with their biases, in bytes; norms have fewer than 1e5 elements and stay whole."""
    return [2 * count for count in ((h + 1) * 3 * h, (h + 1) * h, (h + 1) * ffn, (ffn + 1) * h)]


def test_each_matrix_is_gathered_by_itself_in_forward_and_backward():
    found = sizes(graph_of(shard_lists=True), "all_gather")
    assert found == 4 * weights()
    assert len(sizes(graph_of(), "all_gather")) == 6  # two layers and the last norm, at once, forward and backward


def test_a_large_layer_that_is_computed_again_is_gathered_three_times():
    keys = {"hidden": 8192, "heads": 64, "ffn": 65536, "layers": 1, "shard_lists": True}
    once = weights(8192, 65536)
    assert sum(once) / 2 > 10**9
    assert sizes(graph_of(**keys), "all_gather") == 2 * once
    assert sizes(graph_of(**keys, recompute="full"), "all_gather") == 3 * once


@settings(max_examples=10, deadline=None)
@given(layers=st.integers(1, 3), ranks=st.sampled_from([2, 4, 8]), recompute=st.sampled_from(["none", "full"]))
def test_as_many_bytes_of_gradients_are_reduced_and_nothing_runs_beside_a_gather(layers, ranks, recompute):
    keys = {"layers": layers, "data_parallel": ranks, "recompute": recompute}
    plain, lists = graph_of(**keys), graph_of(**keys, shard_lists=True)
    assert sum(sizes(lists, "reduce_scatter")) == sum(sizes(plain, "reduce_scatter"))
    assert len(sizes(lists, "reduce_scatter")) == 6 * layers + 1  # four matrices, two norms; the last norm
    copies = [node for node in range(len(lists)) if lists.operation(node) == "list_copy"]
    assert all(lists.kernels[lists.kernel[node]].sizes["tensors"] == ranks for node in copies)
    assert len(copies) == len(sizes(lists, "all_gather")) + len(sizes(lists, "reduce_scatter"))


def test_a_loop_lasts_two_calls_a_tensor_however_small_the_tensors():
    program = generate(FAMILIES["transformer"].model_validate(HEADER | MODEL | {"shard_lists": True}))
    (graph,) = issue(time_kernels(program, H200), H200, host="eager").graphs
    copies = [node for node in range(len(graph)) if graph.operation(node) == "list_copy"]
    assert graph.duration_s[copies] == pytest.approx(2 * 4 * H200.host_launch_s["pointwise_loop"])


def test_what_is_gathered_through_lists_is_copied_out_of_them_and_of_no_buffer():
    """A random job of lists with the copies of eager FSDP once ended in a clone of no elements."""
    graph = graph_of(layout_copies=True, shard_lists=True)
    names = [graph.names[node] for node in np.flatnonzero(graph.kind == NodeKind.COMPUTE).tolist()]
    assert not any("copy_out" in name for name in names)
    assert any("parameters_into_list" in name for name in names)
