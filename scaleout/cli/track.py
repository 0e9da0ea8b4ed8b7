"""`scaleout track`: a GEMM and the collective behind it, as hardware that tracks and triggers would overlap them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import json_option, output_option, parse_settings, print_files, set_option

if TYPE_CHECKING:
    from scaleout.schedule.t3.sublayer import Outcome


@click.command()
@click.option("--device", default="t3-gpu", show_default=True, metavar="D", help="Name or file of the device.")
@click.option("--topology", default="t3-ring-8", show_default=True, metavar="T", help="Name or file of the network.")
@set_option
@output_option("Write times and traffic over time here.")
@json_option
def track(device: str, topology: str, settings: tuple[str, ...], output: Path | None, as_json: bool) -> None:
    """Simulate a GEMM and its all-reduce or all-to-all as T3's hardware would run them.

    Keys: rows, columns, depth, dtype, split_depth, collective (ring, direct, all_to_all), policy, trigger,
    tracker_entries, split_units.

    Example: scaleout track --topology t3-ring-16 --set rows=8192 --set columns=4256 --set depth=1064.
    """
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.config.validated import validate
    from scaleout.schedule.t3.sublayer import TrackSettings, outcomes_of, sublayer_of

    chosen = validate(TrackSettings, parse_settings(settings), where="track")
    layer = sublayer_of(chosen, load_device(device), load_topology(topology))
    found = outcomes_of(chosen, layer)
    sizes = f"{chosen.rows} x {chosen.columns} x {chosen.depth}"
    title = f"{sizes} on {layer.ring.ranks} ranks of {layer.device.name}, {topology}"
    summary = {
        "device": layer.device.name,
        "topology": topology,
        "ranks": layer.ring.ranks,
        "settings": chosen.model_dump(),
        "configurations": {name: outcome.plain() for name, outcome in found.items()},
    }
    written = _write(found, summary, title, output)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    _print(found, title)
    print_files(written)


def _write(found: "dict[str, Outcome]", summary: object, title: str, output: Path | None) -> list[tuple[Path, str]]:
    if output is None:
        return []
    from scaleout.report.plots.operators import draw_tracked

    output.mkdir(parents=True, exist_ok=True)
    times, picture = output / "track.json", output / "traffic.png"
    times.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    overlapped = {name: each.overlapped for name, each in found.items() if each.overlapped is not None}
    draw_tracked(overlapped, picture, title=title)
    return [(times, "times and bytes of every configuration"), (picture, "traffic of the memory over time")]


def _print(found: "dict[str, Outcome]", title: str) -> None:
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes, format_seconds

    first = next(iter(found.values()))
    print_table(
        title,
        ("configuration", "time", "speedup", "GEMM", "GEMM and collective", "all-gather", "memory traffic"),
        [
            [
                name,
                format_seconds(each.total_s),
                f"{first.total_s / each.total_s:.3f}x",
                format_seconds(each.gemm_s),
                format_seconds(each.fused_s),
                format_seconds(each.all_gather_s),
                format_bytes(each.traffic.total),
            ]
            for name, each in found.items()
        ],
    )
    kinds = ("gemm_reads", "gemm_writes", "scatter_reads", "scatter_writes", "gather_reads", "gather_writes")
    print_table(
        "bytes of a rank's memory",
        ("configuration", *(kind.replace("gemm", "GEMM").replace("_", " ") for kind in kinds)),
        [[name, *(format_bytes(getattr(each.traffic, kind)) for kind in kinds)] for name, each in found.items()],
    )
