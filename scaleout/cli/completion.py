"""What a shell completes: names of shipped files and of tables, keys and their values; click asks as Tab is pressed.

`_SCALEOUT_COMPLETE=bash_source scaleout` prints the lines that switch it on in bash; zsh and fish likewise.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from scaleout.errors import ScaleoutError

if TYPE_CHECKING:
    from scaleout.workloads.config.family import ModelFamily

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class Bash(BashComplete):
    """Bash, which cuts words at `=` and takes what completes behind it; no space follows a key's `=`."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", '[[ $value == *= ]] && compopt -o nospace; COMPREPLY+=("$value")'
    )
    _cut = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is completed, and that one, with what was cut at `=` joined."""
        words, word = super().get_completion_args()
        if word == "=" or words[-1:] == ["="]:
            last = "" if word == "=" else word
            words = words if word == "=" else words[:-1]
            self._cut = f"{words[-1]}=" if words else ""
            return words[:-1], self._cut + last
        return words, word

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line that the script reads, without what bash has cut."""
        return f"{item.type},{item.value.removeprefix(self._cut)}"


add_completion_class(Bash)


def one_of(words: Callable[[click.Context, str], Iterable[str]]) -> Complete:
    """Complete words of what a command line has so far; what cannot be read has none."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            return [CompletionItem(each) for each in words(ctx, incomplete) if each.startswith(incomplete)]
        except ScaleoutError:
            return []

    return complete


def names_of(*kinds: str) -> Complete:
    """Complete the names of shipped files of kinds of `library.FOLDERS`, and paths."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from scaleout.config import library

        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        return one_of(lambda *_: (name for kind in kinds for name in library.names(kind)))(ctx, parameter, incomplete)

    return complete


@one_of
def schedules(_: click.Context, incomplete: str) -> Iterable[str]:
    """Complete the names of schedules, of several joined by + the last."""
    from scaleout.schedule import SCHEDULES

    before, plus, _last = incomplete.rpartition("+")
    return (f"{before}{plus}{name}" for name in SCHEDULES)


@one_of
def plans(_: click.Context, incomplete: str) -> Iterable[str]:
    """Complete the plans of searches whose folders lie here, or of the one that is named before the #."""
    from scaleout.cli.plan import labels_in

    named, sign, _label = incomplete.partition("#")
    folders = [Path(named)] if sign else sorted(path.parent for path in Path().glob("*/summary.json"))
    for folder in folders:
        with suppress(ScaleoutError, OSError):
            yield from (f"{folder}#{label}" for label in labels_in(folder))


@one_of
def strategies(*_: object) -> Iterable[str]:
    """Complete the names of strategies."""
    from scaleout.study.strategies import STRATEGIES

    return STRATEGIES


@one_of
def dimensions(ctx: click.Context, _: str) -> Iterable[str]:
    """Complete the dimensions of the topology that the command line names, or its workload."""
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.cluster.topology.what_if import names_of as named
    from scaleout.config import library
    from scaleout.workloads.families import load_workload

    topology, name = ctx.params.get("topology"), _first(ctx)
    if name and not topology:
        topology = load_workload(name).topology if name in library.names("workload") or name.endswith(".yaml") else name
    known = named(load_topology(topology)) if topology else []
    return dict.fromkeys(f"{each}=" for names in known for each in (*reversed(names), "all"))


@one_of
def keys(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Complete keys, and values of one, of the workload that the command line names, or else of all families."""
    from scaleout.workloads.families import FAMILIES, load_workload

    name = _first(ctx)
    models = FAMILIES.values() if name is None else (type(load_workload(name)),)
    key, is_whole, _ = incomplete.partition("=")
    if not is_whole:
        return dict.fromkeys(f"{each}=" for model in models for each in model.model_fields)
    return dict.fromkeys(f"{key}={value}" for model in models for value in _values(model, key))


def _first(ctx: click.Context) -> str | None:
    """Return the workload or the like that a command line names; click leaves it where an option lacks its value."""
    named = (ctx.params.get("workload"), ctx.params.get("name_or_file"), *ctx.args)
    return next((each for each in named if each), None)


def _values(model: "type[ModelFamily]", key: str) -> Iterable[str]:
    """Return what a key may be, if that is one of a few."""
    from scaleout.config import library
    from scaleout.config.keys import choices_of
    from scaleout.workloads.config.frameworks import FRAMEWORKS
    from scaleout.workloads.pipeline import PIPELINES

    tables: dict[str, Iterable[str]] = {"framework": FRAMEWORKS, "pipeline_schedule": PIPELINES}
    if key in ("topology", "device"):
        return library.names(key)
    return tables.get(key) or (choices_of(model.model_fields[key]) if key in model.model_fields else ())
