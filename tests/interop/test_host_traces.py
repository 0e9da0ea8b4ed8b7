"""Host execution traces beside device traces of the same rank: what they add, and what must not be linked."""

import json
import re
from pathlib import Path

import pytest
from host_builder import Host
from kineto_builder import Rank

from scaleout.errors import TraceError
from scaleout.interop.pytorch.files import recorded_files
from scaleout.interop.pytorch.host import read_host
from scaleout.interop.pytorch.kineto import Recording, read_kineto
from scaleout.interop.pytorch.load import load_recording
from scaleout.program.graph import COLLECTIVES

SHARED = Path(__file__).parents[3] / "shared"
DLRM = SHARED / "traces" / "param-dlrm-8xV100"
NAMES = [f"aten::op{number % 7}" for number in range(60)]
EPOCH_US = 1_800_000_000_000_000  # at a full hour


def device(rank=0, world_size=1, *, names=NAMES, numbers=False, offset_us=EPOCH_US, collective=True):
    """A rank that calls operators without sizes, and one collective without metadata."""
    recorded = Rank(rank, world_size, offset_us=offset_us)
    for place, name in enumerate(names):
        told = {"Record function id": place + 1} if numbers else {}
        recorded.operator(name, 10 * place, 9, **{"External id": 900 + place}, **told)
        recorded.kernel(10 * place + 5, 4, launch=10 * place + 2)
    if collective:
        end = 10 * len(names)
        recorded.operator("record_param_comms", end, 9, **{"External id": 5000})
        recorded.collective(end + 5, 40, launch=end + 2, told=False)
    return recorded


def host(rank=0, *, names=NAMES, numbers=False, repeat=1, elements=1000, group=None, **facts):
    called = Host(rank, **facts)
    for _ in range(repeat):
        for place, name in enumerate(names):
            called.operator(name, dims=[[place + 1, 64]], dtypes=["c10::BFloat16"], record=numbers and place + 1)
        called.collective(elements=elements, group=group)
    return called


def imported(folder, **options):
    program, _, report = load_recording((folder,), **options)
    return program, report


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("schema", ["1.0.1", "1.0.2-chakra.0.0.4", "1.0.4", "1.1.0-chakra.0.0.4", "1.1.1"])
def test_a_host_trace_tells_sizes_and_collectives(tmp_path, schema, numbers):
    device(0, 2, numbers=numbers).write(tmp_path)
    _, alone = imported(tmp_path)
    assert (alone.collectives_sized, alone.operators_linked) == (0, 0)
    host(numbers=numbers, schema=schema, group=(0, 1, 2)).write(tmp_path, zipped=True)
    program, report = imported(tmp_path)
    # by number the collective has none, so is linked by nothing; by order it is the last of its thread
    assert report.operators_linked == len(NAMES) + (not numbers)
    if not numbers:
        assert report.collectives_sized == 1
        graph = program.graphs[0]
        [node] = [node for node in range(len(graph.names)) if graph.collective[node] == COLLECTIVES.index("all_reduce")]
        assert graph.bytes[node] == 4000
    assert program.graphs[0].bytes[program.graphs[0].names.index("mm")] == 64 * 2


def test_groups_come_from_the_host_trace(tmp_path):
    for rank in range(4):
        device(rank, 4).write(tmp_path)
        host(rank, world_size=4, group=(rank % 2, 2, 2)).write(tmp_path)
    program, report = imported(tmp_path)
    assert report.operators_linked == 4 * (len(NAMES) + 1)
    assert sorted(group for family in program.groups for group in family.members) == [(0, 2), (1, 3)]


def test_operators_that_one_trace_lacks_are_passed_over(tmp_path):
    names = [f"aten::op{place % 7}{place % 31}" for place in range(200)]
    device(names=names).write(tmp_path)
    host(names=[*names[:90], "aten::op00", *names[90:120], *names[123:]]).write(tmp_path)
    _, report = imported(tmp_path)
    assert report.operators_linked == 198
    assert report.collectives_sized == 1


OTHERS = {
    "process": ({"process": 7}, "of process 7, the device trace of process 100"),
    "hour": ({"time": "2026-01-01 10:06:00"}, "by the host's clock"),
    "steps": ({"names": NAMES[::-1]}, "other steps"),
    "repeated": ({"repeat": 3}, "other steps"),  # which of three equal steps it is, nothing tells
    "rank": ({"world_size": 4, "group": (0, 1, 4), "rank": 1}, "rank 1 has no device trace"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_host_trace_of_another_rank_or_step_is_left_out_with_a_word(tmp_path, kind):
    options, words = OTHERS[kind]
    device().write(tmp_path)
    wrong = host(**options)
    wrong.rank = 0  # in the name of its file
    wrong.write(tmp_path)
    _, report = imported(tmp_path)
    assert (report.operators_linked, report.collectives_sized) == (0, 0)
    [note] = [note for note in report.notes if "host trace is left out" in note]
    assert re.search(words, note)


def test_sizes_that_both_tell_must_agree(tmp_path):
    recorded = Rank(offset_us=EPOCH_US)
    for place, name in enumerate(NAMES):
        recorded.operator(name, 10 * place, 9, dims=[[3, 3]])
        recorded.kernel(10 * place + 5, 4, launch=10 * place + 2)
    recorded.write(tmp_path)
    host().write(tmp_path)
    _, report = imported(tmp_path)
    assert report.operators_linked == 0
    assert any("other sizes" in note for note in report.notes)


def test_a_rank_without_device_trace_is_told(tmp_path):
    device().write(tmp_path)
    host(0).write(tmp_path)
    host(3).write(tmp_path)
    assert any("rank 3 has no device trace" in note for note in imported(tmp_path)[1].notes)
    host(3).write(tmp_path, name="again")
    with pytest.raises(TraceError, match="both are of rank 3"):
        imported(tmp_path)


def spoilt(change):
    content = host().content()
    change(content)
    return content


WRONG = {
    "schema": (lambda content: content.update(schema="2.0.0"), "schema '2.0.0'; host execution traces of 1.0.1"),
    "no schema": (lambda content: content.update(schema=None), "has schema None"),
    "nodes": (lambda content: content.update(nodes=[3]), "no list of nodes"),
    "no id": (lambda content: content["nodes"][0].pop("id"), "which is no number"),
    "huge id": (lambda content: content["nodes"][0].update(id=10**30), "takes more than 64 bits"),
    "twice": (lambda content: content["nodes"][0].update(id=content["nodes"][1]["id"]), "two nodes have id"),
    "circle": (lambda content: content["nodes"][1].update(ctrl_deps=content["nodes"][0]["id"]), "in a circle"),
    "itself": (lambda content: content["nodes"][1].update(ctrl_deps=content["nodes"][1]["id"]), "in a circle"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_bad_host_trace_is_one_message(tmp_path, scaleout, fault):
    change, words = WRONG[fault]
    device().write(tmp_path)
    (tmp_path / "job.rank0.host.json").write_text(json.dumps(spoilt(change)))
    code, _, err = scaleout("import", "pytorch", tmp_path, "--output", tmp_path / "out")
    assert (code, words in err) == (2, True), err
    assert "Traceback" not in err


def test_whatever_stands_in_a_node_is_read_or_refused(tmp_path):
    for value in (None, 3, "x", [], {}, [[[]]], [None], {"values": 3}, [{"name": "tid", "value": []}], 1e300):
        for key in ("name", "inputs", "outputs", "attrs", "ctrl_deps"):
            content = spoilt(lambda content, key=key, value=value: content["nodes"][0].update({key: value}))
            try:
                read_host(content, tmp_path)
            except TraceError:
                assert key == "ctrl_deps"


@pytest.mark.skipif(not DLRM.exists(), reason="the public recordings are not beside this checkout")
@pytest.mark.parametrize("shapes", [True, False])
def test_collectives_of_dlrm_are_those_of_the_derived_table(monkeypatch, shapes):
    table = json.loads((DLRM / "dlrm_8rank_comm_table.derived.json").read_text())
    paths = (DLRM / "dlrm_kineto.tar.gz", DLRM / "dlrm_pytorch_et.tar.gz")
    if not shapes:  # as without record_shapes

        def stripped(content, path) -> Recording:
            for event in content["traceEvents"]:
                for key in ("Input Dims", "Input type"):
                    event.args.pop(key, None)
            return read_kineto(content, path)

        monkeypatch.setattr("scaleout.interop.pytorch.load.read_kineto", stripped)
        assert load_recording(paths[:1])[2].collectives_sized < 64
    program, _, report = load_recording(paths)
    traces = [found for found in recorded_files(paths) if "nodes" not in found.content]
    kernels = sum(event.category == "kernel" for found in traces for event in found.content["traceEvents"])
    assert report.kernels == report.kernels_kept == kernels
    assert report.operators_linked == 8 * 1672
    assert (report.collectives, report.collectives_sized) == (64, 64)
    for rank in range(8):
        graph = program.graphs[program.role_of_rank[rank]]
        seen = sorted(
            (COLLECTIVES[graph.collective[node]], int(graph.bytes[node]))
            for node in range(len(graph.names))
            if graph.collective[node] >= 0 and graph.bytes[node]
        )
        assert seen == sorted((op["op"].removeprefix("nccl:"), op["bytes_in_per_rank"][rank]) for op in table["ops"])
