"""Recordings with more or fewer ranks: held to what the same job is when it is generated with as many."""

from collections import Counter
from dataclasses import replace

import pytest
from recorded_jobs import makespan_s, recording_of

from scaleout.errors import ConfigError
from scaleout.program.graph import NONE, NodeKind, NodeRole
from scaleout.study.edits import edited

LLAMA = {"layers": 2, "hidden": 2048, "heads": 32, "ffn": 5504, "batch_per_replica": 3}
MIXTRAL = {"layers": 2, "hidden": 1024, "ffn": 3584, "sequence": 2048, "experts": 16, "grouped_experts": True}


def shapes(program):
    """How often a rank calls each GEMM and attention."""
    graph = program.graphs[0]
    calls = [graph.kernels[index] for index in graph.kernel[graph.kernel != NONE].tolist()]
    return Counter((call.op, call.shape) for call in calls if not call.op.startswith("recorded:"))


def members(program):
    return {family.axis: sorted(family.members) for family in program.groups}


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 2), (2, 8)])
@pytest.mark.parametrize("hidden", [2048, 4096])
def test_a_tensor_parallel_job_becomes_that_of_other_ranks(old, new, hidden, sequence_parallel):
    job = LLAMA | {"data_parallel": 1, "sequence_parallel": sequence_parallel, "hidden": hidden}
    base, other = (recording_of("llama-small", tensor_parallel=ranks, **job) for ranks in (old, new))
    found = edited(base, {"tensor": f"{old}->{new}"}).program
    assert shapes(found) == shapes(other.program)
    assert found.total_flops == other.program.total_flops == base.program.total_flops
    assert found.payload_bytes / found.num_ranks == pytest.approx(base.program.payload_bytes / base.program.num_ranks)
    assert members(found) == members(other.program)
    assert makespan_s(found) == pytest.approx(makespan_s(other.program), rel=0.04)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_data_parallel_job_becomes_that_of_other_ranks(zero):
    base, other = (
        recording_of("llama-small", tensor_parallel=1, data_parallel=ranks, zero=zero, **LLAMA) for ranks in (2, 8)
    )
    found = edited(base, {"data": "2->8"}).program
    assert shapes(found) == shapes(other.program)
    assert members(found) == members(other.program)
    assert makespan_s(found) == pytest.approx(makespan_s(other.program), rel=0.02)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_experts_are_shared_out_among_more_ranks(zero):
    """And with them, where parameters are sharded over the same ranks, the shards of all others."""
    job = MIXTRAL | {"tensor_parallel": 1, "zero": zero}
    base, other = (recording_of("mixtral-8x7b", data_parallel=ranks, expert_parallel=ranks, **job) for ranks in (2, 8))
    found = edited(base, {"expert": "2->8"}).program
    assert shapes(found) == shapes(other.program)
    assert makespan_s(found) == pytest.approx(makespan_s(other.program), rel=0.02)


@pytest.mark.parametrize(("name", "there", "back"), [("data", "2->8", "8->2"), ("tensor", "2x", "0.5x")])
def test_there_and_back_is_the_job_itself(name, there, back):
    base = recording_of("llama-small", **LLAMA | {"tensor_parallel": 2, "data_parallel": 2})
    away = edited(base, {name: there}).program
    parameters = base.parameters if name == "data" else tuple((size // 2, count) for size, count in base.parameters)
    found = edited(replace(base, program=away, parameters=parameters), {name: back}).program
    assert away.num_ranks > base.program.num_ranks == found.num_ranks
    assert shapes(found) == shapes(base.program)
    assert members(found) == members(base.program)
    assert found.payload_bytes == base.program.payload_bytes
    assert makespan_s(found) == pytest.approx(makespan_s(base.program), rel=0.01)


def test_one_rank_more_or_fewer_is_none():
    base = recording_of("llama-small", **LLAMA | {"tensor_parallel": 1, "data_parallel": 2})
    assert makespan_s(edited(base, {"data": "2->2"}).program) == makespan_s(base.program)


@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        ({"data": "2->6"}, {"data_parallel": 6}),
        ({"tensor": "2->4"}, {"tensor_parallel": 4}),
        ({"data": "2->4", "tensor": "2->4"}, {"data_parallel": 4, "tensor_parallel": 4}),
    ],
)
def test_groups_of_several_axes_lie_as_in_the_larger_mesh(edit, changes):
    job = LLAMA | {"tensor_parallel": 2, "data_parallel": 2, "pipeline_parallel": 2}
    found = edited(recording_of("llama-small", **job), edit).program
    other = recording_of("llama-small", **job | changes).program
    assert members(found) == members(other)
    assert found.role_of_rank.tolist() == other.role_of_rank.tolist()
    if other.peers is not None:
        assert found.peers.tolist() == other.peers.tolist()


def test_bytes_by_hand():
    """ZeRO-3 of P parameters: gathers and reductions carry whole layers, each rank updates a p-th of all."""
    base = recording_of("llama-small", **LLAMA | {"tensor_parallel": 1, "data_parallel": 2, "zero": 3})
    found = edited(base, {"data": "2->4"}).program

    def updated(program):
        graph = program.graphs[0]
        return int(graph.bytes[graph.has_role(NodeRole.OPTIMIZER) & (graph.kind == NodeKind.COMPUTE)].sum())

    def carried(program):
        graph = program.graphs[0]
        return graph.bytes[graph.kind == NodeKind.COLLECTIVE].tolist()

    assert updated(found) == pytest.approx(updated(base.program) / 2)
    assert carried(found) == carried(base.program)


@pytest.mark.parametrize(
    ("job", "edit", "words"),
    [
        ({"data_parallel": 2}, {"tensor": "2x"}, "no tensor-parallel group to change: 1 group.* of 2 ranks, data-par"),
        ({"data_parallel": 2}, {"data": "4->8"}, "data-parallel groups have 2 ranks"),
        ({"data_parallel": 2}, {"data": "1.25x"}, "data-parallel groups have 2 ranks"),
        ({"data_parallel": 2}, {"data": "2->1048577"}, "more than the 1,048,576 ranks"),
        ({"tensor_parallel": 2}, {"tensor": "2->3"}, "16 heads on a rank, which so many ranks cannot share out"),
    ],
)
def test_what_cannot_be_is_one_message(job, edit, words):
    base = recording_of("llama-small", **LLAMA | {"tensor_parallel": 1, "data_parallel": 1} | job)
    with pytest.raises(ConfigError, match=words):
        edited(base, edit)


@pytest.mark.parametrize(
    ("grouped", "edit", "words"),
    [
        (True, {"data": "2->4"}, "exchange tokens as well"),
        (True, {"expert": "2->3"}, "8 experts on a rank"),
        (False, {"expert": "2->4"}, "recorded one by one"),
    ],
)
def test_what_experts_cannot_be_is_one_message(grouped, edit, words):
    job = MIXTRAL | {"tensor_parallel": 1, "data_parallel": 2, "expert_parallel": 2, "grouped_experts": grouped}
    with pytest.raises(ConfigError, match=words):
        edited(recording_of("mixtral-8x7b", **job), edit)
