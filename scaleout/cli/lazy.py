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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named; for an unknown name the message has the nearest."""
        if args[0] not in self._table and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0][:100], self._table, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _check_once(click.Context(command, parent=ctx, info_name=name), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line a command, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name][1]) for name in self.list_commands(ctx)])


def _check_once(ctx: click.Context, args: list[str]) -> None:
    """Refuse an option that is given twice, of which click would drop the first without a word."""
    try:
        _, _, order = ctx.command.make_parser(ctx).parse_args(args=list(args))
    except click.UsageError:
        return  # which the command says itself
    found: set[str | None] = set()
    for each in order:
        once = isinstance(each, click.Option) and not each.multiple and (not each.is_flag or each.secondary_opts)
        if once and each.name in found:
            raise click.UsageError(
                f"{' or '.join((*each.opts, *each.secondary_opts))} is given twice; give it once.", ctx
            )
        found.add(each.name)
