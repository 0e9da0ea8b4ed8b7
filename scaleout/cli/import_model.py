"""`scaleout import model`: a model as other tools describe it, as a workload."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import FILE, PATH, json_option, machine_options, parse_settings, set_option
from scaleout.cli.printing import say, say_json

if TYPE_CHECKING:
    from scaleout.interop.models import Imported


@click.command()
@click.argument("path", type=PATH)
@set_option("Set a key of the workload, which wins over the source's")
@machine_options()
@click.option(
    "--output", type=FILE, metavar="FILE",
    help="Write the workload here, such as model.yaml, and print its counts; by default print the workload.",
)  # fmt: skip
@json_option
def model(
    path: Path,
    settings: tuple[str, ...],
    topology: str | None,
    device: str | None,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Make a workload of PATH: a HuggingFace config.json or the folder that holds one.

    Whatever of the file the workload lacks is told, on standard error where the workload is printed, and stands in
    the workload as comments; what no workload can have is refused. What of the job the file leaves open is chosen and
    told: 8 ranks or all of --topology, bf16, and sequences of 4,096 tokens or the longest that the model takes.

    Examples: scaleout import model Llama-3.1-8B --output llama.yaml; scaleout run llama.yaml.
    """
    from scaleout.interop.models import import_model

    changes: dict[str, Any] = parse_settings(settings)
    ranks = None
    if topology is not None:
        from scaleout.cluster.topology.topology import load_topology

        ranks = load_topology(topology).num_ranks
        changes["topology"] = _name(topology)
    if device is not None:
        from scaleout.cluster.device.spec import load_device

        load_device(device)
        changes["device"] = _name(device)
    found = import_model(path, ranks=ranks, changes=changes)
    if output is not None:
        _write(output, found)
    answer = _answer(found, output)
    if as_json:
        from scaleout.report.documents import document

        asked = {"path": str(path), **{f"set.{key}": value for key, value in changes.items()}}
        say_json(document("import model", _summary(found), inputs=asked, answer=answer))
        return
    notes = (*found.notes, *(() if topology is None else _of_another(topology, found.keys["device"])))
    if output is None:
        for note in notes:
            say(f"note: {note}", err=True)  # standard output is the file
        say(found.text.rstrip())
        return
    from scaleout.cli.console import console, print_answer

    print_answer(str(found.keys["description"]), answer)
    sequence = f" --set sequence={found.workload.sequence}" if "sequence" in found.chosen else ""
    say(f"scaleout run {quote(str(output))}{sequence}\n")  # what fits depends on it
    for note in notes:
        console().print(f"note: {note}")


def _of_another(topology: str, device: str) -> list[str]:
    """Say that the device, which may be chosen, is not that of the topology."""
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.study.provenance import of_another

    return of_another(load_topology(topology), device)


def _name(name_or_file: str) -> str:
    """Return a name as it is, and a file as it is found from anywhere."""
    from scaleout.config.library import is_path

    return str(Path(name_or_file).absolute()) if is_path(name_or_file) else name_or_file


def _write(output: Path, found: "Imported") -> None:
    from scaleout.config.writing import replace_own
    from scaleout.errors import ConfigError

    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--output {output}: workloads are YAML files; give a name such as {output.stem}.yaml")
    (description,) = (line for line in found.text.splitlines() if line.startswith("description: "))
    replace_own(output, found.text, mark=description)


def _summary(found: "Imported") -> dict[str, Any]:
    workload = found.workload
    return {
        "workload": dict(found.keys),
        "notes": list(found.notes),
        "parameters": workload.num_parameters,
        "active_parameters": workload.active_parameters,
        "flops_per_token": workload.flops_per_token,
        "ranks": workload.num_ranks,
    }


def _answer(found: "Imported", output: Path | None) -> dict[str, str]:
    """Say how large the model is, and of what job the workload is."""
    from scaleout.config.units import format_flops

    workload = found.workload
    flops = format_flops(workload.flops_per_token)
    return {
        "parameters": f"{workload.num_parameters:,}, of which {workload.active_parameters:,} multiply a token",
        "compute": f"{flops} a token of {workload.sequence:,}, {workload.mode}",
        "ranks": f"{workload.num_ranks:,}",
        **({} if output is None else {"written": str(output)}),
    }
