"""Imported recordings as ASTRA-sim's feeder reads them: the rules of its two versions, on the bytes that were written.

Source: astra-sim's feeder (V1 and V3): one accessor an attribute, no gzip, lengths of five bytes at most, ids once,
collectives and messages with what they need, groups by whole numbers that the group file has.
"""

import json

import pytest
from kineto_builder import Rank

from scaleout.interop.chakra.attributes import CONVENTIONAL_KINDS
from scaleout.interop.chakra.framing import frames, read_content
from scaleout.interop.chakra.save import save_program
from scaleout.interop.chakra.tables import NodeType
from scaleout.interop.chakra.wire import Node
from scaleout.interop.pytorch.load import load_recording

NEEDS = {
    NodeType.COMP_NODE: ("num_ops", "tensor_size", "is_cpu_op"),
    NodeType.COMM_COLL_NODE: ("comm_type", "comm_size", "is_cpu_op"),
    NodeType.COMM_SEND_NODE: ("comm_dst", "comm_tag", "comm_size", "is_cpu_op"),
    NodeType.COMM_RECV_NODE: ("comm_src", "comm_tag", "comm_size", "is_cpu_op"),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Return the folder of traces of four ranks with kernels, copies, collectives of three groups, and messages."""
    folder = tmp_path_factory.mktemp("recorded")
    for number in range(4):
        rank = Rank(number, 4)
        rank.kernel(10, 20, launch=1)
        rank.copy(31, 4, launch=3, returns=36)
        rank.collective(40, 10, launch=37, kind="allreduce")
        pair = [number, number ^ 1]
        rank.collective(60, 10, launch=38, kind="_allgather_base", group=sorted(pair), **{"Out msg nelems": 2000})
        rank.collective(80, 10, launch=39, kind="broadcast")
        end = {"kind": "send", "Dst Rank": number + 1} if number % 2 == 0 else {"kind": "recv", "Src Rank": number - 1}
        rank.collective(100, 10, launch=40, **end)
        rank.kernel(120, 20, launch=41)
        rank.write(folder)
    program, facts, report = load_recording((folder,))
    save_program(program, folder / "traces", name=report.name, facts=facts)
    return folder / "traces"


def nodes_of(path):
    content = read_content(path)
    assert not path.read_bytes().startswith(b"\x1f\x8b")
    _, *found = (frame for _, frame in frames(content))
    assert all(found), "an empty frame ends a file for its readers"
    return [Node(frame) for frame in found]


@pytest.mark.parametrize("rank", range(4))
def test_a_recordings_traces_follow_the_feeders_rules(traces, rank):
    groups = json.loads((traces / "job.json").read_text())
    nodes = nodes_of(traces / f"job.{rank}.et")
    ids = [node.id for node in nodes]
    assert len(set(ids)) == len(ids)
    kinds = [NodeType(node.type) for node in nodes]
    assert set(NEEDS) - {NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE} < set(kinds)
    for place, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        assert set(node.dependencies) <= set(ids[:place])
        for name, (form, _) in node.attributes.items():
            assert form == CONVENTIONAL_KINDS.get(name, form), name
        assert set(NEEDS[kind]) <= set(node.attributes), kind.name
        value = {name: found for name, (_, found) in node.attributes.items()}
        if kind == NodeType.COMP_NODE:
            assert node.duration_micros > 0 or value["is_cpu_op"]
            continue
        assert not value["is_cpu_op"]
        assert value["comm_size"] > 0
        assert 0 <= value.get("comm_dst", 0) < 4
        assert 0 <= value.get("comm_src", 0) < 4
        if value.get("pg_name"):
            assert rank in groups[str(int(value["pg_name"]))]


def test_an_all_gathers_size_is_that_of_a_ranks_shard(traces):
    sizes = {
        node.attributes["comm_type"][1]: node.attributes["comm_size"][1]
        for node in nodes_of(traces / "job.0.et")
        if node.type == NodeType.COMM_COLL_NODE
    }
    assert sizes == {0: 4 * 1000, 2: 4 * 1000, 5: 4 * 1000}
