"""Nonsense in every key of a study's file, field by field: one message that names the file, or of the case it is in.

The table is that of `nonsense.py`. What an input of a case is worth is known when the case is resolved: it is an error
of that case.
"""

import pytest
from nonsense import ALWAYS, VALUES

from scaleout.errors import ScaleoutError, printable
from scaleout.study.sweep.cases import Resolver
from scaleout.study.sweep.grid import numbered
from scaleout.study.sweep.study import load_study

DLRM = "workload: dlrm-128\n"
NODES = f"{DLRM}topology: dgx-h200-16\n"
TWO = f"{DLRM}label: [a, b]\n"
WORDS = [*ALWAYS, "0", "-1", "1.5", "1e18", "5 B"]

FIELDS = {
    "workload: @": WORDS,
    **{f"{DLRM}{key}: @": WORDS for key in ("device", "host", "clocks", "topology", "network", "contention", "ideal",
                                            "schedule", "break")},
    f"{DLRM}injection: @": VALUES["rate"],
    f"{NODES}nodes: @": VALUES["count"],
    f"{NODES}nic_down: @": VALUES["count"],
    f"{DLRM}set: {{global_batch: @}}": VALUES["count"],
    f"{NODES}bandwidth: {{infiniband: @}}": VALUES["rate"],
    f"{NODES}latency: {{infiniband: @}}": VALUES["time"],
    f"{NODES}taper: {{infiniband: @}}": VALUES["number"],
    f"{DLRM}degrade: {{0-1: @}}": VALUES["number"],
    f"{DLRM}slow: {{5: @}}": VALUES["number"],
    f"{DLRM}algorithm: {{all_reduce: @}}": WORDS,
    **{f"{NODES}{key}: {{@: 2x}}": WORDS for key in ("set", "bandwidth", "latency", "taper", "degrade", "slow",
                                                     "algorithm")},
    **{f"{DLRM}{key}: @": WORDS for key in ("set", "bandwidth", "latency", "taper", "degrade", "slow", "algorithm",
                                            "zip", "cases", "sample", "columns", "goodput", "baseline", "views",
                                            "timelines", "where")},
    f"{TWO}sample: {{count: @}}": VALUES["count"],
    f"{TWO}sample: {{count: 1, seed: @}}": VALUES["count"],
    f"{DLRM}where: [@]": WORDS,
    f"{DLRM}goodput: {{checkpoint: @}}": VALUES["time"],
    **{f"{DLRM}goodput: {{checkpoint: 5 s, {key}: @}}": VALUES[kind] for key, kind in (
        ("restart", "time"), ("interval", "time"), ("failures", "number"), ("jitter", "number"),
        ("stragglers", "number"), ("straggler_slowdown", "number"), ("seed", "count"))},
    f"{DLRM}goodput: {{checkpoint: 5 s, tokens: @}}": [*ALWAYS, "0", "-1", "1.5", "15"],
    f"{DLRM}within: @": VALUES["number"],
    f"{TWO}baseline: {{label: @}}": WORDS,
    f"{TWO}baseline: {{@: a}}": WORDS,
    f"{DLRM}views: [{{kind: @}}]": WORDS,
    f"{DLRM}views: [{{kind: bar, y: mfu, x: @}}]": WORDS,
    f"{DLRM}views: [{{kind: tornado, y: @}}]": WORDS,
    **{f"{DLRM}views: [{{kind: line, x: ranks, y: mfu, {key}: @}}]": WORDS for key in ("colour", "facet", "where")},
}  # fmt: skip
"""File with `@` in the place of a value, to values that it cannot have there."""
NONE = {"null", "~", "#", "# comment", "NULL ", ","}
"""Values that are none, which a key that may be left out takes; a comma behind a key in brackets is another."""
TAKEN = {
    "contention: @": {"true", "false", "True", "FALSE"},
    "ideal: @": {"true", "false", "True", "FALSE"},
    "infiniband: @": {"1e5x", "&a 5 x"},  # factors
    "0-1: @": {"[1]"},  # a list of one value
    "5: @": {"[1]"},
    "nodes: @": {"[1]"},
    "nic_down: @": {"0", "[1]", "[[1]]"},
    "{@: 2x}": {"0"},  # a rank, and a dimension
    "failures: @": {"1/s"},
    "seed: @": {"0"},
    "colour: @": {"''", '""'},
    "facet: @": {"''", '""'},
    "where: @": {"''", '""'},
}
"""End of a file to nonsense elsewhere that is none there."""
EMPTY = {"[]", "{}"}
"""Taken by keys of lists and mappings."""
ONES = "[1,1,1,1,1"
"""A list of many equal values, which a key of several values takes."""


def is_taken(field, value):
    if value in NONE or (value in EMPTY and field.count(": ") - field.count("topology") == 2):
        return True
    return value.startswith(ONES) or any(field.rstrip("}]").endswith(end.rstrip("}]")) and value in those
                                         for end, those in TAKEN.items())  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.strip().rpartition("\n")[2])
def test_nonsense_in_a_study_is_refused(field, tmp_path):
    path = tmp_path / "mine.yaml"
    taken = []
    for value in FIELDS[field]:
        path.write_text(field.replace("@", value, 1), encoding="utf-8", errors="surrogatepass")
        try:
            study = load_study(path)
            said = Resolver().resolve(0, numbered(study.grids, 0)).error
        except ScaleoutError as error:
            said = str(error)
            assert "mine.yaml" in said, value[:50]
        assert printable(said) == said
        assert len(said) < 12_000
        if not said and not is_taken(field, value):
            taken.append(value[:50])
    assert not taken


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("ideal: no", "ideal must be true or false, not 'no'"),
        ("where: 2 > 1", "mine.yaml: where: '2 > 1' names no column"),
        ("views: [{kind: tornado, y: mfu, where: 2024-13-45}]", "mine.yaml: views.0: '2024-13-45' names no column"),
        ("columns: {not: ranks}", "columns.not: is the name of a column already, or no name"),
    ],
)
def test_what_was_once_taken(lines, said, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{DLRM}{lines}\n")
    try:
        found = Resolver().resolve(0, numbered(load_study(path).grids, 0)).error
    except ScaleoutError as error:
        found = str(error)
    assert said in found


def test_what_is_refused_stays_refused_behind_an_equal_value(tmp_path):
    """True is equal to 1, which is remembered."""
    path = tmp_path / "mine.yaml"
    said = []
    for value in ("1", "true"):
        path.write_text(f"workload: dlrm-128\nslow: {{5: {value}}}\nschedule: baseline\n", encoding="utf-8")
        try:
            said.append(Resolver().resolve(0, numbered(load_study(path).grids, 0)).error)
        except ScaleoutError as error:
            said.append(str(error))
    path.write_text("workload: llama-3-8b\nset: {layers: [1, true]}\nschedule: baseline\n", encoding="utf-8")
    resolver, grids = Resolver(), load_study(path).grids
    said += [resolver.resolve(number, numbered(grids, number)).error for number in range(2)]
    assert [bool(words) for words in said] == [False, True, False, True]
