"""Jobs of several kinds of parallelism: what every plan conserves, what it sends, and how long it takes.

Symbols: p stages, m micro-batches, v chunks of a rank; d ranks that share parameters; P parameters of a rank.
"""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dimension_of, kinds_of

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.errors import SimulationError
from scaleout.interop.chakra.load import load_program
from scaleout.interop.chakra.save import save_program
from scaleout.program.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate
from scaleout.study.comparison import compare
from scaleout.workloads.families import FAMILIES
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import Ledger
from scaleout.workloads.pipeline import PIPELINES, orders
from scaleout.workloads.pipeline.messages import Message, in_turn

HEADER = {"description": "a test", "source": "none", "topology": "ring-128", "device": "h200"}
MODEL = {
    "kind": "transformer", "hidden": 128, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 192, "vocabulary": 160,
    "sequence": 64, "batch_per_replica": 8, "gradient_bucket": 60_000,
}  # fmt: skip
MOE = MODEL | {"kind": "moe", "experts": 4, "top_k": 2, "kv_heads": 8}
H200 = load_device("h200")


def workload(model=MODEL, **keys):
    values = HEADER | dict(model) | keys
    return FAMILIES[values["kind"]].model_validate(values)


def network(num_ranks, *, bytes_per_s=50e9, latency_s=1e-6):
    return Topology("test", (Dimension("switch", num_ranks, bytes_per_s, latency_s),))


def run(job, *, schedule="baseline", topology=None, **options):
    program = apply_schedule(time_kernels(generate(job), H200), schedule)
    return simulate(program, topology or network(job.num_ranks), **options)


def payload(job):
    """Name of collective and family to the bytes that a rank of the first role hands to it."""
    program = generate(job)
    graph = program.graphs[0]
    found = Counter()
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        found[COLLECTIVES[graph.collective[node]], program.groups[graph.group[node]].name] += int(graph.bytes[node])
    return dict(found)


@st.composite
def plans(draw):
    """Keys of a plan of 1 to 32 ranks for a small model."""
    name = draw(st.sampled_from(sorted(PIPELINES)))
    stages = draw(st.sampled_from([1, 2, 4])) if PIPELINES[name].num_chunks == 1 else draw(st.sampled_from([2, 4]))
    keys = {
        "pipeline_schedule": name,
        "pipeline_parallel": stages,
        "tensor_parallel": draw(st.sampled_from([1, 2])),
        "data_parallel": draw(st.sampled_from([1, 2])),
        "context_parallel": draw(st.sampled_from([1, 2])),
        "context_exchange": draw(st.sampled_from(["ring", "all_gather"])),
        "microbatch": 1,
        "sequence_parallel": draw(st.booleans()),
        "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "tied_embedding": draw(st.booleans()),
        "clip_gradients": draw(st.booleans()),
        "overlap_sends": draw(st.booleans()),
        "overlap_gradient_reduce": draw(st.booleans()),
        "messages": draw(st.sampled_from(["at_need", "as_made"])),
        "rank_order": tuple(draw(st.permutations(["tensor", "context", "data", "pipeline"]))),
    }
    keys["overlap_parameter_gather"] = draw(st.booleans()) and keys["zero"] in (1, 2)
    if name == "interleaved_1f1b":
        keys["microbatch_group"] = draw(st.sampled_from([None, 4, 8]))
    # Ranks of a tensor group all route all their tokens: a mixture's router is not cut.
    model = draw(st.sampled_from([MODEL, MOE] if keys["tensor_parallel"] == 1 else [MODEL]))
    if model is MOE and keys["data_parallel"] == 2:
        keys["expert_parallel"] = draw(st.sampled_from([1, 2]))
    return model, keys


@given(plans())
@settings(max_examples=60)
def test_every_plan_does_the_work_of_the_model_and_comes_to_its_end(plan):
    """However the model is cut, the FLOPs of a replica are the same, and nobody waits for ever."""
    model, keys = plan
    job = workload(model, **keys)
    alone = generate(workload(model, microbatch=1))
    program = generate(job)
    assert program.total_flops == alone.total_flops * job.data_parallel
    result = run(job, schedule="overlap")
    busy_s = max(line.duration_s[line.graph.kind == NodeKind.COMPUTE].sum() for line in result.timelines)
    assert result.makespan_s >= busy_s * (1 - 1e-12)


@given(plans(), st.sampled_from(["baseline", "overlap"]))
@settings(max_examples=30)
def test_folded_ranks_run_as_they_do_alone(plan, schedule):
    model, keys = plan
    job = workload(model, **keys)
    folded, unfolded = (run(job, schedule=schedule, unfold=unfold) for unfold in (False, True))
    assert len(unfolded.timelines) == job.num_ranks
    assert folded.makespan_s == unfolded.makespan_s
    ends = {rank: line.end_s for line in unfolded.timelines for rank in line.ranks}
    for line in folded.timelines:
        for rank in line.ranks:
            assert np.array_equal(line.end_s, ends[rank])


@given(plans(), st.data())
@settings(max_examples=25)
def test_folded_ranks_run_as_they_do_alone_over_links(plan, data):
    """Messages that are alike by a symmetry of the links are one flow, and fill the links as all of them do."""
    model, keys = plan
    job = workload(model, **(keys | {"microbatch": 4}) if keys["pipeline_parallel"] == 1 else keys)
    n = job.num_ranks
    dimension = dimension_of(data.draw(kinds_of(n)), n)
    program = apply_schedule(time_kernels(generate(job), H200), "overlap")
    folded, unfolded = (
        simulate(program, Topology("test", (dimension,)), network="link", unfold=unfold) for unfold in (False, True)
    )
    assert folded.makespan_s == pytest.approx(unfolded.makespan_s, rel=1e-12)


def test_ranks_of_a_stage_are_one_class_over_links():
    job = workload(tensor_parallel=2, data_parallel=4, pipeline_parallel=2, microbatch=1)
    nodes = Topology("nodes", (Dimension("switch", 8, 400e9, 1e-6), Dimension("switch", 2, 25e9, 3e-6)))
    assert len(run(job, topology=nodes, network="link").timelines) == 2


def test_ranks_of_a_stage_are_one_class():
    job = workload(tensor_parallel=2, data_parallel=4, pipeline_parallel=4, microbatch=1, context_parallel=2)
    assert len(run(job).timelines) == 4


def even(**keys):
    """A model whose stages are alike: no embedding, head or optimizer, one product a kernel."""
    return workload(MODEL, vocabulary=0, optimizer="none", microbatch=1, fused_accumulation=True, **keys)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("name", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_bubbles_of_alike_stages(p, name, v):
    """``(p - 1) / (v m + p - 1)`` of the time is bubble, for the rank with most to do: the last norm is one more."""
    layers = 16
    chunks = {"virtual_stages": v} if v > 1 else {}
    job = even(layers=layers, pipeline_parallel=p, pipeline_schedule=name, sequence=1024, **chunks)
    result = run(job, topology=network(p, bytes_per_s=1e18, latency_s=0.0))
    m, busy_s = job.num_microbatches, max(line.duration_s[line.is_kernel].sum() for line in result.timelines)
    assert 1 - busy_s / result.makespan_s == pytest.approx((p - 1) / (v * m + p - 1), rel=0.05)


def test_a_pipeline_by_hand():
    """Two stages, two micro-batches, sends of 1 s and no latency: every start is F, F, B, B as drawn on paper."""
    job = even(layers=2, pipeline_parallel=2, batch_per_replica=2)
    program = apply_schedule(time_kernels(generate(job), H200), "baseline")
    size_bytes = job.local_tokens * job.hidden * job.item_bytes
    topology = Topology("slow", (Dimension("switch", 2, float(size_bytes), 0.0),))
    first, last = simulate(program, topology).timelines
    _, forward_s = span(first, 0, "forward")
    begin_s, _ = span(last, 0, "forward")
    assert begin_s == pytest.approx(forward_s + 1.0)
    # The second activation leaves when the first has arrived, or when it is made.
    second_s = max(forward_s + 1.0, span(first, 1, "forward")[1]) + 1.0
    assert span(last, 1, "forward")[0] == pytest.approx(max(second_s, span(last, 0, "backward")[1]))
    assert span(first, 0, "backward")[0] == pytest.approx(span(last, 0, "backward")[1] + 1.0)


def span(line, microbatch, phase):
    """Start of the first and end of the last kernel of a micro-batch in phases that end so."""
    phases = [number for number, name in enumerate(line.graph.phases) if name.endswith(phase)]
    mine = (line.graph.kind == NodeKind.COMPUTE) & (line.graph.microbatch == microbatch)
    mine &= np.isin(line.graph.phase, phases)
    return line.start_s[mine].min(), line.end_s[mine].max()


def test_a_message_that_waits_holds_up_those_behind_it():
    """Both ends posted as made, one at a time: an interleaved pipeline of 4 loses what plain 1F1B does not."""
    keys = {"pipeline_parallel": 4, "sequence": 512, "pipeline_schedule": "interleaved_1f1b"}
    needed, made = (run(even(layers=8, messages=way, **keys)).makespan_s for way in ("at_need", "as_made"))
    plain = run(even(layers=8, pipeline_parallel=4, sequence=512, messages="as_made")).makespan_s
    assert needed < plain < made


@given(name=st.sampled_from(["gpipe", "1f1b"]), stages=st.integers(2, 6), microbatches=st.integers(1, 8))
def test_neighbours_exchange_in_the_same_order_in_turn(name, stages, microbatches):
    """What two neighbours send each other is in one order in both lists, so that none waits in a circle."""
    order = orders(name, stages=stages, microbatches=microbatches)
    lists = in_turn(PIPELINES[name], order, num_chunks=1)
    ends = [[item for item in found if isinstance(item, Message)] for found in lists]
    for rank, (found, slots) in enumerate(zip(lists, order, strict=True)):
        assert [item for item in found if not isinstance(item, Message)] == list(slots)
        upper = [(end.sends, end.forward, end.microbatch) for end in ends[rank] if end.peer == rank + 1]
        lower = [(not end.sends, end.forward, end.microbatch) for end in ends[(rank + 1) % stages] if end.peer == rank]
        assert upper == lower or rank == stages - 1


def test_messages_in_turn_by_hand():
    """As above, but one message at a time: the second activation, then the first gradient, then both go on."""
    job = even(layers=2, pipeline_parallel=2, batch_per_replica=2, messages="in_turn", overlap_sends=False)
    program = apply_schedule(time_kernels(generate(job), H200), "baseline")
    size_bytes = job.local_tokens * job.hidden * job.item_bytes
    first, last = simulate(program, Topology("slow", (Dimension("switch", 2, float(size_bytes), 0.0),))).timelines
    exchanged_s = span(last, 0, "backward")[1] + 2.0
    assert span(first, 0, "backward")[0] == pytest.approx(exchanged_s)
    assert span(last, 1, "forward")[0] == pytest.approx(exchanged_s)
    assert span(first, 1, "backward")[0] == pytest.approx(span(last, 1, "backward")[1] + 1.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pipeline_schedule": "zb_h1", "overlap_sends": False}, "an order for gpipe and 1f1b"),
        ({"overlap_sends": True}, "lets passes wait for what is sent"),
    ],
)
def test_what_messages_in_turn_cannot_be(keys, message):
    with pytest.raises(ValueError, match=message):
        even(layers=4, pipeline_parallel=2, batch_per_replica=4, messages="in_turn", **keys)


REPLICAS = {"data_parallel": 4, "optimizer": "adamw"}


def held(job):
    """Parameters of a rank that its optimizer would step if nothing were sharded."""
    graph = generate(workload(**REPLICAS)).graphs[0]
    return next(call for call in graph.kernels if call.op == "adamw_fused").sizes["parameters"]


def test_what_sharding_sends():
    """ZeRO, arXiv:1910.02054, 7: gradients once by reduce-scatter, parameters once or twice by all-gather."""
    gradients = 2 * held(workload(**REPLICAS))
    assert payload(workload(**REPLICAS)) == {("all_reduce", "data"): gradients}
    both = {("reduce_scatter", "data"): gradients, ("all_gather", "data"): gradients}
    assert payload(workload(zero=1, **REPLICAS)) == payload(workload(zero=2, **REPLICAS)) == both
    assert payload(workload(zero=3, reshard_after_forward=False, **REPLICAS)) == both
    whole = {("all_reduce", "data"): gradients, ("all_gather", "data"): gradients}
    assert payload(workload(zero=1, all_reduced_gradients=True, **REPLICAS)) == whole
    assert payload(workload(zero=2, all_reduced_gradients=True, **REPLICAS)) == both
    twice = both | {("all_gather", "data"): 2 * gradients}
    assert payload(workload(zero=3, **REPLICAS)) == twice


def test_gradients_of_every_micro_batch_are_reduced_only_if_they_are_sharded():
    once, always = (payload(workload(zero=zero, microbatch=2, **REPLICAS)) for zero in (1, 2))
    assert always["reduce_scatter", "data"] == 4 * once["reduce_scatter", "data"]
    assert always["all_gather", "data"] == once["all_gather", "data"]


def collectives_of(job, name):
    """Collectives of a name in each role: kind, group, bytes and stage, added up over what is alike but for bytes."""
    found = []
    for graph in generate(job).graphs:
        sizes = Counter()
        for node in np.flatnonzero([each.startswith(name) for each in graph.names]).tolist():
            sizes[COLLECTIVES[graph.collective[node]], int(graph.group[node])] += int(graph.bytes[node])
        found.append(sizes)
    return found


SPLIT = {"pipeline_parallel": 2, "microbatch": 1, "pipeline_schedule": "interleaved_1f1b", **REPLICAS}


@pytest.mark.parametrize("model", [MODEL, MOE | {"expert_parallel": 2}])
@pytest.mark.parametrize("keys", [SPLIT, REPLICAS | {"microbatch": 2}])
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_what_runs_beside_forward_and_backward_sends_as_many_bytes(model, keys, zero):
    plain = workload(model, **keys, zero=zero)
    overlapped = workload(model, **keys, zero=zero, overlap_gradient_reduce=True, overlap_parameter_gather=zero > 0)
    for name in ("parameters_all_gather", "gradients_"):
        assert collectives_of(plain, name) == collectives_of(overlapped, name)
    assert (sum(collectives_of(plain, "parameters_all_gather"), Counter()).total() > 0) == (zero > 0)


def test_each_layer_waits_for_its_own_parameters():
    job = workload(**SPLIT, zero=1, overlap_parameter_gather=True)
    first, last = generate(job).graphs
    for graph, layers in ((first, (0, 1, 4, 5)), (last, (2, 3, 6, 7))):
        gathers = [node for node, name in enumerate(graph.names) if name == "parameters_all_gather"]
        assert gathers == list(range(5))  # with the embedding, or the head, and behind nothing
        assert all(graph.dependencies_of(node).size == 0 for node in gathers)
        waits = {
            gather: node
            for node in range(len(graph))
            for gather in graph.dependencies_of(node).tolist()
            if gather in gathers
        }
        assert [int(graph.microbatch[node]) for node in waits.values()] == [0] * 5
        assert len(waits) == 5
        behind = [re.search(r"layer_(\d+)", " ".join(graph.names[node:])) for node in waits.values()]
        assert list(dict.fromkeys(int(found[1]) for found in behind)) == list(layers)


def test_gradients_of_a_chunk_are_reduced_behind_its_last_micro_batch():
    """Of the last chunk before the backward of the first one begins, and not at the end."""
    job = workload(**SPLIT, overlap_gradient_reduce=True)
    for graph in generate(job).graphs:
        reductions = [node for node, name in enumerate(graph.names) if name == "gradients_all_reduce"]
        assert set(graph.microbatch[reductions].tolist()) == {7}
        later = [node for node in range(len(graph)) if graph.stage[node] < 2 and graph.microbatch[node] == 7]
        backward = [node for node in later if graph.phases[graph.phase[node]].endswith("_backward")]
        assert min(reductions) < min(backward)


def test_gathers_hide_behind_the_micro_batches_that_are_launched_together():
    """Eq. 2 of Centauri (ASPLOS 2024): what is hidden grows as L C_fw until all of C_AG is, with slow wires never."""
    keys = SPLIT | {
        "zero": 1, "layers": 4, "sequence": 2048, "hidden": 1024, "ffn": 4096, "gradient_bucket": "1B", "vocabulary": 0,
        "rank_order": ("tensor", "context", "pipeline", "data"),
    }  # fmt: skip
    topology = Topology("two", (Dimension("switch", 2, 400e9, 1e-6), Dimension("switch", 4, 2e9, 1e-6)))

    def step_s(group, *, overlapped):
        both = {"overlap_gradient_reduce": overlapped, "overlap_parameter_gather": overlapped}
        return run(workload(**keys, microbatch_group=group, **both), schedule="overlap", topology=topology).makespan_s

    hidden_s = [step_s(group, overlapped=False) - step_s(group, overlapped=True) for group in (2, 4, 8)]
    assert np.diff(np.array(hidden_s) / [2, 4, 8]) == pytest.approx(0, abs=0.1 * hidden_s[0] / 2)
    assert step_s(8, overlapped=True) < step_s(4, overlapped=True) < step_s(2, overlapped=True)


def test_hybrid_sharding_reduces_shards_over_their_copies():
    found = payload(workload(zero=3, shard_ranks=2, **REPLICAS))
    gradients = 2 * held(workload(**REPLICAS))
    assert found["reduce_scatter", "data_shard"] == gradients
    assert found["all_gather", "data_shard"] == 2 * gradients
    assert found["all_reduce", "data_copy"] == pytest.approx(gradients / 2, rel=1e-3)


def test_optimizers_step_their_shard():
    whole = held(workload(**REPLICAS))
    graph = generate(workload(zero=1, **REPLICAS)).graphs[0]
    step = next(call for call in graph.kernels if call.op == "adamw_fused")
    assert step.sizes["parameters"] == -(-whole // 4)


def test_full_recompute_is_one_more_forward_of_the_layers():
    plain = generate(workload(microbatch=1)).total_flops
    again = generate(workload(microbatch=1, recompute="full")).total_flops
    head = 3 * 2 * MODEL["vocabulary"] * MODEL["hidden"] * MODEL["sequence"] * MODEL["batch_per_replica"]
    attention = scores_flops()
    layers = plain - head - attention
    # Forward is a third of the products' FLOPs, and two of attention's seven products.
    assert again - plain == layers // 3 + attention * 2 // 7


def scores_flops():
    """FLOPs of causal attention, forward and backward, of a step."""
    head_dim = MODEL["hidden"] // MODEL["heads"]
    product = 2 * MODEL["sequence"] ** 2 * head_dim * MODEL["heads"] * MODEL["batch_per_replica"] * MODEL["layers"]
    return 7 * product // 2


def test_context_parallelism_passes_on_keys_and_values():
    job = workload(context_parallel=4, microbatch=8)
    graph = generate(job).graphs[0]
    sends = graph.kind == NodeKind.SEND
    size_bytes = 2 * 8 * (job.sequence // 4) * job.key_value_heads * job.head_dim * 2
    # Three hops forward; backward three of twice the size, as gradients go round too.
    assert sends.sum() == 2 * 3 * job.layers
    assert graph.bytes[sends].sum() == 3 * job.layers * (1 + 2) * size_bytes
    gathered = payload(workload(context_parallel=4, microbatch=8, context_exchange="all_gather"))
    assert gathered["all_gather", "context"] == gathered["reduce_scatter", "context"] == 4 * job.layers * size_bytes


def test_tied_tables_of_two_stages_are_summed_up():
    job = workload(pipeline_parallel=2, microbatch=1, tied_embedding=True)
    found = payload(job)
    assert found["all_reduce", "pipeline_ends"] == job.vocabulary * job.hidden * 2


def test_two_directions_hold_two_copies():
    job = workload(pipeline_parallel=4, microbatch=1, pipeline_schedule="dualpipe")
    assert payload(job)["all_reduce", "pipeline_copies"] > 0
    stages = {stage for graph in generate(job).graphs for stage in np.unique(graph.stage).tolist()}
    assert stages - {-1} == {0, 1, 2, 3}


def test_uneven_stages_hold_the_layers_they_are_given():
    job = workload(pipeline_parallel=2, microbatch=1, stage_layers=[3, 5])
    names = [{name.split("_")[1] for name in graph.names if name.endswith("_qkv")} for graph in generate(job).graphs]
    assert names == [{"0", "1", "2"}, {"3", "4", "5", "6", "7"}]


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(lambda counts: sum(counts) > 0))
def test_stages_may_be_empty(counts):
    """However layers are dealt out over the stages, all work of the model is done, and the step comes to its end."""
    whole = generate(workload(layers=sum(counts), microbatch=1))
    job = workload(
        layers=sum(counts), pipeline_parallel=len(counts), stage_layers=counts, pipeline_schedule="1f1b", microbatch=1
    )
    gemms = [sum(graph.flops[graph.kernel >= 0].sum() for graph in each.graphs) for each in (whole, generate(job))]
    assert gemms[1] == pytest.approx(gemms[0], rel=0.02)  # optimizer and norms of gradients are each rank's own
    assert run(job).makespan_s > 0


SHARDED = {"tensor_parallel": 4, "sequence_parallel": True, "keep_gathered": False}


def test_exchanges_beside_gemms_are_the_same_and_are_launched_before_them():
    """A GEMM gathers its input again ahead of the GEMM of its gradient, and scatters that ahead of the weights."""
    after, beside = workload(**SHARDED), workload(**SHARDED, overlap_exchanges=True)
    assert payload(after) == payload(beside)
    graph = generate(beside).graphs[0]
    at = {name: number for number, name in enumerate(graph.names)}
    for name in ("layer_3_attention_qkv", "layer_3_feed_forward_1", "head"):
        ends = ("all_gather_gradient", "input_gradient", "reduce_scatter_gradient", "weight_gradient")
        gather, gemm, scatter, weights = (at[f"{name}_{end}"] for end in ends)
        assert gather < gemm < scatter < weights
        assert gemm in graph.dependencies_of(scatter)
        assert gather in graph.dependencies_of(weights)
        assert gather not in graph.dependencies_of(gemm)
    faster = [run(job, schedule="overlap:always").makespan_s for job in (after, beside)]
    assert faster[1] <= faster[0]


def test_packed_projections_copy_and_keep_more():
    """A layer copies qkv once and k and v twice forward, as many back and qkv once more; its SwiGLU keeps SiLU."""
    keys = {"activation": "swiglu", "rotary": "fused", "layers": 1}
    plain, packed = workload(**keys), workload(**keys, packed_projections=True)
    graphs = [generate(each).graphs[0] for each in (plain, packed)]
    bytes_of = [
        sum(
            graph.bytes[node]
            for node in range(len(graph))
            if graph.kernel[node] >= 0 and graph.operation(node) == "clone"
        )
        for graph in graphs
    ]
    tokens, item = packed.local_tokens, 4  # a copy reads and writes two bytes each
    qkv, kv, halves = 128 + 2 * 64, 2 * 64, 2 * 192
    assert bytes_of[1] - bytes_of[0] == packed.num_microbatches * tokens * item * (3 * qkv + 3 * kv + halves)
    assert graphs[0].flops.sum() == pytest.approx(graphs[1].flops.sum(), rel=1e-2)
    kept = [Ledger.of(each).activation_bytes[0] for each in (plain, packed)]
    assert kept[1] - kept[0] == tokens * 192 * 2


def test_experts_have_replicas_of_their_own():
    found = payload(workload(MOE, data_parallel=4, expert_parallel=2))
    experts = 2 * MOE["layers"] * (MOE["experts"] // 2) * 2 * MOE["hidden"] * MOE["ffn"]
    assert found["all_reduce", "expert_data"] == experts
    assert found["all_to_all", "expert"] == 4 * MOE["layers"] * 2 * 8 * 64 * MOE["hidden"] * 2


def test_the_order_of_ranks_decides_what_lies_in_a_node():
    """Tensor groups inside nodes of a switch beat those that span them."""
    nodes = Topology("nodes", (Dimension("switch", 4, 400e9, 1e-6), Dimension("switch", 4, 25e9, 3e-6)))
    keys = {"tensor_parallel": 4, "data_parallel": 4}
    inside = run(workload(**keys), topology=nodes).makespan_s
    order = ("data", "tensor", "context", "pipeline")
    assert inside < run(workload(rank_order=order, **keys), topology=nodes).makespan_s


@pytest.mark.parametrize("keys", [{}, {"zero": 1, "overlap_gradient_reduce": True, "overlap_parameter_gather": True}])
def test_a_pipelined_job_comes_back_from_its_trace(tmp_path, keys):
    job = workload(pipeline_parallel=2, data_parallel=2, microbatch=1, **keys)
    program = time_kernels(generate(job), H200)
    save_program(program, tmp_path / "traces", name="pipeline", facts={})
    back = load_program(tmp_path / "traces").program
    makespans = [simulate(apply_schedule(p, "baseline"), network(4)).makespan_s for p in (program, back)]
    assert makespans[0] == makespans[1]
    for role, graph in enumerate(program.graphs):
        rank = int(np.flatnonzero(program.role_of_rank == role)[0])
        assert np.array_equal(back.graphs[back.role_of_rank[rank]].microbatch, graph.microbatch)


def test_a_message_without_its_other_end_is_refused():
    job = even(layers=2, pipeline_parallel=2, batch_per_replica=2)
    program = apply_schedule(time_kernels(generate(job), H200), "baseline")
    first = program.graphs[0]
    receive, send = (int(np.flatnonzero(first.kind == kind)[0]) for kind in (NodeKind.RECV, NodeKind.SEND))
    tags = first.tag.copy()
    tags[send] = 99
    with pytest.raises(SimulationError, match="every send needs its receive"):
        simulate(
            program.map_graphs(lambda graph: graph.with_columns(tag=tags) if graph is first else graph), network(2)
        )
    assert receive > send


def test_messages_that_wait_for_each_other_are_named():
    """Two ranks that each send only what they have received."""
    builder = GraphBuilder()
    ends = {"group": 0, "peer": 1, "bytes": 8}
    received = builder.add((), name="receive", kind=NodeKind.RECV, **ends)
    builder.add((received,), name="send", kind=NodeKind.SEND, **ends)
    program = Program("circle", (builder.build(),), np.zeros(2, np.int64), (GroupFamily("pair", ((0, 1),)),))
    for unfold in (False, True):
        with pytest.raises(SimulationError) as caught:
            simulate(program, network(2), unfold=unfold)
        assert "rank 0, node 0 ('receive') waits for a message from rank 1" in str(caught.value)
        assert "wait for each other's messages in a circle" in str(caught.value)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["1f1b", "interleaved_1f1b", "dualpipe"])
def test_inference_goes_down_the_pipeline_once(mode, name):
    """Forward alone, of all micro-batches; nothing is learnt, and the work is that of one rank."""
    keys = {"mode": mode, "kv_heads": 8, "microbatch": 1}
    program = generate(workload(pipeline_parallel=4, pipeline_schedule=name, **keys))
    assert program.total_flops == generate(workload(**keys)).total_flops
    phases = {phase for graph in program.graphs for phase in graph.phases}
    assert all("backward" not in phase and phase not in ("gradients", "optimizer") for phase in phases)
    job = workload(pipeline_parallel=4, pipeline_schedule=name, **keys)
    result = run(job)
    sends = sum(int((graph.kind == NodeKind.SEND).sum()) for graph in program.graphs)
    hops = job.num_stages - 1
    assert sends == (hops if name != "dualpipe" else 3) * job.num_microbatches
    assert result.makespan_s > 0


MEASURED = Path(__file__).parents[3] / "shared" / "measurements" / "h200-x4"
needs_measurements = pytest.mark.skipif(not MEASURED.exists(), reason="needs the shared measurements of 4 H200")
BLOCKS = {"kind": "transformer", "vocabulary": 0, "optimizer": "none"}


def measured(name, kind):
    rows = [json.loads(line) for line in (MEASURED / name).read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def step_us(row, *, schedule, topology="h200-node-4", **keys):
    sizes = {key: row[key] for key in ("hidden", "heads", "layers", "dtype")}
    job = workload(BLOCKS, ffn=4 * row["hidden"], sequence=row["seq"], **sizes, **keys)
    return compare(job, topology=topology, device=H200, schedules=[schedule]).outcomes[0].makespan_s * 1e6


@needs_measurements
def test_pipelines_measured_on_4_gpus_are_predicted_within_10_percent():
    """PyTorch's schedules; its interleaved one posts messages as they are made."""
    for row in measured("pipeline.jsonl", "pipeline"):
        chunks = {"virtual_stages": row["virtual"], "messages": "as_made"} if row["virtual"] > 1 else {}
        found = step_us(
            row,
            schedule="baseline",
            pipeline_parallel=row["stages"],
            pipeline_schedule=row["schedule"],
            batch_per_replica=row["microbatches"] * row["microbatch"],
            microbatch=row["microbatch"],
            **chunks,
        )
        assert found == pytest.approx(row["step_us"], rel=0.1), row["schedule"]


@needs_measurements
def test_tensor_and_data_parallel_steps_measured_on_4_gpus_are_predicted_within_10_percent():
    """Serial gradients and AdamW; DDP beside the backward pass, whose kernels and collectives share the GPUs."""
    plans = {
        "serial_grad_allreduce_adamw": {"schedule": "baseline"},
        "ddp_overlap_adamw": {"schedule": "overlap", "copied_buckets": True},
    }
    for row in measured("hybrid.jsonl", "hybrid_tp2_dp2"):
        if row["variant"] in plans:
            plan = plans[row["variant"]] | {"batch_per_replica": row["batch"], "optimizer": "adamw"}
            found = step_us(row, tensor_parallel=2, data_parallel=2, **plan)
            assert found == pytest.approx(row["step_us"], rel=0.1), row["variant"]
