"""What is printed is whole at every width: no number is broken, no column lost, no line wider than the terminal."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.cli.console import print_answer, print_facts, print_table
from scaleout.cli.progress import Way, progress, time_of

WORDS = st.text("abcxyz_", min_size=1, max_size=12)
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
NUMBERS = st.floats(-1e9, 1e9).map("{:.6g} GiB/s".format) | st.integers(0, 10**12).map("{:,}".format)
WIDTHS = st.integers(40, 200)


@st.composite
def tables(draw):
    """Headings, rows, and how many columns name a row; every number is told from all others by its place."""
    left = draw(st.integers(0, 3))
    columns = draw(st.lists(TEXTS, min_size=left + 1, max_size=left + 12))
    cells = [TEXTS] * left + [NUMBERS] * (len(columns) - left)
    return columns, draw(st.lists(st.tuples(*cells), min_size=1, max_size=6)), left


def printed(width, write):
    """The lines that are printed at a width."""
    with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as stream:
        import io
        import sys

        patch.setenv("COLUMNS", str(width))
        out = io.StringIO()
        stream.setattr(sys, "stdout", out)
        write()
    return out.getvalue().splitlines()


@given(tables(), WIDTHS)
def test_no_number_is_cut_and_no_column_is_lost(table, width):
    columns, rows, left = table
    lines = printed(width, lambda: print_table("title", columns, rows, left=left))
    assert max(map(len, lines)) <= width
    text = " " + " ".join(" ".join(lines).split()) + " "
    for row in rows:
        for number in row[left:]:
            assert f" {number} " in text
    for word in {word for text in (*columns, *(cell for row in rows for cell in row[:left])) for word in text.split()}:
        assert word in text


@given(tables(), WIDTHS)
def test_numbers_stand_as_often_as_there_are(table, width):
    """Each number is printed as often as it is there, and each row of a band begins with what names it."""
    columns, rows, left = table
    text = " ".join(" ".join(printed(width, lambda: print_table("", columns, rows, left=left))).split())
    numbers = [number for row in rows for number in row[left:]]
    for number in set(numbers):
        assert len(re.findall(f"(?<= ){re.escape(number)}(?= )", f" {text} ")) >= numbers.count(number)


@given(st.dictionaries(WORDS, TEXTS | NUMBERS, min_size=1, max_size=6), WIDTHS)
def test_answers_and_facts_are_whole(facts, width):
    for write in (lambda: print_answer("of what it is", facts), lambda: print_facts(facts)):
        lines = printed(width, write)
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).replace("│", " ").split())
        for word in {word for each in facts.values() for word in each.split()}:
            assert word in text


def test_a_wide_table_goes_on_below_with_what_names_its_rows(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    columns = ("", "plan", "step", "tokens/s", "free memory", "MFU")
    rows = [("1", "tp 8, pp 2", "1.5 s", "12,345", "3 GiB", "41.0%"), ("2", "tp 4", "2 s", "9,000", "1 GiB", "9.5%")]
    print_table("plans", columns, rows, left=2)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "plans",
        "                                    free",
        "   plan         step  tokens/s    memory",
        "1  tp 8, pp 2  1.5 s    12,345     3 GiB",
        "2  tp 4          2 s     9,000     1 GiB",
        "",
        "     MFU",
        "1  41.0%",
        "2   9.5%",
        "",
    ]


def test_an_interrupt_says_what_is_kept():
    def work():
        with progress(kept="rows are kept") as tell:
            tell(1, 2, "rows")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="rows are kept"):
        work()


def test_progress_never_goes_back_and_ends_at_the_whole():
    """Parts with ends that are known, then one more than there were to be."""
    way = Way()
    told = [(1, 2, 0.2), (2, 2, 0.2), (3, 9, 0.8), (2, 9, 0.8), (9, 9, 0.8), (0, 2, 1.0), (1, 2, 1.0), (2, 2, 1.0)]
    shares = [way.share(*each) for each in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[1], shares[4], shares[-1]) == pytest.approx((0.1, 0.2, 0.8, 1.0))


@pytest.mark.parametrize(
    ("elapsed_s", "share", "said"),
    [(5.0, 0.0, "0:00:05 so far"), (30, 0.25, "0:01:30 left"), (9000, 0.5, "2:30:00 left")],
)
def test_time_left_is_that_of_all(elapsed_s, share, said):
    assert time_of(SimpleNamespace(elapsed=elapsed_s, completed=share)) == said


def test_a_row_that_fits_nowhere_is_a_paragraph(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_table("", ("name", "size"), [("a" * 30, "123,456,789 bytes")])
    assert "name: " + "a" * 30 + "\n  size: 123,456,789 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("width", range(34, 90, 5))
def test_no_line_ends_between_a_number_and_its_unit_or_within_what_a_plan_has(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    print_answer("t", {"m": "16.4 GiB of 140 GiB, 123 GiB left, 450 GB/s, all_gather +8.95 ms, gemm +2.07 ms"})
    print_table("t", ("", "plan", "step"), [("1", "tp 1, pp 1, dp 16, microbatch 1, zero 2", "810 ms")], left=2)
    text = capsys.readouterr().out
    for whole in ("16.4 GiB", "140 GiB", "450 GB/s", "+8.95 ms", "+2.07 ms", "dp 16", "microbatch 1", "zero 2"):
        assert whole in text


def test_a_column_of_nothing_is_not_printed(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "16")
    print_table("t", ("name", "first", ""), [("a", "1.00 ms", ""), ("b", "3.00 ms", "")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["t", "name    first", "a     1.00 ms", "b     3.00 ms", ""]
