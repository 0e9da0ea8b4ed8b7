"""`scaleout show`: what a workload, topology, device or Chakra trace is, in words and numbers."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from scaleout.cli import completion
from scaleout.cli.options import json_option, network_options, parse_settings, set_option
from scaleout.cli.printing import say_json
from scaleout.config import library
from scaleout.errors import ConfigError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic.fields import FieldInfo

    from scaleout.cluster.topology.what_if import NetworkChanges
    from scaleout.workloads.config.family import ModelFamily

_NEAR = 0.9
"""How alike, by `difflib`, a word and the name of a key are that is found by it."""


def _known(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete keys beside --keys, else what can be shown."""
    if not ctx.params.get("kind"):
        return completion.names_of(*library.FOLDERS)(ctx, parameter, incomplete)
    from scaleout.config.keys import keys_of
    from scaleout.report.keys import MODELS

    known = dict.fromkeys(key.name for model in MODELS[ctx.params["kind"]] for key in keys_of(model))
    return completion.one_of(lambda *_: known)(ctx, parameter, incomplete)


@click.command()
@click.argument("name_or_file", metavar="[NAME|FILE]", required=False, shell_complete=_known)
@click.option(
    "--keys",
    "kind",
    type=click.Choice(("workload", "topology", "link-type", "device", "study", "library")),
    help="Print the keys of a kind of file instead: type, default, meaning and an example; those that have the word, "
    "if one is given instead of a name.",
)
@click.option("--file", "as_file", is_flag=True, help="Print the file of the name, to copy and change.")
@set_option()
@network_options()
@json_option
def show(
    name_or_file: str | None,
    kind: str | None,
    settings: tuple[str, ...],
    changes: "NetworkChanges",
    as_file: bool,
    as_json: bool,
) -> None:
    """Describe a workload, topology, link type, device, study, Chakra trace (.et, or a directory) or plan (FILE#1).

    A topology may be changed as by `scaleout run`; it is drawn, and its dimensions and links have the names that the
    options of changes take.

    Examples: scaleout show llama-3-8b; scaleout show llama-3-8b --file; scaleout show --keys workload gradient.
    """
    name_or_file = name_or_file or ""
    if not name_or_file and kind is None:
        raise ConfigError("give what to show, such as `scaleout show llama-3-8b` (`scaleout list`), or --keys KIND")
    if as_file:
        if kind is not None or settings or changes.words or as_json:
            raise ConfigError("--file prints a file as it is; leave the other options out")
        _show_file(name_or_file)
        return
    if kind is not None:
        if settings or changes.words:
            raise ConfigError(f"--keys {kind} prints keys, whatever their values; leave out what sets some")
        _show_keys(kind, name_or_file, as_json=as_json)
        return
    name_or_file, chosen = _of_plan(name_or_file, parse_settings(settings))
    facts = _facts(name_or_file, chosen, changes)
    if as_json:
        from scaleout.api.inputs import inputs_of
        from scaleout.report.documents import document

        inputs = inputs_of({"name": name_or_file}, settings=chosen, changes=changes)
        say_json(document("show", facts, inputs=inputs))
        return
    from scaleout.cli.console import print_description

    if "link_names" in facts:
        from scaleout.cluster.topology.topology import load_topology
        from scaleout.cluster.topology.what_if import change_network
        from scaleout.report.drawing import draw

        facts = {key: value for key, value in facts.items() if key not in ("link_names", "changed_links")}  # drawn
        print_description(facts, draw(change_network(load_topology(name_or_file), changes)))
        return
    if "keys" not in facts:
        print_description(_bounded(facts) if "trace" in facts else facts)
        return
    from scaleout.workloads.families import load_workload

    job = load_workload(name_or_file, chosen)
    del facts["keys"]
    for row in facts.get("framework_keys", ()):
        row |= {name: _value(job, row["key"], row[name]) for name in ("value", "framework_value")}
    print_description(facts)
    _print_values(job)


def _show_file(name: str) -> None:
    """Print a file that ships, or another's."""
    from scaleout.config.documents import read_text

    kind = _kind(name)
    if kind not in library.FOLDERS:
        raise ConfigError(f"{name!r} is a {kind}, and --file prints files of text; leave it out")
    if kind == "topology" and not library.is_path(name) and name not in library.names(kind):
        raise ConfigError(f"{name!r} is an expression, which is the whole topology; there is no file of it")
    click.echo(printable(read_text(library.find(kind, name))), nl=False)


_MOST_ROWS = 20
"""Of a table of a trace, which may have a row for each of thousands of sizes; JSON has them all."""


def _bounded(facts: dict[str, Any]) -> dict[str, Any]:
    """Leave out the last rows of long tables, and say of how many."""
    long = {name: len(rows) for name, rows in facts.items() if isinstance(rows, list) and len(rows) > _MOST_ROWS}
    shown = {name: value[:_MOST_ROWS] if name in long else value for name, value in facts.items()}
    left_out = {name.replace("_", " "): count - _MOST_ROWS for name, count in long.items()}
    return shown | ({"rows_left_out (--json has them)": left_out} if left_out else {})


def _of_plan(name_or_file: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the workload of a plan of a search, such as plans#1, with the keys that it sets; all else as it is."""
    file, sign, _ = name_or_file.rpartition("#")
    if not (sign and Path(file).exists()):
        return name_or_file, settings
    from scaleout.cli.plan import plan_inputs

    inputs = plan_inputs(name_or_file)
    of_plan = {key.removeprefix("set."): each for key, each in inputs.items() if key.startswith("set.")}
    return str(inputs["workload"]), of_plan | settings


def _value(job: "ModelFamily", key: str, value: Any) -> str:
    """Write a key's value as a file would hold it."""
    from scaleout.config.keys import quantity_of, value_of

    return value_of(value, quantity_of(type(job).model_fields[key]))


def _print_values(job: "ModelFamily") -> None:
    """Print the keys of a workload with their values and meanings."""
    from scaleout.cli.console import print_table

    rows = [
        [name, _value(job, name, getattr(job, name)), _meaning(info)]
        for name, info in type(job).model_fields.items()
        if name not in ("name", "description", "source")
    ]
    print_table("keys", ("key", "value", "meaning"), rows, left=3)


def _meaning(info: "FieldInfo") -> str:
    """Return what a key means, after the words that it may be, unless the meaning has them all."""
    from scaleout.config.keys import choices_of

    meaning, words = info.description or "", [each for each in choices_of(info) if each not in ("true", "false")]
    return meaning if all(each in meaning for each in words) else f"{', '.join(words)}: {meaning}"


def _show_keys(kind: str, word: str, *, as_json: bool) -> None:
    """Print the keys of a kind of file that have a word in their name or meaning, by how near they are to it."""
    from difflib import get_close_matches

    from scaleout.config.reading import nearest
    from scaleout.report.keys import rows_of

    every = rows_of(kind)
    near = get_close_matches(word.lower(), [row.key.name.lower() for row in every], cutoff=_NEAR)
    found = (f"{row.key.name} {row.key.meaning}".lower() for row in every)
    rows = [row for row, has in zip(every, found, strict=True) if word.lower() in has or row.key.name.lower() in near]
    if not rows:
        raise ConfigError(f"no key of a {kind} has {word!r}; {nearest(word, [row.key.name for row in every])}")
    rows.sort(key=lambda row: _distance(word.lower(), row.key.name.lower(), row.key.meaning.lower(), near))
    if as_json:
        from scaleout.report.documents import document

        inputs = {"keys": kind, "word": word or None}
        say_json(document("show", {"known_keys": [row.summary() for row in rows]}, inputs=inputs))
        return
    from scaleout.cli.console import print_paragraph

    for row in rows:
        key, families = row.key, f"key of {', '.join(row.families)}" if row.families else ""
        unit = f", such as in {key.unit}" if key.unit else ""
        default = key.default if key.default == "required" else f"default {key.default}"
        example = f"example: {row.example}" + (f" ({row.source})" if row.source else "")
        print_paragraph(key.name, f"{key.type}{unit}; {default}", (key.meaning, example * bool(row.example), families))


def _distance(word: str, name: str, meaning: str, near: "Sequence[str]") -> int:
    """Say how near a key is to a word: it is nearly its name, a word of it or of the meaning, or within such a word."""
    words = f"{name.replace('_', ' ')} {meaning}"
    return -1 if name in near else 0 if word in ("", name) else 1 if re.search(rf"\b{re.escape(word)}\b", words) else 2


def _facts(name_or_file: str, settings: dict[str, Any], changes: "NetworkChanges") -> dict[str, Any]:
    from scaleout.report import describe, traces

    kind = _kind(name_or_file)
    if settings and kind != "workload":
        raise ConfigError(f"--set changes a workload, and {name_or_file!r} is a {kind}; leave it out")
    if changes.words and kind != "topology":
        raise ConfigError(f"{changes.words[0]} changes a topology, and {name_or_file!r} is a {kind}; leave it out")
    if kind == "topology":
        return describe.topology(name_or_file, changes)
    if kind == "workload":
        return describe.workload(name_or_file, settings)
    of_kind = {
        "link type": describe.link_type,
        "device": describe.device,
        "study": describe.study,
        "trace": traces.trace,
    }
    return of_kind[kind](name_or_file)


def _is_trace_set(path: Path) -> bool:
    """Whether a path is what ``--trace`` of `scaleout run` takes: a directory, or one and a prefix."""
    from scaleout.config.documents import is_file

    return is_file(path.parent / f"{path.name}.0.et") or path.is_dir()


def _kind(name_or_file: str) -> str:
    """Tell workloads, topologies, devices, studies and traces apart: by their names, or by what a file holds."""
    from scaleout.cluster.topology.expression import is_expression
    from scaleout.cluster.topology.fabric import SUFFIXES
    from scaleout.config.reading import nearest

    if name_or_file.endswith(SUFFIXES) or is_expression(name_or_file):
        return "topology"
    known = {name: kind for kind in library.FOLDERS for name in library.names(kind)}
    if library.holds_results(Path(name_or_file)):
        raise ConfigError(
            f"{name_or_file}: holds results, not what is simulated; open it by scaleout view {name_or_file}"
        )
    if name_or_file not in known and (name_or_file.endswith(".et") or _is_trace_set(Path(name_or_file))):
        return "trace"
    if library.is_path(name_or_file):
        return _kind_of_file(Path(name_or_file))
    if name_or_file not in known:
        hint = library.of_here(name_or_file) or nearest(name_or_file, known)
        raise ConfigError(f"unknown name {name_or_file!r}; {hint} (`scaleout list` names them all)")
    return known[name_or_file]


_KEYS = (
    ("workload", "kind"),
    ("topology", "dimensions"),
    ("device", "peak_flops"),
    ("study", "title"),
    ("link type", "bandwidth"),
)
"""Kind of file, and the key by which it is known, where it has none of those before."""


def _kind_of_file(path: Path) -> str:
    """Tell what a file holds by its keys, or by those of the file that it is `like`, one from another."""
    from scaleout.config.reading import nearest
    from scaleout.config.yaml_files import read_yaml

    chain: tuple[Path, ...] = ()
    while True:
        chain = library.lengthened(chain, path, key="like")
        values = read_yaml(path)
        for kind, key in _KEYS:
            if key in values and not (kind in ("study", "link type") and "like" in values):
                return kind
        like = values.get("like")
        if not isinstance(like, str):
            if other := library.what_it_is(values):
                raise ConfigError(f"{path}: is nothing that is simulated, but {other}")
            raise ConfigError(
                f"{path}: neither a workload (key 'kind'), a topology ('dimensions'), a device ('peak_flops') nor a "
                f"study ('title')"
            )
        if not library.is_path(like):
            kinds = [kind for kind in ("workload", "topology", "device") if like in library.names(kind)]
            if not kinds:
                known = [name for kind in ("workload", "topology", "device") for name in library.names(kind)]
                raise ConfigError(f"{path}: like: unknown name {like!r}; {nearest(like, known)}")
            return kinds[0]
        path = path.parent / like
