"""Pages hold what axe checks: names, contrasts, roles, headings; light and dark, wide and narrow."""

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from axe_playwright_python.sync_playwright import Axe
from test_study_page import STUDY, cases_of

import scaleout as api
from scaleout.api.views import open_output
from scaleout.cli.serving import Server
from scaleout.cli.view import _Questions
from scaleout.report.pages.study import write_study_report

DOCS = Path(__file__).parents[2] / "docs"
FOLDERS = "how-to,models,decisions,api,schema,keys"
"""Of docs, without which its start page is built in seconds."""

each_look = pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (800, "dark")])


@pytest.fixture
def faults(browser, width, scheme):
    """Return serious and critical faults of a page at an address, once something on it is there."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)

    def of(address, there):
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector(there)
        found = Axe().run(page).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        return [(each["id"], [node["html"][:200] for node in each["nodes"]][:4]) for each in serious]

    yield of
    context.close()


@each_look
def test_report_of_a_study(faults, tmp_path):
    write_study_report(cases_of((3, 7)), STUDY, tmp_path)
    assert faults((tmp_path / "report.html").as_uri(), "#view-5 svg") == []


@each_look
def test_view(faults, tmp_path):
    answer = api.run("llama-3-8b", changes={"tensor_parallel": 4, "data_parallel": 2}, network="link")
    answer.write(tmp_path / "run")
    questions = _Questions(open_output(tmp_path / "run"))
    with Server(0, questions.page, questions.asks) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert faults(server.url, "#timeline canvas") == []
        server.shutdown()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The start page of the docs."""
    pytest.importorskip("sphinx", reason="docs are built with the extra `docs`")
    out = tmp_path_factory.mktemp("docs")
    line = [sys.executable, "-m", "sphinx", "-q", "-D", f"exclude_patterns={FOLDERS}", str(DOCS), str(out)]
    subprocess.run(line, check=True, capture_output=True)
    return out / "index.html"


@each_look
@pytest.mark.parametrize("page", ["index", "quickstart", "beside-other-tools", "gallery"])
def test_pages_of_the_docs(faults, start, page):
    assert faults(start.with_name(f"{page}.html").as_uri(), "h1") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_of_a_study_has_the_colours_of_the_scheme(browser, scheme, tmp_path):
    write_study_report(cases_of((3, 7)), STUDY, tmp_path)
    page = browser.new_page(color_scheme=scheme)
    page.goto((tmp_path / "report.html").as_uri())
    ground, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    paper, letters = "rgb(255, 255, 255)", "rgb(27, 27, 27)"
    assert (ground == paper, ink == letters) == (scheme == "light",) * 2
    page.close()
