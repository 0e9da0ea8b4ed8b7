"""Tensor parallelism that blocks, and in parts beside GEMMs: hand-worked times, and what is cut."""

import numpy as np
import pytest

from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.program.graph import GraphBuilder, NodeKind, NodeRole
from scaleout.program.operations import kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate
from scaleout.workloads.families import Transformer
from scaleout.workloads.generate import generate

RANKS = 4
GEMM = kernel("gemm", dtype="bf16", M=8, N=8, K=8)


def program(*, kind, gemm_s=4.0):
    """A GEMM of 4 s that takes an all-gather, or that makes what is reduced and scattered, of 3 s on the link."""
    graph = GraphBuilder("step")
    node = graph.compute(GEMM) if kind == "reduce_scatter" else graph.add((), name="x", duration_s=0.0)
    moved = graph.collective(kind, 1200, group=0, after=(node,))
    if kind == "all_gather":
        graph.compute(GEMM, after=(moved,))
    built = graph.build()
    durations = np.where(built.kernel >= 0, gemm_s, np.where(built.kind == NodeKind.COMPUTE, 0.0, np.nan))
    family = GroupFamily("tensor", (tuple(range(RANKS)),))
    return Program("toy", (built.with_columns(duration_s=durations),), np.zeros(RANKS, np.int64), (family,))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("schedule", "gemm_s", "expected_s"),
    [
        ("blocking-tp", 4.0, 7.0),
        ("overlap+async-tp", 4.0, 4.0),  # each part of 1 s hides the next message of 1 s
        ("overlap+async-tp", 1.0, 3.25),  # three messages of 1 s, and one part of 0.25 s before or after them
        ("overlap+async-tp", 8.0, 8.0),
    ],
)
def test_parts_hide_behind_each_other(kind, schedule, gemm_s, expected_s):
    scheduled = apply_schedule(program(kind=kind, gemm_s=gemm_s), schedule)
    result = simulate(scheduled, Topology("switch", (Dimension("switch", RANKS, 300.0, 0.0),)))
    assert result.makespan_s == pytest.approx(expected_s)


def workload(**changes):
    values = {
        "kind": "transformer", "description": "a toy", "source": "by hand", "topology": "dgx-h200-1", "device": "h200",
        "hidden": 256, "layers": 1, "heads": 8, "ffn": 1024, "sequence": 64, "batch_per_replica": 2,
        "tensor_parallel": 4, "sequence_parallel": True, "optimizer": "none", "activation": "swiglu",
    }  # fmt: skip
    return Transformer(**{**values, **changes})


def cut(**changes):
    """How many collectives of a step are cut into parts, by kind and direction."""
    made = generate(workload(**changes)).map_graphs(lambda graph: graph.with_columns(duration_s=graph.flops * 1e-15))
    (graph,) = apply_schedule(made, "overlap+async-tp").graphs
    slices = [name for name in graph.names if name.endswith("_slice_0")]
    return {
        kind: sum(kind in name for name in slices)
        for kind in ("all_gather_slice", "reduce_scatter_slice", "all_gather_gradient", "reduce_scatter_gradient")
    }


def test_what_stands_next_to_a_product_is_cut():
    every = {"all_gather_slice": 2, "reduce_scatter_slice": 2, "all_gather_gradient": 2, "reduce_scatter_gradient": 2}
    assert cut() == every
    # Gradients of an input that several GEMMs read are added up before they are scattered.
    assert cut(separate_projections=True) == {**every, "reduce_scatter_gradient": 0}
    # Rows are scaled after they are gathered, tensors before.
    assert cut(linear_dtype="fp8_rowwise") == {**every, "all_gather_slice": 0, "all_gather_gradient": 0}
    assert cut(linear_dtype="fp8_tensorwise") == cut(linear_dtype="fp8_delayed") == every


def test_an_input_kept_in_parts_is_gathered_beside_the_gemm_that_does_not_need_it():
    """The gather of 3 s goes beside the input's gradient, 4 s, and the scatter of 3 s beside the weight's, 4 s."""
    graph = GraphBuilder("step")
    made = graph.compute(GEMM, after=(graph.add((), name="dy", duration_s=0.0),))
    gathered = graph.collective("all_gather", 1200, group=0, after=(made,))
    graph.collective("reduce_scatter", 1200, group=0, after=(gathered,))
    graph.compute(GEMM, after=(0,), role=NodeRole.WEIGHT_GRADIENT)
    built = graph.build()
    durations = np.where(built.kernel >= 0, 4.0, np.where(built.kind == NodeKind.COMPUTE, 0.0, np.nan))
    family = GroupFamily("tensor", (tuple(range(RANKS)),))
    toy = Program("toy", (built.with_columns(duration_s=durations),), np.zeros(RANKS, np.int64), (family,))
    link = Topology("switch", (Dimension("switch", RANKS, 300.0, 0.0),))
    for schedule, expected_s in (("blocking-tp", 14.0), ("overlap+async-tp", 8.0)):
        assert simulate(apply_schedule(toy, schedule), link).makespan_s == pytest.approx(expected_s)


@pytest.mark.parametrize(("meet", "cut_whole"), [(False, 2), (True, 0)])
def test_only_members_of_a_group_must_cut_alike(meet, cut_whole):
    """Of two stages the first begins with a reduction; its scatter is the stage's second collective, not its first."""
    graphs = []
    for first in (True, False):
        graph = GraphBuilder("step")
        before = (graph.collective("all_reduce", 1200, group=0),) if first else ()
        made = graph.compute(GEMM, after=before)
        graph.collective("reduce_scatter", 1200, group=0, after=(made,))
        if not first:
            graph.collective("all_reduce", 1200, group=0, after=(made,))
        built = graph.build()
        graphs.append(built.with_columns(duration_s=np.where(built.kernel >= 0, 4.0, np.nan)))
    ranks = [(0, 2, 4, 6), (1, 3, 5, 7)] if meet else [(0, 1, 2, 3), (4, 5, 6, 7)]
    stages = np.repeat([0, 1], RANKS)
    toy = Program("toy", tuple(graphs), stages, (GroupFamily("tensor", tuple(ranks)),))
    done = apply_schedule(toy, "overlap+async-tp")
    assert sum(any(name.endswith("_slice_0") for name in graph.names) for graph in done.graphs) == cut_whole
