"""The public names: sorted, all there, all explained, and free of charge until they are used."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

import scaleout


def test_names_are_sorted_and_unique():
    assert list(scaleout.__all__) == sorted(set(scaleout.__all__))
    assert scaleout.__doc__


@pytest.mark.parametrize("name", scaleout.__all__)
def test_every_name_resolves_and_is_explained(name):
    """Also the second time: a module of the same name would hide it as soon as it is imported."""
    first, value = getattr(scaleout, name), getattr(scaleout, name)
    assert value is first
    if name.startswith("__"):
        return
    assert not isinstance(value, types.ModuleType)
    assert value.__doc__
    assert value.__doc__.strip()
    assert value.__module__.split(".")[0] == "scaleout"


def test_the_reference_lists_them():
    listed = {line.strip() for line in (Path(__file__).parents[1] / "docs/api/index.md").read_text().splitlines()}
    assert set(scaleout.__all__) <= listed


def test_dir_lists_them():
    assert set(scaleout.__all__) <= set(dir(scaleout))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        scaleout.no_such_name  # noqa: B018


def test_importing_the_package_imports_nothing_heavy():
    code = "import scaleout, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pandas", "pydantic", "matplotlib", "networkx", "torch"} & set(found)
