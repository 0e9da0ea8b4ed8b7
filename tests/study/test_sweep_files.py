"""Files of studies: expressions, grids, and what is wrong with them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout.api.sweeps  # noqa: F401 - before a test replaces what it imports
from scaleout.config.library import names
from scaleout.errors import ConfigError
from scaleout.study.sweep import cases
from scaleout.study.sweep.expressions import parse
from scaleout.study.sweep.grid import Block, grids_of, numbered
from scaleout.study.sweep.study import load_study, study_of

NUMBERS = st.one_of(st.integers(-100, 100), st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3)))


def trees(depth):
    """Expressions as texts that Python computes with floats as we do."""
    if depth == 0:
        return st.one_of(NUMBERS.map(lambda n: f"({n})"), st.sampled_from(["a", "b", "set.c"]))
    inner = trees(depth - 1)
    binary = st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "<", "==", ">="]), inner)
    chosen = st.builds("({} if {} > 0 else {})".format, inner, inner, inner)
    called = st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner)
    return st.one_of(inner, binary, chosen, called)


class Bag:
    """An attribute, so that Python reads `set.c` as well."""

    def __init__(self, c):
        self.c = c


@given(text=trees(3), a=NUMBERS, b=NUMBERS, c=NUMBERS)
def test_expressions_are_those_of_python(text, a, b, c):
    try:
        expected = eval(text, {}, {"a": a, "b": b, "set": Bag(c), "min": min, "max": max})
    except ZeroDivisionError:
        expected = None
    if isinstance(expected, float) and not math.isfinite(expected):
        expected = None
    assert parse(text, where="here")({"a": a, "b": b, "set.c": c}) == expected


def test_what_is_missing_makes_the_rest_missing_unless_it_is_decided():
    columns = {"ranks": 8}
    assert parse("fits", where="")(columns) is None
    assert parse("fits and ranks == 8", where="")(columns) is None
    assert parse("fits and ranks == 9", where="")(columns) is False
    assert parse("fits or ranks == 8", where="")(columns) is True
    assert parse("ranks / (ranks - 8)", where="")(columns) is None
    assert parse("bandwidth[0] == '2x' and topology in ['a', 'b']", where="")({"bandwidth.0": "2x", "topology": "b"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "no function"),
        ("ranks.__class__()", "no function"),
        ("(lambda: 1)()", "no function"),
        ("[x for x in (1, 2)]", "none of what may stand there"),
        ("ranks ==", "is no expression"),
        ("f'{ranks}'", "none of what may stand there"),
        ("mean(ranks)", "did you mean 'min'"),
        ("1 @ 2", "no operation of numbers"),
        ("x" * 1001, "more than 1000 characters"),
        ("(" * 400 + "1" + ")" * 400, "is no expression"),
    ],
)
def test_what_is_no_expression_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text, where="where")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"columns": {"a": "ranks + schedule"}}, "f: columns.a: 'ranks \\+ schedule': 'overlap' is no number"),
        ({"columns": {"a": "ranks * 2", "b": "a + max(decisions, 1)"}}, "f: columns.b: .* '' is no number"),
        ({"where": "schedule + 1 > 2"}, "f: where: .* 'overlap' is no number"),
        (
            {"views": [{"kind": "bar", "x": "schedule", "y": "mfu", "where": "model - 1 > 0"}]},
            "f: views.0: .* no number",
        ),
        ({"label": [1, "b"], "columns": {"a": "label * 2"}}, "f: columns.a: 'label \\* 2': 'b' is no number"),
        ({"label": [1, "b"], "where": "label > 0"}, "f: where: 'label > 0': .* not supported"),
        ({"contention": [True, "1 m"]}, "f: contention must be true or false, not '1 m'"),
        ({"ideal": 1}, "f: ideal must be true or false, not 1"),
        ({"clocks": ["sustained", "x"]}, "f: unknown clocks 'x'"),
        ({"host": 5}, "f: unknown host '5'"),
        ({"network": "lnk"}, "f: unknown network model 'lnk'; did you mean 'link'"),
        ({"nic_down": ["x", 2]}, "f: nic_down: 'x' is no whole number"),
        ({"slow": {0: [2, True]}}, "f: slow: True is neither a text nor a number"),
        ({"injection": "fast"}, "f: 'fast' is not a bandwidth"),
        ({"algorithm": {"all_reduce": ["ring", "rings"]}}, "f: algorithm.all_reduce: 'rings': no algorithm"),
        (
            {"algorithm": {"all_reduce": "tree"}},
            "f: algorithm.all_reduce: 'tree': no algorithm of all_reduce; did you mean 'hierarchical_tree', NCCL's",
        ),
        (
            {"topology": "dgx-h200-16", "bandwidth": {"infinband": ["1x", "2x"]}},
            "f: bandwidth.infinband: topology 'dgx-h200-16' has no dimension 'infinband'; did you mean 'infiniband'",
        ),
        ({"latency": {7: "2x"}}, "f: latency.7: topology 'torus-8x16' has no dimension '7'; give 0 to 1"),
        (
            {"topology": ["dgx-h200-16", "switch-128"], "taper": {"leaf": "2:1"}},
            "f: taper.leaf: topology 'dgx-h200-16' has no dimension 'leaf'; .*, nor has another of the 2",
        ),
    ],
)
def test_what_no_case_can_have_is_found_before_any_runs(keys, told):
    with pytest.raises(ConfigError, match=told):
        study_of({"title": "t", "workload": "dlrm-128", "schedule": "overlap", **keys}, name="t", where="f")


def test_what_some_case_can_have_is_no_fault():
    columns = {"a": "1 / (ranks - 1)", "b": "speedup + 1 if schedule == 'fused' else mfu", "c": "set.layers * 2"}
    keys = {"set": {"layers": [2, 4]}, "where": "ranks > 0", "columns": columns}
    keys |= {"label": [1, "b"], "where": ["label == 1"], "columns": {**columns, "d": "label * 2"}}
    keys |= {"topology": ["dgx-h200-16", "ring-128"], "bandwidth": {"nvlink": "2x"}}  # which the ring has not
    study_of({"title": "t", "workload": "llama-3-8b", "schedule": ["overlap", "fused"], **keys}, name="t", where="f")


def test_only_numbers_are_computed_with():
    with pytest.raises(ConfigError, match="'x' is no number"):
        parse("topology * 10 ** 9", where="")({"topology": "x"})
    assert parse("9 ** 9 ** 9", where="")({}) is None  # no number of a billion digits


LISTS = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)


@given(own=st.dictionaries(st.sampled_from("abc"), LISTS, max_size=3), length=st.integers(1, 3), schedules=LISTS)
def test_a_grid_is_the_product_of_its_lists(own, length, schedules):
    block = Block(
        workload="w", set=own, schedule=schedules, zip={"nodes": list(range(length)), "host": list(range(length))}
    )
    (grid,) = grids_of(block, [])
    rows = [grid.at(number) for number in range(len(grid))]
    products = itertools.product(range(length), *own.values(), schedules)
    expected = [
        {
            "workload": "w",
            "host": n,
            "nodes": n,
            **{f"set.{k}": v for k, v in zip(own, values, strict=True)},
            "schedule": s,
        }
        for n, *values, s in products
    ]
    key = lambda row: sorted((k, str(v)) for k, v in row.items())  # noqa: E731
    assert sorted(rows, key=key) == sorted(expected, key=key)
    assert [row["schedule"] for row in rows[: len(schedules)]] == schedules  # the innermost


def test_a_case_says_over_what_the_file_says():
    base = Block(workload="a", set={"x": [1, 2]}, zip={"nodes": [1, 2], "host": ["p", "q"]})
    grids = grids_of(base, [Block(set={"x": 3}), Block(workload=["b", "c"], nodes=7)])
    rows = [numbered(grids, number) for number in range(sum(map(len, grids)))]
    assert rows[0] == {"workload": "a", "set.x": 3, "host": "p", "nodes": 1}
    assert len(rows) == 2 + 2 * 2 * 2
    assert {row["nodes"] for row in rows[2:]} == {7}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "'workload' is missing"),
        ({"title": "t", "workload": "dlrm-128", "topologie": "x"}, "did you mean 'topology'"),
        ({"title": "t", "workload": "dlrm-182"}, "did you mean 'dlrm-128'"),
        ({"title": "t", "workload": "dlrm-128", "topology": "torus-8x61"}, "torus-8x16"),
        ({"title": "t", "workload": "dlrm-128", "schedule": "fuesd"}, "did you mean 'fused'"),
        ({"title": "t", "workload": "dlrm-128", "set": {"globl_batch": 1}}, "did you mean 'global_batch'"),
        ({"title": "t", "workload": "dlrm-128", "algorithm": {"all_redcue": "ring"}}, "did you mean 'all_reduce'"),
        ({"title": "t", "workload": []}, "empty list"),
        ({"title": "t", "workload": "dlrm-128", "set": {"global_batch": {"a": 1}}}, "is no value"),
        ({"title": "t", "workload": "dlrm-128", "where": "rank == 1"}, "did you mean 'ranks'"),
        ({"title": "t", "workload": "dlrm-128", "where": ["ranks == 1"] * 101}, "at most 100 items"),
        ({"title": "t", "workload": "dlrm-128", "where": "makespan_s < 1"}, "unknown column 'makespan_s'"),
        ({"title": "t", "workload": "dlrm-128", "columns": {"x": "makespan + 1"}}, "did you mean 'makespan_s'"),
        ({"title": "t", "workload": "dlrm-128", "columns": {"mfu": "1"}}, "is the name of a column already"),
        ({"title": "t", "workload": "dlrm-128", "baseline": {"schedule": "fused"}}, "does not vary"),
        (
            {"title": "t", "workload": "dlrm-128", "schedule": ["fused", "overlap"], "baseline": {"schedule": "x"}},
            "no case has 'x'",
        ),
        ({"title": "t", "workload": "dlrm-128", "views": [{"kind": "bar", "x": "topo"}]}, "unknown column 'topo'"),
        ({"title": "t", "workload": "dlrm-128", "views": [{"kind": "pie"}]}, "'line', 'bar'"),
        ({"title": "t", "workload": "dlrm-128", "zip": {"nodes": [1, 2], "host": ["none"]}}, "of one length"),
        ({"title": "t", "workload": "dlrm-128", "nodes": 1, "zip": {"nodes": [1, 2]}}, "nodes stands in zip and"),
    ],
)
def test_a_slip_of_the_pen_is_named_with_what_is_near(values, message):
    with pytest.raises(ConfigError, match=message):
        study_of(values, name="mine", where="mine.yaml")


def test_axes_are_what_varies_and_not_what_the_workload_decides():
    study = study_of(
        {
            "title": "t",
            "topology": ["torus-8x16", "ring-128"],
            "bandwidth": {0: ["1x", "2x"]},
            "cases": [
                {"workload": "dlrm-128", "set": {"global_batch": [512, 1024]}},
                {"workload": "llama-3-8b", "set": {"data_parallel": 128, "zero": 1}},
            ],
        },
        name="mine",
        where="",
    )
    assert list(study.axes) == ["workload", "set.global_batch", "topology", "bandwidth.0"]
    assert study.numbers("bandwidth.0") == {"1x": 1.0, "2x": 2.0}
    assert study.numbers("set.global_batch") == {512: 512.0, 1024: 1024.0}
    assert study.numbers("topology") is None


@pytest.mark.parametrize("name", names("study"))
def test_shipped_studies_are_read(name):
    study = load_study(name)
    assert study.size > 1
    assert study.description
    assert study.source


def test_names_of_a_thousand_entries_are_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(cases, "load_topology", read.append)
    entries = [{"workload": "dlrm-128", "set": {"global_batch": 128 * n}} for n in range(1, 1000)]
    values = {"title": "many", "source": "a test", "topology": ["ring-128", "torus-8x16"], "cases": entries}
    study = study_of(values, name="many", where="")
    assert study.size == 2 * 999
    assert sorted(read) == ["ring-128", "torus-8x16"]


def test_an_interrupted_study_says_how_it_goes_on(scaleout, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("scaleout.study.sweep.engine.execute", interrupted)
    code, _, error = scaleout("study", "batch", "--output", str(tmp_path / "results"))
    assert code == 130
    assert error.strip().startswith("interrupted; what is done is kept in ")
    assert error.endswith("; the same command goes on where it was\n")
