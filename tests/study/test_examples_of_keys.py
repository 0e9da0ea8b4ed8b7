"""The examples of a study's keys in the docs and in `show --keys study` are read, and some case of each runs."""

from typing import Any

import pytest

from scaleout.config.yaml_files import parse_value
from scaleout.report.keys import YOURS, rows_of
from scaleout.study.sweep.cases import Resolver
from scaleout.study.sweep.engine import cases_of
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.worker import run_case

ROWS = {row.key.name: row for row in rows_of("study") if row.source == YOURS}
SMALL: dict[str, Any] = {
    "title": "an example", "workload": "llama-3-8b", "topology": ["dgx-h200-2", "ring(16,ndr)"],
    "set": {"layers": 2, "data_parallel": 16}, "network": ["alpha_beta", "link"], "schedule": "baseline",
}  # fmt: skip
INSTEAD: dict[str, dict[str, Any]] = {
    "gpus": {"set": {"layers": 2}},
    "policy": {"topology": "sierra-16", "network": "alpha_beta"},
    "taper": {"topology": "switch(4,nvlink4) x fat_tree(2,2,ndr)"},
}
"""What stands beside a key that does not go with the file above."""


def example_of(name):
    """Return the keys of a file with an example: that of a key within another stands beside what that must have."""
    outer, _, inner = name.partition(".")
    value = parse_value(ROWS[name].example, where=name)
    if not inner:
        return {outer: value}
    return {outer: {**parse_value(ROWS[outer].example, where=outer), inner: value}}


@pytest.mark.parametrize("name", ROWS)
def test_an_example_runs(name):
    study = study_of({**SMALL, **INSTEAD.get(name, {}), **example_of(name)}, name="example", where=name)
    resolver, messages = Resolver(), list[str]()
    for number, inputs in cases_of(study, resolver):
        row = run_case(resolver.resolve(number, inputs))
        if row["status"] == "ok":
            return
        messages.append(row["message"])
    pytest.fail("\n".join(messages))
