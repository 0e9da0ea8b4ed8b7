"""Chakra traces of other tools to programs: groups, times and order; and every kind of bad set of traces."""

import json
from dataclasses import replace
from pathlib import Path

import chakra_messages as chakra
import numpy as np
import pytest

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.errors import GraphError, TraceError
from scaleout.interop.chakra import nodes as node_reading
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.rows import read_row
from scaleout.program.graph import NONE, NodeKind, TimeSource
from scaleout.program.operations import custom, kernel
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate

SAMPLES = Path(__file__).parents[3] / "shared" / "chakra" / "samples"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"no sample traces at {SAMPLES}")
Type = chakra.NodeType


def comp(node_id, deps=(), *, name="k", micros=3, node_type=Type.COMP_NODE, **attributes):
    attrs = [chakra.traced(key, value) for key, value in attributes.items()]
    return chakra.Node(
        id=node_id, name=f"{name}{node_id}", type=node_type, data_deps=deps, duration_micros=micros, attr=attrs
    )


def coll(node_id, deps=(), *, comm_type=0, comm_size=64, **attributes):
    kind = Type.COMM_COLL_NODE
    return comp(node_id, deps, name="c", node_type=kind, comm_type=comm_type, comm_size=comm_size, **attributes)


def write_ranks(folder, ranks, groups=None, *, name="w"):
    for rank, nodes in enumerate(ranks):
        chakra.write(folder / f"{name}.{rank}.et", chakra.GlobalMetadata(), nodes)
    if groups is not None:
        (folder / f"{name}.json").write_text(json.dumps(groups))
    return folder


def test_disjoint_groups_at_the_same_place_are_one_family(tmp_path):
    """Ids differ between ranks, as the generator's do; groups 1, 2 are an axis, and 3, 4 another."""
    names = [("1", "3"), ("1", "4"), ("2", "3"), ("2", "4")]
    ranks = [
        [comp(10 * rank), coll(10 * rank + 1, [10 * rank], pg_name=a), coll(10 * rank + 2, pg_name=b, comm_type=2)]
        for rank, (a, b) in enumerate(names)
    ]
    for nodes in ranks:
        for node, name in zip(nodes, "xyz", strict=True):
            node.name = name
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    program = chakra.load_program(write_ranks(tmp_path, ranks, groups)).program
    assert len(program.graphs) == 1
    assert [(family.name, family.members) for family in program.groups] == [
        ("1, 2", ((0, 1), (2, 3))),
        ("3, 4", ((0, 2), (1, 3))),
    ]
    graph = program.graphs[0]
    assert graph.group.tolist() == [NONE, 0, 1]
    assert graph.bytes.tolist() == [0, 64, 128]  # an all-gather's shard, over two ranks
    assert graph.duration_s[0] == 3e-6
    assert graph.time_source.tolist() == [TimeSource.GIVEN, TimeSource.UNKNOWN, TimeSource.UNKNOWN]
    assert np.isnan(graph.duration_s[1:]).all()


def test_ranks_whose_names_differ_in_their_own_number_are_alike(tmp_path):
    """Any other number in a name tells ranks apart."""
    ranks = [[comp(0, name=f"rank{rank}/fwd_"), coll(1, [0])] for rank in range(4)]
    assert len(chakra.load_program(write_ranks(tmp_path, ranks)).program.graphs) == 1
    ranks[3][0].name = "rank3/fwd_1"
    program = chakra.load_program(write_ranks(tmp_path, ranks)).program
    assert program.role_of_rank.tolist() == [0, 0, 0, 1]
    assert [graph.names[0] for graph in program.graphs] == ["rank0/fwd_0", "rank3/fwd_1"]


def test_overlapping_groups_part_the_ranks(tmp_path):
    """Ranks 0 and 2 have like files, but rank 1 is in the groups of both: each group is a family of its own."""
    ranks = [[coll(0, pg_name="1")], [coll(0, pg_name="1"), coll(1, [0], pg_name="2")], [coll(0, pg_name="2")]]
    program = chakra.load_program(write_ranks(tmp_path, ranks, {"1": [0, 1], "2": [1, 2]})).program
    assert len(program.graphs) == 3
    assert [family.members for family in program.groups] == [((0, 1),), ((1, 2),)]


def test_groups_of_one_family_may_differ_in_size(tmp_path):
    ranks = [[coll(0, pg_name=name, comm_type=2)] for name in ("1", "1", "1", "2")]
    program = chakra.load_program(write_ranks(tmp_path, ranks, {"1": [0, 1, 2], "2": [3]})).program
    assert len(program.groups) == 1
    assert [int(program.graphs[role].bytes[0]) for role in program.role_of_rank] == [192, 192, 192, 64]


def process_groups(*groups):
    node = chakra.Node(id=99, name="## process_group:init ##", type=Type.METADATA_NODE)
    listed = [{"pg_name": name, "ranks": ranks, "pg_desc": "it's"} for name, ranks in groups]
    node.inputs.values = repr([json.dumps(listed)])
    return node


def test_groups_of_metadata_nodes(tmp_path):
    """PyTorch lists them; each rank may use a name for a group of its own."""
    ranks = [
        [process_groups(("0", []), ("7", [rank - rank % 2, rank - rank % 2 + 1])), coll(1, pg_name="7"), coll(2)]
        for rank in range(4)
    ]
    program = chakra.load_program(write_ranks(tmp_path, ranks)).program
    assert len(program.graphs) == 1
    assert [family.members for family in program.groups] == [((0, 1), (2, 3)), ((0, 1, 2, 3),)]
    assert program.graphs[0].duration_s[0] == 0
    assert program.graphs[0].time_source[0] == TimeSource.GIVEN
    assert program.groups[1].name == "world"


def test_where_a_foreign_kernel_gets_its_time(tmp_path):
    untimed = {"micros": 0}
    stated = chakra.AttributeProto(name="tensor_size")  # as STAGE writes some attributes: without a value
    nodes = [
        comp(0, num_ops=8, tensor_size=4, **untimed),
        comp(1, num_ops=8, tensor_size=4, micros=2),
        comp(2, tensor_size=6, node_type=Type.MEM_LOAD_NODE, **untimed),
        comp(3, is_cpu_op=True, **untimed),
        comp(4, is_cpu_op=True, micros=9),
        comp(5, num_ops=0, tensor_size=0, **untimed),
        comp(6, node_type=Type.INVALID_NODE, **untimed),
        comp(7, num_ops=8, **untimed),
    ]
    nodes[7].attr.append(stated)
    nodes[7].ctrl_deps.append(2)
    nodes[1].attr.append(chakra.attribute("is_cpu_op", "int32_val", 0))
    loaded = chakra.load_program(write_ranks(tmp_path, [nodes]), dtype="fp16")
    graph = loaded.program.graphs[0]
    nan = float("nan")
    np.testing.assert_array_equal(graph.duration_s, [nan, 2e-6, nan, 0, 9e-6, 0, 0, nan])
    assert [graph.kernels[index] if index != NONE else None for index in graph.kernel] == [
        custom(dtype="fp16", flops=8, bytes=4),
        custom(dtype="fp16", flops=8, bytes=4),
        custom(dtype="fp16", flops=0, bytes=6),
        *[None] * 4,
        custom(dtype="fp16", flops=8, bytes=0),
    ]
    assert graph.dependencies_of(7).tolist() == [2]
    sources = time_kernels(loaded.program, load_device("h200")).graphs[0].time_source
    assert not set(sources[[0, 2, 7]].tolist()) & {TimeSource.UNKNOWN, TimeSource.GIVEN}


def test_kernels_that_differ_in_counts_alone_are_numbered_as_they_are_used(tmp_path):
    """Each is a kernel of its own, whatever its kind and in which file; time and FLOPs are those of its own node."""
    own = {vocabulary.DURATION: 1e-6, vocabulary.TIME_SOURCE: "given"}
    texts = ["gemm bf16 M=8 N=8 K=8", "custom fp32"]
    counts = [(8, 4), (8, 6), (5, 4), (8, 4), (8, 4), (9, 4), (9, 4), (8, 6)]
    kinds = [None, None, None, texts[0], texts[1], texts[0], texts[1], None]

    def node(at):
        stated = own | {vocabulary.KERNEL: kinds[at]} if kinds[at] else {}
        flops, size_bytes = counts[at]
        return comp(at, num_ops=flops, tensor_size=size_bytes, micros=0 if kinds[at] is None else 1, **stated)

    nodes = [node(at) for at in range(len(counts))]
    program = chakra.load_program(write_ranks(tmp_path, [nodes, nodes[::-1]])).program
    for graph, order in zip(program.graphs, (1, -1), strict=True):
        expected = [
            replace(kernel("gemm", dtype="bf16", M=8, N=8, K=8), flops=flops, bytes=size_bytes)
            if kind == texts[0]
            else custom(dtype="fp32" if kind else "bf16", flops=flops, bytes=size_bytes)
            for kind, (flops, size_bytes) in list(zip(kinds, counts, strict=True))[::order]
        ]
        assert [graph.kernels[index] for index in graph.kernel] == expected
        assert graph.kernels == tuple(dict.fromkeys(expected))
        assert hash(graph.kernels) == hash(tuple(dict.fromkeys(expected)))
    timed = time_kernels(program, load_device("mi300x"))
    for graph in timed.graphs:
        for index, call in enumerate(graph.kernel.tolist()):
            if graph.time_source[index] != TimeSource.GIVEN:
                assert graph.duration_s[index] == kernel_time(load_device("mi300x"), graph.kernels[call]).seconds


def test_nodes_are_sorted_and_messages_read(tmp_path):
    send = comp(3, [8], node_type=Type.COMM_SEND_NODE, comm_dst=1, comm_src=0, comm_tag=7, comm_size=5)
    recv = comp(3, [8], node_type=Type.COMM_RECV_NODE, comm_src=0, comm_tag=7, comm_size=5)
    program = chakra.load_program(write_ranks(tmp_path, [[send, comp(8)], [recv, comp(8)]])).program
    assert [graph.names for graph in program.graphs] == [("k8", "k3"), ("k8", "k3")]
    assert [graph.kind.tolist()[1] for graph in program.graphs] == [NodeKind.SEND, NodeKind.RECV]
    assert program.peers.tolist() == [[1], [0]]
    assert [int(graph.peer[1]) for graph in program.graphs] == [0, 0]
    assert [int(graph.tag[1]) for graph in program.graphs] == [7, 7]


def test_nodes_that_differ_in_ids_dependencies_and_plain_numbers_are_decoded_once(tmp_path, monkeypatch):
    decoded = []

    def recording(node, dtype):
        decoded.append(node.id)
        return read_row(node, dtype=dtype)

    monkeypatch.setattr(node_reading, "read_row", recording)
    ranks = [[coll(4), coll(5, [4]), coll(6, [4, 5], comm_size=1)], [coll(5)], [coll(4), coll(5, [4])]]
    program = chakra.load_program(write_ranks(tmp_path, ranks)).program
    assert decoded == [4]
    assert program.role_of_rank.tolist() == [0, 1, 2]
    assert program.graphs[0].bytes[2] == 1


def test_a_prefix_chooses_between_sets(tmp_path):
    write_ranks(tmp_path, [[comp(0)]], name="a.b")
    write_ranks(tmp_path, [[comp(0)]] * 2, name="c")
    assert chakra.load_program(tmp_path / "a.b").program.num_ranks == 1
    assert chakra.load_program(str(tmp_path / "c")).program.num_ranks == 2
    with pytest.raises(TraceError, match=r"several prefixes; give one of .*a\.b, .*/c$"):
        chakra.load_program(tmp_path)
    with pytest.raises(TraceError, match=r"c.1.et: is the name of one rank's file; give the prefix of all ranks, .*/c"):
        chakra.load_program(tmp_path / "c.1.et")
    with pytest.raises(TraceError, match=r"d: no such folder, and no files d.<rank>.et; .* holds the prefixes a.b, c"):
        chakra.load_program(tmp_path / "d")


def test_the_only_group_file_will_do_whatever_its_name(tmp_path):
    write_ranks(tmp_path, [[coll(0, pg_name="1")]])
    with pytest.raises(TraceError, match=r"c0'\): group '1' has no members: there is no group file .* add .*/w.json"):
        chakra.load_program(tmp_path)
    (tmp_path / "notes.json").write_text('["no groups"]')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "groups.json").write_text('{"1": [0]}')
    assert chakra.load_program(tmp_path).program.groups[0].members == ((0,),)
    (tmp_path / "more.json").write_text('{"1": [0]}')
    with pytest.raises(TraceError, match=r"groups.json, more.json are all files of process groups; rename the right"):
        chakra.load_program(tmp_path)
    (tmp_path / "w.json").write_text('{"1": 0}')
    with pytest.raises(TraceError, match=r"w.json: is no file of process groups; write it in the form \{\"1\": \[0, 1"):
        chakra.load_program(tmp_path)


def ranks_of_two(*nodes):
    return [[*nodes], [comp(0)]]


BAD = {
    "cycle": ([[comp(5, [7]), comp(7, [5])]], None, "k5, id 5'.*k7, id 7.*; remove one of these", GraphError),
    "waits for itself": ([[comp(5, [5])]], None, "form a cycle", GraphError),
    "duplicate id": ([[comp(5), coll(5)]], None, r"w.0.et: node 5 \('c5'\) has the id of node 'k5' too", TraceError),
    "unknown dependency": ([[comp(5, [4])]], None, r"node 5 \('k5'\) depends on node 4, which the file", TraceError),
    "no work": (
        [[comp(5, micros=0)]], None, r"w.0.et: node 5 \('k5'\) is a kernel with no time and no FLOPs; give", GraphError,
    ),
    "negative size": ([[coll(5, comm_size=-1)]], None, "comm_size is -1; write a number from 0", TraceError),
    "huge size": ([[comp(5, tensor_size=2**63)]], None, "tensor_size is 9223372036854775808; write", TraceError),
    "unsupported": (
        [[coll(5, comm_type=8)]], None, "c5'.: comm_type REDUCE_SCATTER_BLOCK is not supported; it must be", TraceError,
    ),
    "unknown type": ([[coll(5, comm_type=42)]], None, "comm_type 42 is not supported", TraceError),
    "no type": ([[comp(5, node_type=Type.COMM_COLL_NODE)]], None, "has no attribute 'comm_type'", TraceError),
    "involved_dim": (
        [[coll(5, involved_dim=[True, False])]], None, r"c5'\): involved_dim \[True, False\] keeps it", TraceError,
    ),
    "no destination": (
        [[comp(5, node_type=Type.COMM_SEND_NODE, comm_size=1)]], None, "w.0.et: .* no attribute 'comm_dst'", TraceError,
    ),
    "another's message": (
        ranks_of_two(comp(5, node_type=Type.COMM_SEND_NODE, comm_size=1, comm_src=1, comm_dst=1, comm_tag=0)), None,
        "is a message of rank 1, but the file is of rank 0; name the file after its rank", TraceError,
    ),
    "unknown peer": (
        [[comp(5, node_type=Type.COMM_RECV_NODE, comm_size=1, comm_src=3, comm_tag=0)]], None,
        r"w.0.et: node 5 \('k5'\) names rank 3, but there are traces of ranks 0 to 0 only", TraceError,
    ),
    "unknown group": (
        [[coll(5, pg_name="2")]], {"1": [0]}, r"c5'\): group '2' is not in .*/w.json, which has 1; add", TraceError,
    ),
    "not in its group": (
        ranks_of_two(coll(5, pg_name="1")), {"1": [1]}, "is a collective of group '1', which has not rank 0 but 1",
        TraceError,
    ),
    "group of missing ranks": (
        [[coll(5, pg_name="1")]], {"1": [0, 4]}, "has rank 4, but there are only traces of ranks 0 to 0", TraceError,
    ),
    "rank twice": ([[coll(5, pg_name="1")]], {"1": [0, 0]}, "has a rank twice: 0, 0; name each rank once", TraceError),
    "bad process groups": (
        [[chakra.Node(id=5, name="## process_group:init ##", type=Type.METADATA_NODE)]], None,
        r"node 5 .* inputs are not a list of process groups; write values like \['\[\{\"pg_name", TraceError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_set_is_refused_in_words(case, tmp_path):
    ranks, groups, message, kind = BAD[case]
    write_ranks(tmp_path, ranks, groups)
    with pytest.raises(kind, match=message) as caught:
        chakra.load_program(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'w.0.et'}: ")
    assert str(caught.value).count("w.0.et") == 1
    assert "\n" not in str(caught.value)


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"holds no trace; its files must be named <prefix>.<rank>.et"):
        chakra.load_program(tmp_path)
    with pytest.raises(TraceError, match=r"no: no such folder, and no files no.<rank>.et; give a folder"):
        chakra.load_program(tmp_path / "no")
    with pytest.raises(TraceError, match=r"no/no: no such folder"):
        chakra.load_program(tmp_path / "no" / "no")
    write_ranks(tmp_path, [[comp(0)], [comp(1)], [comp(2)]])
    path = tmp_path / "w.1.et"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(
        TraceError, match=r"^\S*w.1.et: node 0 at byte 1: the file ends after .* write or copy it again"
    ):
        chakra.load_program(tmp_path)
    path.write_text("{}")
    with pytest.raises(TraceError, match=r"w.1.et: is text .* not a Chakra trace; give the .et file of a rank"):
        chakra.load_program(tmp_path)
    path.unlink()
    with pytest.raises(
        TraceError, match=r"has no w.1.et, the trace of rank 1, but one of rank 2; give the files of all"
    ):
        chakra.load_program(tmp_path)
    path.mkdir()
    with pytest.raises(TraceError, match=r"w.1.et: cannot be read \(Is a directory\); give an existing .et file"):
        chakra.load_program(tmp_path)
    (tmp_path / "w.01.et").touch()
    with pytest.raises(TraceError, match=r"w.01.et and w.1.et are both of rank 1; remove one"):
        chakra.load_program(tmp_path)


@needs_samples
@pytest.mark.parametrize(
    ("name", "num_ranks", "num_roles"),
    [("dense_fsdp4", 4, 1), ("llama_cp2_tp2", 4, 1), ("moe_ep4_tp2", 8, 1), ("gpt_dp2_tp2_pp2", 8, 2)],
)
def test_stage_traces_load_fold_and_run(name, num_ranks, num_roles):
    """One role for each stage of a pipeline: its ranks name each other's numbers, but do the same."""
    program = chakra.load_program(SAMPLES / "stage" / name).program
    assert program.num_ranks == num_ranks
    assert len(program.graphs) == num_roles
    groups = json.loads((SAMPLES / "stage" / name / "w.json").read_text())
    families = [members for family in program.groups for members in family.members]
    assert set(families) <= {tuple(members) for members in groups.values()}
    timed_program = time_kernels(program, load_device("h200"))
    result = simulate(
        apply_schedule(timed_program, "overlap"), Topology("s", (Dimension("switch", num_ranks, 1e11, 1e-6),))
    )
    assert result.makespan_s > 0


SAMPLE_FAULTS = {
    "generator/one_comm_recv_node": "has no attribute 'comm_src'",
    "generator/one_comm_send_node": "has no attribute 'comm_dst'",
    "pytorch_converter/handmade": "has no attribute 'comm_dst'",
    "framing/zero_byte_frame": r"node 1 \('a'\) is a kernel with no time and no FLOPs",
}
"""What these files lack, so that nobody could run them."""


@needs_samples
def test_all_other_samples_load_or_say_what_they_lack():
    prefixes = {path.parent / path.name.split(".")[0] for path in SAMPLES.glob("[!s]*/*.et")}
    assert len(prefixes) == 22
    for prefix in sorted(prefixes):
        fault = SAMPLE_FAULTS.get(str(prefix.relative_to(SAMPLES)))
        if fault is None:
            program = chakra.load_program(prefix).program
            assert len(program.graphs) == 1
            assert program.num_ranks == len(list(prefix.parent.glob(f"{prefix.name}.*.et")))
        else:
            with pytest.raises((TraceError, GraphError), match=fault):
                chakra.load_program(prefix)
