"""What the command line prints, apart from tables: lines without control characters, and JSON."""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

import click

from scaleout.errors import one_line, printable

FILES_OF_RUN = (
    "nodes.parquet", "timeline.json", "breakdown.png", "links.parquet", "links*.png", "memory*.png", "pipeline*.png",
)  # fmt: skip
"""Files that simulated schedules are written to."""


def say(text: object, *, err: bool = False) -> None:
    """Print a text, of several lines maybe; what a terminal would obey is written as an escape.

    Where standard error takes nothing, as on a full disk, the exit code is all that can be said.
    """
    with suppress(OSError) if err else nullcontext():
        click.echo(printable(str(text)), err=err)


def say_files(folder: Path, files: Mapping[str, str]) -> None:
    """Print files that were written, and what each holds: below it where the terminal is too narrow for both."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = shutil.get_terminal_size().columns if wide else sys.maxsize
    for name, meaning in files.items():
        path, words = one_line(str(folder / name)), one_line(meaning)
        line = f"{path}  {words}"
        say(line if len(line) <= width else f"{path}\n{textwrap.indent(textwrap.fill(words, width - 2), '  ')}")


def say_json(value: object, *, indent: int | None = 2) -> None:
    """Print plain values as JSON."""
    from scaleout.config.documents import to_json

    click.echo(to_json(value, indent=indent))
