"""The page of a study, opened in a real browser without a network; its charts' data worked by hand."""

import json
import re
import struct
from pathlib import Path

import pandas as pd
import pytest
import vl_convert

from scaleout.report.look import look
from scaleout.report.pages.cases import Cases
from scaleout.report.pages.names import shortened
from scaleout.report.pages.study import write_study_report
from scaleout.report.pages.style import Panels
from scaleout.report.pages.suggested import views_of
from scaleout.report.pages.views import chart_of
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.views import View

AWKWARD = "</script><script>document.title = 'taken'</script>"

FILE = {
    "title": "Two <b>networks</b>",
    "workload": "llama-3-8b",
    "topology": ["ring-128", "switch-128"],
    "set": {"batch_per_replica": [1, 2, 4]},
    "schedule": ["baseline", "overlap"],
    "baseline": {"schedule": "baseline"},
}
UNFIT = "without 4 cases that would not fit into memory"
STUDY = study_of(FILE, name="two", where="two.yaml")


def test_a_label_that_no_drawing_holds_is_written_as_an_escape(tmp_path, scaleout, monkeypatch):
    """The engine ended the process: XML has neither controls nor what is no character."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text('title: "\\e"\nworkload: dlrm-128\nlabel: ["\\e[31m", "\\uffff", "a\\tb"]\n')
    code, _, err = scaleout("study", "mine.yaml", "--output", "out", "--workers", "1", "--timelines", "none")
    assert (code, err) == (0, "")
    assert "\\x1b[31m" in next(Path("out/figures").glob("*.svg")).read_text()


def cases_of(failed=()):
    """Steps of 8 ms a sequence on the ring and 4 on the switch; `overlap` saves a quarter; the switch costs twice."""
    rows = []
    for topology, times, price in (("ring-128", 8e-3, 100.0), ("switch-128", 4e-3, 200.0)):
        for batch in (1, 2, 4):
            for schedule, saved in (("baseline", 1.0), ("overlap", 0.75)):
                number = len(rows)
                result = {"makespan_s": times * batch * saved, "speedup": 1 / saved, "network_dollars": price}
                bad = number in failed
                rows.append(
                    {
                        "case": number, "key": f"{number:032x}", "status": "failed" if bad else "ok",
                        "message": AWKWARD if bad else "", "run": f"scaleout run llama-3-8b --topology {topology}",
                        "timeline": "timelines/000005.json" if number == 5 else "", "workload": "llama-3-8b",
                        "topology": topology, "device": "h200", "schedule": schedule, "network": "alpha_beta",
                        "ranks": 128, "set.batch_per_replica": batch, **({} if bad else result),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def data_of(view, cases=None):
    """The rows that a view draws."""
    chart = chart_of(Cases(cases_of() if cases is None else cases, STUDY), view).to_dict()
    (rows,) = chart["datasets"].values()
    return rows


def test_a_line_is_drawn_over_ranks():
    """Which are whole numbers that may be missing: pandas has a type of its own for these."""
    cases = cases_of().assign(ranks=pd.array([8, 8, 16, 16, 32, 32] * 2, dtype="Int64"))
    rows = data_of(View(kind="line", x="ranks", y="makespan_s", colour="schedule"), cases)
    assert {row["at"] for row in rows} == {8, 16, 32}


def test_a_line_draws_the_best_of_what_it_does_not_show():
    rows = data_of(View(kind="line", x="set.batch_per_replica", y="makespan_s", colour="topology"))
    assert {(row["topology"], row["at"]): row["makespan_s"] for row in rows} == {
        ("ring-128", 1): 6.0, ("ring-128", 2): 12.0, ("ring-128", 4): 24.0,
        ("switch-128", 1): 3.0, ("switch-128", 2): 6.0, ("switch-128", 4): 12.0,
    }  # fmt: skip
    assert {row["schedule"] for row in rows} == {"overlap"}


def test_a_view_says_over_what_it_took_the_best():
    chart = chart_of(Cases(cases_of(), STUDY), View(kind="bar", x="topology", y="speedup", colour="schedule"))
    assert chart.to_dict()["title"]["subtitle"] == ["the best over batch per replica"]


def test_cases_that_would_not_fit_are_left_out_and_counted():
    """Nobody can run them; where none fits, all are shown."""
    cases = cases_of().assign(fits=[number % 6 < 4 for number in range(12)])  # batches of 4 do not
    view = View(kind="line", x="set.batch_per_replica", y="makespan_s", colour="topology")
    assert {row["at"] for row in data_of(view, cases)} == {1, 2}
    told = chart_of(Cases(cases, STUDY), view).to_dict()["title"]["subtitle"]
    assert told == ["the best over schedule", f"{UNFIT}: batch per replica 4"]
    assert {row["at"] for row in data_of(view, cases.assign(fits=False))} == {1, 2, 4}
    told = chart_of(Cases(cases.assign(fits=False), STUDY), view).to_dict()["title"]["subtitle"]
    assert told[1:] == ["12 cases of a workload of which none fits into memory"]
    one = cases.assign(fits=[number != 5 for number in range(12)])  # no input alone says which that is
    told = chart_of(Cases(one, STUDY), view).to_dict()["title"]["subtitle"]
    assert told[1:] == ["without 1 case that would not fit into memory"]
    half = view.model_copy(update={"where": "schedule == 'overlap'"})
    told = chart_of(Cases(cases, STUDY), half).to_dict()["title"]["subtitle"]
    assert told == ["only where schedule == 'overlap'", f"{UNFIT.replace('4', '2')}: batch per replica 4"]


@pytest.mark.parametrize("width", ["column", "page", None])
def test_figures_and_the_line_of_each_say_what_does_not_fit(width, tmp_path):
    """In a journal too, where the title is left to the caption."""
    with look("svg", width):
        written = write_study_report(cases_of().assign(fits=[number % 6 < 4 for number in range(12)]), STUDY, tmp_path)
    figures = {name: words for name, words in written.items() if name.startswith("figures/")}
    assert all(words.endswith(f"; {UNFIT}: batch per replica 4") for words in figures.values())
    for name in figures:
        assert UNFIT in (tmp_path / name).read_text().replace("&#160;", " ")


def test_a_pareto_front_holds_what_no_other_case_beats():
    rows = data_of(View(kind="pareto", x="network_dollars", y="makespan_s"))
    front = {(row["network_dollars"], row["makespan_s"]) for row in rows if row["front"]}
    assert front == {(100.0, 6.0), (200.0, 3.0)}


def test_of_equal_cases_of_a_front_both_are_seen():
    """The second lies on the first, whose mark is larger; both are on the front."""
    frame = cases_of()
    twin = frame.query("topology == 'switch-128' and makespan_s == 3e-3").assign(case=99, schedule="baseline")
    both = pd.concat([frame, twin], ignore_index=True)
    chart = chart_of(Cases(both, STUDY), View(kind="pareto", x="network_dollars", y="makespan_s"))
    (rows,) = chart.to_dict()["datasets"].values()
    alike = [row for row in rows if (row["network_dollars"], row["makespan_s"]) == (200.0, 3.0)]
    assert [(row["front"], row["over"]) for row in alike] == [(True, 1), (True, 0)]


def test_marks_and_zero_say_what_they_mean():
    pareto = chart_of(Cases(cases_of(), STUDY), View(kind="pareto", x="network_dollars", y="makespan_s")).to_dict()
    assert any("black edge" in line and "pale" in line for line in pareto["title"]["subtitle"])
    tornado = chart_of(Cases(cases_of(), STUDY), View(kind="tornado", y="makespan_s")).to_dict()
    assert tornado["layer"][0]["encoding"]["x"]["axis"]["title"] == "change of makespan from the best case"


def test_a_front_of_what_should_be_high():
    rows = data_of(View(kind="pareto", x="speedup", y="makespan_s"))
    assert {(row["speedup"], row["makespan_s"]) for row in rows if row["front"]} == {(4 / 3, 3.0)}


def test_a_tornado_moves_one_input_at_a_time_from_the_best_case():
    rows = data_of(View(kind="tornado", y="makespan_s"))
    moved = {(row["axis"], row["value"]): round(row["change"], 12) for row in rows}
    assert moved == {
        ("topology", "ring-128"): 1.0, ("topology", "switch-128"): 0.0,
        ("batch per replica", "1"): 0.0, ("batch per replica", "2"): 1.0, ("batch per replica", "4"): 3.0,
        ("schedule", "baseline"): round(1 / 3, 12), ("schedule", "overlap"): 0.0,
    }  # fmt: skip


def zipped():
    """Two networks, on which the batch goes with the degree of data parallelism: 1 with 128, 2 with 64."""
    file = {
        "workload": "llama-3-8b",
        "topology": ["ring-128", "fat_tree(8,16,hdr,latency=700ns/540ns,taper=2:1)"],
        "zip": {"set": {"data_parallel": [128, 64], "batch_per_replica": [1, 2]}},
    }
    study = study_of(file, name="zipped", where="zipped.yaml")
    rows = [
        {"case": n, "status": "ok", "run": "", "workload": "llama-3-8b", "topology": topology, "schedule": "baseline",
         "set.data_parallel": data, "set.batch_per_replica": batch, "makespan_s": (1 + n % 2) * batch * 1.0}
        for n, (data, batch, topology) in enumerate(
            (data, batch, topology) for data, batch in ((128, 1), (64, 2)) for topology in file["topology"]
        )
    ]  # fmt: skip
    return Cases(pd.DataFrame(rows), study)


def test_inputs_that_go_together_are_one_to_a_reader():
    """A heat map of two of them would be empty but for its diagonal, and a tornado would move neither."""
    cases = zipped()
    assert cases.axes == {"set.data_parallel": ["set.data_parallel", "set.batch_per_replica"], "topology": ["topology"]}
    assert all({view.x, view.y} != {"set.data_parallel", "set.batch_per_replica"} for view in views_of(cases))
    chart = chart_of(cases, View(kind="bar", x="set.data_parallel", y="makespan_s")).to_dict()
    assert chart["title"]["subtitle"] == ["the best over topology", "data parallel goes with batch per replica"]
    (rows,) = chart_of(cases, View(kind="tornado", y="makespan_s")).to_dict()["datasets"].values()
    assert {(row["axis"], row["value"], row["change"], row["ends"]) for row in rows} == {
        ("data parallel, batch per replica", "128, 1", 0.0, "128, 1 to 64, 2"),
        ("data parallel, batch per replica", "64, 2", 1.0, ""),
        ("topology", "ring-128", 0.0, "ring-128 to fat_tree(8,16,hdr,…,taper=2:1)"),
        ("topology", "fat_tree(8,16,hdr,…,taper=2:1)", 1.0, ""),
    }


def test_long_names_are_short_where_a_picture_has_no_room():
    axis = chart_of(zipped(), View(kind="bar", x="topology", y="makespan_s")).to_dict()["layer"][0]["encoding"]["x"][
        "axis"
    ]
    assert axis["labelExpr"].startswith('({"fat_tree(8,16,hdr,latency=700ns/540ns,taper=2:1)": "fat_tree(8,16,hdr,')
    names = [f"torus(8,16,bandwidth={rate}Gb/s,latency=1us)" for rate in (200, 400)]
    assert list(shortened(names).values()) == ["torus(8,16,bandwidth=200Gb/s,…)", "torus(8,16,bandwidth=400Gb/s,…)"]
    assert shortened(["torus(8,16,hdr)", "b" * 40]) == {}
    assert shortened(["torus(8,16,bandwidth=1GB/s,latency=1us)", "torus(8,16,latency=1us,bandwidth=1GB/s)"]) == {}
    assert shortened(["fat_tree(4,4,ndr,taper=2:1)", "switch(16,ndr)"]) == {}  # which once lost its taper


@pytest.mark.parametrize(("x", "own"), [("network_dollars", True), ("set.batch_per_replica", False)])
def test_a_result_below_a_line_has_round_ticks_and_its_own_range(x, own):
    cases = cases_of()
    cases.loc[cases["topology"] == "ring-128", "network_dollars"] /= 10
    chart = chart_of(Cases(cases, STUDY), View(kind="line", x=x, y="makespan_s", facet="topology")).to_dict()
    assert ("values" not in chart["spec"]["layer"][0]["encoding"]["x"]["axis"]) is own
    assert (chart.get("resolve", {}).get("scale", {}).get("x") == "independent") is own


def test_a_view_keeps_to_its_constraint():
    rows = data_of(
        View(kind="bar", x="topology", y="makespan_s", where="set.batch_per_replica == 4 and schedule == 'baseline'")
    )
    assert [row["makespan_s"] for row in rows] == [32.0, 16.0]


def test_a_legend_names_what_is_drawn():
    view = View(kind="bar", x="topology", y="makespan_s", colour="schedule", where="schedule == 'overlap'")
    colour = chart_of(Cases(cases_of(), STUDY), view).to_dict()["layer"][0]["encoding"]["color"]
    assert colour["legend"]["values"] == ["overlap"]
    assert colour["scale"]["domain"] == ["baseline", "overlap"]  # and has the colour that it has in other views


def test_names_are_level_where_they_fit():
    cases = Cases(cases_of(), STUDY)
    wide, narrow = (
        chart_of(cases, View(kind="bar", x="topology", y="makespan_s", facet=facet)).to_dict()
        for facet in ("", "set.batch_per_replica")
    )
    angles = [each["layer"][0]["encoding"]["x"]["axis"]["labelAngle"] for each in (wide, narrow["spec"])]
    assert angles == [0, 0]
    many = zipped()
    many.panels = Panels((100,), 100)
    assert (
        chart_of(many, View(kind="bar", x="topology", y="makespan_s")).to_dict()["layer"][0]["encoding"]["x"]["axis"][
            "labelAngle"
        ]
        == -35
    )


def test_views_are_chosen_from_the_inputs():
    found = views_of(Cases(cases_of(), STUDY))
    assert [view.kind for view in found] == ["line", "bar", "heat_map", "pareto", "tornado"]
    assert (found[0].x, found[0].y, found[0].colour) == ("set.batch_per_replica", "makespan_s", "schedule")


@pytest.mark.parametrize("failed", [(), (3, 7), range(12)], ids=["none", "some", "all"])
def test_files_are_those_that_it_names_and_the_same_again(failed, tmp_path):
    first = write_study_report(cases_of(failed), STUDY, tmp_path)
    bytes_of = {name: (tmp_path / name).read_bytes() for name in first}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(first)
    assert write_study_report(cases_of(failed), STUDY, tmp_path) == first
    for name, content in bytes_of.items():
        assert (tmp_path / name).read_bytes() == content, name


def test_figures_of_views_that_are_no_more_go(tmp_path):
    write_study_report(cases_of(), STUDY, tmp_path)
    (tmp_path / "figures" / "mine.png").write_bytes(b"")
    written = write_study_report(cases_of(range(12)), STUDY, tmp_path)
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert there == {*written, "figures/mine.png"}


@pytest.mark.parametrize(("width", "inches"), [("column", 3.35), ("page", 7.0), (None, None)])
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figures_have_the_format_and_width_of_a_journal(kind, width, inches, tmp_path):
    """Read back from the files: points of PDF and SVG, pixels of PNG at 300 an inch; no titles, fonts of 6 or 7."""
    with look(kind, width):
        written = write_study_report(cases_of(), STUDY, tmp_path)
    figures = [name for name in written if name.startswith("figures/")]
    assert len(figures) == 5
    assert {Path(name).suffix for name in figures} == {f".{kind}"}
    assert f"{figures[0]}" in (tmp_path / "report.html").read_text()
    for content in ((tmp_path / name).read_bytes() for name in figures if width):
        if kind == "svg":
            assert float(re.search(rb'width="([0-9.]+)pt"', content)[1]) == pytest.approx(72 * inches)
            sizes = {float(size) for size in re.findall(rb'font-size="([0-9.]+)px"', content)}
            assert sizes == {6.0 if width == "column" else 7.0}
            assert b"Speed-up over the baseline over" not in content
        elif kind == "pdf":
            assert float(re.search(rb"/MediaBox \[0 0 ([0-9.]+)", content)[1]) == pytest.approx(72 * inches, rel=1e-5)
        else:
            assert struct.unpack(">I", content[16:20])[0] == pytest.approx(300 * inches, abs=2)


@pytest.mark.parametrize(
    ("result", "slower", "shared"), [("speedup", 1, True), ("makespan_s", 1, True), ("makespan_s", 10, False)]
)
def test_panels_that_compare_share_their_colours_and_axes(result, slower, shared):
    view = View(kind="heat_map", x="topology", y="set.batch_per_replica", colour=result, facet="schedule")
    cases = cases_of()
    cases.loc[cases["schedule"] == "baseline", "makespan_s"] *= slower
    bars = View(kind="bar", x="topology", y=result, facet="schedule")
    panels = chart_of(Cases(cases, STUDY), bars).to_dict()
    assert (panels.get("resolve", {}).get("scale", {}).get("y") == "independent") is not shared
    chart = chart_of(Cases(cases, STUDY), view).to_dict()
    assert (chart.get("resolve", {}).get("scale", {}).get("color") == "independent") is not shared
    dark = {(row["schedule"], row[result]) for row in data_of(view, cases) if row["dark"]}
    assert dark == ({("baseline", 1.0)} if result == "speedup" else {("baseline", 32.0 * slower), ("overlap", 24.0)})


def texts_of(chart):
    return re.findall(r"<text[^>]*>([^<]*)</text>", vl_convert.vegalite_to_svg(chart.to_dict()))


def test_numbers_in_a_heat_map_have_three_digits():
    """Once `1.25e+3`, and four digits of tokens a second."""
    cases = cases_of().assign(tokens_per_s=lambda each: 105832.0 / each["makespan_s"] * 8e-3)
    cases["makespan_s"] *= 1.2541 / 32e-3
    for result, wanted in (("makespan_s", "1,250"), ("tokens_per_s", "106k"), ("speedup", "1.33")):
        view = View(kind="heat_map", x="topology", y="set.batch_per_replica", colour=result, facet="schedule")
        texts = texts_of(chart_of(Cases(cases, STUDY), view))
        assert wanted in texts
        assert not [text for text in texts if re.search(r"e\+|\d\.\d{3}|\d{3}\.\d", text)], texts


def test_panels_say_what_they_are_of_and_no_axis_lies_below_an_empty_place():
    """Once the panels of batches were `1`, `2` and `4`, and topologies stood below a place without a panel."""
    view = View(kind="bar", x="topology", y="makespan_s", facet="set.batch_per_replica")
    four = pd.concat(
        [cases_of(), cases_of().query("`set.batch_per_replica` == 4").assign(**{"set.batch_per_replica": 8})]
    )
    study = study_of({**FILE, "set": {"batch_per_replica": [1, 2, 4, 8]}}, name="four", where="four.yaml")
    cases = Cases(four.assign(case=range(len(four))).reset_index(drop=True), study)
    chart = chart_of(cases, view)
    assert chart.to_dict()["columns"] == 2
    texts = texts_of(chart)
    assert [f"batch per replica {each}" for each in (1, 2, 4, 8)] == [text for text in texts if "batch" in text]
    assert texts.count("switch-128") == 2
    cases.panels = Panels((100,) * 3, 100)
    cases.frame = cases.frame[cases.frame["set.batch_per_replica"] < 8]
    assert texts_of(chart_of(cases, view)).count("switch-128") == 3
    cases.panels = Panels((100,) * 2, 100)
    assert texts_of(chart_of(cases, view)).count("switch-128") == 3


def test_long_names_of_panels_are_short_as_well():
    names = zipped().frame["topology"].unique()
    chart = chart_of(zipped(), View(kind="bar", x="workload", y="makespan_s", facet="topology"))
    assert not {*names} & {*texts_of(chart)} & {*shortened(names)}
    assert {*shortened(names).values()} <= {*texts_of(chart)}


@pytest.fixture
def page(browser, tmp_path):
    """The page of a study with two failed cases; fails where a script fails or anything is asked of a network."""
    write_study_report(cases_of((3, 7)), STUDY, tmp_path)
    context = browser.new_context(offline=True)
    page, errors, asked = context.new_page(), [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("table.dataTable tbody tr")
    yield page
    assert errors == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def test_every_view_is_drawn(page):
    page.wait_for_selector("#view-5 svg")
    assert page.locator("section.view svg").count() == 5


def test_the_table_sorts(page):
    rows = page.locator("table.dataTable tbody tr")
    assert rows.count() == 12
    assert rows.first.locator("td").first.inner_text() == "0"
    page.locator(".dt-scroll-head th", has_text="makespan").click()
    page.wait_for_function("document.querySelector('table.dataTable tbody td').innerText != '0'")
    assert [row.locator("td").first.inner_text() for row in rows.all()[:4]] == ["3", "7", "6", "1"]


def test_text_of_users_is_text(page):
    assert page.title() == "Two <b>networks</b>"
    assert page.get_by_text(AWKWARD).count() >= 1


def test_pointing_at_a_mark_shows_its_case(page):
    page.locator("#view-2 svg path.mark-rect, #view-2 svg .mark-rect path").first.hover()
    shown = page.locator("#vg-tooltip-element")
    shown.wait_for()
    assert "llama-3-8b" in shown.inner_text()
    assert "scaleout run llama-3-8b" in shown.inner_text()


def test_a_timeline_is_a_link(page):
    assert page.locator("a[href='timelines/000005.json']").inner_text() == "open"


def test_charts_are_seen_whole_on_a_telephone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector("#view-5 svg")
    over = page.evaluate("[...document.querySelectorAll('.view')].map(each => each.scrollWidth - each.clientWidth)")
    assert over == [0] * 5
    assert page.evaluate("[...document.querySelectorAll('.view svg')].every(each => each.clientWidth > 250)")


def test_the_answer_is_seen_whole_on_a_telephone(page):
    """Each of its values stands between the page's edges, with what it is."""
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cells = page.locator(".answer td").all()
    for cell in cells:
        left, right = cell.evaluate("each => [each.getBoundingClientRect().left, each.getBoundingClientRect().right]")
        assert 0 <= left < right <= 390
    labels = [cell.evaluate("each => getComputedStyle(each, '::before').content.slice(1, -1)") for cell in cells]
    assert labels == [head.text_content() for head in page.locator(".answer thead th").all()] * (
        len(cells) // len(set(labels))
    )


# ---- Figures, as a reader of a paper sees them


def estimated():
    """The cases, of which those of overlap are mostly of kernels that were not measured."""
    cases = cases_of()
    return cases.assign(roofline_share=[0.5 if each == "overlap" else 0.0 for each in cases["schedule"]])


@pytest.mark.parametrize(
    ("view", "mark"),
    [
        (
            View(kind="line", x="set.batch_per_replica", y="makespan_s", colour="schedule", facet="topology"),
            "open marks",
        ),
        (View(kind="bar", x="topology", y="makespan_s", colour="schedule"), "pale bars"),
        (View(kind="heat_map", x="topology", y="schedule", colour="makespan_s"), "~"),
        (View(kind="pareto", x="speedup", y="makespan_s", colour="schedule"), "open marks"),
        (View(kind="tornado", y="makespan_s", facet="topology"), "open marks"),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_estimates_look_so_and_the_figure_says_it_once(view, mark):
    for cases, many in ((cases_of(), False), (estimated(), True)):
        chart = chart_of(Cases(cases, STUDY), view).to_dict()
        words = f"{mark}: 10% or more of kernel time is an estimate"
        assert chart["title"]["subtitle"].count(words) == many
        assert "datum.roofline_share >= 0.1" in json.dumps(chart)


def test_series_differ_in_shape_and_labels_are_words():
    view = View(kind="line", x="set.batch_per_replica", y="makespan_s", colour="schedule", facet="topology")
    line, points = chart_of(Cases(cases_of(), STUDY), view).to_dict()["spec"]["layer"]
    shapes = points["encoding"]["shape"]["scale"]["range"]
    assert len(set(shapes)) == len(shapes) == 2
    assert line["encoding"]["x"]["axis"]["title"] == "batch per replica"
    assert "size" not in points["encoding"]
    assert {row["depth"] for row in data_of(view)} == {0}


def test_of_two_lines_that_are_one_both_are_seen():
    """The second is dashed and has the smaller marks; lines apart from them look as ever."""
    file = {**FILE, "schedule": ["baseline", "overlap", "fused"]}
    study = study_of(file, name="three", where="three.yaml")
    three = pd.concat([cases_of(), cases_of().query("schedule == 'overlap'").assign(schedule="fused")])
    batch = three["set.batch_per_replica"] * three["schedule"].map({"baseline": 1.0, "overlap": 2.0, "fused": 1.0})
    cases = Cases(three.assign(makespan_s=batch, case=range(len(three))).reset_index(drop=True), study)
    view = View(kind="line", x="set.batch_per_replica", y="makespan_s", colour="schedule", facet="topology")
    chart = chart_of(cases, view).to_dict()
    (rows,), (line, points) = chart["datasets"].values(), chart["spec"]["layer"]
    assert {(row["schedule"], row["depth"]) for row in rows} == {("baseline", 0), ("overlap", 0), ("fused", 1)}
    assert line["encoding"]["strokeDash"]["scale"]["range"][:2] == [[], [4, 4]]
    first, apart, second = points["encoding"]["size"]["scale"]["range"]
    assert first > 2 * second
    assert apart == second


def test_lines_that_are_not_logarithmic_begin_at_zero():
    view = View(kind="line", x="set.batch_per_replica", y="makespan_s", facet="topology")
    near = cases_of().assign(makespan_s=lambda each: 10.0 + each["set.batch_per_replica"])
    scale = chart_of(Cases(near, STUDY), view).to_dict()["spec"]["layer"][0]["encoding"]["y"]["scale"]
    assert scale == {"zero": True}


def test_figures_have_the_font_of_all_others(tmp_path):
    with look("svg", "column"):
        written = write_study_report(cases_of(), STUDY, tmp_path)
    for name in (name for name in written if name.startswith("figures/")):
        svg = (tmp_path / name).read_text()
        assert set(re.findall(r'font-family="([^"]+)"', svg)) == {"DejaVu Sans, sans-serif"}
        assert "bold" not in svg
