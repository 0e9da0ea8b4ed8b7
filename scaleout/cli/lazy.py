"""Groups of commands that are imported when they are asked for, so that ``--help`` answers at once."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of the commands of a table: name to ``file:command`` under `scaleout.cli`, and its first line of help."""

    def __init__(self, *arguments: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in alphabetical order."""
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of that name."""
        if cmd_name not in self._table:
            return None
        module, _, name = self._table[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"scaleout.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line a command, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name][1]) for name in self.list_commands(ctx)])
