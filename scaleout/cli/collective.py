"""`scaleout collective`: what a collective costs on a topology, in the manner of nccl-tests."""

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import (
    change_links,
    injection_option,
    json_option,
    link_options,
    output_option,
    policy_option,
    print_files,
)

if TYPE_CHECKING:
    from scaleout.cluster.topology.placement import Placement
    from scaleout.cluster.topology.topology import Topology
    from scaleout.study.backends import BackendComparison


DECIDED = "1KiB:1GiB"
"""Sizes of a decision table where none are given."""


@click.command()
@click.argument("kind")
@click.option("--bytes", "sizes", metavar="SIZE[,SIZE...]", help="Sizes such as 64MiB; or FIRST:LAST.")
@click.option("--topology", required=True, metavar="T", help="Name or file of the network.")
@click.option("--algorithm", default="auto", show_default=True, metavar="A", help="One algorithm instead of all.")
@click.option("--group", metavar="RANKS", help="Members, such as 0-7 or 0,8,16; by default all ranks.")
@click.option("--network", default="alpha_beta", show_default=True, help="Network model: alpha_beta or link.")
@injection_option
@click.option("--chunks", type=int, metavar="N", help="Cut the buffer of a pipelined algorithm into N, not the best.")
@click.option("--decide", is_flag=True, help="Print which algorithm auto takes at each size, by default from 1 KiB on.")
@policy_option
@click.option("--compare", "comparing", is_flag=True, help="Print which back end is the fastest, by size and ranks.")
@output_option("Write tables and a heat map of all links here.")
@link_options
@json_option
def collective(
    kind: str,
    sizes: str | None,
    topology: str,
    algorithm: str,
    group: str | None,
    network: str,
    injection: str | None,
    chunks: int | None,
    decide: bool,
    policy: str | None,
    comparing: bool,
    output: Path | None,
    degrade: tuple[str, ...],
    broken: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print time, algorithm bandwidth and bus bandwidth of a collective KIND, such as all_reduce.

    A size is the full buffer of one rank, as in nccl-tests. FIRST:LAST doubles from the first to the last size.
    All groups like the one of --group are active at the same time; an irregular group, or a message, is isolated. With
    --network link the messages of all of them share the links of the topology one by one, and the busiest links are
    named. With --decide it prints what auto takes at each size, the fastest other, and where that changes: auto takes
    the fastest, but a topology's communication library the one that it expects to be. With --compare it prints which
    back end of the machine, or algorithm, is the fastest on how many ranks, and with --output draws it.
    """
    from scaleout.cluster.topology.backends import with_policy
    from scaleout.cluster.topology.topology import load_topology

    if comparing:
        if decide or group is not None or algorithm != "auto" or network != "alpha_beta":
            raise click.UsageError("--compare goes with --bytes, --policy, --output and --json alone")
        cluster = change_links(load_topology(topology), degrade, broken)
        _compare(
            kind.replace("-", "_"), cluster, sizes=parse_sizes(sizes) if sizes else (), policy=policy, output=output,
            as_json=as_json,
        )  # fmt: skip
        return
    wanted = parse_sizes(sizes or (DECIDED if decide else ""))
    _check(network, algorithm, injection, decide=decide, output=output, count=len(wanted))
    kind = kind.replace("-", "_")
    cluster = change_links(load_topology(topology), degrade, broken)
    cluster = cluster if policy is None else with_policy(cluster, policy)
    members = parse_ranks(group, cluster.num_ranks) if group is not None else list(range(cluster.num_ranks))
    cost_of = functools.partial(
        COST_MODELS[network],
        kind,
        algorithm=algorithm,
        cluster=cluster,
        members=members,
        injection=injection,
        chunks=chunks,
    )
    title = f"{kind} on {cluster.name}, ranks {len(members)}, {network}"
    about: dict[str, Any] = {"topology": cluster.name, "ranks": len(members)}
    costs = {size: cost_of(size) for size in wanted}
    if chunks is not None and all(row["num_chunks"] != chunks for row in costs[max(wanted)].values()):
        raise click.UsageError(f"--chunks {chunks}: nothing here cuts the buffer into chunks; leave it out")
    left_out = _left_out(kind, cluster, members, costs[wanted[0]]) if algorithm == "auto" else []
    if left_out:
        about["left_out"] = left_out
    if decide:
        _decide(title, {**about, "collective": kind, "network": network}, costs, as_json)
        return
    by_size = [_rows(kind, network, size, costs_of, len(members)) for size, costs_of in costs.items()]
    summary = {**about, "results": [_plain(row) for rows in by_size for row in rows]}
    written = _write(f"{kind} on {cluster.name}", summary, by_size[0][0], output) if output else []
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    _print(title, by_size)
    if left_out:
        click.echo(f"left out, too many messages to follow one by one: {', '.join(left_out)}")
    print_files(written)


def _check(
    network: str, algorithm: str, injection: str | None, *, decide: bool, output: Path | None, count: int
) -> None:
    """Refuse options that do not go together."""
    from scaleout.config.validated import nearest
    from scaleout.errors import ConfigError

    if network not in COST_MODELS:
        raise ConfigError(f"unknown network model {network!r}; {nearest(network, COST_MODELS)}")
    if injection is not None and network != "link":
        raise ConfigError("--injection is a limit of the link model; add --network link or leave it out")
    if decide and algorithm != "auto":
        raise ConfigError(f"--decide compares all algorithms; leave out --algorithm {algorithm}")
    if decide and output is not None:
        raise ConfigError("--decide prints a table of times, which has no links to draw; leave out --output")
    if output is not None and (network != "link" or count != 1):
        raise ConfigError("--output writes the links of one collective; give --network link and one size of --bytes")


def parse_sizes(text: str) -> list[int]:
    """Turn ``64MiB,1GiB`` or ``1KiB:1GiB`` into whole bytes.

    Raises
    ------
    ConfigError
        If a size cannot be read or a range goes down.
    """
    from scaleout.config.units import BYTES, parse
    from scaleout.errors import ConfigError

    if not text:
        raise ConfigError("give the sizes of the collective, such as --bytes 64MiB or --bytes 1KiB:1GiB")
    sizes: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        size, end = round(parse(first, BYTES)), round(parse(last if colon else first, BYTES))
        if colon and not 0 < size <= end:
            raise ConfigError(f"--bytes {part!r}: a range goes from a smaller size above zero to a larger one")
        sizes.append(size)
        while colon and size * 2 <= end:
            size *= 2
            sizes.append(size)
    return sizes


_RANKS = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def parse_ranks(text: str, num_ranks: int) -> list[int]:
    """Turn ``0-7`` or ``0,8,16`` into ranks.

    Raises
    ------
    ConfigError
        If a part is neither a rank nor a range of ranks.
    """
    from scaleout.errors import ConfigError

    ranks: list[int] = []
    for part in text.split(","):
        match = _RANKS.fullmatch(part)
        if match is None:
            raise ConfigError(f"--group {text!r}: {part!r} is no rank or range of ranks; write 0-7 or 0,8,16")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < num_ranks:
            raise ConfigError(
                f"--group {text!r}: {part!r} is not within ranks 0 to {num_ranks - 1} of the topology; give such ranks"
            )
        ranks += range(first, last + 1)
    return ranks


def _place(kind: str, cluster: "Topology", members: list[int]) -> "Placement":
    """A group with its siblings; the two ends of a message alone."""
    from scaleout.cluster.topology.placement import place, place_isolated

    return place_isolated(cluster, members) if kind == "send" else place(cluster, members)


def _left_out(kind: str, cluster: "Topology", members: list[int], costs_of: dict[str, dict[str, Any]]) -> list[str]:
    """Algorithms that could carry it out, but that the link model cannot follow message by message."""
    from scaleout.network.collectives import candidates

    return [found.name for found in candidates(kind, _place(kind, cluster, members)) if found.name not in costs_of]


def _alpha_beta(
    kind: str,
    size_bytes: int,
    *,
    algorithm: str,
    cluster: "Topology",
    members: list[int],
    injection: str | None,
    chunks: int | None,
) -> dict[str, dict[str, Any]]:
    """Algorithm to what the alpha-beta model says of it: all that can, or the one that was asked for."""
    from scaleout.network.alpha_beta.cost import collective_cost
    from scaleout.network.collectives import candidates

    del injection
    placement = _place(kind, cluster, members)
    names = [found.name for found in candidates(kind, placement)] if algorithm == "auto" else [algorithm]
    costs = {name: collective_cost(kind, size_bytes, placement, name, num_chunks=chunks) for name in names}
    taken = collective_cost(kind, size_bytes, placement, num_chunks=chunks).algorithm if algorithm == "auto" else ""
    return {
        name: {
            "time_s": cost.time_s,
            "num_chunks": cost.num_chunks,
            **({"protocol": cost.protocol} if cost.protocol else {}),
            **_auto(name, taken),
        }
        for name, cost in costs.items()
    }


def _auto(name: str, taken: str) -> dict[str, bool]:
    """Whether auto takes an algorithm; nothing if it was not asked."""
    return {"auto": name == taken} if taken else {}


def _link(
    kind: str,
    size_bytes: int,
    *,
    algorithm: str,
    cluster: "Topology",
    members: list[int],
    injection: str | None,
    chunks: int | None,
) -> dict[str, dict[str, Any]]:
    """Algorithm to what the link model says of it."""
    from scaleout.config.units import BYTES_PER_S, parse
    from scaleout.network.flow.collective import collective_cost, collective_costs
    from scaleout.network.routes.links import links_of

    links = links_of(cluster, injection_bytes_per_s=None if injection is None else parse(injection, BYTES_PER_S))
    if algorithm == "auto":
        costs = collective_costs(kind, size_bytes, links, members, num_chunks=chunks)
        taken = min(costs, key=lambda name: costs[name].time_s)
    else:
        cost = collective_cost(kind, size_bytes, links, members, algorithm, num_chunks=chunks)
        costs, taken = {algorithm: cost}, ""
    return {
        name: {
            "time_s": cost.time_s,
            "num_chunks": cost.num_chunks,
            "busiest_links": [asdict(use) for use in cost.busiest_links],
            "traffic": cost.traffic,
            **_auto(name, taken),
        }
        for name, cost in costs.items()
    }


COST_MODELS = {"alpha_beta": _alpha_beta, "link": _link}
"""Network model, as in `options.NETWORKS`, to what it says of a collective."""


def _rows(
    kind: str, network: str, size_bytes: int, costs_of: dict[str, dict[str, Any]], num_ranks: int
) -> list[dict[str, Any]]:
    """One row an algorithm, the fastest first."""
    from scaleout.network.collectives import algorithm_bandwidth, bus_bandwidth

    return [
        {
            "collective": kind,
            "algorithm": name,
            "network": network,
            "bytes": size_bytes,
            "time_s": (time_s := cost_of.pop("time_s")),
            "algorithm_bandwidth_bytes_per_s": algorithm_bandwidth(size_bytes, time_s),
            "bus_bandwidth_bytes_per_s": bus_bandwidth(kind, size_bytes, time_s=time_s, num_ranks=num_ranks),
            **cost_of,
        }
        for name, cost_of in sorted(costs_of.items(), key=lambda item: float(item[1]["time_s"]))
    ]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as plain values: the traffic of all links as sums by dimension and direction."""
    if "traffic" not in row:
        return row
    return {**row, "traffic": row["traffic"].by_port() if row["traffic"] else []}


def _decide(title: str, about: dict[str, Any], by_size: dict[int, dict[str, dict[str, Any]]], as_json: bool) -> None:
    """Print the decision table of all sizes."""
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes
    from scaleout.network.flow.collective import decide

    times = {
        size: {name: cost_of["time_s"] for name, cost_of in costs_of.items()} for size, costs_of in by_size.items()
    }
    decisions = decide(times, {size: _taken(costs_of) for size, costs_of in by_size.items()})
    if as_json:
        click.echo(json.dumps({**about, "decisions": [asdict(decision) for decision in decisions]}, indent=2))
        return
    print_table(
        f"what auto takes: {title}",
        ("algorithm", "runner-up", "", "bytes", "time [us]", "runner-up takes"),
        [
            [
                decision.algorithm,
                decision.runner_up,
                ", ".join(
                    note
                    for note, holds in (("changes here", decision.changed), ("not the fastest", decision.ratio < 1))
                    if holds
                ),
                format_bytes(decision.bytes),
                f"{decision.time_s * 1e6:.2f}",
                f"{decision.ratio:.2f}x",
            ]
            for decision in decisions
        ],
        left=3,
    )


def _taken(costs_of: dict[str, dict[str, Any]]) -> str:
    """Return what auto takes; for no bytes, where all cost nothing, the first."""
    return next((name for name, cost_of in costs_of.items() if cost_of.get("auto")), next(iter(costs_of)))


def _write(where: str, summary: dict[str, Any], row: dict[str, Any], output: Path) -> list[tuple[Path, str]]:
    """Write the summary of all algorithms, and the links and the heat map of one."""
    from scaleout.config.units import format_bytes
    from scaleout.report.files import write_links

    title = f"{where}, {format_bytes(row['bytes'])}, {row['algorithm']}"
    return write_links(title, summary, row["traffic"], output)


def _print(title: str, by_size: list[list[dict[str, Any]]]) -> None:
    """Print all algorithms of one size, or of each of several what auto takes."""
    from scaleout.cli.console import print_links, print_table

    several = len(by_size) > 1
    chosen = [next((row for row in rows if row.get("auto")), rows[0]) for rows in by_size] if several else by_size[0]
    chunked = any(row["num_chunks"] > 1 for row in chosen)
    print_table(
        title,
        (
            "bytes",
            "algorithm",
            *["chunks"] * chunked,
            "time [us]",
            "algorithm bandwidth [GB/s]",
            "bus bandwidth [GB/s]",
        ),
        [
            [
                str(row["bytes"]),
                " ".join(filter(None, (row["algorithm"], row.get("protocol"), "(auto)" if row.get("auto") else ""))),
                *[str(row["num_chunks"])] * chunked,
                f"{row['time_s'] * 1e6:.2f}",
                f"{row['algorithm_bandwidth_bytes_per_s'] / 1e9:.2f}",
                f"{row['bus_bandwidth_bytes_per_s'] / 1e9:.2f}",
            ]
            for row in chosen
        ],
        left=2,
    )
    if len(by_size) == 1 and "busiest_links" in chosen[0]:
        print_links(f"busiest links of {chosen[0]['algorithm']}", chosen[0]["busiest_links"])


def _compare(
    kind: str, cluster: "Topology", *, sizes: Sequence[int], policy: str | None, output: Path | None, as_json: bool
) -> None:
    """Print which back end is the fastest at each size and number of ranks, and draw it and the times of each."""
    from scaleout.cluster.topology.backends import KIND
    from scaleout.errors import ConfigError
    from scaleout.study.backends import compare_backends

    if kind != KIND:
        raise ConfigError(f"--compare is for {KIND}, which back ends serve, not {kind}; leave it out")
    names = tuple(policy.split("+")) if policy else ()
    found = compare_backends(cluster, names=names, sizes_bytes=sizes)
    summary = _plain_backends(found)
    written = _write_backends(found, summary, output) if output else []
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    _print_backends(found)
    print_files(written)


def _plain_backends(found: "BackendComparison") -> dict[str, Any]:
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


def _print_backends(found: "BackendComparison") -> None:
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


def _write_backends(found: "BackendComparison", summary: dict[str, Any], output: Path) -> list[tuple[Path, str]]:
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
