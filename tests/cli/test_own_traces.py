"""Traces that users write: shown, run and drawn by the names of their nodes."""

import json

import chakra_messages as chakra
import pytest


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
    (kernel,) = found["kernels"]
    assert (kernel["kernel"], kernel["count"], kernel["time_s"]) == ("fwd_*", 120, pytest.approx(120 * 5e-6))
    (call,) = found["communication"]
    assert (call["communication"], call["each_bytes"], call["all_bytes"]) == ("all_reduce", 64, 256)
    (group,) = found["process_groups"]
    assert (group["groups"], group["members"]) == (2, "0-1; 2-3")
    assert found["not_read"] == {"attribute color": 1, "duration_micros of communication, which the network times": 1}
    out = scaleout("show", tmp_path)[1]
    assert "fwd_*" in out
    assert max(map(len, out.splitlines())) <= 80
    run = ("run", "--trace", tmp_path, "--topology", "switch(4,ndr)", "--schedule", "baseline")
    (result,) = summary(*run)["results"]
    assert [row["operation"] for row in result["critical_path"]] == ["fwd_*", "all_reduce"]
    scaleout(*run, "--output", tmp_path / "out")
    events = json.loads((tmp_path / "out" / "timeline.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["name"] == "fwd_7"} == {"fwd_*"}
