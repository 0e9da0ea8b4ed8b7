"""Recorded pipelines with other micro-batches or layers: held to the same job generated with as many."""

from dataclasses import replace

import numpy as np
import pytest
from recorded_jobs import makespan_s, recording_of

from scaleout.errors import ConfigError
from scaleout.program.graph import NodeRole
from scaleout.study.edits import edited
from scaleout.study.edits.repeats import runs_of

PASSES = (NodeRole.FORWARD, NodeRole.BACKWARD)
LLAMA = {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1408, "sequence": 1024, "microbatch": 1, "data_parallel": 1,
         "tensor_parallel": 1}  # fmt: skip


def pipeline(schedule, ranks, microbatches, **changes):
    job = LLAMA | {"pipeline_schedule": schedule, "pipeline_parallel": ranks, "batch_per_replica": microbatches}
    return recording_of("llama-small", **job | changes)


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [("1f1b", 2), ("1f1b", 4), ("gpipe", 2), ("gpipe", 4), ("interleaved_1f1b", 2)],
)
@pytest.mark.parametrize(("change", "new"), [("8->4", 4), ("0.5x", 4), ("8->16", 16), ("2x", 16)])
def test_a_pipeline_becomes_that_of_other_micro_batches(schedule, ranks, change, new):
    found = edited(pipeline(schedule, ranks, 8), {"microbatches": change})
    other = pipeline(schedule, ranks, new).program
    assert found.program.total_flops == other.total_flops
    assert found.program.payload_bytes == other.payload_bytes
    assert makespan_s(found.program) == pytest.approx(makespan_s(other), rel=1e-6)
    assert any("micro-batches" in note for note in found.notes)


def test_micro_batches_are_counted_where_no_sizes_were_recorded():
    base = pipeline("1f1b", 2, 8)
    unsized = replace(
        base, program=base.program.map_graphs(lambda graph: graph.with_columns(flops=np.zeros_like(graph.flops)))
    )
    found = edited(unsized, {"microbatches": "8->16"}).program
    assert makespan_s(found) == pytest.approx(makespan_s(pipeline("1f1b", 2, 16).program), rel=1e-6)


@pytest.mark.parametrize(("schedule", "ranks"), [("1f1b", 2), ("1f1b", 4), ("gpipe", 4)])
def test_a_pipeline_becomes_that_of_fewer_layers(schedule, ranks):
    found = edited(pipeline(schedule, ranks, 8), {"layers": "16->8"}).program
    other = pipeline(schedule, ranks, 8, layers=8).program
    assert found.total_flops == other.total_flops
    assert makespan_s(found) == pytest.approx(makespan_s(other), rel=0.01)


@pytest.mark.parametrize(("factor", "change"), [("2x", "4->8"), ("0.5x", "4->2")])
@pytest.mark.parametrize("role", [NodeRole.FORWARD, NodeRole.BACKWARD])
def test_layers_of_which_a_pass_shows_one_less_grow_by_a_factor_too(role, factor, change):
    """The first layer of a pass has kernels of its own, so that three of four are alike there."""

    def first_differs(graph):
        begin, end = runs_of(graph, role, steps=1)[0].bounds[:2]
        return replace(graph, names=tuple(name + "'" * (begin <= at < end) for at, name in enumerate(graph.names)))

    base = recording_of("llama-small", **LLAMA | {"layers": 4, "batch_per_replica": 1})
    base = replace(base, program=base.program.map_graphs(first_differs))
    found = [len(runs_of(base.program.graphs[0], each, steps=1)[0].bounds) - 1 for each in PASSES]
    assert sorted(found) == [3, 4]
    one, other = (edited(base, {"layers": text}).program for text in (factor, change))
    assert [graph.names for graph in one.graphs] == [graph.names for graph in other.graphs]
    assert (one.total_flops, makespan_s(one)) == (other.total_flops, makespan_s(other))


@pytest.mark.parametrize(
    ("schedule", "ranks", "change", "words"),
    [
        ("1f1b", 2, "6->12", "shows 8 micro-batches a step; give 8->NEW"),
        ("1f1b", 2, "1.3x", "does not scale to a whole number"),
        ("1f1b", 2, "8->1", "of 8 micro-batches a step 6 follow each other alike"),
        ("interleaved_1f1b", 4, "2x", "no micro-batches that repeat alike on all ranks"),
    ],
)
def test_micro_batches_that_cannot_be_are_refused(schedule, ranks, change, words):
    with pytest.raises(ConfigError, match=words):
        edited(pipeline(schedule, ranks, 8), {"microbatches": change})
