"""What the command line prints, apart from tables: lines without control characters, and JSON."""

import click

from scaleout.errors import printable


def say(text: object, *, err: bool = False) -> None:
    """Print a text, of several lines maybe; what a terminal would obey is written as an escape."""
    click.echo(printable(str(text)), err=err)


def say_json(value: object, *, indent: int | None = 2) -> None:
    """Print plain values as JSON."""
    from scaleout.config.documents import to_json

    click.echo(to_json(value, indent=indent))
