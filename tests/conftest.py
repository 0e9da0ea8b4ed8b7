"""What all tests share: one hypothesis profile, the same examples every time, and the command line in this process."""

import os
import shutil
import sys

import pytest
from astra_inputs import write_inputs
from hypothesis import HealthCheck, settings

from scaleout.cli import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

settings.register_profile(
    "ci", deadline=None, max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _as_wide_as_any_table(monkeypatch):
    """Tests do not depend on how wide the terminal is from which they are run."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def scaleout(monkeypatch, capsys):
    """Run a command line in this process; return its exit code, output and error output."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["scaleout", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, in which pages are opened."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: pages are not opened")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield opened
        opened.close()


@pytest.fixture
def astra(tmp_path, scaleout):
    """Write inputs of ASTRA-sim and run `scaleout astra` on them; see `astra_inputs.write_inputs`."""

    def run(ranks, *flags, **inputs):
        return scaleout("astra", *write_inputs(tmp_path, ranks, **inputs), *flags)

    return run
