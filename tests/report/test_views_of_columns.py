"""Each kind of view over columns of each type: drawn, or refused before anything runs; a column may be missing."""

from itertools import product

import pandas as pd
import pytest
import vl_convert

from scaleout.api.sweeps import SweepAnswer
from scaleout.errors import ConfigError
from scaleout.report.pages.cases import Cases
from scaleout.report.pages.views import chart_of
from scaleout.study.sweep.cases import Case
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.table import table_of_cases
from scaleout.study.sweep.views import View, check_view

FILE = {
    "title": "all types",
    "workload": "llama-3-8b",
    "zip": {"topology": ["ring-128", "dgx-h200-16"], "set": {"gradient_bucket": ["25MiB", "100MiB"]}},
    "set": {
        "recompute": ["none", "full"], "sequence_parallel": [True, False], "batch_per_replica": [4, 1024],
        "recompute_modules": [["mlp"], ["mlp", "attention"]],
    },
    "label": [1, "b"],
    "bandwidth": {"all": ["1x", "0.5x"]},
    "columns": {
        "saved": "1 - speedup", "slow": "makespan_s > 5", "either": "label if fits else 1",
        "large": "set.batch_per_replica * 9000000000000000000",
    },
}  # fmt: skip
NUMBERS = {"ranks", "makespan_s", "peak_memory_bytes", "set.batch_per_replica", "saved", "large"}
"""Columns of numbers, of sizes and of a key that some cases lack; `saved` is missing in all."""
MISSING = {"saved", "dimension_bytes.7"}
TEXTS = {"topology", "set.recompute", "set.recompute_modules", "label", "bandwidth.all", "either"}  # fmt: skip
TRUTHS = {"set.sequence_parallel", "fits", "slow"}
COLUMNS = sorted(NUMBERS | TEXTS | TRUTHS | {"dimension_bytes.7"})
RESULTS = {"makespan_s", "peak_memory_bytes", "dimension_bytes.7"}
SHARED = {*COLUMNS} - RESULTS
OF_NUMBERS = NUMBERS | {"dimension_bytes.7"}
TAKES = {
    "line": {"x": {*COLUMNS}, "y": OF_NUMBERS},
    "bar": {"x": SHARED, "y": OF_NUMBERS},
    "heat_map": {"x": SHARED, "y": SHARED},
    "pareto": {"x": OF_NUMBERS, "y": OF_NUMBERS},
    "tornado": {"y": OF_NUMBERS},
}
MAY = {
    **{kind: {"colour": SHARED, "facet": SHARED} for kind in ("line", "bar", "pareto")},
    "heat_map": {"colour": OF_NUMBERS, "facet": SHARED},
    "tornado": {"facet": SHARED},
}


def of_view(**view):
    """Return a study with one view; refused where it cannot be drawn."""
    return study_of({**FILE, "views": [view]}, name="all", where="all.yaml")


@pytest.fixture(scope="module")
def cases():
    """Every third case lacks recompute and batch, as one of another workload does; the table is made as ever."""
    study = study_of(FILE, name="all", where="all.yaml")
    found, rows = [], []
    for number, (_, given) in enumerate(study.every_case()):
        lacks = {"set.recompute", "set.batch_per_replica", "set.sequence_parallel"} if number % 3 == 0 else set()
        inputs = {name: value for name, value in given.items() if name not in lacks}
        inputs |= {"device": "h200", "schedule": "baseline", "network": "alpha_beta"}
        found.append(Case(number, inputs, f"{number:032x}"))
        rows.append({
            "key": f"{number:032x}", "status": "ok", "message": "", "makespan_s": 1.0 + number % 16, "ranks": 128,
            "peak_memory_bytes": 2.0**30 * (1 + number % 5), "fits": number % 7 > 0, "decisions": f"chose {number % 3}",
            "model": "a closed form",
        })  # fmt: skip
    return table_of_cases(study, found, rows)


def test_what_is_told_of_a_column_before_a_case_runs_is_what_it_holds(cases):
    kinds = of_view(kind="line", x="topology", y="makespan_s").kinds
    for name in COLUMNS:
        known = "numbers" if name in OF_NUMBERS else "truth values" if name in TRUTHS else "texts"
        assert kinds[name] == known, name
        if name not in MISSING:
            dtype = cases[name].dtype
            truth = pd.api.types.is_bool_dtype(dtype)
            found = "truth values" if truth else "numbers" if pd.api.types.is_numeric_dtype(dtype) else "texts"
            assert found == known, name


def views_of(kind):
    """All pairs of columns of the axes, each other channel with each column beside axes that are right."""
    axes = TAKES[kind]
    right = {name: next(column for column in ("makespan_s", "ranks", "topology") if column in takes)
             for name, takes in axes.items()}  # fmt: skip
    if kind == "pareto":
        right["x"] = "peak_memory_bytes"
    if kind == "heat_map":
        right["y"] = "set.recompute"
    for columns in product(COLUMNS, repeat=len(axes)):
        yield dict(zip(axes, columns, strict=True))
    for channel in ("colour", "facet"):
        for column in COLUMNS:
            yield {**right, channel: column}
    for lacking in axes:
        yield {name: column for name, column in right.items() if name != lacking}


def is_right(kind, view):
    takes = {**TAKES[kind], **MAY[kind]}
    there = all(channel in view for channel in TAKES[kind])
    apart = "x" not in view or view["x"] != view.get("y")
    return there and apart and all(column in takes.get(channel, ()) for channel, column in view.items())


@pytest.mark.parametrize("kind", TAKES)
def test_a_view_is_drawn_or_refused_before(kind, cases):
    drawn, study = set[tuple[str, str]](), of_view(kind="bar", x="topology", y="makespan_s")
    all_of_them = Cases(cases, study)
    for view in views_of(kind):
        if not is_right(kind, view):
            with pytest.raises(ConfigError, match=r"^views\.0"):
                check_view(View(kind=kind, **view), study.kinds, where="views.0")
            continue
        check_view(View(kind=kind, **view), study.kinds, where="views.0")
        chart = chart_of(all_of_them, View(kind=kind, **view))
        assert (chart is None) == bool({*view.values()} & MISSING), view
        if chart is None:
            assert all_of_them.lack(View(kind=kind, **view)).startswith("no case that ran has a value of")
            continue
        if view.items() - drawn:
            vl_convert.vegalite_to_svg(chart.to_dict())  # which holds it to the schema of Vega-Lite
            drawn |= view.items()


@pytest.mark.parametrize("kind", ["line", "bar"])
@pytest.mark.parametrize(
    "column", ["topology", "set.recompute_modules", "set.sequence_parallel", "set.gradient_bucket"]
)
def test_names_stand_in_the_order_of_the_file(kind, column, cases):
    study = of_view(kind=kind, x=column, y="makespan_s")
    x = chart_of(Cases(cases, study), study.views[0]).to_dict()["layer"][0]["encoding"]["x"]
    given = study.axes[column]
    assert x["sort"] == (["[mlp]", "[mlp, attention]"] if column == "set.recompute_modules" else list(given))
    assert x["type"] == "ordinal"


def test_texts_with_numbers_lie_where_their_numbers_are(cases):
    study = of_view(kind="line", x="bandwidth.all", y="makespan_s")
    (rows,) = chart_of(Cases(cases, study), study.views[0]).to_dict()["datasets"].values()
    assert {(row["bandwidth__all"], row["at"]) for row in rows} == {("1x", 1.0), ("0.5x", 0.5)}


def test_a_series_of_cases_without_what_colours_it_is_called_unset(cases):
    study = of_view(kind="bar", x="topology", y="makespan_s", colour="set.batch_per_replica")
    svg = vl_convert.vegalite_to_svg(chart_of(Cases(cases, study), study.views[0]).to_dict())
    assert all(f">{name}</text>" in svg for name in ("4", "1,024", "unset"))


def test_a_view_of_no_case_says_so(cases):
    view = {"kind": "line", "x": "topology", "y": "makespan_s", "where": "makespan_s > 100"}
    study = of_view(**view)
    assert chart_of(Cases(cases, study), study.views[0]) is None
    assert Cases(cases, study).lack(study.views[0]) == "it shows none of the cases that ran"


@pytest.mark.parametrize("column", sorted({*COLUMNS} - MISSING))
def test_python_draws_and_refuses_the_same(column, cases):
    import matplotlib.pyplot as plt

    answer = SweepAnswer(of_view(kind="bar", x="topology", y="makespan_s"), cases)
    some = SweepAnswer(answer.study, cases[(cases["topology"] == "ring-128") & cases["label"].eq("b")])
    some.plot(x=column, y="makespan_s")
    if column in OF_NUMBERS:
        some.plot(x="set.recompute", y=column)
    else:
        with pytest.raises(ConfigError, match=r"plot\(y\): .* no numbers, but .*; give a column of numbers"):
            some.plot(y=column)
    plt.close("all")


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ("{kind: line, x: schedule}", "views.0.y: is missing; give the column of a line, such as makespan_s"),
        ("{kind: tornado, y: schedule}", "views.0.y: 'schedule' holds no numbers, but texts; give a column of numbers"),
        ("{kind: pareto, x: fits, y: makespan_s}", "views.0.x: 'fits' holds no numbers, but truth values"),
        ("{kind: bar, x: makespan_s, y: mfu}", "views.0.x: 'makespan_s' is a result, which hardly two cases share"),
        ("{kind: tornado, x: schedule, y: mfu}", "views.0.x: a tornado has no x; leave it out, or give another kind"),
        ("{kind: heat_map, x: schedule, y: schedule}", "views.0: x and y are one column, 'schedule'; give two"),
    ],
)
def test_a_view_that_cannot_be_drawn_is_refused_by_the_command(view, said, tmp_path, scaleout):
    path = tmp_path / "mine.yaml"
    path.write_text(f"workload: dlrm-128\nschedule: [baseline, overlap]\nviews: [{view}]\n")
    code, out, err = scaleout("study", str(path), "--output", str(tmp_path / "out"))
    assert (code, out) == (2, "")
    assert said in err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_line_over_names_is_drawn_to_the_end(tmp_path, scaleout):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "workload: dlrm-128\nschedule: [baseline, overlap]\ntimelines: none\n"
        "views: [{kind: line, x: schedule, y: makespan_s, title: steps},"
        " {kind: bar, x: schedule, y: dimension_bytes.7, title: seventh}]\n"
    )
    code, out, err = scaleout("study", str(path), "--output", str(tmp_path / "out"), "--workers", "1")
    assert (code, err) == (0, "")
    assert "seventh: not drawn, as no case that ran has a value of bytes over the busiest link" in " ".join(out.split())
    assert (tmp_path / "out/figures/01-steps.svg").exists()
    assert "seventh: not drawn" in (tmp_path / "out/report.html").read_text()
