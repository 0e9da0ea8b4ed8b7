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
