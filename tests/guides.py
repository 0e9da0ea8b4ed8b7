"""The Python and YAML blocks of the guides, as they are printed, for tests that run them."""

import importlib.util
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "how-to"


def section(guide, title):
    """The text of a guide below a heading, up to the next one."""
    text = (FOLDER / guide).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found


def block(guide, title, language):
    """The one block in a language below a heading."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", section(guide, title), re.MULTILINE | re.DOTALL)
    return found


def module_of(guide, title, folder, name):
    """The module that the Python block below a heading is; `name` is its full name, its file lies in `folder`."""
    file = folder / f"{name.rpartition('.')[2]}.py"
    file.write_text(block(guide, title, "python"))
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def entry_of(guide, title, **names):
    """What the line of a table that is printed after ``Entry:`` comes to, given the names in it."""
    (found,) = re.findall(r"^Entry: `(.*),`$", section(guide, title), re.MULTILINE)
    return eval(f"{{{found}}}" if found.startswith('"') else found, names)
