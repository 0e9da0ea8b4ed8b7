"""What the README prints is what its commands print."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_table_of_the_main_job_is_what_it_prints(scaleout, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    text = README.read_text(encoding="utf-8")
    assert "scaleout run dlrm-128 --output results" in text
    (printed,) = re.findall(r"^```text\n(.*? dlrm-128 .*?)^```$", text, re.MULTILINE | re.DOTALL)
    code, output, _ = scaleout("run", "dlrm-128", "--output", tmp_path / "results")
    assert code == 0
    assert " ".join(printed.split()) in " ".join(output.split())


def rows_of(text):
    """The cells of each row of the tables of a page, stripped."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]


def test_the_fastest_schedule_takes_what_is_said(scaleout):
    text = " ".join(README.read_text(encoding="utf-8").split())
    schedule, said = re.findall(r"the fastest is `--schedule ([a-z+]+)`, ([0-9.]+ ms)", text)[0]
    code, output, _ = scaleout("run", "dlrm-128", "--schedule", schedule)
    assert code == 0
    assert re.search(rf"{said} \([0-9a-z ]*, 90%\) under {re.escape(schedule)}", output)


def test_accuracy_is_that_of_its_page():
    """Each row has the number of rows, the mean and the worst error of one of the accuracy page's."""
    page = [set(row) for row in rows_of((README.parent / "docs" / "accuracy.md").read_text(encoding="utf-8"))]
    said = [row for row in rows_of(README.read_text(encoding="utf-8")) if len(row) == 4 and "%" in row[3]]
    assert len(said) > 5
    for what, *numbers in said:
        assert any(set(numbers) <= row for row in page), what


def test_reproduced_numbers_are_those_of_their_page():
    text = " ".join(README.read_text(encoding="utf-8").split())
    all_of_them, met, predicted_met, predicted = re.findall(
        r"simulates (\d+) numbers that four papers publish\. (\d+) are met, (\d+) of the (\d+) that are", text
    )[0]
    page = (README.parent / "figures" / "reproductions.md").read_text(encoding="utf-8")
    (row,) = [row for row in rows_of(page) if row[0] == "all"]
    assert (row[1], row[-1]) == (f"{predicted_met} of {predicted}", f"{met} of {all_of_them}")
