"""`scaleout import`: jobs and models from where people have them, one subcommand a source."""

from importlib import import_module

import click

_SOURCES = {
    "model": ("import_model:model", "Make a workload of HuggingFace's, torchtitan's or Megatron's description of it."),
    "pytorch": ("import_pytorch:pytorch", "Read recordings of torch.profiler into Chakra traces."),
}
"""Subcommand to its file under `scaleout.cli` with the command in it, and the first line of its help."""


class Sources(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the sources in alphabetical order."""
        return sorted(_SOURCES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a source's command; None if there is no such source."""
        if cmd_name not in _SOURCES:
            return None
        module, _, name = _SOURCES[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"scaleout.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line a source, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _SOURCES[name][1]) for name in self.list_commands(ctx)])


@click.group("import", cls=Sources)
def import_from() -> None:
    """Read jobs and models of other tools."""
