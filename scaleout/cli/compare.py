"""`scaleout collective --compare`: back ends side by side, over sizes and numbers of ranks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from scaleout.cluster.topology.topology import Topology
    from scaleout.study.backends import BackendComparison


def compare(
    kind: str, cluster: "Topology", *, sizes: Sequence[int], policy: str | None, output: Path | None, as_json: bool
) -> None:
    """Print which back end is the fastest at each size on so many ranks, and draw it, and what each takes.

    Raises
    ------
    ConfigError
        If the kind is not the one that back ends serve, or the machine has no such back end.
    """
    from scaleout.cluster.topology.backends import KIND
    from scaleout.errors import ConfigError
    from scaleout.study.backends import compare_backends

    if kind != KIND:
        raise ConfigError(f"--compare is for {KIND}, which back ends serve, not {kind}; leave it out")
    names = tuple(policy.split("+")) if policy else ()
    found = compare_backends(cluster, names=names, sizes_bytes=sizes)
    summary = _plain(found)
    written = _write(found, summary, output) if output else []
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    _print(found)
    for path, meaning in written:
        click.echo(f"{path}  {meaning}")


def _plain(found: "BackendComparison") -> dict[str, Any]:
    """Return the comparison as plain values: a row for each number of ranks and size."""
    best = found.best
    return {
        "topology": found.topology,
        "backends": list(found.backends),
        "results": [
            {
                "ranks": ranks,
                "bytes": size,
                "best": found.backends[best[row, column]],
                "time_s": {
                    name: float(time_s) if time_s < float("inf") else None
                    for name, time_s in zip(found.backends, found.times_s[:, row, column], strict=True)
                },
            }
            for row, ranks in enumerate(found.num_ranks)
            for column, size in enumerate(found.sizes_bytes)
        ],
    }


def _print(found: "BackendComparison") -> None:
    """Print the ranges of sizes of each winner, a line for each number of ranks."""
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes

    rows = []
    for row, ranks in enumerate(found.num_ranks):
        winners = [found.backends[index] for index in found.best[row]]
        starts = [index for index, name in enumerate(winners) if index == 0 or winners[index - 1] != name]
        for start, end in zip(starts, [*starts[1:], len(winners)], strict=True):
            sizes = [format_bytes(found.sizes_bytes[index]) for index in (start, end - 1)]
            times_us = [found.times_s[:, row, index].min() * 1e6 for index in (start, end - 1)]
            rows.append([winners[start], str(ranks), *sizes, *(f"{time_us:,.1f}" for time_us in times_us)])
    columns = ("fastest", "ranks", "from", "to", "there [us]", "and there [us]")
    print_table(f"all_reduce on {found.topology}: the fastest by size and ranks", columns, rows)


def _write(found: "BackendComparison", summary: dict[str, Any], output: Path) -> list[tuple[Path, str]]:
    from scaleout.report.plots.scaling import draw_curves, draw_map

    output.mkdir(parents=True, exist_ok=True)
    table, best, curves = (output / name for name in ("backends.json", "backends-map.png", "backends-curves.png"))
    table.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    draw_map(found, best, title=f"the fastest all-reduce on {found.topology}")
    draw_curves(found, curves, title=f"all-reduce on {found.topology}")
    return [
        (table, "times of each at every size"),
        (best, "the fastest at each size, on so many ranks"),
        (curves, "what each takes"),
    ]
