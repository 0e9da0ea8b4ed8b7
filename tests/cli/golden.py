"""What commands print on terminals of four widths, as files: `python tests/cli/golden.py` writes all of them anew.

Each file has a command and what it printed, once a width, without spaces at the ends of lines. A change of numbers or
of layout shows as a difference of these files, to be read before it is committed.
"""

import contextlib
import io
import os
import sys
from pathlib import Path
from unittest import mock

FOLDER = Path(__file__).parent / "golden"
WIDTHS = (60, 80, 120, 200)
COMMANDS = {
    "run-dlrm": "run dlrm-128 --schedule baseline --schedule fused -v",
    "run-transformer": "run llama-3-8b --set layers=2 --set tensor_parallel=8 --set data_parallel=16 "
    "--topology dgx-h200-16 --schedule baseline --schedule overlap",
    "run-too-large": "run llama-3-8b --set zero=0 --set data_parallel=2 --topology ring(2,nvlink4) --schedule baseline",
    "search": "search llama-3-8b --set layers=4 --global-batch 16 --topology dgx-h200-1 --set zero=1 "
    "--set recompute=none --top 3 --workers 1",
    "collective": "collective all-reduce --bytes 1KiB:1MiB --topology dgx-h200-16",
    "operator": "operator gemv_all_reduce",
    "buckets": "buckets llama-3-8b --set layers=2 --bytes 4MiB:64MiB",
    "show-topology": "show dgx-h200-16",
    "show-workload": "show llama-3-8b",
    "show-keys": "show --keys workload recompute",
    "list": "list workloads megatron",
    "track": "track",
}


def text_of(command: str) -> str:
    """What a command prints at each width, below the line that runs it."""
    from scaleout.cli import main

    parts = ["Written by `python tests/cli/golden.py` from what the command prints; a test compares them."]
    for width in WIDTHS:
        out = io.StringIO()
        with (
            mock.patch.dict(os.environ, {"COLUMNS": str(width)}),
            mock.patch.object(sys, "argv", ["scaleout", *command.split()]),
            contextlib.redirect_stdout(out),
        ):
            main()
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        parts += ["", f"$ COLUMNS={width} scaleout {command}", *lines]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, command in COMMANDS.items():
        (FOLDER / f"{name}.txt").write_text(text_of(command), encoding="utf-8")
