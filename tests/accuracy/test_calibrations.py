"""Constants of devices that were fitted to published steps: the accuracy page says how each does on steps of others."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FITTED = re.compile(r"\bfit (to|with)\b|\bchosen on\b|\bwhat fits\b")
SECTIONS = ("calibration", "host_launch", "host_ratio")


def fitted(device):
    """Return the dotted keys of a device's calibration and host whose source says that they were fitted."""
    found = []
    for section in SECTIONS:
        values = device.get(section) or {}
        each = {section: values} if "value" in values else {f"{section}.{key}": at for key, at in values.items()}
        found += [key for key, cited in each.items() if FITTED.search(str(cited["source"]))]
    return found


def listed():
    """Return the pairs of device and constants of the page's table, a row with two devices as two."""
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    section = page.split("## Constants from the steps of one framework")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    assert all(len(row) == 4 and row[3] for row in rows)
    return [(device, key) for row in rows[1:] for device in row[0].split(", ") for key in row[1].split(", ")]


@pytest.mark.parametrize("path", sorted(ROOT.glob("traces/*/device.yaml")), ids=lambda path: path.parent.name)
def test_a_fitted_constant_says_how_it_does_on_steps_of_others(path):
    known = [key for device, key in listed() if device == path.parent.name]
    keys = fitted(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert [key for key in keys if not key.startswith(tuple(known))] == []
    assert [key for key in known if not any(each.startswith(key) for each in keys)] == []


def test_a_fit_is_told_by_its_source():
    cited = {"value": 0.9, "source": "chosen on 26 rows"}
    assert fitted(
        {"calibration": {"gemm": cited, "memory": {"value": 1, "source": "measured"}}, "host_ratio": cited}
    ) == [
        "calibration.gemm",
        "host_ratio",
    ]
