"""`scaleout show`: what a workload, topology, device or Chakra trace is, in words and numbers."""

from pathlib import Path
from typing import Any

import click

from scaleout.cli.options import json_option, parse_settings, set_option
from scaleout.cli.printing import say_json
from scaleout.errors import ConfigError


@click.command()
@click.argument("name_or_file", metavar="NAME|FILE")
@set_option()
@json_option
def show(name_or_file: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Describe a workload, topology, device or Chakra trace (.et)."""
    facts = _facts(name_or_file, parse_settings(settings))
    if as_json:
        say_json(facts)
        return
    from scaleout.cli.console import print_facts

    print_facts(facts)


def _facts(name_or_file: str, settings: dict[str, Any]) -> dict[str, Any]:
    from scaleout.report import describe

    kind = "trace" if name_or_file.endswith(".et") else _kind(name_or_file)
    if settings and kind != "workload":
        raise ConfigError(f"--set changes a workload, and {name_or_file!r} is a {kind}; leave it out")
    if kind == "workload":
        return describe.workload(name_or_file, settings)
    return {"topology": describe.topology, "device": describe.device, "trace": describe.trace}[kind](name_or_file)


def _kind(name_or_file: str) -> str:
    """Tell workloads, topologies and devices apart: by their names, or by what a file holds."""
    from scaleout.cluster.topology.fabric import SUFFIXES
    from scaleout.config import library
    from scaleout.config.reading import nearest
    from scaleout.config.yaml_files import read_yaml

    if name_or_file.endswith(SUFFIXES):
        return "topology"
    if library.is_path(name_or_file):
        keys = read_yaml(Path(name_or_file)).keys()
        for kind, key in (("workload", "kind"), ("topology", "dimensions"), ("device", "peak_flops")):
            if key in keys:
                return kind
        raise ConfigError(
            f"{name_or_file}: neither a workload (key 'kind'), a topology ('dimensions') nor a device ('peak_flops')"
        )
    known = {name: kind for kind in library.FOLDERS for name in library.names(kind)}
    if name_or_file not in known:
        raise ConfigError(
            f"unknown name {name_or_file!r}; {nearest(name_or_file, known)} (`scaleout list` names them all)"
        )
    return known[name_or_file]
