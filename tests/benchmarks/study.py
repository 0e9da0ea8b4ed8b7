"""What a case of a study costs, beside the same case as a command of its own. Reports; asserts nothing.

    python tests/benchmarks/study.py [STUDY] [--every N]

Runs a shipped study in one process, and every N-th of its cases by the command that its row has, in turns, so that both
see the same machine. Seconds are those of the processor: a process's own, start-up included, user and system.
"""

import argparse
import resource
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table


def spent_s(*arguments: str) -> float:
    """Seconds of the processor that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "scaleout.cli", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def study_s(name: str, folder: Path) -> float:
    """Seconds of a study in one process, without its report, as commands of their own write none."""
    return spent_s("study", name, "--output", str(folder), "--workers=1", "--no-report", "--timelines=none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", nargs="?", default="topologies")
    parser.add_argument("--every", type=int, default=13)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole_s = study_s(given.study, Path(folder) / "first")
        cases = pd.read_parquet(Path(folder) / "first/cases.parquet")
        chosen = cases[:: given.every]
        alone_s = pd.Series([spent_s(*shlex.split(line)[1:]) for line in chosen["run"]])
        whole_s = (whole_s + study_s(given.study, Path(folder) / "second")) / 2
    case_s = whole_s / len(cases)
    table = Table(box=None, title=f"study {given.study}: {len(cases)} cases", title_justify="left")
    for column in ("what", "processor time"):
        table.add_column(column)
    table.add_row("the study, mean of before and after", f"{whole_s:.1f} s")
    table.add_row("a case of it", f"{case_s * 1e3:.0f} ms")
    table.add_row(f"a case alone, mean of {len(chosen)}", f"{alone_s.mean() * 1e3:.0f} ms")
    table.add_row("ratio", f"{alone_s.mean() / case_s:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
