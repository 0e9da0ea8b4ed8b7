"""Nonsense in every input of a document that is asked again, field by field, as `view` and ``run --plan`` do.

A document may come from anywhere: each value of its `inputs` is one of a job, or is refused in one message.
"""

import json

import pytest

from scaleout.api.again import collective_inputs, run_inputs
from scaleout.api.views import open_output
from scaleout.errors import ScaleoutError, printable

VALUES = [
    True, False, 0, 0.0, 1, -1, 1.5, -0.5, 5e-324, 1e308, 2**63 - 1, "", " ", "5", "yes", "1 s", "-1 GB/s", "nonsense",
    "../x", "/dev/zero", "0-1", "\x1b[31m", "\ud800", "x" * 10_000, [], {}, [1], ["a"], [[]], [[[1]]], [{}], [None],
    {"a": 1}, {"": {"b": []}}, [0, 0], ["baseline"] * 2,
]  # fmt: skip
RUN = {"workload": "dlrm-128", "schedule": ["baseline"]}
COLLECTIVE = {"collective": "all_reduce", "bytes": [1024], "topology": "h200-node-4"}
TAKEN = {
    "schedule": [[], ["baseline"] * 2],  # the workload's own, and each once
    "contention": [True, False],
    "ideal": [True, False],
    "nic_down": [[]],
    "break": [[], "0-1"],
    "set.bottom_mlp": [[]],
    "set": VALUES,  # no input of a job
    "latency.0": [0, 0.0, "1 s"],
    "degrade.0-1": [1],
    "slow.5": [1, 1.5, "5"],
    "bytes": [0, 1, "5", [1], [0, 0], 2**63 - 1],
    "algorithm": [[]],
    "latency.nvlink": [0, 0.0, "1 s"],
    "group": [[1]],
    "chunks": [1],
    "nodes": [1, "5"],
}
"""Input to values that it may have: `nodes` of a collective."""
FIELDS = [
    *((RUN, key) for key in (
        "workload", "schedule", "topology", "device", "network", "placement", "contention", "host", "clocks", "policy",
        "injection", "ideal", "nic_down", "break", "set.global_batch", "set.bottom_mlp", "set.", "set",
        "bandwidth.all", "latency.0", "taper.0", "degrade.0-1", "slow.5", "algorithm.all_reduce", "trace")),
    *((COLLECTIVE, key) for key in (
        "collective", "bytes", "topology", "algorithm", "network", "injection", "group", "chunks", "policy",
        "bandwidth.0", "latency.nvlink", "nodes")),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "key"), FIELDS, ids=lambda each: each if isinstance(each, str) else "")
def test_nonsense_in_an_input_is_refused(tmp_path, inputs, key):
    taken = []
    for value in VALUES:
        asked = {**inputs, key: value}
        try:
            found = (collective_inputs if "collective" in asked else run_inputs)(asked).to_dict()
        except ScaleoutError as error:
            said = str(error)
            assert printable(said) == said
            assert len(said) < 12_000
        else:
            json.dumps(found, allow_nan=False)
            taken.append(value)
    known = TAKEN.get(key, [])
    assert [value for value in taken if not any(value is each or value == each for each in known)] == []
    path = tmp_path / "summary.json"
    refused = []
    for value in ([{}], {"a": 1}, [[1]], 5, "x"):
        path.write_text(json.dumps({"command": "run", "inputs": {**inputs, key: value}}))
        try:
            output = open_output(path)
            [output.controls(job) for job in range(len(output.jobs))]
        except ScaleoutError as error:
            refused.append(str(error))
    assert all("summary.json: inputs say" in said for said in refused)


@pytest.mark.parametrize("key", ["bytes", "topology"])
def test_a_collective_without(key):
    with pytest.raises(ScaleoutError, match=f"inputs say no {key}; give those of a collective"):
        collective_inputs({name: value for name, value in COLLECTIVE.items() if name != key})


def test_a_page_of_a_trace_that_is_gone_is_shown(tmp_path):
    """As of a workload that is gone; what is asked of it again says that."""
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"command": "run", "workload": "job", "inputs": {"trace": "gone", "schedule": ["x"]}}))
    output = open_output(path)
    assert (output.page.title, len(output.jobs)) == ("job", 1)
    with pytest.raises(ScaleoutError, match="gone"):
        output.again(0, {})
