"""Nonsense in every key of rows to measure: one message, whatever stands in a file that `measure` is given."""

import pytest

from scaleout.errors import ScaleoutError, printable
from scaleout.validation.measure import experiments

VALUES = [None, True, False, -1, 0, 1.5, 1e300, 2**63, float("nan"), "", "x", "5", "\x1b[31m", "\ud800", [], {}, [1],
          ["a"], [[]], [{}], {"a": 1}]  # fmt: skip
TEXTS = {"", "x", "5", "\x1b[31m", "\ud800"}
"""What a text may be, as a mode of a step, which the GPUs then know or not."""
ROWS = [
    *((name, next(iter(experiments.plan(name, gpus=2, quick=True)))) for name in experiments.EXPERIMENTS),
    ("collectives", experiments.plan("collectives", gpus=2)[-1]),  # of a protocol
]
ONE_OF = ("op", "name", "step", "collective", "method")


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_nonsense_in_a_row_to_measure_is_refused(name, row):
    assert experiments.check_rows(name, [row], gpus=2)
    fields = [(row, key) for key in row] + [(row["shape"], key) for key in row.get("shape", {})]
    for holder, key in fields:
        taken = []
        for value in VALUES:
            changed = {**holder, key: value}
            try:
                experiments.check_rows(name, [changed if holder is row else {**row, "shape": changed}], gpus=2)
            except ScaleoutError as error:
                said = str(error)
                assert printable(said) == said
            else:
                taken.append(value)
        may_be = TEXTS if isinstance(holder[key], str) and key not in ONE_OF else set()
        assert [value for value in taken if not isinstance(value, str) or value not in may_be] == [], key


@pytest.mark.parametrize("value", [None, [], {}, [1], {"a": 1}, 5, "x"])
def test_nonsense_as_an_experiment_is_refused(value):
    with pytest.raises(ScaleoutError, match="a row has experiment"):
        experiments.listed([{"experiment": value, "op": "add"}], where="list.jsonl")
