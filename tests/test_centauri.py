"""Workload partition, the operation tier and the schedule centauri: laws, Algorithm 1 by hand, and what is chosen."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs, pipelines, seconds
from test_partition import check_conserved, columns_of

from scaleout.cli import main
from scaleout.contention import undisturbed
from scaleout.device import load_device
from scaleout.errors import ConfigError
from scaleout.generators import generate
from scaleout.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.machine import Machine
from scaleout.operations import TimeSource, kernel
from scaleout.program import GroupFamily, Program
from scaleout.reproductions import centauri
from scaleout.schedule import apply_schedule
from scaleout.schedule.centauri import plan
from scaleout.schedule.decision import in_words
from scaleout.schedule.operation_tier import Costs, candidates, even, finer, finish_s, granularity
from scaleout.schedule.partition.dimensions import check_cut, shared_dimensions, types_of
from scaleout.schedule.partition.workload import find_chains, partition_workload
from scaleout.schedule.prices import Prices
from scaleout.simulation import simulate
from scaleout.study import compare
from scaleout.timing import time_kernels
from scaleout.topology import load_topology
from scaleout.workload import load_workload

DEVICE = load_device("a100-80g")
CLUSTER = load_topology("a100-cluster-a-2")
RINGS = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
MACHINE = Machine(DEVICE, CLUSTER, RINGS)
WORLD = (GroupFamily("world", (tuple(range(16)),)),)
M, N, K = 256, 384, 512


def program_of(graph):
    return Program("by hand", (graph.build(),), np.zeros(16, np.int64), WORLD)


def add_product(graph, seconds_s, after, *, m=M, n=N, k=K):
    call = kernel("gemm", dtype="bf16", M=m, N=n, K=k)
    name = f"gemm_{len(graph)}"
    return graph.add(
        after, name=name, kernel=graph.kernel_index(call), flops=call.flops, bytes=call.bytes, duration_s=seconds_s,
        time_source=TimeSource.GIVEN,
    )  # fmt: skip


@st.composite
def chains(draw):
    """Programs of collectives whose bytes are what the products next to them take or make, and a few that are not."""
    graph, last = GraphBuilder(), ()
    for _ in range(draw(st.integers(1, 4))):
        off = draw(st.sampled_from([0, 0, 0, 2]))
        match draw(st.sampled_from(["activations", "parameters", "reduce_scatter", "all_reduce"])):
            case "activations":
                node = graph.collective(
                    "all_gather", 2 * M * K + off, group=0, after=last, name=f"activations_{len(graph)}"
                )
                last = (add_product(graph, draw(seconds), (node,)),)
                if draw(st.booleans()):
                    last = (graph.add((node, *last), name=f"add_{len(graph)}", duration_s=draw(seconds)),)
            case "parameters":
                size_bytes = 2 * (N * K + K * N) + off
                node = graph.collective(
                    "all_gather", size_bytes, group=0, name=f"parameters_{len(graph)}", after=last[:1]
                )
                norm = graph.add((node, *last), name=f"norm_{len(graph)}", duration_s=draw(seconds))
                one = add_product(graph, draw(seconds), (norm,))
                last = (add_product(graph, draw(seconds), (one,), n=K, k=N),)
            case kind:
                made = add_product(graph, draw(seconds), last)
                last = (graph.collective(kind, 2 * M * N + off, group=0, after=(made,), name=f"{kind}_{len(graph)}"),)
    return program_of(graph)


def random_granularity(numbers):
    """Chunks in the given proportions, other ones for each collective."""
    return lambda graph, chain: [n / sum(numbers[chain.collective % 3 :]) for n in numbers[chain.collective % 3 :]]


@given(st.one_of(chains(), jobs(max_roles=2).map(lambda job: job[0]), pipelines().map(lambda job: job[0])),
       st.lists(st.integers(1, 5), min_size=4, max_size=6), st.booleans())  # fmt: skip
@settings(max_examples=100)
def test_workload_partition_conserves_work_and_leaves_its_input(program, numbers, timed):
    before, machine = columns_of(program), MACHINE if timed else None
    cut = partition_workload(program, machine, granularity=random_granularity(numbers))
    assert columns_of(program) == before
    assert columns_of(partition_workload(program, machine, granularity=random_granularity(numbers))) == columns_of(cut)
    check_conserved(program, cut)
    assert cut.payload_bytes == program.payload_bytes
    for old, new in zip(program.graphs, cut.graphs, strict=True):
        memory = [int(graph.bytes[graph.kind == NodeKind.COMPUTE].sum()) for graph in (old, new)]
        assert memory[0] == memory[1]
        computes_s = [float(np.nansum(graph.duration_s[graph.kind == NodeKind.COMPUTE])) for graph in (old, new)]
        assert computes_s[1] >= computes_s[0] * (1 - 1e-9)  # parts never take less than the whole
        if not timed:
            assert computes_s[1] == pytest.approx(computes_s[0], rel=1e-9, abs=1e-15)


def ancestors(graph):
    found = []
    for node in range(len(graph)):
        needs = graph.dependencies_of(node).tolist()
        found.append(set(needs).union(*(found[old] for old in needs)))
    return found


@given(chains(), st.lists(st.integers(1, 5), min_size=4, max_size=6))
@settings(max_examples=50)
def test_everything_behind_a_cut_still_waits_for_all_of_it(program, numbers):
    """What is behind a product or a collective in the old graph is behind every part of it in the new one."""
    old = program.graphs[0]
    (new,) = partition_workload(program, granularity=random_granularity(numbers)).graphs
    wanted, found = ancestors(old), ancestors(new)
    gathered = {chain.collective for chain in find_chains(old) if not chain.produces}
    origin = [re.sub(r"_(part_\d+|chunk_\d+|done)$", "", name) for name in new.names]
    ends = {name: node for node, name in enumerate(origin)}  # the last part of each
    assert ends.keys() == set(old.names)
    for node, needs in enumerate(wanted):
        for before in needs - gathered:  # products start before all that is gathered is there
            assert ends[old.names[before]] in found[ends[old.names[node]]]
    behind = {old.names[node] for node in wanted[-1]}
    chunks = {node for node, name in enumerate(new.names) if "_chunk_" in name and origin[node] in behind}
    assert chunks <= found[ends[old.names[-1]]]


def gather_then_product(compute_s, size_bytes=2 * M * K):
    graph = GraphBuilder()
    node = graph.collective("all_gather", size_bytes, group=0)
    add_product(graph, compute_s, (node,))
    return program_of(graph)


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_gather_and_its_product_are_a_pipeline(chunks):
    """A product of c behind a gather of w, the longer, in k chunks: all chunks, then a part of c."""
    program = gather_then_product(40e-6)
    whole = simulate(apply_schedule(program, "overlap"), CLUSTER, algorithms=RINGS)
    w = whole.makespan_s - 40e-6
    latency_s = 15 * (2.7e-6 + 2e-6)  # a ring's steps, within and between nodes, which each chunk pays again
    cut = partition_workload(program, granularity=lambda graph, chain: [1 / chunks] * chunks)
    found = simulate(apply_schedule(cut, "overlap"), CLUSTER, algorithms=RINGS).makespan_s
    assert w > 40e-6
    assert found == pytest.approx(w + (chunks - 1) * latency_s + 40e-6 / chunks, rel=1e-6)


def test_what_a_product_makes_is_reduced_chunk_by_chunk():
    graph = GraphBuilder()
    made = add_product(graph, 40e-6, ())
    graph.collective("all_reduce", 2 * M * N, group=0, after=(made,))
    program = program_of(graph)
    (cut,) = partition_workload(program, granularity=lambda graph, chain: [0.5, 0.5]).graphs
    assert cut.names[:4] == ("gemm_0_part_0", "gemm_0_part_1", "all_reduce_chunk_0", "all_reduce_chunk_1")
    assert [cut.dependencies_of(node).tolist() for node in range(4)] == [[], [0], [0], [1]]


def test_a_layers_products_wait_for_their_own_parameters():
    """FSDP: half a layer's parameters are enough for attention and some of the first feed-forward product."""
    program = time_kernels(generate(load_workload("llama-big", {"zero": 3, "layers": 1})), DEVICE)
    graph = program.graphs[0]
    chain = next(chain for chain in find_chains(graph) if len(chain.pieces) == 4)
    assert [graph.names[piece.node].removeprefix("layer_0_") for piece in chain.pieces] == [
        "attention_qkv", "attention_output", "feed_forward_1", "feed_forward_2",
    ]  # fmt: skip
    cut = partition_workload(program, MACHINE, granularity=lambda graph, chain: [0.5, 0.5]).graphs[0]
    chunks = [cut.names.index("parameters_all_gather_chunk_0"), cut.names.index("parameters_all_gather_chunk_1")]
    found = ancestors(cut)
    assert chunks[1] not in found[cut.names.index("layer_0_attention_output")]
    assert chunks[1] not in found[cut.names.index("layer_0_feed_forward_1_part_0")]
    assert chunks[1] in found[cut.names.index("layer_0_feed_forward_1_part_1")]


def test_a_dimension_that_cannot_be_split_is_named_with_its_type():
    with pytest.raises(
        ConfigError, match=r"gemm cannot be cut along K, a contraction dimension \(CD\).*cut along M or N"
    ):
        partition_workload(gather_then_product(1e-6), granularity=lambda graph, chain: [0.5, 0.5], dimension="K")
    norm = kernel("rms_norm_fwd", dtype="bf16", tokens=8, hidden=16)
    with pytest.raises(ConfigError, match=r"along hidden, a none-split dimension \(ND\).*cut along tokens"):
        check_cut(norm, "hidden")
    with pytest.raises(ConfigError, match="gemm has no dimension 'heads'"):
        partition_workload(gather_then_product(1e-6), granularity=lambda graph, chain: [0.5, 0.5], dimension="heads")


TABLE_3 = {
    "gemm": "OD CD OD", "add": "OD", "gelu_fwd": "OD", "relu_fwd": "OD", "dropout_fwd": "OD",
    "swiglu_fwd": "OD ND", "softmax_fwd": "OD ND", "layer_norm_fwd": "OD ND", "rms_norm_bwd": "OD ND",
}  # fmt: skip


def test_table_3():
    for op, types in TABLE_3.items():
        assert sorted(kind.value for kind in types_of(op).values()) == sorted(types.split())
    assert shared_dimensions(("gemm", "swiglu_fwd")) == ("rows",)
    with pytest.raises(ConfigError, match=r"swiglu_fwd cannot be cut along columns, a none-split dimension \(ND\)"):
        check_cut(kernel("swiglu_fwd", dtype="bf16", elements=8), "columns")
    assert shared_dimensions(("gemm", "gelu_fwd", "dropout_fwd")) == ("rows", "columns")
    assert shared_dimensions(("gemm", "rms_norm_fwd")) == ("rows",)
    assert shared_dimensions(("gemm", "unknown")) == ()


# ---- Algorithm 1

LEVELS = {"inter_s": 3.0, "inter_size": 2, "intra_size": 8}


@pytest.mark.parametrize(
    ("costs", "chunks"),
    [
        (Costs(9.0, 4.0, 4.0), [1]),  # hidden whole, lines 24 and 25
        (Costs(9.0, 4.0, 0.0), [1 / 8] * 8),  # nothing beside it: MAX_CHUNKS
        (Costs(9.0, 4.0, 1.5), [1 / 3] * 3),  # 2.67 chunks of what hides one
        (Costs(9.0, 4.0, 0.1), [1 / 8] * 8),
        (Costs(9.0, 4.0, 3.5, **LEVELS), [2 / 16, 14 / 16]),  # line 12: between nodes is hidden
        (Costs(60.0, 4.0, 1.0, **LEVELS), [8 / 16, 8 / 16]),  # line 16: 60 / 2 > 8 * 3
        (Costs(40.0, 4.0, 1.0, **LEVELS), [8 / 16, 1 / 16, 7 / 16]),  # line 19: 40 / 2 < 24
    ],
)
def test_algorithm_1_by_hand(costs, chunks):
    assert granularity(costs) == pytest.approx(chunks)
    assert sum(granularity(costs)) == pytest.approx(1)


costs_of = st.builds(
    Costs, st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.integers(1, 6), st.integers(1, 8)
)


@given(costs_of, st.booleans())
def test_a_pipeline_is_within_its_bounds(costs, produces):
    """Never before the longer of the two, nor after one behind the other; even chunks without latency never lose."""
    for parts in (even(costs), granularity(costs)):
        assert sum(parts) == pytest.approx(1)
        assert min(parts) > 0
        found = finish_s(parts, costs, chunk_s=lambda part: part * costs.communication_s, produces=produces)
        whole = finish_s((1.0,), costs, chunk_s=lambda part: part * costs.communication_s, produces=produces)
        longest = max(costs.communication_s, costs.computation_s + costs.independent_s)
        assert found >= longest * (1 - 1e-9)
        assert found <= whole * (1 + 1e-9) + 1e-12


# ---- The schedule


@given(st.one_of(jobs(max_roles=2), pipelines(), chains().map(lambda program: (program, CLUSTER))))
@settings(max_examples=60)
def test_centauri_conserves_work_and_runs_to_its_end(job):
    program, topology = job
    before = columns_of(program)
    machine = Machine(DEVICE, topology, RINGS)
    found = apply_schedule(program, "centauri", machine=machine)
    assert columns_of(program) == before
    assert columns_of(apply_schedule(program, "centauri", machine=machine)) == columns_of(found)
    check_conserved(program, found, rounding_bytes=30 * max(map(len, program.graphs)))
    result = simulate(found, topology)
    assert result.makespan_s == simulate(found, topology).makespan_s


def test_fsdp_on_two_nodes_gains_in_all_three_dimensions():
    """Groups: half the bytes out of a node. Chunks: layers start before all their parameters are there."""
    workload = load_workload("llama-big", {"zero": 3, "layers": 3, "batch_per_replica": 2})
    found = compare(workload, schedules=("overlap", "centauri"), algorithms=RINGS).outcomes[1]
    assert 1.15 < found.speedup < 15 / 16 / 25 * 32 * 1.2
    program = time_kernels(generate(workload), DEVICE)
    words = "\n".join(in_words(plan(program, MACHINE).decisions))
    assert "6 x all_gather of 1070 MB over data: by levels 2 x 8, 36.5" in words
    assert "cut into 8 chunks with the products next to it" in words


def test_dimensions_of_the_partition_space_are_added_one_by_one():
    """The paper's ablation: primitives change nothing of FSDP, groups halve the bytes of ports, chunks start early."""
    workload = load_workload("llama-big", {"zero": 3, "layers": 3, "batch_per_replica": 2})
    schedules = ("overlap", "centauri:primitive", "centauri:group", "centauri:workload", "centauri")
    found = compare(workload, schedules=schedules, algorithms=RINGS).outcomes
    seconds = [outcome.makespan_s for outcome in found]
    assert seconds[0] == seconds[1] > 1.05 * seconds[2] > 1.05 * seconds[3] >= 1.05 * seconds[4]
    words = ["\n".join(outcome.decisions) for outcome in found]
    assert ["by levels" in each for each in words] == [False, False, True, True, True]
    assert ["cut into" in each for each in words] == [False, False, False, True, True]


def test_a_dimension_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"unknown dimension 'groups' of centauri's .* did you mean 'group'\?"):
        apply_schedule(gather_then_product(1e-6), "centauri:groups", machine=MACHINE)


def test_levels_are_taken_where_they_are_shorter_beside_each_other():
    """32 nodes: one after another levels take longer than one flat ring, but two networks carry two gathers at once."""
    workload = load_workload("llama-big", {"zero": 1, "layers": 3, "data_parallel": 256})
    cluster = load_topology("a100-cluster-b-32")
    machine = Machine(DEVICE, cluster, RINGS)
    prices = Prices(generate(workload), machine)
    gathered = (0, "all_gather", 1_070_110_720)
    levels_s = prices.levels_s(*gathered)
    assert max(levels_s) < prices.whole_s(*gathered) < sum(levels_s)
    assert not prices.by_levels(*gathered)
    found = compare(workload, topology=cluster, schedules=("overlap", "centauri"), algorithms=RINGS).outcomes[1]
    words = "\n".join(found.decisions)
    assert "collectives over nodes: by levels that are shorter side by side" in words
    assert "all_gather of 1070 MB over data: by levels 32 x 8" in words


def test_more_chunks_than_algorithm_1_has_are_taken_where_a_step_is_shorter():
    """It cuts nothing whose cost is below that of independent computation, which has other collectives beside it."""
    workload = load_workload("llama-big", {"zero": 3})
    found = compare(workload, schedules=("centauri",), algorithms=RINGS).outcomes[0]
    (words,) = [words for words in found.decisions if words.startswith("chunks: halves, quarters and eighths too")]
    step_ms, instead_ms = map(float, re.search(r"too, ([0-9.]+) ms instead of ([0-9.]+)", words).groups())
    assert step_ms == pytest.approx(1e3 * found.makespan_s, rel=1e-3)
    assert step_ms < 0.995 * instead_ms


@given(costs_of)
def test_finer_ways_are_those_of_algorithm_1_and_even_ones(costs):
    ways = finer(costs)
    assert ways[: len(candidates(costs))] == candidates(costs)
    assert {len(way) for way in ways} >= {1, 2, 4, 8}
    assert all(sum(way) == pytest.approx(1) for way in ways)


def test_an_all_reduce_over_nodes_becomes_scatter_and_gather_by_levels():
    """Data parallelism: 2 n / 16 over each port instead of 2 n 15/16 / 8."""
    program = time_kernels(generate(load_workload("llama-small", {"layers": 1})), DEVICE)
    planned = plan(program, MACHINE)
    scheduled, decisions = planned.program, planned.decisions
    assert any("reduce_scatter and all_gather by levels 2 x 8" in words for words in in_words(decisions))
    kinds = {COLLECTIVES[kind] for graph in scheduled.graphs for kind in graph.collective if kind >= 0}
    assert kinds == {"reduce_scatter", "all_gather"}


def test_one_node_has_no_levels_and_says_why():
    node = load_topology("a100-node-8")
    program = time_kernels(generate(load_workload("llama-small", {"layers": 1, "zero": 3, "data_parallel": 8})), DEVICE)
    decisions = plan(program, Machine(DEVICE, node)).decisions
    assert all(not each.choice.startswith("by levels") for each in decisions)
    assert any("its links have one bandwidth" in words for words in in_words(decisions))


@pytest.mark.parametrize(
    ("tensor", "pipeline", "zero"),
    [(1, 1, 0), (1, 1, 3), (2, 1, 1), (2, 1, 3), (4, 1, 0), (1, 2, 2), (2, 2, 0), (1, 4, 0)],
)
def test_what_does_not_pay_beside_kernels_is_left_as_it_was(tensor, pipeline, zero):
    """On four H200 chunks and overlap cost what they take from kernels; a plan knows, and no step is longer for it."""
    changes = {
        "layers": 4, "tensor_parallel": tensor, "pipeline_parallel": pipeline, "data_parallel": 4 // tensor // pipeline,
        "zero": zero, "batch_per_replica": 4, "microbatch": 1, "sequence_parallel": tensor > 1,
    }  # fmt: skip
    workload = load_workload("llama-3-8b", changes)
    found = compare(workload, topology="h200-node-4", schedules=("baseline", "overlap", "centauri")).outcomes
    assert found[2].makespan_s <= min(found[0].makespan_s, found[1].makespan_s)


def test_urgent_collectives_stay_urgent():
    """What layers wait for goes first where a rank may choose, as under overlap."""
    changes = {"layers": 2, "tensor_parallel": 2, "data_parallel": 8, "sequence_parallel": True, "zero": 1}
    program = time_kernels(generate(load_workload("llama-small", changes)), DEVICE)
    for schedule in ("overlap", "centauri", "out-of-order", "coconet"):
        graph = apply_schedule(program, schedule, machine=MACHINE).graphs[0]
        assert len(set(graph.priority[graph.kind == NodeKind.COLLECTIVE].tolist())) > 1, schedule


def test_without_a_machine_there_is_nothing_to_weigh():
    with pytest.raises(ConfigError, match="centauri weighs what collectives cost; say which device and network"):
        apply_schedule(gather_then_product(1e-6), "centauri")


# ---- The paper's figures


def test_flat_rings_take_the_port_for_longer_than_levels_do():
    """FSDP on two nodes: 15/16 n at 25 GB/s against 1/2 n at 16 GB/s, and 7/8 n at 300 GB/s within a node beside it."""
    base, chosen = (centauri.fsdp("big", 2, name) for name in ("zero-3", "centauri"))
    port_s, node_s = 1 / 2 / 16, 7 / 8 / 300
    ratio = chosen.alone_s / base.communication_s * (15 / 16 / 25)
    assert 0.98 * port_s < ratio < 1.02 * (port_s + node_s)


def test_a_plan_that_changes_nothing_is_overlap():
    """Priorities as well: all-to-alls of experts go before gradients, where both wait for a dimension."""
    changes = {"zero": 3, "layers": 2, "tensor_parallel": 1, "data_parallel": 16, "batch_per_replica": 1}
    job = load_workload("mixtral-8x7b", changes | {"sequence_parallel": False, "expert_parallel": 8})
    found = compare(job, topology="dgx-h200-2", schedules=("overlap", "centauri:primitive")).outcomes
    plain, planned = (outcome.result.program.graphs[0] for outcome in found)
    assert (plain.priority == planned.priority).all()
    assert len(set(plain.priority.tolist())) > 1
    assert found[0].makespan_s == found[1].makespan_s


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_plan_gains_more_than_the_share_of_communication_allows(data):
    """Sec. 5.4: at the most min(1 / alpha, 1 / (1 - alpha)), for random jobs on both clusters."""
    tensor, pipeline = data.draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)]))
    zero = data.draw(st.sampled_from([0, 1, 2, 3] if pipeline == 1 else [0, 1]))
    changes = {
        "layers": data.draw(st.sampled_from([1, 2])) * 2 * pipeline, "tensor_parallel": tensor,
        "pipeline_parallel": pipeline, "data_parallel": 16 // tensor // pipeline, "sequence_parallel": tensor > 1,
        "zero": zero, "batch_per_replica": 4, "microbatch": 1 if pipeline > 1 else data.draw(st.sampled_from([1, 4])),
        "vocabulary": data.draw(st.sampled_from([0, 32000])),
    }  # fmt: skip
    on, size = (data.draw(st.sampled_from("AB")), 2), data.draw(st.sampled_from(["small", "medium"]))
    speedup, bound = centauri.bound_of(centauri.step("centauri", size, on=on, **changes))
    assert speedup <= bound * (1 + 1e-9)


def test_no_plan_beats_its_computation_or_its_communication():
    for steps in (*centauri.figure_12().values(), *centauri.figure_8().values()):
        base, chosen = steps["zero-3"], steps["centauri"]
        assert max(chosen.computation_s, chosen.alone_s) <= chosen.step_s <= base.step_s


def test_on_the_large_cluster_a_plan_is_chosen_and_gains_less_with_the_batch():
    pairs = [
        [centauri.fsdp("big", batch, name, on=("B", 32)) for name in ("zero-3", "centauri")] for batch in (2, 4, 8)
    ]
    found = [centauri.gain(*pair) for pair in pairs]
    assert found == sorted(found, reverse=True)
    assert found[-1] > 1


@pytest.mark.parametrize(("microbatch", "in_the_paper"), [(1, 6), (2, 6), (4, 3)])
def test_micro_batches_are_launched_together_as_in_the_paper_or_better(microbatch, in_the_paper):
    """Sec. 5.2: as many as the pipeline has stages at TP4 + PP3 + DP4 and micro-batches of 4, and 6 at small ones."""
    chosen = centauri.pipelined(centauri.DEGREES["TP4 PP3 DP4"], microbatch, "centauri")
    assert chosen.job.microbatch_group == 6
    assert (" in groups of 3, as equation (2) names" in chosen.decisions[0]) == (in_the_paper == 3)


def test_the_command_says_what_was_decided(capsys, monkeypatch):
    arguments = ["llama-big", "--set", "zero=3", "--set", "layers=1", "--schedule", "centauri"]
    rings = ["--algorithm", "all_gather=ring", "--algorithm", "reduce_scatter=ring"]
    monkeypatch.setattr("sys.argv", ["scaleout", "run", *arguments, *rings, "--json"])
    main()
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert any("all_gather of 1070 MB over data: by levels 2 x 8" in words for words in found["decisions"])
    monkeypatch.setattr("sys.argv", ["scaleout", "run", *arguments, *rings])
    main()
    assert "what centauri decided" in capsys.readouterr().out


def test_what_chunks_and_products_take_from_each_other_is_weighed():
    """Ignoring it, GPT-3's tensor-parallel collectives were cut, and its step took 2.6% longer."""
    changes = {"tensor_parallel": 8, "data_parallel": 2, "sequence_parallel": True, "layers": 2}
    found = compare("gpt-3", topology="dgx-h200-2", device="h200", schedules=("overlap", "centauri"), changes=changes)
    assert found.outcomes[1].speedup > 0.999


def test_without_contention_the_estimate_has_none_either():
    """What is decided then is what a library that takes nothing from the device would have decided."""
    changes = {"tensor_parallel": 8, "data_parallel": 2, "sequence_parallel": True, "layers": 2}
    job = {"topology": "dgx-h200-2", "device": "h200", "schedules": ("centauri",), "changes": changes}
    with_it, without = (compare("gpt-3", **job, contention=contention).outcomes[0] for contention in (True, False))
    silent = compare("gpt-3", **{**job, "topology": undisturbed(load_topology("dgx-h200-2"))}).outcomes[0]
    assert without.decisions == silent.decisions != with_it.decisions
    assert without.makespan_s == silent.makespan_s
