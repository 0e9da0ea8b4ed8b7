"""The decisions' page lists each decision once, under its own number."""

import re
from pathlib import Path

DECISIONS = Path(__file__).parents[1] / "docs" / "decisions"


def test_every_decision_is_listed_once_under_its_own_number():
    files = sorted(path.name for path in DECISIONS.glob("0*.md"))
    rows = re.findall(r"^\| \[(\d{3})\]\((\S+)\) \| .+ \|$", (DECISIONS / "index.md").read_text(), re.MULTILINE)
    assert [name for _, name in rows] == files
    assert [number for number, _ in rows] == sorted({name[:3] for name in files})


def test_every_decision_begins_with_its_number():
    for path in DECISIONS.glob("0*.md"):
        assert path.read_text().startswith(f"# {path.name[:3]}. "), path.name
