"""`scaleout track`: a GEMM and the collective behind it, as T3's track-and-trigger hardware would overlap them."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import Output, machine_options, output_options, parse_settings, set_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaleout.schedule.t3.sublayer import Outcome


_KEYS = {
    "rows, columns, depth": "the GEMM of each rank: rows x depth by depth x columns",
    "dtype": "fp16 or bf16",
    "split_depth": "work-groups (thread blocks) that share a tile (split-K)",
    "transposed": "whether the right operand lies along K, as weights in a forward pass (true), or along N, as in a "
    "backward pass",
    "collective": "ring (ring all-reduce), direct (all-reduce over a link to each rank), all_to_all, or all_gather (of "
    "the left operand, before the GEMM)",
    "following": "arrays that are added to the all-reduced output, such as a residual connection's; also near the "
    "memory, if not 0",
    "policy": "who goes first at the memory, GEMM or collective: round-robin, first-ready, compute-first or dedicated; "
    "by default every configuration's own (not the --policy of `scaleout run`)",
    "trigger": "most bytes of the output that one triggered DMA sends",
    "tracker_entries": "wavefronts (warps) that the tracker follows; by default the device's",
    "split_units": "compute units (SMs) that the collective has to itself in configuration `split`, which has no "
    "track-and-trigger: the GEMM runs on the others",
}


class _WithKeys(click.Command):
    """A command whose help has the keys of --set, at any width."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Keys of --set"):
            formatter.write_dl([*_KEYS.items()])
        super().format_options(ctx, formatter)


@click.command(cls=_WithKeys)
@machine_options(device="t3-gpu", topology="t3-ring-8")
@set_option("Set a key of the GEMM, the collective or the hardware, as listed above")
@output_options("Write times and traffic over time here.", "traffic.png")
def track(device: str, topology: str, settings: tuple[str, ...], output: Output) -> None:
    """Simulate T3's track-and-trigger of a GEMM and its collective.

    The hardware of T3 (arXiv:2401.16677) counts what the GEMM writes (tracks), and once a part of the output is
    complete lets a DMA engine send it (triggers), so that the all-reduce or all-to-all runs tile by tile beside the
    GEMM, without compute units (SMs) of its own.

    Example: scaleout track --topology t3-ring-16 --set rows=8192 --set columns=4256 --set depth=1064.
    """
    from scaleout.cli.progress import progress
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.config.units import counted
    from scaleout.config.validated import validate
    from scaleout.report.documents import document
    from scaleout.schedule.t3.sublayer import TrackSettings, outcomes_of, sublayer_of
    from scaleout.simulation.options import SimulationOptions
    from scaleout.study.provenance import provenance

    chosen = validate(TrackSettings, parse_settings(settings), where="track")
    network = load_topology(topology)
    layer = sublayer_of(chosen, load_device(device), network)
    model = provenance(network, layer.device, SimulationOptions()).models
    with progress(kept="nothing is kept", quiet=output.as_json) as tell:
        tell(0, 1, "sub-layers simulated")
        found = outcomes_of(chosen, layer)
    sizes = f"{chosen.rows} x {chosen.columns} x {chosen.depth}"
    title = f"{sizes} on {counted(layer.ring.ranks, 'rank')} of {layer.device.name}, {topology}"
    found_all: dict[str, Any] = {
        "device": layer.device.name,
        "topology": topology,
        "ranks": layer.ring.ranks,
        "settings": chosen.model_dump(),
        "configurations": {name: outcome.plain() for name, outcome in found.items()},
    }
    settings_of = {f"set.{key}": each for key, each in found_all["settings"].items()}
    asked, answer = {"device": device, "topology": topology, **settings_of}, _answer(found, model)
    summary = document("track", found_all, inputs=asked, models=[model], answer=answer)

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.plots.operators import draw_tracked

        overlapped = {name: each.overlapped for name, each in found.items() if each.overlapped is not None}
        draw_tracked(overlapped, folder / "traffic.png", title=title)
        return {"traffic.png": "memory traffic over time"}

    output.give(summary, partial(_print, found, title, answer), write)


def _answer(found: "dict[str, Outcome]", model: str) -> dict[str, str]:
    """Say which configuration is the fastest, and how much memory traffic it has."""
    from scaleout.config.units import format_bytes, format_seconds, format_times

    first = next(iter(found.values()))
    best = min(found, key=lambda name: found[name].total_s)
    gain = format_times(first.total_s / found[best].total_s)
    fastest = f"{best}, {format_seconds(found[best].total_s)}, {gain} as fast as {next(iter(found))}"
    traffic = f"{format_bytes(found[best].traffic.total)} of a rank, instead of {format_bytes(first.traffic.total)}"
    return {"fastest": fastest, "memory traffic": traffic, "model": model}


def _print(found: "dict[str, Outcome]", title: str, answer: "Mapping[str, str]") -> None:
    from scaleout.cli.console import print_answer, print_table
    from scaleout.config.units import format_bytes, format_seconds, format_times

    first = next(iter(found.values()))
    print_answer(title, answer)
    print_table(
        "configurations",
        (
            "configuration",
            "time",
            "speed-up",
            "GEMM",
            "GEMM and collective",
            "all-gather",
            "following",
            "memory traffic",
        ),
        [
            [
                name,
                format_seconds(each.total_s),
                format_times(first.total_s / each.total_s),
                format_seconds(each.gemm_s),
                format_seconds(each.fused_s),
                format_seconds(each.all_gather_s),
                format_seconds(each.following_s),
                format_bytes(each.traffic.total),
            ]
            for name, each in found.items()
        ],
    )
    print_table(
        "memory traffic of a rank",
        ("configuration", *(kind.replace("gemm", "GEMM").replace("_", " ") for kind in asdict(first.traffic))),
        [[name, *map(format_bytes, asdict(each.traffic).values())] for name, each in found.items()],
    )
