"""`scaleout operator`: a fused computation-collective, work-group by work-group, against its alternatives."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import json_option, output_option, parse_settings, print_files

if TYPE_CHECKING:
    from scaleout.schedule.fusion import Evaluation, FusedMachine

_SAMPLES = 64
"""Slices of a rank's timeline that are printed as JSON, evenly spread."""


_RANKS = 8
"""Ranks whose timelines are printed."""


@click.command()
@click.argument("name")
@click.option("--device", default="h200", show_default=True, metavar="D", help="Name or file of the device.")
@click.option("--topology", default="h200-node-4", show_default=True, metavar="T", help="Name or file of the network.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the operator; repeatable.")
@click.option("--sweep", metavar="KEY=VALUES", help="Vary a key: slice_size=1:64 doubles, occupancy=0.25,0.5 lists.")
@output_option("Write times, timelines and pictures here.")
@json_option
def operator(
    name: str,
    device: str,
    topology: str,
    settings: tuple[str, ...],
    sweep: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Simulate a fused operator NAME over all ranks of a topology, such as embedding_all_to_all.

    Prints the bulk-synchronous baseline in parts, the fused kernel with its work-groups in communication-aware and in
    oblivious order, the baseline split into small kernels, and the ideal. `scaleout list operators` names all, with
    their keys.
    """
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.schedule.fusion import FusedMachine

    keys = parse_settings(settings)
    machine = FusedMachine(load_device(device), load_topology(topology))
    title = f"{name} on {machine.ranks} ranks of {machine.device.name}, {machine.topology.name}"
    about = {
        "operator": name,
        "device": machine.device.name,
        "topology": machine.topology.name,
        "ranks": machine.ranks,
        "settings": keys,
    }
    if sweep is not None:
        _sweep(name, machine, keys, sweep, about, title, output, as_json)
        return
    from scaleout.schedule.fusion import evaluate_operator

    found = evaluate_operator(name, keys, machine)
    summary = {**about, **found.plain(), "timeline": _timeline(found)}
    written = _write(found, summary, title, output)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    _print(found, title)
    print_files(written)


def _timeline(found: "Evaluation") -> list[dict[str, Any]]:
    """Return each simulated rank's order of shards, when it is done, and some of its slices."""
    rows = []
    for order, run in found.runs.items():
        for rank in run.ranks:
            slices = len(rank.arrival_s)
            chosen = sorted({round(k * (slices - 1) / (_SAMPLES - 1)) for k in range(_SAMPLES)})
            rows.append(
                {
                    "order": order,
                    "rank": rank.rank,
                    "shards": list(rank.shards),
                    "done_s": rank.done_s,
                    "last_sent_s": rank.last_sent_s,
                    "slices": [
                        {
                            "slice": k,
                            "shard": rank.shards[k * len(rank.shards) // slices],
                            "work_group": int(rank.execution.issuer[k]),
                            "issued_s": float(rank.execution.issued_s[k]),
                            "arrival_s": float(rank.arrival_s[k]),
                        }
                        for k in chosen
                    ],
                }
            )
    return rows


def _print(found: "Evaluation", title: str) -> None:
    from scaleout.cli.console import print_facts, print_table
    from scaleout.config.units import format_seconds

    plain = found.plain()
    baseline_s = found.baseline_s
    rows = [[f"  {part}", format_seconds(seconds), ""] for part, seconds in found.plan.baseline_s.items()]
    rows.insert(0, ["bulk-synchronous", format_seconds(baseline_s), "1.00x"])
    for label, seconds in (
        ("fused, communication-aware order", plain["fused_aware_s"]),
        ("fused, oblivious order", plain["fused_oblivious_s"]),
        (f"split into {found.chunks} kernels", found.split_s),
        ("ideal: the longer of computing and communication", found.ideal_s),
    ):
        rows.append([label, format_seconds(seconds), f"{baseline_s / seconds:.2f}x"])
    print_table(title, ("", "time", "speedup"), rows)
    print_table(
        "timeline",
        ("order", "rank", "last slice sent", "all tasks done", "all slices there", "done"),
        [
            [
                order,
                "all" if len(run.ranks) == 1 else str(rank.rank),
                *map(format_seconds, (rank.last_sent_s, float(rank.execution.free_s.max()), rank.there_s, rank.done_s)),
            ]
            for order, run in found.runs.items()
            for rank in run.ranks[:_RANKS]
        ],
        left=2,
    )
    keys = ("logical_work_groups", "work_groups", "slices", "sent_bytes", "skew_oblivious")
    print_facts({key: plain[key] for key in keys})


def _write(found: "Evaluation", summary: dict[str, Any], title: str, output: Path | None) -> list[tuple[Path, str]]:
    if output is None:
        return []
    from scaleout.report.plots.operators import draw_timelines

    output.mkdir(parents=True, exist_ok=True)
    times, picture = output / "operator.json", output / "timelines.png"
    times.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    draw_timelines(found, picture, title=title)
    return [(times, "all times and some slices of each rank"), (picture, "work-groups and slices over time")]


def _sweep(
    name: str,
    machine: "FusedMachine",
    keys: dict[str, Any],
    sweep: str,
    about: dict[str, Any],
    title: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Evaluate the operator for each value of a key; print the times, or write them with a picture."""
    from scaleout.schedule.fusion import evaluate_operator

    key, values = parse_sweep(sweep)
    rows = [{key: value, **evaluate_operator(name, {**keys, key: value}, machine).plain()} for value in values]
    written = _write_sweep(key, rows, title, output)
    if as_json:
        click.echo(json.dumps({**about, "sweep": rows}, indent=2))
        return
    _print_sweep(key, rows, title)
    print_files(written)


def _print_sweep(key: str, rows: list[dict[str, Any]], title: str) -> None:
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_seconds

    times = ("baseline_s", "fused_aware_s", "fused_oblivious_s", "kernel_split_s", "ideal_s")
    columns = (key, *(time.removesuffix("_s").replace("_", " ") for time in times), "saving")
    cells = [[f"{row[key]}", *(format_seconds(row[time]) for time in times), f"{row['saving']:.1%}"] for row in rows]
    print_table(title, columns, cells)


def _write_sweep(key: str, rows: list[dict[str, Any]], title: str, output: Path | None) -> list[tuple[Path, str]]:
    if output is None:
        return []
    from scaleout.report.plots.operators import draw_sweep

    output.mkdir(parents=True, exist_ok=True)
    table, picture = output / "sweep.json", output / "sweep.png"
    table.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    written = [(table, "all times")]
    if all(isinstance(row[key], int | float) for row in rows):
        draw_sweep(key, rows, picture, title=title)
        written.append((picture, f"times against {key}"))
    return written


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Turn ``slice_size=1:64`` into its doublings, and ``occupancy=0.25,0.5`` into its values.

    Raises
    ------
    ConfigError
        If there is no key or no value, or a range does not rise from a whole number above zero.
    """
    from scaleout.errors import ConfigError

    key, separator, value = text.partition("=")
    if not separator or not key or not all(value.split(",")):
        raise ConfigError(f"--sweep {text!r}: write it as key=values, such as slice_size=1:64")
    first, colon, last = value.partition(":")
    if not colon:
        parsed = [parse_settings([f"{key}={part}"], option="--sweep") for part in value.split(",")]
        return key, [one for each in parsed for one in each.values()]
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise ConfigError(f"--sweep {text!r}: a range goes from a smaller whole number above zero to a larger one")
    values = [int(first)]
    while values[-1] * 2 <= int(last):
        values.append(values[-1] * 2)
    return key, values
