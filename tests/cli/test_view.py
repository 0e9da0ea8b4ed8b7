"""`scaleout view`: served to one machine, opened in a real browser, its what-ifs those of the Python API."""

import html
import http.client
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread, active_count

import pytest

import scaleout as api
from scaleout.api.again import collective_inputs, run_inputs
from scaleout.api.views import compared, loads_of, open_output
from scaleout.cli.serving import Server
from scaleout.cli.view import _Questions
from scaleout.config.units import format_bytes, format_seconds
from scaleout.errors import ConfigError
from scaleout.report.pages.document import facts_of
from scaleout.report.pages.view import parts_of
from scaleout.report.vocabulary import vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run under two schedules."""
    found = tmp_path_factory.mktemp("view") / "run"
    api.run(
        "llama-3-8b", topology="dgx-h200-2", changes={"tensor_parallel": 8, "data_parallel": 2},
        schedules=["baseline", "overlap"],
    ).write(found)  # fmt: skip
    return found


@pytest.fixture
def served():
    """Serve outputs, each at an address of its own."""
    servers = []

    def serve(path, **how):
        questions = _Questions(open_output(Path(path), **how))
        servers.append(Server(0, questions.page, questions.asks))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def opened(browser, served):
    """Open an output; fails where a script fails or anything but the server is asked."""
    contexts, errors, asked = [], [], []

    def open_page(path, **how):
        server = served(path)
        context = browser.new_context(**how)
        page = context.new_page()
        contexts.append(context)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []
    assert [url for url in asked if not re.match(r"http://127\.0\.0\.1:|data:|blob:", url)] == []


def move(page, name, place):
    """Move a slider to a place and wait for the answer."""
    page.locator(f'[name="{name}"]').fill(str(place))
    page.wait_for_function("document.querySelector('#status').innerText.startsWith('simulated in')")


def now(page, schedule):
    row = page.locator("#answer tbody tr", has_text=schedule)
    return row.locator("td").nth(1).inner_text()


def test_a_slider_gives_the_number_of_the_api(opened, folder):
    page = opened(folder)
    assert "llama-3-8b" in page.title()
    page.wait_for_selector("#timeline canvas")
    control = next(each for each in open_output(folder).controls(0) if each.name == "bandwidth.1")
    place = control.labels.index("0.25x")
    assert not page.locator("#of-file").is_visible()
    move(page, "bandwidth.1", place)
    assert page.locator("#of-file").is_visible()
    expected = api.run(
        "llama-3-8b", topology="dgx-h200-2", changes={"tensor_parallel": 8, "data_parallel": 2},
        schedules=["baseline", "overlap"], network_changes={"bandwidth": {"1": "0.25x"}},
    )  # fmt: skip
    assert now(page, "baseline") == format_seconds(expected["baseline"].makespan_s)
    assert now(page, "overlap") == format_seconds(expected["overlap"].makespan_s)
    as_it_was = api.run("llama-3-8b", topology="dgx-h200-2", changes={"tensor_parallel": 8, "data_parallel": 2})
    assert expected["baseline"].makespan_s > as_it_was["baseline"].makespan_s


def test_tables_sort_by_value(opened, folder):
    page = opened(folder)
    table = page.locator("details", has=page.locator("summary", has_text="time by operation"))
    table.evaluate("details => details.open = true")
    head = table.get_by_role("button", name="busy times")
    head.click()
    head.click()
    cells = table.locator("tbody tr td:last-child").all()
    keys = [float(cell.get_attribute("data-key")) for cell in cells]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) > 10


def test_headings_say_what_their_columns_hold_as_the_schema_does(opened, folder):
    """`member share` and `next measurement` were names of the JSON that nothing on the page explained."""
    page = opened(folder)
    known = vocabulary()
    shown = {"member_share": "what bounds each collective", "next_measurement": "results"}
    for key, table in shown.items():
        name = key.replace("_", " ")
        details = page.locator("details", has=page.locator("summary", has_text=table)).first
        assert details.locator("th", has_text=name).first.get_attribute("title") == known[key].meaning
        details.evaluate("details => details.open = true")
        details.get_by_text("what its columns hold").click()
        line = details.locator(".meanings div", has=page.locator("dt", has_text=re.compile(f"^{name}$")))
        assert line.locator("dd").inner_text() == known[key].meaning
    assert open_output(folder).page.tables[0].meanings[0] == known["schedule"].meaning


def test_an_upright_table_sorts_its_columns(opened, folder):
    """Its only heading to click was that of the schedules."""
    table = opened(folder).locator("table.upright").first

    def row(name):
        head = table.page.get_by_role("button", name=re.compile(f"^{name}"))  # an arrow is behind it
        cells = table.locator("tr", has=head).locator("td").all()
        return [cell.get_attribute("data-key") for cell in cells]

    before = dict(zip(row("schedule"), map(float, row("makespan")), strict=True))
    for name in ("makespan", "makespan"):
        table.get_by_role("button", name=re.compile(f"^{name}")).click()
        found = [float(each) for each in row("makespan")]
        down = table.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
        assert found == sorted(found, reverse=down)
        assert dict(zip(row("schedule"), found, strict=True)) == before
    assert len(before) > 1


@pytest.mark.parametrize("width", [1280, 400])
def test_what_names_a_row_stays_where_its_table_is_wider_than_the_page(opened, folder, width):
    """Few schedules with many quantities stand side by side, and long texts go on below, so little is so wide."""
    page = opened(folder, viewport={"width": width, "height": 900})
    results = page.locator('[aria-label="results"]')
    assert [each.inner_text() for each in results.locator("tr >> nth=0").locator("th, td").all()] == [
        "schedule", "baseline", "overlap",
    ]  # fmt: skip
    page.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
    wide = page.locator(".wide").evaluate_all("all => all.map(box => box.scrollWidth - box.clientWidth)")
    assert len(wide) > 4
    assert max(wide) > 0 if width == 400 else max(wide) <= 1
    first = page.locator('[aria-label="what bounds each collective"] tbody td').first
    place = first.bounding_box()["x"]
    page.locator(".wide").evaluate_all("all => all.forEach(box => box.scrollLeft = box.scrollWidth)")
    assert first.bounding_box()["x"] == place
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 400])
def test_names_of_tracks_and_the_legend_leave_a_timeline_most_of_its_width(opened, folder, width):
    page = opened(folder, viewport={"width": width, "height": 900})
    page.wait_for_selector("#timeline canvas")
    page.evaluate("const draw = vegaEmbed; vegaEmbed = (...all) => { window.charted = all; return draw(...all); }; 0")
    page.get_by_role("button", name="whole").click()
    page.wait_for_function("window.charted")
    given = page.evaluate("[charted[1].encoding.y.axis, charted[1].encoding.color.legend.columns, charted[2].config]")
    axis, columns, config = given
    assert (axis or {}).get("labelLimit") is None
    assert columns is None
    room = page.evaluate("document.querySelector('#timeline').clientWidth")
    assert config["axisY"]["labelLimit"] <= room / 3
    assert config["legend"]["columns"] * 100 <= room


def test_the_timeline_zooms_to_single_slices(opened, folder):
    page = opened(folder)
    page.wait_for_selector("#timeline canvas")
    whole = page.locator("#drawn").inner_text()
    for _ in range(4):
        before = page.locator("#drawn").inner_text()
        page.get_by_role("button", name="closer").click()
        page.wait_for_function("text => document.querySelector('#drawn').innerText !== text", arg=before)
    assert page.locator("#drawn").inner_text() != whole


@pytest.mark.parametrize("change", ["token", "host", "origin", "none"])
def test_only_the_page_is_answered(served, folder, change):
    server = served(folder)
    headers = {"X-Token": server.token, "Content-Type": "application/json"}
    headers |= {"token": {"X-Token": "x"}, "host": {"Host": "evil.example"}, "none": {"X-Token": ""}}.get(change, {})
    headers |= {"Origin": "http://evil.example"} if change == "origin" else {}
    body = json.dumps({"job": 0, "changes": {}})
    assert status(server, "POST", "/simulate", body, headers) == 403
    token = server.token if change in ("host", "origin") else {"token": server.token[:-1], "none": ""}[change]
    assert status(server, "GET", f"/?token={token}", None, headers) == 403


@pytest.mark.parametrize(
    "begins", ["", "GET / HT", "POST /simulate HTTP/1.1\r\nX-A: 1\r\n", "a body that does not come"]
)
def test_connections_that_ask_nothing_end_where_others_come(served, folder, begins):
    """However many there are, the page is given, and the threads are few."""
    server = served(folder)
    headers = f"X-Token: {server.token}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    host = f"Host: 127.0.0.1:{server.server_port}\r\n"
    said = begins if "body" not in begins else f"POST /simulate HTTP/1.1\r\n{host}{headers}\r\n{{"
    before = active_count()
    silent = []
    for _ in range(100):
        silent.append(socket.create_connection(("127.0.0.1", server.server_port), timeout=30))
        silent[-1].sendall(said.encode())
    assert status(server, "GET", f"/?token={server.token}", None, {}) == 200
    assert active_count() - before <= 32
    for each in silent:
        each.close()


def status(server, method, path, body, headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, body, headers)
    found = connection.getresponse()
    assert found.getheader("Set-Cookie") is None
    connection.close()
    return found.status


@pytest.mark.parametrize(
    "body", ["[]", "{", '{"job": 7, "changes": {}}', '{"job": 0, "changes": {"bandwidth.1": 99}}', '{"job": 0}',
             '{"job": 0, "changes": {"set.layers": 1}}', '{"job": "0", "changes": {}}', '{"job": 0, "changes": [1]}',
             '{"job": 0, "changes": {"bandwidth.1": "x"}}'],
)  # fmt: skip
def test_nothing_but_what_is_offered_can_be_asked(served, folder, body):
    server = served(folder)
    headers = {"X-Token": server.token, "Content-Type": "application/json"}
    assert status(server, "POST", "/simulate", body, headers) == 400


@pytest.mark.parametrize(
    ("method", "path", "length", "code"),
    [
        ("POST", "/simulate", "9" * 5000, 400),
        ("POST", "/simulate", "-5", 400),
        ("POST", "http://[", "2", 400),
        ("GET", "http://[", "0", 403),
    ],
)
def test_a_request_that_no_browser_sends_is_refused(served, folder, capfd, *, method, path, length, code):
    """A length that no number holds and an address that cannot be parsed once were a traceback."""
    server = served(folder)
    host, kind = f"Host: 127.0.0.1:{server.server_port}", "Content-Type: application/json"
    lines = (f"{method} {path} HTTP/1.1", host, f"X-Token: {server.token}", kind, f"Content-Length: {length}", "", "")
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(100).split()[1] == str(code).encode()
    assert capfd.readouterr().err == ""


def test_a_plan_whose_inputs_are_damaged_offers_nothing_and_says_why(tmp_path, served):
    """Of a search's plans those behind the first are looked at when they are asked for."""
    plan = {"inputs": {"workload": "llama-3-8b", "schedule": [5]}}
    good = {"inputs": {"workload": "llama-3-8b", "topology": "dgx-h200-1", "schedule": "baseline"}}
    content = {"command": "search", "inputs": {}, "fastest": [good, plan]}
    (tmp_path / "summary.json").write_text(json.dumps(content))
    output = open_output(tmp_path)
    assert output.controls(0)
    assert output.controls(1) == []
    (line,) = _Questions(output).simulate({"job": 1, "changes": {}})
    assert "not a name or a list of names" in line["error"]


def test_progress_is_told_by_schedule(folder):
    """The page shows it from two seconds on."""
    lines = list(_Questions(open_output(folder)).simulate({"job": 0, "changes": {}}))
    told = [line["words"] for line in lines if "words" in line]
    assert told == ["simulating baseline, 1 of 2 schedules", "simulating overlap, 2 of 2 schedules"]
    assert [line["done"].startswith("simulated in ") for line in lines if "done" in line] == [True]


def test_a_question_given_up_within_c_ends_without_an_error(folder, monkeypatch):
    """Matplotlib's C++ asks Python for an array, takes any exception for a wrong one, and raises a `ValueError`."""
    questions, begun, fell = _Questions(open_output(folder)), Event(), []

    def again(output, job, changes, tell=None):
        begun.set()
        try:
            while True:
                sum(range(100))
        except SystemExit:
            raise ValueError("Invalid bounding box") from None

    monkeypatch.setattr(type(questions._output), "again", again)
    monkeypatch.setattr("threading.excepthook", fell.append)
    first = Thread(target=lambda: list(questions.simulate({"job": 0, "changes": {}})))
    first.start()
    assert begun.wait(60)
    questions._give_up()
    first.join(60)
    with questions._busy:
        assert not first.is_alive()
    assert not fell


def test_a_newer_question_ends_the_one_that_is_simulated(folder, monkeypatch):
    """The first would go on for ever; it is given up between two steps of Python, and the second is answered."""
    questions, begun, ended = _Questions(open_output(folder)), Event(), Event()
    real = type(questions._output).again

    def again(output, job, changes, tell=None):
        if not changes:
            return real(output, job, changes, tell)
        begun.set()
        try:
            while True:
                sum(range(100))
        finally:
            ended.set()

    monkeypatch.setattr(type(questions._output), "again", again)
    given_up = []
    first = Thread(target=lambda: given_up.extend(questions.simulate({"job": 0, "changes": {"schedule": 1}})))
    first.start()
    assert begun.wait(60)
    lines = list(questions.simulate({"job": 0, "changes": {}}))
    assert lines[-1]["done"].startswith("simulated in")
    assert ended.is_set()
    first.join(60)
    assert not first.is_alive()
    assert not any("done" in line or "error" in line for line in given_up)


def test_a_fault_in_an_answer_is_no_bad_question(folder, served, monkeypatch, capfd):
    """It is printed, and not passed off as a question that no page asks."""
    server = served(folder)
    monkeypatch.setattr("scaleout.report.pages.view.timeline_of", lambda *_: None + 1)
    headers = {"X-Token": server.token, "Content-Type": "application/json"}
    with pytest.raises(http.client.HTTPException):
        status(server, "POST", "/timeline", '{"of": 0, "window": null, "processes": []}', headers)
    assert "TypeError" in capfd.readouterr().err


def test_what_cannot_be_simulated_says_why(folder, tmp_path):
    document = json.loads((folder / "summary.json").read_text())
    document["inputs"]["workload"] = "nothing-like-it"
    (tmp_path / "x.json").write_text(json.dumps(document))
    *_, last = _Questions(open_output(tmp_path / "x.json")).simulate({"job": 0, "changes": {}})
    assert "nothing-like-it" in last["error"]


def test_every_output_opens(scaleout, tmp_path, folder):
    on = ("--topology", "dgx-h200-1")
    lines = {
        "search": ("search", "llama-3-8b", *on, "--workers", "1", "--output", tmp_path / "search"),
        "collective": ("collective", "all_reduce", "--bytes=1MiB", *on, "--network=link", "--output", tmp_path / "c"),
        "diff": ("diff", folder, folder, "--schedule", "baseline", "--schedule", "overlap", "--output", tmp_path / "d"),
        "trace": ("trace", "llama-3-8b", "--set", "data_parallel=8", "--output", tmp_path / "t"),
    }  # fmt: skip
    for command, line in lines.items():
        code, _, err = scaleout(*line)
        assert code == 0, err
        output = open_output(line[-1])
        assert output.page.tables or command == "trace"
        assert bool(output.jobs) == (command != "diff")
        for job in range(min(1, len(output.jobs))):
            assert output.again(job, {}).to_dict()["results"]


@pytest.mark.parametrize(
    ("workload", "job", "begins"),
    [
        ("llama-3-8b", {"changes": {"zero": 0, "data_parallel": 2}, "topology": "ring(2,nvlink4)"},
         ["memory", "step", "speed", "batch", "exposed"]),
        ("llama-3-8b", {"changes": {"data_parallel": 8, "layers": 4}, "topology": "dgx-h200-1", "device": "a100-80g"},
         ["step", "speed", "batch", "network"]),
        ("resnet-50", {"schedules": ["baseline", "overlap", "fused"]}, ["step"]),
    ],
)  # fmt: skip
def test_the_page_says_what_the_box_says_in_its_order_and_words(tmp_path, workload, job, begins):
    """It lacked which kernels were not measured, the share of what binds, and what is exposed longest."""
    answer = api.run(workload, **{"schedules": ["overlap"], **job})
    answer.write(tmp_path / "run")
    box = answer.to_dict()["answer"]
    assert list(box)[: len(begins)] == begins
    assert open_output(tmp_path / "run").page.facts[: len(box)] == [*box.items()]
    page = html.unescape(answer._repr_html_())
    assert all(words in page for words in box.values())


def test_a_what_if_says_whether_it_fits_and_stands_beside_the_file(tmp_path):
    """A job of 193 of 140 GiB had +293%, and above it the file's `fits`; another schedule stood beside nothing."""
    answer = api.run("llama-3-8b", schedules=["baseline", "overlap"], changes={"layers": 4})
    answer.write(tmp_path / "run")
    output = open_output(tmp_path / "run")
    values = {each.name: each.values for each in output.controls(0)}
    again = output.again(0, {"set.batch_per_replica": len(values["set.batch_per_replica"]) - 1})
    table = compared(output, again)
    step = ["step", "step in the file", "change of step"]
    rate = ["tokens/s/GPU", "tokens/s/GPU in the file", "change of tokens/s/GPU"]
    assert table.columns == ["schedule", *step, *rate, "memory"]
    fit = again.comparison.fit
    sizes = f"{format_bytes(fit.peak.total_bytes)} of {format_bytes(fit.capacity_bytes)}"
    assert all(row[-1].text.startswith(f"{'fits' if fit.fits else 'does not fit'}: {sizes}, ") for row in table.rows)
    changes = [row[table.columns.index(f"change of {what}")].text for row in table.rows for what in ("step", rate[0])]
    assert all(each.endswith(", if it fitted") != fit.fits for each in changes)
    assert [[cell.text for cell in row][2:4] for row in compared(output, output.again(0, {})).rows] == [
        [format_seconds(each.makespan_s), "none"] for each in answer.outcomes
    ]
    at = next(each.labels for each in output.controls(0) if each.name == "schedule").index("coconet")
    (row,) = compared(output, output.again(0, {"schedule": at})).rows
    assert row[2].text == f"{format_seconds(answer['overlap'].makespan_s)} under overlap"


@pytest.mark.parametrize("job", [{"workload": "llama-3-8b", "changes": {"layers": 4}}, {"workload": "dlrm-128"}])
def test_a_what_if_of_the_batch_is_compared_by_tokens_or_samples_a_second(tmp_path, job):
    """Four times the batch was +286.0%, as if it were so much worse; tokens a second were nearly the same."""
    answer = api.run(**job, schedules=["baseline"])
    answer.write(tmp_path / "run")
    output = open_output(tmp_path / "run")
    batch = next(each for each in output.controls(0) if each.name.startswith("set."))
    again = output.again(0, {batch.name: len(batch.values) - 1})
    table = compared(output, again)
    (row,) = (dict(zip(table.columns, line, strict=True)) for line in table.rows)
    unit = "samples/s/GPU" if job["workload"] == "dlrm-128" else "tokens/s/GPU"
    times = batch.values[-1] / batch.values[batch.at]
    assert times == 4
    longer = 1 + row["change of step"].key
    assert row[f"change of {unit}"].key == pytest.approx(times / longer - 1)
    assert abs(row[f"change of {unit}"].key) < 0.5 < row["change of step"].key
    boxes = [each.answer()["speed"] for each in (again, answer)]
    assert [row[unit].text, row[f"{unit} in the file"].text] == [words.split(" ")[0] for words in boxes]


def test_links_that_a_fault_slowed_are_told_below_their_picture_and_as_its_text(tmp_path):
    answer = api.run(
        "llama-3-8b", topology="dgx-h200-2", changes={"tensor_parallel": 8, "data_parallel": 2, "layers": 2},
        schedules=["baseline"], network_changes={"nic_down": 5},
    )  # fmt: skip
    answer.write(tmp_path / "run")
    slower = "slower: 1:4-switch, 1:5-switch at 25 GB/s each way (50.0% of as built)"
    output = open_output(tmp_path / "run")
    assert [title for title, _ in output.page.loads] == [f"how busy the links are; {slower}"]
    assert f"  {slower}" in output.page.network
    again = output.again(0, {})
    assert [title for title, _ in loads_of(again)] == [f"how busy the links are under baseline; {slower}"]
    assert f'alt="how busy the links are; {slower}"' in parts_of(output.page)["network"]


def test_a_study_opens_with_the_job_of_every_case_the_fastest_that_fits_first(tmp_path):
    """As the study itself compares them: steps of two sizes by samples a second."""
    study = {"title": "two", "workload": "dlrm-128", "set": {"global_batch": [1024, 2048]}, "schedule": ["baseline"]}
    cases = api.sweep(study, directory=tmp_path / "study", workers=1).to_frame()
    from scaleout.study.sweep.table import write_table

    write_table(cases, tmp_path / "study" / "cases.parquet")
    output = open_output(tmp_path / "study")
    assert len(output.jobs) == 2
    times = [output.again(job, {}).outcomes[0].makespan_s for job in range(2)]
    assert times == cases.sort_values("samples_per_s", ascending=False)["makespan_s"].tolist()
    assert dict(output.page.facts)["fastest"].endswith("case 1: global batch 2048, by samples a second")
    assert "as fast" not in dict(output.page.facts)
    write_table(cases.assign(samples_per_s=5.0), tmp_path / "study" / "cases.parquet")
    assert dict(open_output(tmp_path / "study").page.facts)["as fast"] == "case 1: global batch 2048"
    write_table(cases.assign(fits=[True, False]), tmp_path / "study" / "cases.parquet")
    output = open_output(tmp_path / "study")
    assert [job.label for job in output.jobs] == ["case 0: global batch 1024", "case 1: global batch 2048"]
    assert dict(output.page.facts)["of these do not fit"] == "1, which come last"
    write_table(cases.assign(fits=["yes", "no"]), tmp_path / "study" / "cases.parquet")
    with pytest.raises(ConfigError, match=r"is no table of a study .column .fits. is of type"):
        open_output(tmp_path / "study")


def test_a_case_of_a_study_stands_under_the_title_of_the_study_and_its_sliders_where_the_case_is(tmp_path, scaleout):
    """The title was the folder's, and a case at twice the bandwidth had its slider at 1x."""
    (tmp_path / "mine.yaml").write_text(
        "title: Twice as fast\nworkload: dlrm-128\nbandwidth: {1: 2x, 0: 25 GB/s}\nlatency: {1: [1x, 3x]}\n"
        "schedule: baseline\ntimelines: none\n"
    )
    assert scaleout("study", tmp_path / "mine.yaml", "--output", tmp_path / "out", "--no-report")[0] == 0
    output = open_output(tmp_path / "out")
    assert output.page.title == "Twice as fast"
    assert "No loads of links are kept here" in parts_of(output.page)["network"]
    at = {each.name: each.labels[each.at] for each in output.controls(0)}
    assert (at["bandwidth.1"], at["bandwidth.0"], at["latency.1"]) == ("2x", "1x of 25 GB/s", "1x")
    slow = next(number for number, job in enumerate(output.jobs) if job.inputs["latency.1"] == "3x")
    control = next(each for each in output.controls(slow) if each.name == "latency.1")
    assert control.labels[control.at] == "3x"
    again = output.again(slow, {"latency.1": control.labels.index("6x")})
    expected = api.run("dlrm-128", schedules=["baseline"],
                       network_changes={"bandwidth": {"1": "2x", "0": "25 GB/s"}, "latency": {"1": "6x"}})  # fmt: skip
    assert again["baseline"].makespan_s == expected["baseline"].makespan_s


def test_a_collective_of_a_group_is_answered_again():
    answer = api.collective("all_reduce", "1MiB", topology="dgx-h200-2", ranks=[0, 1, 2, 3], network="link")
    assert collective_inputs(answer.inputs).to_dict() == answer.to_dict()


def test_a_document_is_answered_again_to_the_bit(folder):
    document = json.loads((folder / "summary.json").read_text())
    assert run_inputs(document["inputs"]).to_dict()["results"] == document["results"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("summary.json", "{", "summary.json"),
        ("summary.json", "[1]", "no document"),
        ("timeline.json", '{"traceEvents": [{"ph": "X", "ts": "now"}]}', "no time"),
        ("x.json", '{"workload": "dlrm-128"}', "no document"),
        ("cases.parquet", "PAR1", "no table of a study"),
        ("plain.txt", "hello", "plain.txt"),
    ],
)
def test_a_broken_file_says_so(scaleout, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    path = tmp_path if name in ("summary.json", "cases.parquet") else tmp_path / name
    code, out, err = scaleout("view", path, "--no-browser")
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("line", [("view",), ("diff", "--schedule", "baseline")])
def test_a_document_of_an_unknown_version_says_which_it_is(scaleout, tmp_path, folder, line):
    """It once opened without a word, with whatever names it had in common."""
    document = json.loads((folder / "summary.json").read_text())
    newer = tmp_path / "newer.json"
    newer.write_text(json.dumps({**document, "schema": "scaleout/run/9", "version": "9.0"}))
    end = ("--no-browser",) if line[0] == "view" else (newer,)
    code, out, err = scaleout(*line, newer, *end)
    assert (code, out) == (2, "")
    assert "newer.json: its schema is 'scaleout/run/9', of which this release reads version 3; run it again" in err
    assert "'9.0'" in err


def test_a_folder_without_an_output_says_what_to_give(tmp_path):
    (tmp_path / "step.png").write_bytes(b"\x89PNG")
    for other in (tmp_path, tmp_path / "step.png"):
        with pytest.raises(ConfigError, match="is no output of scaleout; give a folder"):
            open_output(other)


def test_a_broken_timeline_is_said_on_the_page(opened, folder, tmp_path):
    (tmp_path / "summary.json").write_bytes((folder / "summary.json").read_bytes())
    (tmp_path / "timeline.json").write_text('{"traceEvents": 1}')
    page = opened(tmp_path)
    assert "is no timeline" in page.get_by_role("alert").inner_text()


@pytest.mark.skipif(os.name == "nt", reason="signals of a terminal")
def test_an_interrupt_ends_it(folder):
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # which a shell's & ignores
    line = [
        sys.executable,
        "-c",
        f"{heard}; from scaleout.cli import main; main()",
        "view",
        str(folder),
        "--no-browser",
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "http://127.0.0.1:" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert "interrupted" in process.stderr.read()
    process.stdout.close()
    process.stderr.close()


def test_two_results_side_by_side_say_what_they_come_to(tmp_path, scaleout):
    line = ("run", "llama-small", "--set", "layers=1", "--set", "data_parallel=8", "--topology", "dgx-h200-1")
    for name, schedule in (("a", "baseline"), ("b", "overlap")):
        (tmp_path / f"{name}.json").write_text(scaleout(*line, "--schedule", schedule, "--json")[1])
    (tmp_path / "diff.json").write_text(scaleout("diff", tmp_path / "a.json", tmp_path / "b.json", "--json")[1])
    page = open_output(tmp_path / "diff.json").page
    assert page.title == "B against A: llama-small, on dgx-h200-1"
    words = dict(page.facts)
    assert [*words][:1] == ["makespan"]
    assert words["B"].startswith("llama-small, overlap")
    assert re.fullmatch(r"[\d.]+ ms against [\d.]+ ms, -[\d.]+ ms \(-[\d.]+%\)", words["makespan"])
    assert re.fullmatch(r"[\d.]+ [mu]s against [\d.]+ [mu]s, \+[\d.]+ [mu]s \(\+[\d.]+%\)", words["compute"])
    tables = {table.title: table.columns for table in page.tables}
    assert "bytes" not in tables["what the step consists of"]
    assert "bytes" in tables["time by collective"]
    assert {"A", "B", "count in A", "count in B"} <= {*tables["time by collective"]}


def test_rows_under_names_are_a_table(tmp_path, scaleout):
    (tmp_path / "track.json").write_text(scaleout("track", "--json")[1])
    (table,) = open_output(tmp_path / "track.json").page.tables
    assert (table.title, table.columns[:2], table.total) == ("configurations", ["name", "time"], 6)
    assert table.rows[0][0].text == "sequential"
    assert table.rows[0][1].text.endswith(" ms")


def test_the_page_of_a_recording_is_of_one_step(scaleout, tmp_path):
    """Of two recorded steps the page told both as one."""
    recorded = Path(__file__).parents[2] / "traces" / "h200-pair" / "recordings" / "dlrm-base"
    assert scaleout("import", "pytorch", recorded, "--output", tmp_path / "trace")[0] == 0
    code, out, _ = scaleout("run", "--trace", tmp_path / "trace", "--json")
    assert code == 0
    document = json.loads(out)
    facts = dict(facts_of(document))
    assert document["num_steps"] == 2
    for name, key in (("step", "makespan_s"), ("exposed", "exposed_communication_s")):
        assert facts[name].startswith(format_seconds(document["results"][0][key] / 2))
    assert facts["step"].endswith("the mean of 2 recorded ones")


def test_a_module_that_a_question_imports_is_whole_before_the_question_is_given_up(folder, monkeypatch, tmp_path):
    """Half a module would stay in the process, and fail all questions to come."""
    questions = _Questions(open_output(folder))
    tmp_path.joinpath("slowly_imported.py").write_text("import time\nbegun = True\ntime.sleep(0.5)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    begun, ended = Event(), Event()

    def again(output, job, changes, tell=None):
        begun.set()
        try:
            importlib.import_module("slowly_imported")
            while True:
                sum(range(100))
        finally:
            ended.set()

    monkeypatch.setattr(type(questions._output), "again", again)
    first = Thread(target=lambda: list(questions.simulate({"job": 0, "changes": {}})))
    first.start()
    assert begun.wait(60)
    while not hasattr(sys.modules.get("slowly_imported"), "begun"):
        pass
    questions._give_up()
    assert sys.modules["slowly_imported"].whole
    assert ended.wait(60)
    first.join(60)
    assert not first.is_alive()


def test_a_fault_of_ours_is_told_on_the_page(folder, monkeypatch):
    questions, fell = _Questions(open_output(folder)), []
    monkeypatch.setattr(type(questions._output), "again", lambda *_: {}["nothing"])
    monkeypatch.setattr("threading.excepthook", fell.append)
    lines = list(questions.simulate({"job": 0, "changes": {}}))
    assert [line["error"][:26] for line in lines if "error" in line] == ["this is a fault of scaleou"]
    assert len(fell) == 1
