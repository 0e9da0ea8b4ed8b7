"""Figures as a reader of a paper sees them: panels, ticks, legends, and equal events that look alike."""

from dataclasses import replace
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

import scaleout
from scaleout.analysis.pipeline import actions, over_time
from scaleout.cluster.topology.topology import load_topology
from scaleout.report.look import look, look_now
from scaleout.report.plots import links, pipelines, schedules, studies
from scaleout.study.backends import BackendComparison

SIZES = [1024 << power for power in range(21)]  # 1 KiB to 1 GiB


@pytest.fixture
def drawn(monkeypatch):
    """Figures as they are drawn, in place of files."""
    figures = []

    def keep(figure, path):
        if width_in := look_now().width_in:
            figure.set_size_inches(width_in, figure.get_size_inches()[1])
        figures.append(figure)

    monkeypatch.setattr(schedules, "save", keep)
    yield figures
    for figure in figures:
        schedules.plt.close(figure)


@pytest.fixture(scope="module")
def straggler():
    """One of 16 ranks is slow; its tensor peers and its replica wait for it."""
    return scaleout.compare(
        "llama-3-8b",
        changes={"tensor_parallel": 8, "data_parallel": 2, "layers": 4},
        topology=replace(load_topology("dgx-h200-2"), slow_ranks=((5, 1.3),)),
        schedules=["baseline", "overlap"],
    )


def curves(ranks, drawn, tmp_path, width):
    times = np.tile(np.linspace(1e-5, 1e-3, len(SIZES)), (2, len(ranks), 1))
    found = BackendComparison("net", ("ring", "tree"), tuple(ranks), tuple(SIZES), times, (), times[0])
    with look("", width):
        studies.draw_curves(found, tmp_path / "curves.png", title="t")
        figure = drawn[-1]
        figure.canvas.draw()
    return [axes for axes in figure.axes if axes.get_visible()]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 7])
def test_panels_of_a_column_stand_one_below_the_other(count, drawn, tmp_path):
    shown = curves([16 << each for each in range(count)], drawn, tmp_path, "column")
    assert len({round(axes.get_position().x0, 3) for axes in shown}) == 1
    assert len({round(axes.get_position().y0, 3) for axes in shown}) == count


@pytest.mark.parametrize("width", ["column", "page", None])
@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_sizes_have_units_and_their_names_do_not_meet(count, width, drawn, tmp_path):
    """Each column of panels has them, each panel where one is empty; the first and the last size among them."""
    shown = curves([16 << each for each in range(count)], drawn, tmp_path, width)
    named = [[text for text in axes.get_xticklabels() if text.get_text()] for axes in shown]
    named = [[text for text in texts if text.get_visible()] for axes, texts in zip(shown, named, strict=True)]
    seen = [texts for axes, texts in zip(shown, named, strict=True) if axes.xaxis.get_tick_params()["labelbottom"]]
    assert len(seen) == (count if count == 5 and width != "column" else len({axes.get_position().x0 for axes in shown}))
    for texts in seen:
        words = [text.get_text() for text in texts]
        assert (words[0], words[-1]) == ("1 KiB", "1 GiB")
        assert len(words) > 2
        boxes = [text.get_window_extent() for text in texts]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (7, (4, 2))])
def test_panels_leave_few_places_empty(count, shape):
    assert schedules.panels(count, 3) == shape


def test_the_capacity_stands_in_the_legend_where_its_line_is_drawn(straggler, drawn, tmp_path):
    outcome = straggler.outcomes[0]
    held = over_time(outcome.result, outcome.workload)
    most = max(each.total_bytes.max() for each in held)
    for times, is_drawn in ((1.5, True), (10.0, False)):
        pipelines.draw_memory(
            held, tmp_path / "m.png", capacity_bytes=times * most, makespan_s=outcome.makespan_s, title="t"
        )
        (axes, *_), (legend,) = drawn[-1].axes, drawn[-1].legends
        lines = [line for line in axes.lines if line.get_ydata()[0] <= axes.get_ylim()[1]]
        assert len(lines) == is_drawn
        assert any("capacity" in text.get_text() for text in legend.get_texts()) == is_drawn
        assert any("↑ capacity" in text.get_text() for text in axes.texts) != is_drawn


def test_the_timeline_is_that_of_the_rank_that_others_wait_for(straggler, drawn, tmp_path):
    schedules.draw_comparison(straggler, tmp_path / "b.png")
    bars, chains = drawn[-1].axes
    assert chains.get_xlabel().startswith("(b) rank 5, the least idle, over time")
    longest = max(outcome.makespan_s for outcome in straggler.outcomes)
    scale = schedules.time_scale(longest)[0]
    assert [*bars.get_xlim(), *chains.get_xlim()] == pytest.approx([0, longest * scale * 1.02] * 2)


def test_a_schedule_that_runs_as_a_simpler_one_is_named_so(straggler, drawn, tmp_path):
    baseline, overlap = straggler.outcomes
    fallen = replace(straggler, outcomes=(baseline, replace(overlap, runs_as="baseline")))
    schedules.draw_comparison(fallen, tmp_path / "b.png")
    for axes in drawn[-1].axes:
        first, second = (text.get_text() for text in axes.get_yticklabels())
        assert "runs as" not in first
        assert second.startswith("overlap\nruns as baseline")


def test_equal_layers_look_alike(straggler):
    """In equal short times a transfer was cut at another point each time, and heights rose and fell like a moire."""
    (outcome, _) = straggler.outcomes
    line = next(line for line in outcome.result.timelines if 5 in line.ranks)
    edges_s = schedules.moments(line, outcome.makespan_s / 100, outcome.makespan_s)
    lengths_s = np.diff(edges_s)
    assert edges_s[0] == 0
    assert edges_s[-1] == outcome.makespan_s
    assert lengths_s[:-1].min() >= outcome.makespan_s / 100 * (1 - 1e-9)
    for of_short_times, alike in ((edges_s, True), (np.linspace(0, outcome.makespan_s, 101), False)):
        _, exposed, _ = schedules.shares_of_time(line, of_short_times)
        starts_s = line.start_s[
            np.array(["feed_forward_all_reduce" in name and "gradient" not in name for name in line.graph.names])
        ]
        heights = exposed[np.searchsorted(of_short_times, starts_s + 1e-9) - 1]
        assert (np.ptp(heights) < 0.02) == alike


def test_labels_of_plans_do_not_lie_on_each_other():
    """Plans that cost the same under two schedules have one label, and near ones stand on sides of their own."""
    figure, axes = plt.subplots(figsize=(9, 4.6))
    axes.set(xlim=(0, 80), ylim=(22.0, 27.5))
    points = [(62.7, 22.2), (61.4, 22.7), (60.3, 23.7), (62.7, 22.2), (61.4, 22.5), (60.3, 23.0), (59.6, 23.9)]
    studies._label(axes, points, [str(number + 1) for number in range(len(points))])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert {text.get_text() for text in axes.texts} >= {"1, 4", "3", "6"}
    assert not any(a.overlaps(b) for number, a in enumerate(boxes) for b in boxes[:number])
    plt.close("all")


def test_labels_of_a_close_front_stand_left_of_their_own_points_and_below():
    """A label that made way for wide boxes of its neighbours stood above another's point, and was read as its."""
    figure, axes = plt.subplots(figsize=(7, 4.6))
    axes.set(xlim=(0, 144), ylim=(2.9, 3.82))
    points = [(37.8, 3.50), (36.7, 3.51), (35.8, 3.651), (35.3, 3.653), (32.8, 3.659), (31.7, 3.666), (28.9, 3.669)]
    studies._label(axes, points, "ghijklm")
    labels = [text for text in axes.texts if text.get_text()]
    assert [text.get_text() for text in labels] == ["g, h", "i, j", "k, l", "m"]
    figure.draw_without_rendering()
    for text in labels:
        box, (x, y) = text.get_window_extent(), axes.transData.transform(text.xy)
        assert box.x1 < x
        assert box.y1 < y
    plt.close("all")


@pytest.mark.parametrize("width", [None, "column", "page"])
def test_nothing_lies_over_the_plans_of_a_search_and_no_words_over_a_bar_of_colours(
    width, drawn, tmp_path, monkeypatch
):
    """A legend within the axes paled labels and hid plans; in a column titles ran into the bar beside them."""
    monkeypatch.setattr(links, "save", schedules.save)
    found = scaleout.search("llama-3-8b", topology="dgx-h200-1")
    busy = scaleout.run(
        "llama-3-8b", topology="dgx-h200-2", changes={"tensor_parallel": 8, "data_parallel": 2},
        schedules=["baseline"], network="link",
    )  # fmt: skip
    with look("png", width):
        studies.draw_plans(found.request, found.plans, tmp_path / "plans.png")
        links.draw_links(busy.outcomes[0].result.link_traffic, tmp_path / "links.png", title="links")
        for figure in drawn:
            figure.canvas.draw()
    plans, loads = drawn
    (axes,) = plans.axes
    key = max(axes.texts, key=lambda text: len(text.get_text()))
    assert all(str(each.plan) in " ".join(key.get_text().split()) for each in found.plans.front)
    assert not key.get_window_extent().overlaps(axes.xaxis.get_tightbbox())
    assert plans.bbox.padded(1).contains(*key.get_window_extent().p0)
    assert axes.get_legend().get_texts()[0].get_text() == "others, most of them estimates"
    legend = axes.get_legend().get_window_extent()
    assert not legend.overlaps(axes.get_window_extent().shrunk(0.999, 0.999))
    if width is None:
        assert not legend.overlaps(axes.title.get_window_extent())
    *panels, bar = loads.axes
    for panel in panels:
        assert not bar.get_tightbbox().overlaps(panel.title.get_window_extent())


def test_no_micro_batch_looks_like_the_optimizer():
    assert len(set(pipelines.to_rgb(pipelines._REST))) == 1
    for colour in (*pipelines.MICROBATCHES, *pipelines._colours(64).colors):
        for _, tone, _ in pipelines._TONES.values():
            shade = pipelines._toned(colour, tone)
            assert max(shade) - min(shade) > 0.15, colour


@pytest.mark.parametrize("numbers", [1, 8, 9, 64])
def test_no_two_micro_batches_have_one_colour(numbers):
    assert len({pipelines.to_rgb(colour) for colour in pipelines._colours(numbers).colors}) == numbers


def pipelined(name, drawn, tmp_path):
    changes = {"layers": 8, "pipeline_parallel": 4, "tensor_parallel": 2, "data_parallel": 1, "batch_per_replica": 4,
               "microbatch": 1, "pipeline_schedule": name}  # fmt: skip
    (outcome,) = scaleout.compare("llama-3-8b", changes=changes, topology="dgx-h200-1", schedules=["baseline"]).outcomes
    done = actions(outcome.result, outcome.workload)
    pipelines.draw_pipelines([(name, done, outcome.makespan_s)], tmp_path / "p.png", columns=1)
    return drawn[-1]


@pytest.mark.parametrize(("name", "backward"), [("1f1b", "backward"), ("zb_h1", "backward, whole or of inputs")])
def test_a_legend_of_a_pipeline_speaks_of_parts_of_a_backward_only_where_there_are(name, backward, drawn, tmp_path):
    (legend,) = pipelined(name, drawn, tmp_path).legends
    assert legend.get_texts()[1].get_text() == backward
    assert legend.get_texts()[-1].get_text() == "end of the step"
    bar = drawn[-1].axes[-1]
    assert bar.get_ylabel() == "micro-batch"
    assert [text.get_text() for text in bar.get_yticklabels()] == ["0", "1", "2", "3"]


def test_a_digit_over_a_hatch_stands_on_a_plain_ground(drawn, tmp_path):
    axes, _ = pipelined("zb_h1", drawn, tmp_path).axes
    hatched = [each for each in axes.collections if each.get_hatch()]
    assert hatched
    grounds = [text.get_bbox_patch() for text in axes.texts]
    assert any(grounds)
    assert not all(grounds)


def test_a_network_in_a_column_of_a_journal_has_no_empty_room_above(tmp_path):
    """One scale both ways makes a flat network low, and the picture kept the height of a wide one."""
    answer = scaleout.run("dlrm-128", schedules=["baseline"])
    with look("png", "column"):
        answer.write(tmp_path / "results")
    rows = np.flatnonzero((plt.imread(tmp_path / "results" / "links.png")[:, :, :3] < 0.9).any(axis=(1, 2)))
    high = plt.imread(tmp_path / "results" / "links.png").shape[0]
    assert rows[0] < 0.1 * high
    assert rows[-1] > 0.9 * high
