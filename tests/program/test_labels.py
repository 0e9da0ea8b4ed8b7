"""What tables call nodes: operations, and the names of nodes of which a trace tells nothing else."""

import pytest

from scaleout.program.graph import GraphBuilder, NodeRole
from scaleout.program.labels import folded, label, label_numbers, labels
from scaleout.program.operations import TimeSource, custom, kernel
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

GIVEN = {"duration_s": 1e-3, "time_source": TimeSource.GIVEN}


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("layer12.mlp_fwd_rank3", "layer*.mlp_fwd_rank*"),
        ("fwd_0", "fwd_*"),
        ("conv2d_bn", "conv2d_bn"),
        ("conv2d_17", "conv2d_*"),
        ("gemm", "gemm"),
        ("42", "42"),
        ("", ""),
    ],
)
def test_numbers_that_end_words_are_folded(name, stem):
    assert folded(name) == stem


def own():
    """Four kernels that only their names tell apart, two of them alike, and three that say what they are."""
    graph = GraphBuilder()
    graph.compute(custom(dtype="bf16", flops=8, bytes=8), name="fwd_1", **GIVEN)
    graph.compute(custom(dtype="bf16", flops=8, bytes=8), name="bwd_1", **GIVEN)
    graph.add((), name="fwd_2", **GIVEN)
    graph.add((), name="", **GIVEN)
    graph.compute(kernel("gemm", dtype="bf16", M=8, N=8, K=8), name="mine", **GIVEN)
    graph.add((), name="polled", role=NodeRole.FORWARD, **GIVEN)
    graph.collective("all_reduce", 8, group=0, name="gradients")
    return graph.build()


def test_a_node_of_which_nothing_else_is_known_has_its_own_name():
    graph = own()
    expected = ["fwd_*", "bwd_*", "fwd_*", "compute", "gemm", "compute", "all_reduce"]
    assert labels(graph) == [label(graph, node) for node in range(len(graph))] == expected


@pytest.mark.parametrize("workload", ["own", "dlrm-128", "llama-3-8b"])
def test_nodes_of_one_number_have_one_label(workload):
    graph = own() if workload == "own" else generate(load_workload(workload)).graphs[0]
    of_number = {}
    for node, number in enumerate(label_numbers(graph).tolist()):
        of_number.setdefault(number, set()).add(label(graph, node))
    assert all(len(names) == 1 for names in of_number.values())


def test_what_we_generate_is_called_by_its_operations():
    for graph in generate(load_workload("llama-3-8b")).graphs:
        assert labels(graph) == [graph.operation(node) for node in range(len(graph))]
