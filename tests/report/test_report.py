"""Files, timelines and figures of a comparison: complete, consistent with the result, and the same each time."""

import json
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import scaleout
from scaleout.analysis.breakdown import critical_path
from scaleout.config.writing import into
from scaleout.errors import ConfigError
from scaleout.report import colours
from scaleout.report import files as report
from scaleout.report.perfetto import ranks_label, trace_events
from scaleout.report.plots import schedules as plot


@pytest.fixture(scope="module")
def comparison():
    return scaleout.compare("dlrm-128", schedules=("baseline", "fused"), changes={"global_batch": 512})


@pytest.fixture(scope="module")
def directory(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "deep" / "er"
    with into(path) as folder:
        report.write(comparison, folder, comparison.summary())
    return path


def test_all_files_are_written_and_nothing_else(directory):
    assert {path.name for path in directory.iterdir()} == {*report.FILES, "links.png"}


def test_the_summary_holds_the_numbers_of_the_comparison(comparison, directory):
    assert json.loads((directory / "summary.json").read_text()) == json.loads(json.dumps(comparison.summary()))


def test_the_table_of_nodes_holds_every_node_of_every_schedule(comparison, directory):
    nodes = pd.read_parquet(directory / "nodes.parquet")
    for outcome in comparison.outcomes:
        mine = nodes[nodes["schedule"] == outcome.schedule]
        line = outcome.result.timelines[0]
        assert len(mine) == len(line.graph)
        assert mine["end_s"].max() == outcome.makespan_s
        assert (mine["ranks_alike"] == 128).all()
        assert int(mine["critical"].sum()) == len(critical_path(outcome.result))
    work = nodes.groupby("schedule")[["flops", "bytes"]].sum()
    assert work.loc["baseline", "flops"] == work.loc["fused", "flops"]


def test_the_timeline_has_a_process_a_schedule_and_class_and_a_track_a_stream(comparison):
    events = trace_events(comparison)["traceEvents"]
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["baseline: ranks 0-127", "fused: ranks 0-127"]
    tracks = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    streams, phases = {(0, 0), (1, 0), (1, 1)}, {(0, 1), (1, 2)}
    assert {(event["pid"], event["tid"]) for event in slices} == tracks == streams | phases
    assert len({event["pid"] for event in events}) == 2


@pytest.mark.parametrize("job", ["comparison", "pipeline"])
def test_slices_of_a_track_do_not_overlap(job, request):
    """A stream runs one node at a time, so that a viewer can draw it as one row; messages have rows of their own."""
    compared = request.getfixturevalue(job)
    events = [event for event in trace_events(compared)["traceEvents"] if event["ph"] == "X"]
    for track in {(event["pid"], event["tid"]) for event in events}:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == track)
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-6


def test_the_critical_slices_of_the_baseline_cover_the_makespan(comparison):
    events = [event for event in trace_events(comparison)["traceEvents"] if event["ph"] == "X" and event["pid"] == 0]
    total = sum(event["dur"] for event in events if event.get("args", {}).get("critical"))
    assert total == pytest.approx(comparison.outcomes[0].makespan_s * 1e6)


@pytest.fixture(scope="module")
def pipeline():
    keys = {"layers": 8, "pipeline_parallel": 4, "tensor_parallel": 2, "data_parallel": 1, "batch_per_replica": 4}
    changes = {**keys, "microbatch": 1, "sequence": 1024}
    return scaleout.compare("llama-3-8b", schedules=["overlap"], topology="dgx-h200-1", changes=changes)


@pytest.mark.parametrize("job", ["comparison", "pipeline"])
def test_arrows_lead_from_what_was_waited_for_to_what_waited(job, request):
    """Both ends lie in a slice, one of them communication; none begins after what it leads to has ended."""
    compared = request.getfixturevalue(job)
    events = trace_events(compared)["traceEvents"]
    slices = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append(event)

    def at(arrow):
        around = slices[arrow["pid"], arrow["tid"]]
        return next(s for s in around if s["ts"] <= arrow["ts"] <= s["ts"] + s["dur"])

    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    for name, begin in begins.items():
        source, target = at(begin), at(ends[name])
        assert {"group", "peer"} & {*source["args"], *target["args"]}
        assert source["ts"] <= target["ts"] + target["dur"]
        assert source["ts"] <= target["ts"] or "peer" in target["args"]
    collectives = sum("group" in each["args"] for track in slices.values() for each in track if "args" in each)
    assert len(begins) >= collectives / 2
    if job == "pipeline":
        assert any(begins[name]["pid"] != ends[name]["pid"] for name in begins)


@pytest.mark.parametrize("job", ["comparison", "pipeline"])
def test_counters_add_up_to_what_the_nodes_do(job, request):
    compared = request.getfixturevalue(job)
    events = trace_events(compared)["traceEvents"]
    lines = [line for outcome in compared.outcomes for line in outcome.result.timelines]
    wanted = {"compute [TFLOP/s]": ("flops", 1e12), "communication [GB/s]": ("bytes", 1e9)}
    for process, line in enumerate(lines):
        for name, (column, unit) in wanted.items():
            counter = [event for event in events if (event["ph"], event["pid"], event["name"]) == ("C", process, name)]
            total = sum(a["args"]["value"] * (b["ts"] - a["ts"]) / 1e6 for a, b in pairwise(counter))
            which = line.is_kernel if column == "flops" else line.is_communication
            amounts = getattr(line.graph, column)[which & (line.duration_s > 0)]
            assert total == pytest.approx(amounts.sum() / unit, rel=1e-6)
            assert not counter or counter[-1]["args"]["value"] == 0


def test_the_counter_of_memory_peaks_where_memory_is_counted_to_peak(pipeline):
    outcome = pipeline.outcomes[0]
    held = [event for event in trace_events(pipeline)["traceEvents"] if event["name"] == "memory held [GiB]"]
    assert {event["pid"] for event in held} == set(range(len(outcome.result.timelines)))
    assert max(event["args"]["value"] for event in held) * 2**30 == pytest.approx(outcome.fit.peak.total_bytes)


def test_rank_labels(comparison):
    line = comparison.outcomes[0].result.timelines[0]
    assert ranks_label(line) == "ranks 0-127"


def test_files_are_the_same_bytes_each_time(comparison, directory, tmp_path):
    report.write(comparison, tmp_path, comparison.summary())
    for name in report.FILES:
        assert (tmp_path / name).read_bytes() == (directory / name).read_bytes(), name


def test_a_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"), into(tmp_path / "file" / "results"):
        pass


@pytest.mark.parametrize("bins", [1, 7, 400])
def test_shares_of_short_times_add_up_to_the_breakdown(comparison, bins):
    for outcome in comparison.outcomes:
        parts, edges_s = outcome.breakdown, np.linspace(0.0, outcome.makespan_s, bins + 1)
        compute, exposed, overlapped = plot.shares_of_time(outcome.result.timelines[0], edges_s)
        each_s = outcome.makespan_s / bins
        assert compute.sum() * each_s == pytest.approx(parts.compute_s)
        assert exposed.sum() * each_s == pytest.approx(parts.exposed_communication_s)
        assert (exposed + overlapped).sum() * each_s == pytest.approx(parts.communication_s)
        assert (compute + exposed).max() <= 1 + 1e-9


@pytest.mark.parametrize(("longest_s", "unit"), [(2.0, "s"), (0.5, "ms"), (2e-5, "µs"), (3e-7, "ns")])
def test_time_axes_have_a_readable_unit(longest_s, unit):
    assert colours.time_scale(longest_s)[1] == unit


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
@pytest.mark.parametrize(("width", "inches"), [("column", 3.35), ("page", 7.0)])
def test_pictures_have_the_format_and_width_of_a_journal(scaleout, tmp_path, form, width, inches):
    code, out, err = scaleout("run", "dlrm-128", "--schedule", "baseline", "--schedule", "fused",
                              "--output", tmp_path, "--format", form, "--width", width)  # fmt: skip
    assert code == 0, err
    (file,) = tmp_path.glob("breakdown.*")
    assert file.name == f"breakdown.{form}"
    assert file.name in out
    content = file.read_bytes()
    found = {
        "png": lambda: int.from_bytes(content[16:20], "big") / 300,
        "svg": lambda: float(re.search(rb'width="([\d.]+)pt"', content)[1]) / 72,
        "pdf": lambda: float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", content)[1]) / 72,
    }[form]()
    assert found == pytest.approx(inches, rel=0.01)


def test_a_format_is_of_an_output(scaleout):
    code, _, err = scaleout("run", "dlrm-128", "--format", "pdf")
    assert code == 2
    assert "give --output" in err


@pytest.mark.parametrize(
    "schedules", [["overlap"], ["baseline", "overlap"], ["baseline", "overlap", "fused", "centauri"]]
)
def test_legends_lie_above_the_bars_and_below_the_title(schedules, tmp_path, monkeypatch):
    """Of one schedule they lay on the title, or beyond the picture."""
    seen = []

    def measured(figure, path):
        figure.canvas.draw()
        title = figure._suptitle.get_window_extent()
        for axes in figure.axes:
            legend, bars = axes.get_legend().get_window_extent(), axes.get_window_extent()
            seen.append(bars.y1 <= legend.y0 < legend.y1 <= title.y0 < title.y1 <= figure.bbox.y1)
        plot.plt.close(figure)

    monkeypatch.setattr(plot, "save", measured)
    plot.draw_comparison(scaleout.compare("llama-3-8b", changes={"layers": 2}, schedules=schedules), tmp_path / "x.png")
    assert seen == [True, True]
