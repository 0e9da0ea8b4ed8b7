"""Traces that users write: shown, run and drawn by the names of their nodes."""

import json
import re

import chakra_messages as chakra
import pytest

import scaleout as api
from scaleout.config.units import format_seconds


@pytest.fixture
def summary(scaleout):
    """Run a command line that prints JSON, and decode it."""
    return lambda *words: json.loads(scaleout(*words, "--json")[1])


def test_own_traces_are_told_by_the_names_of_their_nodes(scaleout, summary, tmp_path):
    """Kernels that differ in a number at the end of a word are one row; what a run leaves out is said."""
    reduce = {"comm_type": 0, "comm_size": 64}
    for rank in range(4):
        nodes = [chakra.Node(id=at, name=f"fwd_{at}", type=4, duration_micros=5) for at in range(30)]
        attributes = {**reduce, "pg_name": str(1 + rank // 2), "color": 7}
        attr = [chakra.attribute(key, "string_val" if key == "pg_name" else "int64_val", value)
                for key, value in attributes.items()]  # fmt: skip
        nodes.append(chakra.Node(id=30, name="sum", type=7, data_deps=[29], duration_micros=9, attr=attr))
        chakra.write(tmp_path / f"job.{rank}.et", chakra.GlobalMetadata(), nodes)
    (tmp_path / "job.json").write_text(json.dumps({"1": [0, 1], "2": [2, 3]}))
    found = summary("show", tmp_path)
    assert found["nodes_by_kind"] == {"compute": 120, "collective": 4, "send": 0, "recv": 0}
    (kernel,) = found["kernels_by_name"]
    assert (kernel["kernel"], kernel["count"], kernel["time_s"]) == ("fwd_*", 120, pytest.approx(120 * 5e-6))
    (call,) = found["communication_by_name"]
    assert (call["communication"], call["each_bytes"], call["all_bytes"]) == ("all_reduce", 64, 256)
    assert (call["named"], call["each_is"]) == ("sum", "a rank's buffer")
    (group,) = found["process_groups"]
    assert (group["groups"], group["of_ranks"]) == (2, "0-1; 2-3")
    assert found["not_read"] == {"attribute color": 1, "duration_micros of communication, which the network times": 1}
    out = scaleout("show", tmp_path)[1]
    assert "fwd_*" in out
    assert max(len(line) for line in out.splitlines() if line[:1] not in tuple("╭│╰")) <= 80  # a path stays whole
    run = ("run", "--trace", tmp_path, "--topology", "switch(4,ndr)", "--schedule", "baseline")
    (result,) = summary(*run)["results"]
    assert [row["operation"] for row in result["critical_path"]] == ["fwd_*", "all_reduce"]
    scaleout(*run, "--output", tmp_path / "out")
    events = json.loads((tmp_path / "out" / "timeline.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["name"] == "fwd_7"} == {"fwd_*"}


def test_tables_of_own_traces_are_of_the_members_of_a_group_and_of_what_a_trace_says(scaleout, summary, tmp_path):
    """A call of each of two ranks of four was 0.5 calls; a table of no phases, and a memory of `this kind of model`."""
    for rank in range(4):
        nodes = [chakra.Node(id=0, name="fwd", type=4, duration_micros=50)]
        gather, reduce = {"comm_type": 2, "comm_size": 10**6}, {"comm_type": 0, "comm_size": 10**8, "pg_name": "left"}
        for at, attributes in enumerate([gather] + [reduce] * (rank < 2), 1):
            attr = [chakra.attribute(key, "string_val" if key == "pg_name" else "int64_val", value)
                    for key, value in attributes.items()]  # fmt: skip
            nodes.append(chakra.Node(id=at, name=f"call.{at}", type=7, data_deps=[at - 1], attr=attr))
        chakra.write(tmp_path / f"job.{rank}.et", chakra.GlobalMetadata(), nodes)
    (tmp_path / "job.json").write_text(json.dumps({"left": [0, 1]}))
    calls = {call["communication"]: call for call in summary("show", tmp_path)["communication_by_name"]}
    assert {call["named"] for call in calls.values()} == {"call.*"}
    assert (calls["all_gather"]["each_bytes"], calls["all_gather"]["each_is"]) == (4 * 10**6, "gathered whole")
    run = ("run", "--trace", tmp_path, "--topology", "switch(4,ndr)", "--schedule", "baseline")
    rows = {row["axis"]: row for row in summary(*run)["results"][0]["bounds"]}
    assert {axis: row["member_share"] for axis, row in rows.items()} == {"left": 0.5, "world": 1.0}
    out = scaleout(*run)[1]
    busy = format_seconds(2 * rows["left"]["busy_s"])
    assert re.search(rf"all_reduce ring +left .* 2 +1 +{busy} +{busy} ", out)
    assert f"exposed longest ({busy}): all_reduce over" in out
    assert "not known: a trace does not say what its ranks keep" in out
    assert re.search(rf"all_reduce call\.\* +communication +{format_seconds(rows['left']['busy_s'])}\n", out)
    assert "all_gather call.* " in out.split("busy time by operation")[1].split("what bounds")[0]
    assert "busy time by phase" not in out
    axes = api.read_trace(tmp_path).plot()  # where a call of 0 s stood beside kernels
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fwd"]
    assert axes.get_xlabel().endswith("not drawn, as only a simulation times them: all_gather, all_reduce")
