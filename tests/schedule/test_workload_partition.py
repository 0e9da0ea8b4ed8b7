"""Workload partition: laws over random chains, what chunks wait for, and cuts that are refused."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs, pipelines, seconds
from test_partition import check_conserved, columns_of

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.program.graph import GraphBuilder, NodeKind, NodeRole
from scaleout.program.operations import OPERATIONS, TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.schedule.centauri.partition.dimensions import DIMENSIONS, DimensionType, sizes_of
from scaleout.schedule.centauri.partition.workload import Known, check_cut, find_chains, partition_workload
from scaleout.simulation.run import simulate
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

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


def add_gradients(graph, gemms, after, *, item_bytes=2):
    """GEMMs of so many rows and seconds, a norm's scales, and the reduction of both."""
    made = [add_product(graph, seconds_s, after, m=m) for m, seconds_s in gemms]
    norm = kernel("rms_norm_bwd", dtype="bf16", tokens=8, hidden=100)
    scales = graph.add(after, name=f"norm_{len(graph)}", kernel=graph.kernel_index(norm), duration_s=1e-6)
    elements = sum(m * N for m, _ in gemms) + 100
    return graph.collective(
        "reduce_scatter", item_bytes * elements, group=0, after=(*made, scales), name=f"gradients_{len(graph)}",
        role=NodeRole.GRADIENTS,
    )  # fmt: skip


@st.composite
def chains(draw):
    """Programs of collectives whose bytes are what the GEMMs next to them take or make, and a few that are not."""
    graph, last = GraphBuilder(), ()
    for _ in range(draw(st.integers(1, 4))):
        off = draw(st.sampled_from([0, 0, 0, 2]))
        match draw(st.sampled_from(["activations", "parameters", "gradients", "reduce_scatter", "all_reduce"])):
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
                    "all_gather", size_bytes, group=0, name=f"parameters_{len(graph)}", after=last[:1],
                    role=NodeRole.PARAMETERS,
                )  # fmt: skip
                norm = graph.add((node, *last), name=f"norm_{len(graph)}", duration_s=draw(seconds))
                one = add_product(graph, draw(seconds), (norm,))
                last = (add_product(graph, draw(seconds), (one,), n=K, k=N),)
            case "gradients":
                rows = draw(st.lists(st.sampled_from([100, 128, M, 3 * M]), min_size=1, max_size=3))
                last = (add_gradients(graph, [(m, draw(seconds)) for m in rows], last, item_bytes=2 + off),)
            case kind:
                made = add_product(graph, draw(seconds), last)
                last = (graph.collective(kind, 2 * M * N + off, group=0, after=(made,), name=f"{kind}_{len(graph)}"),)
    return program_of(graph)


def one_gemm_chains(graph):
    """Collectives of activations and of one GEMM's output, with that GEMM, looked up one after another."""

    def size_bytes(node, *sizes):
        call = graph.kernels[graph.kernel[node]] if graph.kernel[node] >= 0 else None
        return 2 * np.prod([dict(call.shape)[size] for size in sizes]) if call is not None and call.op == "gemm" else 0

    found = {}
    for node in np.flatnonzero((graph.kind == NodeKind.COLLECTIVE) & (graph.slices == 1)).tolist():
        kernels = [need for need in graph.dependencies_of(node).tolist() if graph.kind[need] != NodeKind.COLLECTIVE]
        users = [user for user in range(len(graph)) if node in graph.dependencies_of(user)]
        takers = [user for user in users if size_bytes(user, "M", "K") == graph.bytes[node]]
        if graph.operation(node) == "all_gather" and takers and not graph.role[node] & NodeRole.PARAMETERS:
            found[node] = (takers[0], False)
        reduces = graph.operation(node) in ("all_reduce", "reduce_scatter")
        if reduces and len(kernels) == 1 and size_bytes(kernels[0], "M", "N") == graph.bytes[node]:
            found[node] = (kernels[0], True)
    return found


@given(chains())
def test_chains_of_one_gemm_are_all_that_there_are(program):
    (graph,) = program.graphs
    found = {
        chain.collective: (chain.pieces[0].node, chain.produces)
        for chain in find_chains(graph)
        if len(chain.pieces) == 1 and not chain.gradients and not graph.role[chain.collective] & NodeRole.PARAMETERS
    }
    expected, taken = (
        {},
        {piece.node for chain in find_chains(graph) if chain.collective not in found for piece in chain.pieces},
    )
    for node, (gemm, produces) in one_gemm_chains(graph).items():
        if gemm not in taken:  # a GEMM belongs to the first
            expected[node] = (gemm, produces)
            taken.add(gemm)
    assert found == expected


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
    known = Known()
    for others in (numbers, numbers[::-1], numbers):
        granularity = random_granularity(others)
        again = partition_workload(program, machine, granularity=granularity, known=known)
        assert columns_of(again) == columns_of(partition_workload(program, machine, granularity=granularity))
    assert columns_of(again) == columns_of(cut)
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
    """What is behind a GEMM or a collective in the old graph is behind every part of it in the new one."""
    old = program.graphs[0]
    (new,) = partition_workload(program, granularity=random_granularity(numbers)).graphs
    wanted, found = ancestors(old), ancestors(new)
    gathered = {chain.collective for chain in find_chains(old) if not chain.produces}
    origin = [re.sub(r"_(part_\d+|chunk_\d+|done)$", "", name) for name in new.names]
    ends = {name: node for node, name in enumerate(origin)}  # the last part of each
    assert ends.keys() == set(old.names)
    for node, needs in enumerate(wanted):
        for before in needs - gathered:  # GEMMs start before all that is gathered is there
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
    """A GEMM of c behind a gather of w, the longer, in k chunks: all chunks, then a part of c."""
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
    """FSDP: half a layer's parameters are enough for attention and some of the first feed-forward GEMM."""
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


@given(st.lists(st.tuples(st.integers(20, 2000), seconds), min_size=2, max_size=5),
       st.lists(st.integers(1, 9), min_size=2, max_size=8))  # fmt: skip
def test_a_chunk_of_gradients_waits_for_what_is_in_it(gemms, numbers):
    """By FLOPs: of every GEMM all rows before the chunk's end, and no more than a tile of those behind it."""
    graph = GraphBuilder()
    add_gradients(graph, gemms, ())
    program = program_of(graph)
    parts = [n / sum(numbers) for n in numbers]
    (cut,) = partition_workload(program, granularity=lambda graph, chain: parts).graphs
    found, chunks = ancestors(cut), [node for node, name in enumerate(cut.names) if "_chunk_" in name]
    assert len(chunks) == len(parts)
    total, upto = sum(m for m, _ in gemms), np.cumsum(parts)
    begin = 0
    for number, (m, _) in enumerate(gemms):
        name = re.compile(rf"{program.graphs[0].names[number]}(_part_\d+)?$")
        mine = {node for node in range(len(cut)) if name.match(cut.names[node])}
        flops = sum(int(cut.flops[node]) for node in mine)
        for chunk, end, part in zip(chunks, upto, parts, strict=True):
            done = sum(int(cut.flops[node]) for node in mine & found[chunk]) / flops * m
            held = min(end * total, begin + m) - begin  # rows up to the chunk's end
            if held > 1e-6 and (end - part) * total < begin + m - 1e-6:
                assert done >= held - 1e-6
            assert done <= max(0.0, held) + 128 + 1e-6
            assert done == 0 or held > -1e-6
        begin += m
    scales = next(node for node, name in enumerate(cut.names) if name.startswith("norm"))
    assert [scales in found[chunk] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_reduction_begins_with_the_first_product_of_its_layer():
    """Two GEMMs of c each and a reduction of w < c: whole 2 c + w, in halves 2 c + w / 2, and a latency once."""
    graph, c = GraphBuilder(), 4e-3
    add_gradients(graph, [(M, c), (M, c)], ())
    program = program_of(graph)
    whole = simulate(apply_schedule(program, "overlap"), CLUSTER, algorithms=RINGS).makespan_s
    cut = partition_workload(program, granularity=lambda graph, chain: (0.5, 0.5))
    found = simulate(apply_schedule(cut, "overlap"), CLUSTER, algorithms=RINGS).makespan_s
    w, latency_s = whole - 2 * c - 1e-6, 15 * (2.7e-6 + 2e-6)
    assert latency_s < w < c
    assert found == pytest.approx(2 * c + 1e-6 + (w - latency_s) / 2 + latency_s, rel=1e-6)


def test_gradients_that_others_take_or_make_as_well_stay_whole():
    graph = GraphBuilder()
    node = add_gradients(graph, [(M, 1e-6), (M, 1e-6)], ())
    graph.add((0, node), name="largest_gradient", duration_s=1e-6)
    assert list(find_chains(program_of(graph).graphs[0])) == []
    graph = GraphBuilder()
    made = add_product(graph, 1e-6, ())
    experts = graph.add((), name="experts_weight_gradient", duration_s=1e-6)
    graph.collective("reduce_scatter", 4 * M * N, group=0, after=(made, experts), role=NodeRole.GRADIENTS)
    assert list(find_chains(program_of(graph).graphs[0])) == []


def test_a_layers_gradients_are_reduced_as_they_are_made():
    """FSDP of Big: 22% of a layer's gradients are the second feed-forward GEMM's, which backward makes first."""
    program = time_kernels(generate(load_workload("llama-big", {"zero": 3, "layers": 1})), DEVICE)
    graph = program.graphs[0]
    chain = next(chain for chain in find_chains(graph) if chain.gradients and len(chain.pieces) == 4)
    assert [graph.names[piece.node].removeprefix("layer_0_") for piece in chain.pieces] == [
        "feed_forward_2_weight_gradient", "feed_forward_1_weight_gradient", "attention_output_weight_gradient",
        "attention_qkv_weight_gradient",
    ]  # fmt: skip
    widths = [4 * 6656, 17920, 2 * 17920]  # of 6656 columns or rows each: attention's four, and feed-forward's three
    assert chain.pieces[0].end == pytest.approx(widths[1] / sum(widths))
    cut = partition_workload(program, MACHINE, granularity=lambda graph, chain: [0.2, 0.8]).graphs[0]
    first = next(
        node for node, name in enumerate(cut.names)
        if name == "gradients_reduce_scatter_chunk_0" and "layer_0_feed_forward_2_weight_gradient_part_0" in
        {cut.names[old] for old in cut.dependencies_of(node)}
    )  # fmt: skip
    needs = {cut.names[node] for node in ancestors(cut)[first]}
    assert "layer_0_feed_forward_1_weight_gradient" not in needs
    assert "layer_0_feed_forward_1_input_gradient" not in needs


TABLE_3 = {
    ("gemm", "gemm_fp8", "gemm_fp8_rowwise", "batched_gemm", "grouped_gemm"): ("OD, CD, OD", ("M", "N"), ("K",)),
    ("add", "mul_scalar", "dropout_fwd", "relu_fwd", "gelu_fwd"): ("OD, OD", ("elements",), ()),
    ("swiglu_fwd",): ("OD, ND", ("elements",), ()),  # its rows alone, though one size counts both
    ("softmax_fwd", "layer_norm_fwd"): ("OD, ND", ("tokens",), ()),
}
"""Operations to the types of the paper's table, and the sizes along which parts are independent, or to be added up."""


@pytest.mark.parametrize(
    ("op", "types", "free", "summed"), [(op, *row) for operations, row in TABLE_3.items() for op in operations]
)
def test_the_dimensions_of_operations_are_those_of_the_papers_table_3(op, types, free, summed):
    assert ", ".join(each.type for each in DIMENSIONS[op]) == types
    assert (sizes_of(op, DimensionType.OD), sizes_of(op, DimensionType.CD)) == (free, summed)
    for size in free if "gemm" in op and "groups" not in OPERATIONS[op].parameters else ():
        check_cut(size)


@pytest.mark.parametrize("op", DIMENSIONS)
def test_dimensions_are_counted_by_sizes_of_their_operation(op):
    assert {each.size for each in DIMENSIONS[op]} - {""} <= set(OPERATIONS[op].parameters)
    assert all(each.size or each.type is DimensionType.ND for each in DIMENSIONS[op])


def test_a_dimension_that_cannot_be_split_is_named_with_its_type():
    with pytest.raises(
        ConfigError, match=r"gemm cannot be cut along K, a contraction dimension \(CD\).*cut along M or N"
    ):
        check_cut("K")
    with pytest.raises(ConfigError, match="gemm has no dimension 'heads'"):
        check_cut("heads")
