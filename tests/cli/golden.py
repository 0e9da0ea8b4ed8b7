"""What commands print on terminals of four widths, as files: `python tests/cli/golden.py` writes all of them anew.

Each file has a command and what it printed, once a width, without spaces at the ends of lines. A change of numbers or
of layout shows as a difference of these files, to be read before it is committed.
"""

import contextlib
import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "golden"
WIDTHS = (60, 80, 120, 200)
_JOB = "llama-3-8b --set layers=2 --topology dgx-h200-1"
_RUN = f"run {_JOB} --schedule overlap"
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
    "diff": f"{_RUN} --output one; {_RUN} --bandwidth nvlink=0.5x --output other; diff one other",
    "goodput": "goodput llama-3-8b --set zero=0 --tokens 15T --checkpoint 10s --stragglers 0.005=1.1",
    "strategies": f"strategies {_JOB} --strategy zero-1 --strategy zero-3 --strategy centauri",
    "study": "study networks.yaml --output networks --no-report --workers 1",
    "validate": "validate rows.jsonl --output rows",
    "reproduce": "reproduce F15-mean T6-72-8 T16-fc1-worst",
    "show-device": "show a100-80g",
    "import-model": "import model llama --topology dgx-a100-2 --output mine.yaml",
    "import-pytorch": "import pytorch recordings/dlrm-base --output recorded",
    "trace": "trace llama-3-8b --set tensor_parallel=8 --set data_parallel=1 --set layers=2 --output traces",
    "show-trace": "trace llama-3-8b --set tensor_parallel=8 --set data_parallel=1 --set layers=2 --output t; show t",
}
"""Those before a semicolon are only run."""


_STUDY = """
title: three networks, two batches
workload: llama-3-8b
set: {layers: 2, tensor_parallel: 8, data_parallel: 2, batch_per_replica: [1, 2]}
topology: [dgx-h200-2, "switch(8,nvlink4) x ring(2,ndr)", "torus(4,4,ndr/4)"]
schedule: overlap
"""
_ROWS = [
    {"workload": workload, "changes": {"layers": 2, **changes}, "measured_us": measured_us}
    | {"topology": "dgx-h200-1", "device": "h200", "schedule": "overlap"}
    for workload, changes, measured_us in (
        ("llama-3-8b", {}, 101_000),
        ("llama-3-8b", {"batch_per_replica": 2}, 190_000),
        ("llama-9-8b", {}, 101_000),
    )
]


def write_files(folder: Path) -> None:
    """Write the files that commands name."""
    (folder / "networks.yaml").write_text(_STUDY, encoding="utf-8")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, _ROWS)), encoding="utf-8")
    models = json.loads((ROOT / "tests" / "interop" / "huggingface.json").read_text(encoding="utf-8"))["models"]
    (config,) = (each["config"] for each in models if each["model"] == "meta-llama/Llama-3.2-1B")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "recordings").symlink_to(ROOT / "traces" / "h200-pair" / "recordings")


def text_of(commands: str) -> str:
    """What the last of some commands prints at each width, below the line that runs it."""
    *before, command = map(shlex.split, commands.split("; "))
    parts = ["Written by `python tests/cli/golden.py` from what the command prints; a test compares them."]
    parts += [f"before: scaleout {shlex.join(each)}" for each in before]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files(Path(folder))
        for each in before:
            _printed(each, 80)
        for width in WIDTHS:
            lines = [line.rstrip() for line in _printed(command, width).splitlines()]
            parts += ["", f"$ COLUMNS={width} scaleout {shlex.join(command)}", *lines]
    return "\n".join(parts).rstrip() + "\n"


def _printed(command: Sequence[str], width: int) -> str:
    from scaleout.cli import main

    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(width)}),
        mock.patch.object(sys, "argv", ["scaleout", *command]),
        contextlib.redirect_stdout(out),
    ):
        main()
    return out.getvalue()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, commands in COMMANDS.items():
        (FOLDER / f"{name}.txt").write_text(text_of(commands), encoding="utf-8")
