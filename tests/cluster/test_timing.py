"""Timing of programs: every kernel gets its device's time and says where it comes from; given times stay."""

import numpy as np
import pytest

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.kernel_times import kernel_time, source_names
from scaleout.cluster.device.spec import load_device
from scaleout.errors import GraphError
from scaleout.program.graph import NONE, GraphBuilder
from scaleout.program.operations import TimeSource, custom, kernel
from scaleout.program.program import GroupFamily, Program

CALLS = (
    kernel("gemm", dtype="bf16", M=1024, N=1024, K=1024),
    kernel("add", dtype="bf16", elements=12_345_678),
    custom(dtype="bf16", flops=10**12, bytes=10**6),
)


def program_of(build):
    graph = GraphBuilder()
    build(graph)
    return Program("one", (graph.build(),), np.zeros(2, np.int64), (GroupFamily("world", ((0, 1),)),))


@pytest.mark.parametrize("name", ["h200", "mi210"])
def test_a_node_takes_the_time_and_source_of_its_kernel(name):
    device = load_device(name)

    def build(graph):
        for call in (*CALLS, CALLS[0]):
            graph.compute(call)

    graph = time_kernels(program_of(build), device).graphs[0]
    for node, call in enumerate((*CALLS, CALLS[0])):
        seconds, source = kernel_time(device, call)
        assert graph.duration_s[node] == seconds
        assert source_names()[int(graph.time_source[node])] == source
    if name == "mi210":  # nothing was measured on it
        assert set(graph.time_source.tolist()) == {TimeSource.ROOFLINE}


def test_given_times_and_communication_stay_as_they_are():
    def build(graph):
        given = graph.add((), name="given", duration_s=1.5, time_source=TimeSource.GIVEN)
        made = graph.compute(CALLS[0], after=[given])
        graph.collective("all_reduce", 1024, group=0, after=[made])

    before = program_of(build)
    graph = time_kernels(before, load_device("h200")).graphs[0]
    assert graph.duration_s[0] == 1.5
    assert graph.time_source[0] == TimeSource.GIVEN
    assert graph.duration_s[1] > 0
    assert np.isnan(graph.duration_s[2])
    assert graph.time_source[2] == TimeSource.UNKNOWN
    assert np.isnan(before.graphs[0].duration_s[1])  # the input is as it was


def test_a_program_that_is_timed_is_not_timed_again():
    once = time_kernels(program_of(lambda graph: graph.compute(CALLS[0])), load_device("h200"))
    twice = time_kernels(once, load_device("mi210"))
    assert twice.graphs[0] is once.graphs[0]


def test_a_kernel_of_which_nothing_is_known_is_named():
    def build(graph):
        graph.compute(CALLS[0])
        graph.add((), name="mystery", kernel=NONE)

    with pytest.raises(GraphError, match=r"node 1 \('mystery'\) is a kernel with no time and no FLOPs; give it a dur"):
        time_kernels(program_of(build), load_device("h200"))
