"""`scaleout import`: jobs and models from where people have them, one subcommand a source."""

import click

from scaleout.cli.lazy import LazyGroup

_SOURCES = {
    "model": ("import_model:model", "Make a workload of HuggingFace's, torchtitan's or Megatron's description of it."),
    "pytorch": ("import_pytorch:pytorch", "Read recordings of torch.profiler into Chakra traces."),
}
"""Subcommand to its file under `scaleout.cli` with the command in it, and the first line of its help."""


@click.group("import", cls=LazyGroup, table=_SOURCES)
def import_from() -> None:
    """Read jobs and models of other tools."""
