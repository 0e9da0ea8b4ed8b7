"""Answers in Python: the document is what the command line prints, the table its rows, and the picture is drawn."""

import json
import re
from dataclasses import replace

import jsonschema
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import scaleout
from scaleout.api.sweeps import SweepAnswer
from scaleout.cli.verbs import scaleout as command_line
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.config.documents import to_json
from scaleout.config.units import counted, format_seconds
from scaleout.errors import ConfigError
from scaleout.study.sweep.study import study_of


def printed(*words):
    """What a command prints as JSON."""
    found = CliRunner().invoke(command_line, [*words, "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def plain(answer):
    return json.loads(to_json(answer.to_dict()))


jobs = st.fixed_dictionaries(
    {
        "degrees": st.sampled_from([(8, 1), (4, 2), (2, 4), (1, 8)]),
        "layers": st.integers(1, 2),
        "schedule": st.sampled_from(["baseline", "overlap", "fused"]),
        "network": st.sampled_from(["alpha_beta", "link"]),
        "topology": st.sampled_from(["dgx-h200-1", "switch(8,nvlink4)"]),
        "slow": st.booleans(),
    }
)


@given(job=jobs)
@settings(max_examples=8, deadline=None)
def test_a_run_in_python_is_that_of_the_command_line(job):
    degrees, schedule, network, topology, slow = (
        job[key] for key in ("degrees", "schedule", "network", "topology", "slow")
    )
    keys = {"data_parallel": degrees[0], "tensor_parallel": degrees[1], "layers": job["layers"]}
    answer = scaleout.run(
        "llama-small", topology=topology, schedules=[schedule], changes=keys, network=network,
        network_changes={"slow": {"3": 1.5}} if slow else None,
    )  # fmt: skip
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    words += ["--topology", topology, "--schedule", schedule, "--network", network, *(["--slow", "3=1.5"] * slow)]
    assert plain(answer) == printed("run", "llama-small", *words)


@given(kind=st.sampled_from(["all_reduce", "all_to_all", "broadcast"]), power=st.integers(0, 24), chunked=st.booleans())
@settings(max_examples=8, deadline=None)
def test_a_collective_in_python_is_that_of_the_command_line(kind, power, chunked):
    answer = scaleout.collective(
        kind, 2**power, topology="dgx-h200-2", ranks=range(8) if chunked else None,
        network_changes={"bandwidth": {"nvlink": "0.5x"}} if chunked else None,
    )  # fmt: skip
    words = ["--bytes", f"{2**power}B", "--topology", "dgx-h200-2"]
    words += ["--group", "0-7", "--bandwidth", "nvlink=0.5x"] * chunked
    assert plain(answer) == printed("collective", kind, *words)


def test_a_search_in_python_is_that_of_the_command_line():
    keys = {"layers": 2, "zero": 3}
    answer = scaleout.search("llama-small", topology="dgx-h200-1", changes=keys, top=2, workers=1)
    words = ["--topology", "dgx-h200-1", "--set", "layers=2", "--set", "zero=3", "--top", "2", "--workers", "1"]
    assert plain(answer) == printed("search", "llama-small", *words)
    assert answer.export("torchtitan").plan == 1


STUDY = {"workload": "llama-small", "topology": "dgx-h200-1", "schedule": ["baseline", "overlap"],
         "set": {"layers": 1, "data_parallel": 8, "batch_per_replica": [1, 2]}}  # fmt: skip


def test_a_sweep_is_the_study_of_the_same_keys():
    answer = scaleout.sweep(**STUDY, workers=1)
    assert answer.to_frame().equals(scaleout.run_study({"title": "sweep", **STUDY}, workers=1))
    for case in answer.cases.itertuples():
        _, verb, *words = case.run.split()
        assert printed(verb, *words)["results"][0]["makespan_s"] == case.makespan_s
    with pytest.raises(TypeError, match="takes a study or keys of one, such as workload"):
        scaleout.sweep("topologies", workload="dlrm-128")


@pytest.fixture(scope="module")
def answers():
    """One of each kind."""
    keys = {"layers": 1, "data_parallel": 8, "device": "h200"}
    return {
        "run": scaleout.run("llama-small", topology="dgx-h200-1", schedules=["baseline", "overlap"], changes=keys),
        "search": scaleout.search("llama-small", topology="dgx-h200-1", changes={"layers": 2}, top=2, workers=1),
        "collective": scaleout.collective("all_reduce", ["1KiB", "1MiB"], topology="dgx-h200-1"),
        "sweep": scaleout.sweep(**STUDY, workers=1),
    }


def test_what_does_not_fit_shows_so(answers):
    """An outcome showed all its arrays, and a job that does not fit a step like any other."""
    assert re.fullmatch(r"<Outcome: overlap [\d.]+ .?s>", repr(answers["run"]["overlap"]))
    changes = {"zero": 0, "data_parallel": 2}
    large = scaleout.run("llama-3-8b", topology="ring(2,nvlink4)", schedules=["baseline"], changes=changes)
    assert repr(large).endswith(", does not fit>")
    assert repr(large["baseline"]).endswith(", does not fit>")


ON = {"topology": "dgx-h200-1", "device": "b200"}
NOTED = {
    "run llama-small --set layers=1 --set data_parallel=8 --schedule baseline": lambda: scaleout.run(
        "llama-small", changes={"layers": 1, "data_parallel": 8}, schedules=["baseline"], **ON
    ),
    "search llama-small --set layers=2 --top 1 --workers 1": lambda: scaleout.search(
        "llama-small", changes={"layers": 2}, top=1, workers=1, **ON
    ),
    "collective all_reduce --bytes 1MiB": lambda: scaleout.collective("all_reduce", "1MiB", topology="dgx-h200-2"),
}
"""Commands, but for machines, and the calls that ask the same."""


@pytest.mark.parametrize("line", NOTED)
def test_what_the_terminal_notes_is_noted_in_python(line):
    """Also where nobody asks for notes: shown how many there are, and printed below the answer."""
    answer, words = NOTED[line](), line.split()
    on = ["--topology", "dgx-h200-2"] if words[0] == "collective" else [f"--{key}={name}" for key, name in ON.items()]
    told = " ".join(CliRunner().invoke(command_line, [*words, *on], catch_exceptions=False).stdout.split())
    assert answer.notes
    assert told.count(" note: ") == len(answer.notes)
    assert all(f"note: {' '.join(note.split())}" in told for note in answer.notes)
    assert repr(answer).endswith(f"; {counted(len(answer.notes), 'note')}>")
    assert str(answer).splitlines() == [repr(answer), *(f"note: {note}" for note in answer.notes)]


COLUMNS = {"run": 11, "search": 13, "collective": 9, "sweep": 9}
"""In a notebook: those of the terminal's main table, of up to 61 that the frame has."""


@pytest.mark.parametrize("kind", COLUMNS)
def test_an_answer_shows_itself(kind, answers):
    answer = answers[kind]
    assert repr(answer).startswith(f"<{type(answer).__name__}: ")
    assert len(repr(answer)) < 400
    page = answer._repr_html_()
    assert not re.search(r">[\d.]+e\+\d+<", page), "numbers are written out"
    box, main = page.split("<table>")[1:]
    facts = dict(re.findall(r"<th [^>]*>([^<]+)</th><td [^>]*>([^<]+)</td>", box))
    assert {"model", *({"step", "speed"} if kind in ("run", "search") else ())} <= facts.keys()
    headings, *rows = re.findall(r"<tr>(.*?)</tr>", main)
    assert (headings.count("<th "), len(rows)) == (COLUMNS[kind], len(answer.to_frame()))
    assert all(row.count("<td ") == COLUMNS[kind] for row in rows)
    _, axes = plt.subplots()
    assert answer.plot(axes) is axes
    assert axes.has_data()
    assert axes.get_xlabel()
    own = answer.plot()
    assert own is not axes
    plt.close("all")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda found: found["run"].plot(5), "draws on axes of matplotlib, not on 5"),
        (lambda found: found["sweep"].plot(x="x"), "knows no column 'x'"),
        (lambda found: found["sweep"].plot(y="y"), "knows no column 'y'"),
        (lambda found: found["sweep"].plot(y="schedule"), "holds no numbers"),
        (lambda found: found["sweep"].plot(colour=["schedule"]), "knows no column"),
        (lambda found: found["sweep"].plot(facet="x"), "knows no column 'x'"),
        (lambda found: found["sweep"].plot(plt.gca(), facet="schedule"), "on axes of its own; leave ax out"),
        (lambda found: found["run"].write(None), "must be a text, or a path, not None"),
        (lambda found: found["search"].export("x"), "no plan is exported as 'x'"),
        (lambda found: found["search"].export({}), "must be a text, not {}"),
    ],
)
def test_nonsense_is_told(answers, call, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        call(answers)


@pytest.fixture(scope="module")
def grid():
    """A small study of three inputs, whose batches of 8 do not fit, and whose times and estimates are given."""
    found = scaleout.sweep(
        workload="dlrm-128", topology=["ring-128", "switch-128"], set={"global_batch": [1024, 2048, 4096]},
        schedule=["baseline", "overlap"], workers=1,
    )  # fmt: skip
    cases = found.cases.assign(
        makespan_s=[1e-3 * (2 + number) for number in range(12)],
        fits=[batch < 4096 for batch in found.cases["set.global_batch"]],
        roofline_share=[0.5 * (name == "overlap") for name in found.cases["schedule"]],
    )
    return replace(found, cases=cases)


FILE = {
    "workload": "dlrm-128", "topology": ["ring-128", "switch-128"], "set": {"global_batch": [1024, 2048, 4096]},
    "schedule": ["baseline", "overlap"],
}  # fmt: skip


def lines_of(axes):
    """Label, and points, of the lines that are named."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines if not line.get_label().startswith("_")}


def test_a_sweep_has_a_line_for_each_combination(grid):
    """And not one through the points of several: a column that varies and is neither axis tells lines apart."""
    axes = grid.plot(x="set.global_batch", colour="topology")
    assert [*lines_of(axes)] == [
        f"{topology}, {schedule}" for topology in ("ring-128", "switch-128") for schedule in ("baseline", "overlap")
    ]
    for points in lines_of(axes).values():
        assert [at for at, _ in points] == [1024, 2048]
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_label() in lines_of(axes)}
    assert len(looks) == 4
    plt.close("all")


def test_a_sweep_says_units_ticks_estimates_and_what_does_not_fit(grid):
    """Steps of two sizes are ranked by samples a second, which is drawn unless asked otherwise."""
    assert grid.found()["fastest_by"] == "samples_per_s"
    assert grid.plot(x="set.global_batch", colour="topology").get_ylabel() == "samples a second [1/s]"
    axes = grid.plot(x="set.global_batch", y="makespan_s", colour="topology")
    assert axes.get_ylabel() == "makespan [ms]"
    assert axes.get_xlabel().splitlines() == [
        "global batch", "without 4 cases that would not fit into memory: global batch 4096",
        "open marks: 10% or more of kernel time is an estimate",
    ]  # fmt: skip
    assert [each.get_text() for each in axes.get_xticklabels()] == ["1,024", "2,048"]
    assert max(y for points in lines_of(axes).values() for _, y in points) < 14  # milliseconds
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_markerfacecolor() == "white") == 4
    plt.close("all")


def test_a_sweep_of_two_results_runs_along_an_input_that_is_named_at_its_points(grid):
    axes = grid.plot(x="makespan_s", y="samples_per_s", colour="topology")
    assert len(lines_of(axes)) == 4
    assert {each.get_text() for each in axes.texts} == {"1024", "2048"}
    assert "numbers at the marks: global batch" in axes.get_xlabel()
    plt.close("all")


def test_a_facet_has_a_panel_for_each_value(grid):
    axes = grid.plot(x="set.global_batch", colour="topology", facet="schedule")
    panels = [each for each in axes.figure.axes if each.get_visible()]
    assert axes is panels[0]
    assert [each.get_title() for each in panels] == ["baseline", "overlap"]
    assert all([*lines_of(each)] == ["ring-128", "switch-128"] for each in panels)
    assert "without 4 cases" in axes.figure.get_suptitle()
    plt.close("all")


def test_a_picture_of_no_case_is_refused(grid):
    nothing = replace(grid, cases=grid.cases.assign(status="failed"))
    with pytest.raises(ConfigError, match=r"no case that ran with a makespan_s"):
        nothing.plot()
    with pytest.raises(ConfigError, match=r"no case that ran with a topology and a makespan_s"):
        nothing.plot(x="topology")


def cases_of(study, rows):
    """A sweep whose cases have inputs, all that a picture of them needs, and times of their own."""
    given = {"workload": "llama-3-8b", "status": "ok", "fits": True, "run": ""}
    frame = pd.DataFrame([{"case": at, **given, **row, "makespan_s": 1e-3 * (2 + at)} for at, row in enumerate(rows)])
    return SweepAnswer(study_of({"workload": "llama-3-8b", **study}, name="s", where="s.yaml"), frame)


def test_an_input_that_follows_from_others_tells_no_lines_apart():
    """On so many ranks, data parallelism is what tensor parallelism leaves: 24 lines had a point each."""
    tensor, data, batches, nodes = [1, 2, 4, 8], [2, 4, 8, 16, 32, 64], [1, 2, 4], [2, 8]
    keys = {"tensor_parallel": tensor, "data_parallel": data, "batch_per_replica": batches}
    rows = [
        {"set.tensor_parallel": t, "set.data_parallel": 8 * n // t, "set.batch_per_replica": b, "nodes": n}
        for t in tensor for b in batches for n in nodes
    ]  # fmt: skip
    answer = cases_of({"topology": "dgx-h200-2", "set": keys, "nodes": nodes}, rows)
    axes = answer.plot()
    assert axes.get_xlabel().splitlines() == ["tensor parallel", "follows from the others: data parallel"]
    assert [*lines_of(axes)] == [f"{b}, {n}" for b in batches for n in nodes]
    assert all([at for at, _ in points] == tensor for points in lines_of(axes).values())
    assert all(line.get_linestyle() != "None" for line in axes.lines if line.get_label() in lines_of(axes))
    own = answer.plot(x="set.data_parallel", colour="nodes")
    assert "follows from the others: tensor parallel" in own.get_xlabel()
    assert len(lines_of(own)) == 6
    plt.close("all")


def test_a_sweep_of_many_inputs_is_divided_over_panels_by_default():
    """Numbers along x, colours for the most values of the others, then panels; never more lines than told apart."""
    topologies, schedules = ["ring-128", "switch-128", "torus-8x16"], ["baseline", "overlap"]
    batches, layers = [1, 2, 4, 8], [1, 2]
    rows = [
        {"topology": t, "schedule": s, "set.batch_per_replica": b, "set.layers": n}
        for t in topologies for s in schedules for b in batches for n in layers
    ]  # fmt: skip
    keys = {"topology": topologies, "schedule": schedules, "set": {"batch_per_replica": batches, "layers": layers}}
    answer = cases_of(keys, rows)
    axes = answer.plot()
    panels = [each for each in axes.figure.axes if each.get_visible()]
    assert axes.get_xscale() == "log"  # of batches
    assert [each.get_title() for each in panels] == ["layers 1", "layers 2"]
    assert all([*lines_of(each)] == [f"{t}, {s}" for t in topologies for s in schedules] for each in panels)
    _, given = plt.subplots()
    assert len(lines_of(answer.plot(given))) == 12
    plt.close("all")


def test_more_lines_than_can_be_told_apart_are_refused(grid):
    """With the columns that make them."""
    many = pd.concat([grid.cases.assign(label=f"run {number}") for number in range(20)], ignore_index=True)
    study = study_of({**FILE, "label": [f"run {number}" for number in range(20)]}, name="many", where="many.yaml")
    with pytest.raises(ConfigError, match=r"combination of topology, label, schedule: 80 of them"):
        replace(grid, study=study, cases=many).plot(x="set.global_batch", colour="topology")


def test_columns_are_the_names_of_the_document(answers):
    frame = answers["run"].to_frame()
    row = answers["run"].to_dict()["results"][1]
    for name in ("schedule", "makespan_s", "mfu", "speedup"):
        assert frame[name][1] == row[name]
    assert frame["exposed_by_axis_s.data"][1] == row["exposed_by_axis_s"]["data"]
    assert frame["joules"][1] == row["energy"]["joules"]
    assert frame["peak_memory_bytes"][0] == answers["run"].to_dict()["memory"]["peak_memory_bytes"]
    assert "step_s" not in frame, "old names are no columns"
    sweep = answers["sweep"].to_frame()
    shared = set(frame) & set(sweep)
    assert {"makespan_s", "exposed_communication_s", "mfu", "peak_memory_bytes", "joules", "dollars"} <= shared


def test_a_table_says_what_the_document_says_of_all_rows(answers):
    frame, found = answers["run"].to_frame(), answers["run"].to_dict()
    assert found["mode"] == "training"
    assert set(frame["mode"]) == {found["mode"]}
    assert set(frame["model"]) == {"; ".join(found["models"])}


def test_a_sweep_is_the_document_of_a_study(answers, tmp_path):
    """But for where it lies, and the name of the file."""
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps({"title": "sweep", **STUDY}), encoding="utf-8")
    out = str(tmp_path / "out")
    found, expected = plain(answers["sweep"]), printed("study", str(file), "--output", out, "--no-report")
    own = {"inputs", "output", "files"}
    assert {key: each for key, each in found.items() if key not in own} == {
        key: each for key, each in expected.items() if key not in own
    }
    jsonschema.validate(found, scaleout.schema("study"))


def test_files_hold_the_document(tmp_path, answers):
    files = answers["run"].write(tmp_path / "out")
    assert {"summary.json", "nodes.parquet", "timeline.json", "breakdown.png"} <= files.keys()
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == plain(answers["run"])


def test_a_graph_of_networkx_is_a_topology():
    ring = nx.cycle_graph(8, create_using=nx.Graph)
    nx.set_edge_attributes(ring, "50 GB/s", "bandwidth")
    nx.set_edge_attributes(ring, "1 us", "latency")
    graph = scaleout.run("llama-small", topology=ring, schedules=["baseline"], changes={"data_parallel": 8})
    assert graph.outcomes[0].makespan_s > 0
    assert graph.inputs["topology"] == "graph"
    times = {
        name: scaleout.collective("all_gather", 2**20, topology=each, algorithm="ring").to_frame().time_s[0]
        for name, each in (("graph", ring), ("kind", Topology("ring", (Dimension("ring", 8, 50e9, 1e-6),))))
    }
    assert times["graph"] == pytest.approx(times["kind"])
    with pytest.raises(ConfigError, match="link 0-1 has no attribute 'bandwidth'"):
        scaleout.load_topology(nx.path_graph(2))
    with pytest.raises(ConfigError, match="the graph is directed"):
        scaleout.load_topology(nx.DiGraph([(0, 1)]))


def test_changes_of_the_network_are_those_of_the_command_line():
    fast = scaleout.load_topology("dgx-h200-2", {"bandwidth": {"infiniband": "2x"}})
    plain_ = scaleout.load_topology("dgx-h200-2")
    assert fast.dimensions[1].bytes_per_s == 2 * plain_.dimensions[1].bytes_per_s
    with pytest.raises(ConfigError, match="unknown change of the network 'bandwith'; did you mean 'bandwidth'"):
        scaleout.load_topology("dgx-h200-2", {"bandwith": {"infiniband": "2x"}})


def test_traces_are_read_and_run(tmp_path):
    printed("trace", "llama-small", "--set", "layers=1", "--set", "data_parallel=8", "--output", str(tmp_path / "t"))
    trace = scaleout.read_trace(tmp_path / "t")
    answer = trace.run(topology="dgx-h200-1", schedules=["overlap"])
    words = ["--topology", "dgx-h200-1", "--schedule", "overlap"]
    assert plain(answer) == printed("run", "--trace", str(tmp_path / "t"), *words)
    assert plain(trace) == printed("show", str(tmp_path / "t"))
    assert len(trace.to_frame()) == len(trace.program.graphs[0])
    assert "traces of" in repr(trace)
    assert trace._repr_html_()
    trace.plot()
    plt.close("all")
    with pytest.raises(ConfigError, match="is no recording of `scaleout import`; change the job that it is of"):
        trace.edit(batch="2x")


def test_a_collective_says_how_long_it_takes_in_a_line():
    answer = scaleout.collective("all_reduce", ["1KiB", "1MiB"], topology="ring-128", algorithm="ring")
    time_s = answer.by_size[-1][0]["time_s"]
    assert f"; 1 MiB in {format_seconds(time_s)} by ring; 1 note>" in repr(answer)


@pytest.mark.parametrize("key", ["fused", 3, None, np.array([1, 2])], ids=str)
def test_a_schedule_that_was_not_run_is_a_key_error(key):
    with pytest.raises(KeyError, match="was not run; there are baseline"):
        scaleout.run("alexnet", schedules=["baseline"])[key]


def test_rows_of_decisions_differ_and_have_no_empty_columns():
    """Two of 625 MiB were told apart by bytes that nobody saw, and two columns were NaN throughout."""
    keys = {"layers": 4, "data_parallel": 16, "zero": 3}
    found = scaleout.run("llama-3-8b", topology="dgx-h200-2", schedules=["centauri"], changes=keys).decisions()
    chosen = found[found.chosen]
    assert not chosen[chosen.about.str.contains(" over ")].duplicated(["about", "choice"]).any()
    assert not found.isna().all().any()
    assert {"schedule", "about", "choice", "time_s", "chosen"} <= {*found.columns}
    assert not found[["time_of", "reason"]].isna().any().any()
    none = scaleout.run("llama-3-8b", topology="dgx-h200-2", schedules=["overlap"], changes=keys).decisions()
    assert [*none.columns] == ["schedule", "about", "choice", "time_s", "chosen"]


def test_lists_of_objects_that_are_empty_are_in_documents_and_in_no_table(answers):
    """`decisions` lacked where nothing was decided, and an empty list of waits was an empty text in the table."""
    document = answers["run"].to_dict()
    assert [row["decisions"] for row in document["results"]] == [[], []]
    lists = {name for row in document["results"] for name, each in row.items() if isinstance(each, list)}
    assert "waits" in lists
    assert not lists & set(answers["run"].to_frame().columns)
    assert not any("" in set(column) for _, column in answers["run"].to_frame().items() if column.dtype == object)


def test_cases_that_are_as_fast_as_the_fastest_are_named():
    """A node of a DGX and a switch of its links are the same network."""
    alike = ["dgx-h200-1", "switch(8,nvlink4)"]
    keys = {"workload": "llama-3-8b", "schedule": "baseline", "set": {"layers": [2]}, "workers": 1}
    told = scaleout.sweep(topology=[*alike, "ring(8,ndr)"], **keys).answer()["llama-3-8b"]
    assert [f"topology {name}" in told.replace("topology=", "topology ") for name in (*alike, "ring(8,ndr)")] == [
        True,
        True,
        False,
    ]
    assert "; as fast: case " in told
    assert "as fast" not in scaleout.sweep(topology=["dgx-h200-1", "ring(8,ndr)"], **keys).answer()["llama-3-8b"]
