"""What the command line prints, apart from tables: lines without control characters, and JSON."""

from contextlib import nullcontext, suppress

import click

from scaleout.errors import printable


def say(text: object, *, err: bool = False) -> None:
    """Print a text, of several lines maybe; what a terminal would obey is written as an escape.

    Where standard error takes nothing, as on a full disk, the exit code is all that can be said.
    """
    with suppress(OSError) if err else nullcontext():
        click.echo(printable(str(text)), err=err)


def say_json(value: object, *, indent: int | None = 2) -> None:
    """Print plain values as JSON."""
    from scaleout.config.documents import to_json

    click.echo(to_json(value, indent=indent))
