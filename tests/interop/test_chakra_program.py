"""Programs as sets of Chakra traces: what is written, what comes back, and what is refused."""

import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import chakra_messages as chakra
import numpy as np
import pytest
from chakra_messages import read_messages
from hypothesis import given
from hypothesis import strategies as st

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.peers import peer_of
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError, GraphError, TraceError
from scaleout.interop.chakra import save, vocabulary
from scaleout.interop.chakra.vocabulary import OWN_KINDS
from scaleout.program.graph import COLLECTIVES, HEAD, NONE, GraphBuilder, NodeKind, NodeRole, TimeSource
from scaleout.program.mesh import Mesh
from scaleout.program.operations import custom, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.fold import fold
from scaleout.simulation.run import simulate
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

Type = chakra.NodeType
FACTS = {"workload": "w", "device": "d", "topology": "t"}


def timed(name, **changes):
    workload = load_workload(name, changes)
    return workload, time_kernels(generate(workload), load_device(workload.device))


def columns(graph):
    """All that a graph is, comparable: arrays as bytes, so that times agree to the last bit."""
    values = {field.name: getattr(graph, field.name) for field in dataclasses.fields(graph)}
    return {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def assert_equal(program, loaded):
    assert [(family.name, family.members) for family in loaded.groups] == [
        (family.name, family.members) for family in program.groups
    ]
    assert loaded.num_ranks == program.num_ranks
    for rank, roles in enumerate(zip(program.role_of_rank.tolist(), loaded.role_of_rank.tolist(), strict=True)):
        saved, graph = program.graphs[roles[0]], loaded.graphs[roles[1]]
        for node in np.flatnonzero(saved.kind > NodeKind.COLLECTIVE).tolist():
            assert peer_of(program, rank, saved, node) == peer_of(loaded, rank, graph, node)
        assert columns(graph.with_columns(peer=saved.peer)) == columns(saved)


def round_trip(program, folder):
    chakra.save_program(program, folder, name="job", facts=FACTS)
    return chakra.load_program(folder)


WORKLOADS = {
    "dlrm": ("dlrm-128", {}),
    "transformer": ("llama-small", {"tensor_parallel": 4, "data_parallel": 4, "layers": 2}),
    "sequence parallel": (
        "llama-small",
        {"tensor_parallel": 4, "data_parallel": 4, "layers": 2, "sequence_parallel": True},
    ),
    "moe": ("mixtral-8x7b", {"layers": 2}),
}


@pytest.mark.parametrize("case", WORKLOADS)
def test_a_workload_comes_back_as_one_equal_role(case, tmp_path):
    name, changes = WORKLOADS[case]
    workload, program = timed(name, **changes)
    loaded = round_trip(program, tmp_path / "traces")
    assert len(loaded.program.graphs) == 1
    assert loaded.program.name == "job"
    assert loaded.facts == FACTS
    assert_equal(program, loaded.program)

    topology = load_topology(workload.topology)
    runs = [simulate(apply_schedule(p, "baseline"), topology) for p in (program, loaded.program)]
    for ours, theirs in zip(runs[0].timelines, runs[1].timelines, strict=True):
        assert ours.ranks == theirs.ranks
        assert ours.start_s.tobytes() == theirs.start_s.tobytes()
        assert ours.end_s.tobytes() == theirs.end_s.tobytes()


@pytest.mark.parametrize("schedule", ["baseline", "overlap"])
def test_stages_of_a_traced_pipeline_fold_as_the_generated_ones_do(schedule, tmp_path):
    """Their messages name ranks, each another; folded and unfolded, every rank's times agree to the last bit."""
    degrees = {"tensor_parallel": 2, "pipeline_parallel": 4, "data_parallel": 2, "batch_per_replica": 4}
    _, program = timed("llama-small", **degrees, layers=4)
    loaded, topology = round_trip(program, tmp_path / "traces").program, load_topology("dgx-h200-2")
    assert fold(loaded, topology).class_of_rank.tolist() == fold(program, topology).class_of_rank.tolist()
    assert len(loaded.graphs) == 4
    scheduled = apply_schedule(loaded, schedule)
    folded, unfolded = (simulate(scheduled, topology, unfold=unfold) for unfold in (False, True))
    assert len(folded.timelines) == 4
    for line in unfolded.timelines:
        alike = next(each for each in folded.timelines if line.ranks[0] in each.ranks)
        assert alike.start_s.tobytes() == line.start_s.tobytes()
        assert alike.end_s.tobytes() == line.end_s.tobytes()
    assert_equal(loaded, round_trip(loaded, tmp_path / "again").program)


KERNELS = st.sampled_from(
    [
        kernel("gemm", dtype="bf16", M=64, N=32, K=16),
        kernel("gemm", dtype="fp8_e4m3", M=64, N=32, K=16),
        kernel("attention_fwd", dtype="fp16", batch=1, heads=2, seq=8, head_dim=4, causal=0),
        kernel("add", dtype="fp32", elements=7),
        custom(dtype="bf16", flops=10, bytes=0),
        custom(dtype="tf32", flops=0, bytes=3),
    ]
)
SECONDS = st.floats(0, 10, allow_subnormal=True)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@st.composite
def graphs(draw, num_families, num_ranks):
    builder = GraphBuilder()
    for index in range(draw(st.integers(0, 8))):
        builder.enter(draw(st.sampled_from(["", "forward", "backward"])), draw(st.sampled_from(NodeRole)))
        builder.layer = draw(st.integers(HEAD, 3))
        after = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else ()
        name = draw(NAMES)
        match draw(st.sampled_from(NodeKind)):
            case NodeKind.COMPUTE:
                call = draw(st.none() | KERNELS)
                work = {} if call is None else {"flops": call.flops, "bytes": call.bytes}
                time = {"duration_s": draw(SECONDS), "time_source": draw(st.sampled_from(TimeSource))}
                number = NONE if call is None else builder.kernel_index(call)
                priority = draw(st.integers(-3, 3))
                builder.add(after, name=name, kernel=number, priority=priority, **work, **time)
            case NodeKind.COLLECTIVE:
                kind, size_bytes = draw(st.sampled_from(COLLECTIVES)), 8 * draw(st.integers(0, 9))
                group, priority = draw(st.integers(0, num_families - 1)), draw(st.integers(-3, 3))
                builder.collective(kind, size_bytes, group=group, after=after, name=name or "c", priority=priority)
            case kind:
                peer, tag = draw(st.integers(0, num_ranks - 1)), draw(st.integers(0, 9))
                builder.add(after, name=name, kind=kind, bytes=draw(st.integers(0, 99)), peer=peer, tag=tag)
    return builder.build()


@st.composite
def programs(draw):
    degrees = st.sampled_from([1, 2])
    mesh = Mesh(tensor=draw(degrees), data=draw(degrees), pipeline=draw(degrees))
    axes = draw(st.lists(st.sampled_from(["tensor", "data", "pipeline", "world"]), min_size=1, max_size=4))
    roles = draw(st.lists(graphs(len(axes), mesh.num_ranks), min_size=1, max_size=3))
    role_of_rank = np.array([draw(st.integers(0, len(roles) - 1)) for _ in range(mesh.num_ranks)])
    return Program("random", tuple(roles), role_of_rank, tuple(mesh.groups(axis) for axis in axes))


def test_a_message_whose_other_end_is_not_in_its_group_is_refused(tmp_path):
    degrees = {"tensor_parallel": 4, "pipeline_parallel": 4, "layers": 4, "batch_per_replica": 4}
    _, program = timed("llama-small", **degrees, data_parallel=1)
    chakra.save_program(program, tmp_path, name="job", facts={})
    change(tmp_path / "job.0.et", "comm_dst", 1)
    with pytest.raises(TraceError, match=r"job.0.et: node [0-9]+ .* names rank 1, which is not in the group of 'pip"):
        chakra.load_program(tmp_path)


@given(program=programs())
def test_random_programs_come_back_equal(program, tmp_path_factory):
    assert_equal(program, round_trip(program, tmp_path_factory.mktemp("random")).program)


def small_program(num_ranks=4, *, size_bytes=64, durations=(0.0, 3e-7, 1.6e-6, 2.4e-6)):
    """Kernels of given times, then a collective of each kind over the tensor axis and one over all ranks."""
    graph = GraphBuilder("forward", NodeRole.FORWARD, layer=HEAD)
    for index, duration_s in enumerate(durations):
        graph.add([index - 1] if index else [], name=f"k{index}", duration_s=duration_s, time_source=TimeSource.GIVEN)
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        graph.collective(kind, size_bytes, group=0, after=[len(graph) - 1], priority=1)
    graph.collective("all_reduce", size_bytes, group=1, after=[len(graph) - 1])
    graph.add([], name="s", kind=NodeKind.SEND, bytes=5, peer=1, tag=2)
    graph.add([], name="r", kind=NodeKind.RECV, bytes=5, peer=1, tag=2)
    mesh = Mesh(tensor=2, data=num_ranks // 2)
    families = (mesh.groups("tensor"), mesh.groups("world"))
    return Program("small", (graph.build(),), np.zeros(num_ranks, np.int64), families)


def test_files_are_what_astra_sim_reads(tmp_path):
    """Kinds as in the table of conventional attributes; ours beside them; ranks differ in `pg_name` only."""
    files = chakra.save_program(small_program(), tmp_path, name="job", facts=FACTS)
    assert [file.name for file in files] == ["job.0.et", "job.1.et", "job.2.et", "job.3.et", "job.json"]
    assert json.loads(files[-1].read_text()) == {"1": [0, 1], "2": [2, 3]}
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != files[2].read_bytes()
    metadata, nodes = chakra.read(files[2])
    assert metadata.version == "0.0.4"
    assert chakra.to_dict(metadata) == {**FACTS, "scaleout_groups": ["tensor 1 2", "world 0 1"]}

    kinds = {**chakra.CONVENTIONAL_KINDS, **OWN_KINDS}
    names = {}
    for node in nodes:
        for name, (kind, _) in node.attributes.items():
            assert kind == kinds[name], name
        names.setdefault(node.type, set()).update(node.attributes)
    own = {"is_cpu_op", "scaleout_phase", "scaleout_role", "scaleout_layer"}
    message = own | {"comm_size", "comm_tag", "comm_priority"}
    assert names == {
        Type.COMP_NODE: own | {"num_ops", "tensor_size", "scaleout_duration_s", "scaleout_time_source"},
        Type.COMM_COLL_NODE: own | {"comm_type", "comm_size", "comm_priority", "pg_name", "scaleout_group"},
        Type.COMM_SEND_NODE: message | {"comm_dst"},
        Type.COMM_RECV_NODE: message | {"comm_src"},
    }
    assert [node.duration_micros for node in nodes[:4]] == [0, 1, 2, 2]
    assert not any(chakra.get(node, "is_cpu_op", bool) for node in nodes)
    collectives = [chakra.to_dict(node) for node in nodes if node.type == Type.COMM_COLL_NODE]
    # Of an all-gather the shard, 64 B over the two ranks of a tensor group; of all others the full input.
    assert [(c["comm_type"], c["comm_size"], c.get("pg_name")) for c in collectives] == [
        (2, 32, "2"), (7, 64, "2"), (0, 64, "2"), (6, 64, "2"), (0, 64, None),
    ]  # fmt: skip


def test_a_kernel_travels_with_its_name_and_sizes(tmp_path):
    _, program = timed("dlrm-128")
    path = chakra.save_program(program, tmp_path, name="job", facts={})[0]
    texts = {chakra.to_dict(node).get("scaleout_kernel") for node in chakra.read(path)[1]}
    assert "gemm fp32 M=16 N=682 K=682" in texts
    assert not (tmp_path / "job.json").exists()


def test_kernel_counts_are_those_of_the_trace():
    """Another version may count otherwise than ours."""
    call = vocabulary.parse_kernel("add bf16 elements=7", flops=1, size_bytes=2)
    assert (call.op, call.shape, call.flops, call.bytes) == ("add", (("elements", 7),), 1, 2)


def test_saving_refuses_what_is_not_timed_or_is_scheduled(tmp_path):
    workload = load_workload("dlrm-128")
    with pytest.raises(GraphError, match=r"node 0 \('embedding_bag_fwd'\) has no time; time the program with a device"):
        chakra.save_program(generate(workload), tmp_path, name="job", facts={})
    _, program = timed("dlrm-128")
    for schedule in ("overlap", "fused"):
        with pytest.raises(GraphError, match=r"was scheduled: .* save the program as it was before any schedule"):
            chakra.save_program(apply_schedule(program, schedule), tmp_path, name="job", facts={})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_nothing(tmp_path):
    program = small_program(size_bytes=63)
    message = r"node 4 \('all_gather'\) gathers 63 B from 2 ranks, .* make the size a multiple of the ranks"
    with pytest.raises(GraphError, match=message):
        chakra.save_program(program, tmp_path / "new", name="job", facts={})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "notes.txt").write_text("keep me")
    with pytest.raises(GraphError, match=message):
        chakra.save_program(program, tmp_path, name="job", facts={})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_saving_again_replaces_the_set_and_its_groups(tmp_path):
    chakra.save_program(small_program(), tmp_path, name="job", facts={})
    _, program = timed("dlrm-128")
    round_trip(program, tmp_path)
    assert not (tmp_path / "job.json").exists()
    assert len(list(tmp_path.iterdir())) == 128


def test_saving_refuses_to_mix_sets(tmp_path):
    program = small_program()
    chakra.save_program(program, tmp_path, name="job", facts={})
    with pytest.raises(TraceError, match="holds traces of 'job' already; give another folder, or remove them"):
        chakra.save_program(program, tmp_path, name="other", facts={})
    with pytest.raises(TraceError, match=r"holds job.3.et already, but the program has ranks 0 to 1; give another"):
        chakra.save_program(small_program(2), tmp_path, name="job", facts={})
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "job.json").write_text("{}")
    with pytest.raises(TraceError, match=r"holds job.json, which belongs to no trace; give another folder or name"):
        chakra.save_program(program, tmp_path / "new", name="job", facts={})
    with pytest.raises(TraceError, match="'a/b' cannot be the prefix of a file; give a name without a folder"):
        chakra.save_program(program, tmp_path / "new", name="a/b", facts={})
    with pytest.raises(ConfigError, match=r"cannot be written \(Not a directory\); give another one"):
        chakra.save_program(program, tmp_path / "job.0.et" / "folder", name="job", facts={})
    with pytest.raises(TraceError, match=r"job.0.et: cannot be read \(Not a directory\); give a folder"):
        chakra.save_program(program, tmp_path / "job.0.et", name="job", facts={})


def change(path, name, value):
    """Write a file of ours with one attribute of one node or of the metadata changed."""
    metadata, nodes = read_messages(path)
    found = next(attr for message in (metadata, *nodes) for attr in message.attr if attr.name == name)
    found.CopyFrom(chakra.traced(name, value))
    chakra.write(path, metadata, nodes)


CHANGED = {
    "scaleout_time_source": (
        "guessed",
        r"node 0 \('k0'\): scaleout_time_source is 'guessed'; use one of unknown, meas",
    ),
    "scaleout_role": ("sideways", r"node 0 \('k0'\): scaleout_role holds 'sideways'; use words of forward, backward,"),
    "scaleout_duration_s": (-1.0, r"node 0 \('k0'\): scaleout_duration_s is -1.0; write a time >= 0"),
    "scaleout_group": (7, r"scaleout_group is 7, but the metadata states families 0 to 1; write the trace again"),
    "scaleout_groups": (["tensor 1 2", "world"], "states other process groups than rank 0 does"),
    "pg_name": ("1", r"names group '1', but rank 3 is in group '2' of 'tensor'; name each file after its rank"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_trace_of_ours_is_refused(name, tmp_path):
    value, message = CHANGED[name]
    chakra.save_program(small_program(), tmp_path, name="job", facts={})
    change(tmp_path / "job.3.et", name, value)
    with pytest.raises(TraceError, match=message) as caught:
        chakra.load_program(tmp_path)
    assert "job.3.et: " in str(caught.value)


def test_changed_groups_and_kernels_of_ours_are_refused(tmp_path):
    chakra.save_program(small_program(2), tmp_path, name="job", facts={})
    groups = tmp_path / "job.json"
    assert not groups.exists()  # both axes are all ranks
    chakra.save_program(small_program(), tmp_path, name="job", facts={})
    groups.write_text('{"1": [0, 1], "2": [2]}')
    with pytest.raises(TraceError, match=r"job.3.et: node 4 .*: rank 3 is in no group of 'tensor'; add it"):
        chakra.load_program(tmp_path)
    groups.write_text('{"1": [0, 1], "2": [1, 2]}')
    with pytest.raises(GraphError, match=r"job.0.et: group 'tensor' has rank 1 twice"):
        chakra.load_program(tmp_path)
    groups.unlink()
    with pytest.raises(TraceError, match=r"job.0.et: group '1' has no members: there is no group file"):
        chakra.load_program(tmp_path)
    for rank in range(4):
        change(tmp_path / f"job.{rank}.et", "scaleout_groups", ["tensor"])
    with pytest.raises(TraceError, match="scaleout_groups holds 'tensor'; write a name, the first key and a count"):
        chakra.load_program(tmp_path)

    _, program = timed("dlrm-128")
    chakra.save_program(program, tmp_path / "new", name="job", facts={})
    for text, message in (
        ("gem bf16 M=1", "unknown operation 'gem'"),
        ("gemm bf16 M", "is 'gemm bf16 M'; write it as"),
    ):
        change(tmp_path / "new" / "job.0.et", "scaleout_kernel", text)
        with pytest.raises(TraceError, match=rf"job.0.et: node 0 \('embedding_bag_fwd'\): .*{message}"):
            chakra.load_program(tmp_path / "new")


def test_a_rank_outside_the_groups_of_its_collectives_is_refused_on_saving(tmp_path):
    program = small_program()
    lonely = (GroupFamily("tensor", ((0, 1),)), program.groups[1])
    with pytest.raises(GraphError, match="rank 2 is in no group 'tensor'; add it, or remove its collective"):
        chakra.save_program(dataclasses.replace(program, groups=lonely), tmp_path, name="job", facts={})


def test_nodes_are_read_without_what_takes_long_to_import():
    code = (
        "import sys, scaleout.interop.chakra.attributes; sys.exit(bool({'numpy', 'google.protobuf'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sets_of_too_many_files_or_bytes_are_refused_before_any_is_written(tmp_path, monkeypatch):
    builder = GraphBuilder()
    builder.add((), name="k", duration_s=1.0, time_source=TimeSource.GIVEN)
    many = Program("job", (builder.build(),), np.zeros(1 << 18, np.int64), ())
    with pytest.raises(
        ConfigError, match=r"262,144 files, one a rank, take 1 GiB or more; at most 131,072 are written"
    ):
        chakra.save_program(many, tmp_path / "many", name="job", facts={})
    monkeypatch.setattr(save.shutil, "disk_usage", lambda path: SimpleNamespace(free=5000))
    few = Program("job", many.graphs, np.zeros(2, np.int64), ())
    with pytest.raises(ConfigError, match=r"2 files, one a rank, take 8 KiB or more, and the disk has .* left"):
        chakra.save_program(few, tmp_path / "few", name="job", facts={})
    assert not list(tmp_path.iterdir())
