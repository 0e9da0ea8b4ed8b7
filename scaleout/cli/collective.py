"""`scaleout collective`: what a collective costs on a topology, in the manner of nccl-tests."""

from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli import completion
from scaleout.cli.options import NAME_OR_FILE, SIMULATION, Output, Whole, network_options, output_options, quantity_of
from scaleout.cli.printing import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaleout.api.collectives import CollectiveAnswer
    from scaleout.cluster.topology.topology import Topology
    from scaleout.cluster.topology.what_if import NetworkChanges
    from scaleout.study.backends import BackendComparison


DECIDED = "1KiB:1GiB"
"""Sizes of a decision table where none are given."""

_MOST_SIZES = 1000

SIZES_HELP = "Sizes such as 64MiB or 1MiB,64MiB; FIRST:LAST doubles from the first to the last."


@click.command()
@click.argument("kind")
@click.argument("extra", nargs=-1, metavar="")
@click.option("--bytes", "sizes", metavar="SIZES", help=SIZES_HELP)
@click.option(
    "--topology",
    type=NAME_OR_FILE,
    shell_complete=completion.names_of("topology"),
    help="Name or file of the topology.",
)
@click.option(
    "--device",
    type=NAME_OR_FILE,
    shell_complete=completion.names_of("device"),
    help="Instead of a topology: the network that this device is sold with, of so many --gpus.",
)
@click.option("--gpus", type=Whole(), metavar="N", help="As many nodes of the topology as have N, or a part of a node.")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="NAME",
    help="Time this algorithm (`scaleout list algorithms` says what each is, and what NCCL calls it); repeatable, to "
    "compare several. By default, of one size, all that the communication library has, else all that can, the one that "
    "`auto` takes marked; of several sizes what `auto` takes at each.",
)
@click.option("--group", metavar="RANKS", help="Ranks that take part, such as 0-7 or 0,8,16; by default all.")
@SIMULATION["network"]
@SIMULATION["injection"]
@click.option(
    "--chunks", type=Whole(), metavar="N", help="Chunks of a pipelined algorithm; by default the fastest number."
)
@click.option(
    "--decide", is_flag=True, help="Print which algorithm `auto` takes at each size, by default from 1 KiB on."
)
@SIMULATION["policy"]
@click.option(
    "--compare",
    "comparing",
    is_flag=True,
    help="Print which back end of the topology (--policy) is the fastest, by size and ranks.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also print why other algorithms are not among the rows.")
@output_options(
    "Write the numbers here, with a picture over sizes, and under --network link and one size all links.",
    "bandwidths.png",
    "links.parquet",
    "links.png",
    "backends-*.png",
)
@network_options(ranks=False)
def collective(
    kind: str,
    extra: tuple[str, ...],
    sizes: str | None,
    topology: str | None,
    device: str | None,
    gpus: int | None,
    algorithms: tuple[str, ...],
    group: str | None,
    network: str,
    injection: str | None,
    chunks: int | None,
    decide: bool,
    policy: str | None,
    comparing: bool,
    verbose: bool,
    output: Output,
    changes: "NetworkChanges",
) -> None:
    """Print the time and bandwidths of a collective on a topology.

    KIND is a collective such as all_reduce (`scaleout list collectives`). A size is the full buffer of one rank, and
    algorithm and bus bandwidth are those of nccl-tests. All groups that lie like the one of --group are active at the
    same time; an irregular group, and a point-to-point message (send), is isolated. With --network link the messages of
    all groups share every link, and the busiest links are named.

    --decide prints what `auto` takes at each size, the runner-up, and where the choice changes: `auto` takes the
    fastest algorithm, or, where the topology has a communication library, the one that the library's own cost model
    prefers. --compare prints which back end of the topology (a communication library that its file lists, such as
    NCCL's rings or MPI), or where it lists none which algorithm, is the fastest at each size and number of ranks; with
    --output it is drawn.
    """
    from scaleout.api.collectives import collective as find
    from scaleout.api.networks import load_topology
    from scaleout.cli.progress import progress
    from scaleout.study.sized import network_on_gpus

    if extra:
        raise click.UsageError(f"{kind} takes no {' '.join(extra)}; a size is given by --bytes, as --bytes {extra[0]}")
    kind = kind.replace("-", "_")
    named, changes = network_on_gpus(topology, device, gpus, changes)
    if comparing:
        if decide or group is not None or algorithms or network != "alpha_beta":
            raise click.UsageError("--compare goes with --bytes, --policy, --output and --json alone")
        cluster = load_topology(named, changes)
        _compare(kind, cluster, parse_sizes(sizes) if sizes else [], policy, output)
        return
    wanted = parse_sizes(sizes or (DECIDED if decide else ""))
    algorithms = tuple(name for given in algorithms for name in given.split(","))
    _check(algorithms, decide=decide, output=output.folder)
    members = None
    if group is not None:
        members = parse_ranks(group, load_topology(named, changes).num_ranks)
    with progress(kept="nothing is kept", quiet=output.as_json) as tell:
        answer = find(
            kind, wanted, topology=named, ranks=members, algorithm=algorithms or "auto", network=network,
            injection=injection, num_chunks=chunks, policy=policy, tell=tell,
            network_changes=changes,
        )  # fmt: skip
    if decide:
        _decide(answer, output)
        return
    summary = answer.to_dict()
    output.give(summary, partial(_print, answer, summary["answer"], verbose=verbose), partial(_write, answer, summary))


def _check(algorithms: tuple[str, ...], *, decide: bool, output: Path | None) -> None:
    """Refuse options that do not go together."""
    from scaleout.errors import ConfigError

    if decide and algorithms not in ((), ("auto",)):
        raise ConfigError(f"--decide compares all algorithms; leave out --algorithm {','.join(algorithms)}")
    if decide and output is not None:
        raise ConfigError("--decide prints a table of choices, which is not drawn; leave out --output")


def parse_sizes(text: str) -> list[int]:
    """Turn ``64MiB,1GiB`` or ``1KiB:1GiB`` into whole bytes, each once.

    Raises
    ------
    ConfigError
        If a size cannot be read or a range goes down.
    """
    from scaleout.config.units import FEW_BYTES
    from scaleout.errors import ConfigError

    if not text:
        raise ConfigError("give the sizes of the collective, such as --bytes 64MiB or --bytes 1KiB:1GiB")
    sizes: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        size, end = (round(quantity_of("--bytes", each, FEW_BYTES)) for each in (first, last if colon else first))
        if colon and not 0 < size <= end:
            raise ConfigError(f"--bytes {part!r}: a range goes from a smaller size above zero to a larger one")
        sizes.append(size)
        if len(sizes) > _MOST_SIZES:
            raise ConfigError(f"--bytes: more than {_MOST_SIZES:,} sizes; give fewer")
        while colon and size * 2 <= end:
            size *= 2
            sizes.append(size)
    return list(dict.fromkeys(sizes))


def parse_ranks(text: str, num_ranks: int) -> list[int]:
    """Turn ``0-7`` or ``0,8,16`` into ranks.

    Raises
    ------
    ConfigError
        If a part is neither a rank nor a range of ranks.
    """
    from scaleout.config.documents import whole
    from scaleout.errors import ConfigError

    ranks: list[int] = []
    for part in text.split(","):
        first, last = (whole(end) for end in (part.split("-") if part.count("-") == 1 else (part, part)))
        if first is None or last is None:
            raise ConfigError(f"--group {text!r}: {part!r} is no rank or range of ranks; write 0-7 or 0,8,16")
        if not first <= last < num_ranks:
            raise ConfigError(
                f"--group {text!r}: {part!r} is not within ranks 0 to {num_ranks - 1} of the topology; give such ranks"
            )
        ranks += range(first, last + 1)
    return ranks


def _decide(answer: "CollectiveAnswer", output: Output) -> None:
    """Print the decision table of all sizes."""
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes, format_seconds, format_times
    from scaleout.report.documents import document

    decisions = answer.decisions

    def print_tables() -> None:
        rows = []
        for each in decisions:
            notes = ["changes here"] * each.changed + ["runner-up is faster"] * (each.ratio < 1)
            times = format_seconds(each.time_s), format_times(each.ratio) if each.runner_up else ""
            rows.append([each.algorithm, each.runner_up, ", ".join(notes), format_bytes(each.bytes), *times])
        columns = ("algorithm", "runner-up", "", "bytes", "time", "runner-up time / chosen time")
        print_table(f"what auto takes: {answer.title}", columns, rows, left=3)
        _say_left_out(answer.left_out)

    found = {**answer.about(), "collective": answer.kind, "network": answer.network}
    found["decisions"] = [asdict(each) for each in decisions]
    output.give(document("collective", found, inputs=answer.inputs, models=answer.models), print_tables, lambda _: {})


def _write(answer: "CollectiveAnswer", summary: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write the summary of all algorithms, a picture of them over sizes, and of one size the links of the fastest."""
    from scaleout.config.units import format_bytes
    from scaleout.report.files import write_links
    from scaleout.report.plots.studies import draw_bandwidths

    row, on = answer.by_size[0][0], f"{answer.kind} on {answer.topology.name}"
    if len(answer.by_size) == 1:
        title = f"{on}, {format_bytes(row['bytes'])}, {row['algorithm']}"
        return write_links(title, summary, row.get("traffic"), folder)
    draw_bandwidths(answer.to_frame(), folder / "bandwidths.png", title=on)
    return {"bandwidths.png": "bus bandwidth of each algorithm over the sizes"}


def _print(answer: "CollectiveAnswer", box: "Mapping[str, str]", *, verbose: bool) -> None:
    """Print all algorithms of one size, or of each of several what auto takes."""
    from scaleout.cli.console import console, print_answer, print_links, print_table
    from scaleout.config.units import format_bytes, format_bytes_per_s, format_seconds

    by_size, left_out = answer.by_size, answer.left_out
    several, asked = len(by_size) > 1, answer.asked["algorithm"]
    chosen = answer.taken if several and isinstance(asked, str) else [row for rows in by_size for row in rows]
    chunked = any(row["num_chunks"] > 1 for row in chosen)
    print_answer(f"{answer.kind} on {answer.topology.name}, ranks {answer.num_ranks}", box)
    bandwidths = ("algorithm_bandwidth_bytes_per_s", "bus_bandwidth_bytes_per_s")
    columns = ("time", "algorithm bandwidth", "bus bandwidth")
    print_table(
        ("by size, what auto takes" if asked == "auto" else "by size") if several else "algorithms",
        ("bytes", "algorithm", *["chunks"] * chunked, *columns, "bound by"),
        [
            [
                format_bytes(row["bytes"]),
                " ".join(filter(None, (row["algorithm"], row.get("protocol"), "(auto)" if row.get("auto") else ""))),
                *[str(row["num_chunks"])] * chunked,
                format_seconds(row["time_s"]),
                *(format_bytes_per_s(row[key]) for key in bandwidths),
                row.get("bound_by", ""),
            ]
            for row in chosen
        ],
        left=2,
    )
    if answer.why_auto:
        console().print(f"note: {answer.why_auto}")
    if not several and "busiest_links" in chosen[0]:
        print_links(f"busiest links of {chosen[0]['algorithm']}", chosen[0]["busiest_links"])
    if not several and (refused := answer.refused):
        listed = [f"{', '.join(names)}: {why}" for why, names in refused.items()]
        others = [f"{', '.join(name for names in refused.values() for name in names)} (-v says why)"]
        for words in listed if verbose else others:
            console().print(f"not here: {words}")
    for note in answer.model.notes:
        console().print(f"note: {note}")
    _say_left_out(left_out)


def _say_left_out(left_out: "Mapping[str, str]") -> None:
    """Say which algorithms have too many messages to route, and why."""
    for name, why in left_out.items():
        say(f"left out: {name}, as {why}")


def _compare(kind: str, cluster: "Topology", sizes: list[int], policy: str | None, output: Output) -> None:
    """Print which back end is the fastest at each size and number of ranks, and draw it and the times of each."""
    from scaleout.cluster.topology.backends import KIND
    from scaleout.errors import ConfigError
    from scaleout.report.documents import document
    from scaleout.simulation.options import SimulationOptions
    from scaleout.study.backends import compare_backends
    from scaleout.study.provenance import provenance

    if kind != KIND:
        raise ConfigError(f"--compare is for {KIND}, which back ends serve, not {kind}; leave it out")
    found = compare_backends(cluster, names=tuple(policy.split("+")) if policy else (), sizes_bytes=sizes)
    inputs = {"collective": kind, "topology": cluster.name, "changes": cluster.altered, "backends": found.backends}
    model = provenance(cluster, None, SimulationOptions())
    plain = {**_plain_backends(found), "model": model.summary()}
    asked, answer = {**inputs, "bytes": found.sizes_bytes}, {**_answer_of_backends(found), "model": model.title}
    summary = document("collective", plain, inputs=asked, models=[model.models], answer=answer)

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.plots.studies import draw_curves, draw_map

        draw_map(found, folder / "backends-map.png", title=f"the fastest all-reduce on {found.topology}")
        draw_curves(found, folder / "backends-curves.png", title=f"all-reduce on {found.topology}")
        return {
            "backends-map.png": "the fastest by size and number of ranks",
            "backends-curves.png": "time of each back end",
        }

    output.give(summary, partial(_print_backends, found, answer), write)


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
                "auto_takes": found.auto[row][column],
                "auto_s": float(found.auto_s[row, column]),
                "time_by_backend_s": {
                    name: float(time_s) if time_s < float("inf") else None
                    for name, time_s in zip(found.backends, found.times_s[:, row, column], strict=True)
                },
            }
            for row, ranks in enumerate(found.num_ranks)
            for column, size in enumerate(found.sizes_bytes)
        ],
    }


def _answer_of_backends(found: "BackendComparison") -> dict[str, str]:
    """Say how often each back end is the fastest, and where `auto` takes most longer than the fastest."""
    from scaleout.config.units import counted, format_bytes, format_difference, format_seconds

    best, worst = found.best, found.worst_auto
    won = Counter(found.backends[index] for index in best.flat)
    each = ", ".join(f"{name} at {count:,}" for name, count in won.most_common())
    facts = {"fastest": f"{each} of {best.size:,} sizes and numbers of ranks"}
    if worst is None:
        return {**facts, "auto": "takes the fastest everywhere"}
    row, column = worst
    auto_s, fastest_s = float(found.auto_s[worst]), float(found.times_s[:, row, column].min())
    where = f"{format_bytes(found.sizes_bytes[column])} on {counted(found.num_ranks[row], 'rank')}"
    took = f"{found.auto[row][column]} {format_seconds(auto_s)}, {format_difference(auto_s, fastest_s)}"
    return {**facts, "auto": f"at the worst {took} than {found.backends[best[worst]]}: of {where}"}


def _print_backends(found: "BackendComparison", answer: "Mapping[str, str]") -> None:
    """Print the answer, and the ranges of sizes of each winner and of what `auto` takes, lines a number of ranks."""
    from scaleout.cli.console import print_answer, print_table
    from scaleout.config.units import format_bytes, format_seconds

    print_answer(f"all_reduce on {found.topology}, ranks {', '.join(map(str, found.num_ranks))}", answer)
    rows = []
    for row, ranks in enumerate(found.num_ranks):
        winners = [(found.backends[index], auto) for index, auto in zip(found.best[row], found.auto[row], strict=True)]
        starts = [index for index, name in enumerate(winners) if index == 0 or winners[index - 1] != name]
        for start, end in zip(starts, [*starts[1:], len(winners)], strict=True):
            sizes = [format_bytes(found.sizes_bytes[index]) for index in (start, end - 1)]
            times = [format_seconds(found.times_s[:, row, index].min()) for index in (start, end - 1)]
            autos = [format_seconds(found.auto_s[row, index]) for index in (start, end - 1)]
            rows.append([*winners[start], str(ranks), *sizes, *times, *autos])
    columns = ("fastest", "auto takes", "ranks", "from", "to", "time from", "time to", "auto from", "auto to")
    print_table(f"all_reduce on {found.topology}: the fastest by size and ranks", columns, rows, left=2)
