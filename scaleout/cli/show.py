"""`scaleout show`: what a workload, topology, device or Chakra trace is, in words and numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import json_option, network_options, parse_settings, set_option
from scaleout.cli.printing import say_json
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from scaleout.cluster.topology.what_if import NetworkChanges


@click.command()
@click.argument("name_or_file", metavar="NAME|FILE")
@set_option()
@network_options()
@json_option
def show(name_or_file: str, settings: tuple[str, ...], changes: "NetworkChanges", as_json: bool) -> None:
    """Describe a workload, topology, link type, device, study or Chakra trace (.et, or a directory).

    A topology may be changed as by `scaleout run`; it is drawn, and its dimensions and links have the names that the
    options of changes take.
    """
    facts = _facts(name_or_file, parse_settings(settings), changes)
    if as_json:
        from scaleout.api.inputs import inputs_of
        from scaleout.report.documents import document

        inputs = inputs_of({"name": name_or_file}, settings=parse_settings(settings), changes=changes)
        say_json(document("show", facts, inputs=inputs))
        return
    from scaleout.cli.console import console, print_facts

    if "link_names" in facts:
        from scaleout.cluster.topology.topology import load_topology
        from scaleout.cluster.topology.what_if import change_network
        from scaleout.report.drawing import draw

        for line in draw(change_network(load_topology(name_or_file), changes)):
            console().print(line)
        console().print()
        del facts["link_names"]  # drawn
    print_facts(facts)


def _facts(name_or_file: str, settings: dict[str, Any], changes: "NetworkChanges") -> dict[str, Any]:
    from scaleout.report import describe

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
        "trace": describe.trace,
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
    from scaleout.config import library
    from scaleout.config.reading import nearest

    if name_or_file.endswith(SUFFIXES) or is_expression(name_or_file):
        return "topology"
    known = {name: kind for kind in library.FOLDERS for name in library.names(kind)}
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
    from scaleout.config import library
    from scaleout.config.yaml_files import read_yaml

    chain: tuple[Path, ...] = ()
    while True:
        chain = library.lengthened(chain, path, key="like")
        values = read_yaml(path)
        for kind, key in _KEYS:
            if key in values and not (kind == "study" and "like" in values):
                return kind
        like = values.get("like")
        if not isinstance(like, str):
            raise ConfigError(
                f"{path}: neither a workload (key 'kind'), a topology ('dimensions'), a device ('peak_flops') nor a "
                f"study ('title')"
            )
        if not library.is_path(like):
            return "workload" if like in library.names("workload") else "topology"
        path = path.parent / like
