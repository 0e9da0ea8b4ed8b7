"""Tables on the terminal: what a cell says stands in its column, folded where the terminal is narrow."""

import contextlib
import io
import os
from unittest import mock

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.cli.console import print_table


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(*table, columns=None, **options):
    """Lines of a table in a pipe, or on a terminal of so many columns."""
    out = io.StringIO() if columns is None else Terminal()
    with contextlib.redirect_stdout(out), mock.patch.dict(os.environ, {"COLUMNS": str(columns or 0)}):
        print_table(*table, **options)
    return click.unstyle(out.getvalue()).split("\n")


def test_text_is_on_the_left_and_numbers_on_the_right():
    rows = [["ring", "1,024", "12.5"], ["recursive", "8", "3"]]
    assert printed("costs", ["algorithm", "ranks", "us"], rows) == [
        *("costs", "algorithm  ranks    us", "ring       1,024  12.5", "recursive      8     3", "", "")
    ]


def test_the_title_may_be_left_out():
    assert printed("", ["what"], [["this"]]) == ["what", "this", "", ""]


words = st.text("abcdefg", min_size=1, max_size=12)
texts = st.lists(words, min_size=1, max_size=12).map(" ".join)


@given(rows=st.lists(st.tuples(texts, texts, st.integers(0, 10**9).map(str)), max_size=5), columns=st.integers(20, 120))
def test_a_narrow_terminal_folds_the_widest_text_and_no_number(rows, columns):
    table = ("title", ("what", "why", "number"), rows)
    wide = printed(*table, left=2)
    lines = printed(*table, left=2, columns=columns)
    assert sorted("".join("".join(lines).split())) == sorted("".join("".join(wide).split()))
    assert all(any(line.endswith(row[2]) for line in lines) for row in rows)
    if len(lines) > len(wide):
        assert max(map(len, wide)) > columns
    if lines == wide:
        assert max(map(len, lines)) <= columns or max((len(cell) for row in rows for cell in row[:2]), default=0) <= 16


@pytest.mark.parametrize("columns", [40, 60])
def test_folded_lines_fit_the_terminal(columns):
    lines = printed("", ["what", "time"], [["a word " * 20, "12.5 us"]], columns=columns)
    assert max(map(len, lines)) == pytest.approx(columns, abs=6)
    assert max(map(len, lines)) <= columns
