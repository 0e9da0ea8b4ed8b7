"""Examples in docstrings say what the functions answer."""

import doctest
import importlib
from pathlib import Path

import pytest

import scaleout

ROOT = Path(scaleout.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8") and path.name != "__init__.py"
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(importlib.import_module(name)):
        runner.run(test, clear_globs=False)  # an algorithm that an example defines goes on to be one
    found = runner.summarize(verbose=False)
    assert found.attempted
    assert not found.failed
