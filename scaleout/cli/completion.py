"""What a shell completes: names of shipped files and of tables, keys of workloads; click asks as the user presses Tab.

`_SCALEOUT_COMPLETE=bash_source scaleout` prints the lines that switch it on in bash; zsh and fish likewise.
"""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_of(*kinds: str) -> Complete:
    """Complete the names of shipped files of kinds of `library.FOLDERS`, and paths."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from scaleout.config import library

        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        return _beginning(incomplete, (name for kind in kinds for name in library.names(kind)))

    return complete


def schedules(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of schedules, of several joined by + the last."""
    from scaleout.schedule import SCHEDULES

    before, plus, last = incomplete.rpartition("+")
    return _beginning(last, SCHEDULES, before + plus)


def strategies(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of strategies."""
    from scaleout.study.strategies import STRATEGIES

    return _beginning(incomplete, STRATEGIES)


def keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete keys of the workload that the command line names, of all families where it names none."""
    from scaleout.workloads.families import FAMILIES, load_workload

    name = ctx.params.get("workload") or ctx.params.get("name_or_file")
    models = FAMILIES.values() if name is None else (type(load_workload(name)),)
    return _beginning(incomplete, dict.fromkeys(f"{key}=" for model in models for key in model.model_fields))


def _beginning(incomplete: str, names: Iterable[str], before: str = "") -> list[CompletionItem]:
    return [CompletionItem(before + name) for name in names if name.startswith(incomplete)]
