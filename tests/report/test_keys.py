"""Every key of a file says what it means, and in which unit; `show --keys` and the docs print the same."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from pydantic import Field

from scaleout.config.keys import keys_of, value_of
from scaleout.config.units import BYTES, Bytes, Count, SecondsByLevel
from scaleout.config.validated import Cited, Config
from scaleout.report.keys import _MADE_UP, MODELS, YOURS, rows_of

_SPEC = importlib.util.spec_from_file_location("keys_page", Path(__file__).parents[2] / "figures" / "keys.py")
assert _SPEC is not None
assert _SPEC.loader is not None
pages = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pages)

SI = ("_s", "_bytes", "_bytes_per_s", "_flops_per_s", "_hz", "_w", "_usd")


@pytest.mark.parametrize("kind", MODELS)
def test_every_key_has_a_meaning_and_where_it_is_a_quantity_a_unit(kind):
    rows = rows_of(kind)
    assert rows
    for row in rows:
        assert row.key.meaning, row.key.name
        assert row.example, row.key.name
        assert row.source, row.key.name
        assert bool(row.key.unit) == bool(re.search(r"\ban? [a-z]", row.key.type)), row.key
        assert "number" not in row.key.type or not row.key.name.endswith(SI), row.key


def test_examples_are_of_the_family_that_has_the_key():
    """A file that is `like` another is of its family; `like` itself is a key."""
    found = {(row.key.name, row.families): row for row in rows_of("workload")}
    assert found["layers", ("convolutional",)].example.startswith("[{kind: convolution")
    assert (found["batch_per_replica", ("convolutional",)].source, found["like", ()].source != YOURS) == (YOURS, True)
    unknown = {name for kind, made in _MADE_UP.items() for name in made} - {
        row.key.name for kind in _MADE_UP for row in rows_of(kind) if row.source == YOURS
    }
    gap = next(row for row in rows_of("device") if row.key.name == "launch_gap")
    assert (gap.key.type, gap.example) == ("a time with its source", "{value: 1.2 us, source: ...}")
    assert not unknown, "examples of keys that a shipped file has by now, or that are none"


def described(page):
    """A page without its examples, which change as shipped files do."""
    return [line.split(" | ")[:5] for line in page.splitlines()]


@pytest.mark.parametrize("kind", MODELS)
def test_pages_are_what_their_script_writes(kind):
    hint = "run `python figures/keys.py` after a change of keys"
    page = (pages.FOLDER / f"{kind}.md").read_text(encoding="utf-8")
    assert described(page) == described(pages.page(kind)), hint
    assert (pages.FOLDER / "index.md").read_text(encoding="utf-8") == pages.index()


class Inner(Config):
    size: Cited[Bytes] = Field(default=2.0**20, description="how large")


class Outer(Config):
    count: Count = Field(description="how many")
    steps: SecondsByLevel = Field(default=(), description="one a level")
    parts: tuple[Inner, ...] = Field(default=(), description="what it is made of")
    named: dict[str, Inner] = Field(default_factory=dict, alias="by_name", description="the same by name")
    inner: Inner | None = Field(default=None, description="one")


def test_keys_are_named_by_their_path():
    found = {key.name: (key.type, key.unit, key.default) for key in keys_of(Outer)}
    assert found == {
        "count": ("whole number", "", "required"),
        "steps": ("list of a time", "ns", "unset"),
        "parts": ("list of sections", "", "unset"),
        "parts[].size": ("a size with its source", "MiB", "1 MiB"),
        "by_name": ("mapping to sections", "", "unset"),
        "by_name.NAME.size": ("a size with its source", "MiB", "1 MiB"),
        "inner": ("section", "", "unset"),
        "inner.size": ("a size with its source", "MiB", "1 MiB"),
    }


def test_values_are_written_as_files_hold_them():
    assert value_of(25 * 2.0**20, BYTES) == "25 MiB"
    assert value_of(None) == value_of(()) == "unset"
    assert value_of((True, 3)) == "true, 3"
    assert value_of(float("inf"), BYTES) == "without limit"


def test_show_prints_keys_by_a_word_and_a_workload_with_meanings(scaleout):
    code, out, _ = scaleout("show", "--keys", "workload", "bucket")
    assert code == 0
    assert "gradient_bucket: a size, such as in MiB; default 25 MiB" in out
    assert "tensor_parallel" not in out
    _, out, _ = scaleout("show", "--keys", "device", "--json")
    (limit,) = [row for row in json.loads(out)["known_keys"] if row["name"] == "power.limit"]
    assert (limit["unit"], limit["default"]) == ("W", "required")
    _, out, _ = scaleout("show", "llama-3-8b")
    assert "25 MiB" in out
    assert "sequences of a micro-batch; the whole batch if unset" in out
    assert "None" not in out


def test_a_key_of_that_name_comes_first_then_whole_words(scaleout):
    """``mode`` is a key, a word of the meaning of some, and within 'model' of many."""
    rows = json.loads(scaleout("show", "--keys", "workload", "mode", "--json")[1])["known_keys"]
    far = [(row["name"] != "mode") + (not re.search(r"\bmode\b", f"{row['name']} {row['meaning']}")) for row in rows]
    assert far == sorted(far)
    assert rows[0]["name"] == "mode"
    found = json.loads(scaleout("show", "--keys", "workload", "--json")[1])
    every = [row["name"] for row in found["known_keys"]]
    assert every.index("mode") > 0


def test_what_no_key_has_is_said(scaleout):
    code, out, err = scaleout("show", "--keys", "study", "wherree")
    assert (code, out) == (2, "")
    assert "no key of a study has 'wherree'; did you mean 'where'?" in err
    code, _, err = scaleout("show")
    assert code == 2
    assert "give what to show" in err
