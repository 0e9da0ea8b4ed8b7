"""`scaleout astra`: ASTRA-sim's own inputs and options, answered to the nanosecond."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import scaleout
from scaleout.cli.options import PATH, Number, Output, Whole, output_options
from scaleout.cli.printing import FILES_OF_RUN, say

if TYPE_CHECKING:
    from scaleout.interop.astra import Outcome
    from scaleout.interop.astra.physical import SideBySide

_MOST_ROWS = 12


def _file(
    option: str, name: str, meaning: str, *, metavar: str = "FILE", required: bool = False
) -> Callable[[Any], Any]:
    kind = PATH
    return click.option(option, name, type=kind, metavar=metavar, required=required, help=meaning)


def _scale(option: str, meaning: str) -> Callable[[Any], Any]:
    return click.option(option, type=Number(), default="1", show_default=True, metavar="FACTOR", help=meaning)


@click.command()
@_file("--workload-configuration", "workload", "Chakra traces PREFIX.<rank>.et.", metavar="PREFIX", required=True)
@_file("--system-configuration", "system", "System layer, as JSON.", required=True)
@_file("--network-configuration", "network", "Analytical network, as YAML.", required=True)
@_file("--remote-memory-configuration", "remote_memory", "Accepted, without effect on times.")
@_file("--comm-group-configuration", "groups", "Communicator groups, as JSON.")
@click.option("--logging-configuration", metavar="FILE", expose_value=False, help="Accepted and ignored.")
@click.option("--logging-folder", metavar="DIRECTORY", expose_value=False, help="Accepted and ignored.")
@click.option(
    "--num-queues-per-dim",
    "num_queues",
    type=Whole(),
    default=1,
    show_default=True,
    metavar="N",
    help="Queues per network dimension.",
)
@_scale("--compute-scale", "No effect, as in ASTRA-sim.")
@_scale("--comm-scale", "No effect, as in ASTRA-sim.")
@_scale("--injection-scale", "Factor of endpoint-delay.")
@click.option(
    "--rendezvous-protocol",
    "rendezvous",
    type=bool,
    is_flag=False,
    flag_value=True,
    default=False,
    help="Rendezvous before sends.",
)
@click.option(
    "--backend",
    default="unaware",
    show_default=True,
    metavar="unaware|aware",
    help="Analytical network backend: congestion-unaware or congestion-aware.",
)
@click.option("--physical", is_flag=True, help="Also simulate the inputs on scaleout's own networks, and compare.")
@output_options("Write tables, timeline and figure here.", *FILES_OF_RUN)
def astra(physical: bool, output: Output, **given: Any) -> None:
    """Simulate ASTRA-sim's own inputs as ASTRA-sim 2.0 does.

    The options are the same, and so are the times, to the nanosecond. Inputs that make ASTRA-sim hang or answer wrongly
    are refused with a reason. --physical adds the times on scaleout's own networks, alpha_beta and link, and says where
    ASTRA-sim is faster than the links allow.
    """
    from scaleout.interop.astra import Options, run
    from scaleout.report.documents import document

    options = Options(**given)
    outcome = run(options)
    name = options.workload.name
    compared = _compared(outcome, name, physical=physical) if physical or output.folder else None
    facts = _facts(outcome, options.backend) | ({"physical": compared.summary()} if compared and physical else {})
    if compared and output.folder:
        facts |= {name: value for name, value in compared.comparison.summary().items() if name not in facts}
    if outcome.notes:
        facts["notes"] = [*outcome.notes, *(compared.comparison.notes if compared and output.folder else ())]
    named = {name: value for name, value in given.items() if value is not None}
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in named.items()}
    model = f"ASTRA-sim's rules, congestion-{options.backend}, scaleout {scaleout.__version__}"
    summary = document("astra", facts, inputs=asked, models=[model])

    def print_tables() -> None:
        title = f"{name}, ranks {len(outcome.per_rank_ns)}, backend {options.backend}"
        say(f"{title}: {outcome.time_ns:,} ns, at most {max(outcome.exposed_ns):,} ns of communication exposed")
        say(f"model: {model}")
        say("")
        _print(outcome)
        if compared:
            _print_dimensions(outcome)
            _print_compared(compared)
        for note in outcome.notes:
            say(f"note: {note}")

    output.give(summary, print_tables, partial(_write, outcome, compared, summary))


def _facts(outcome: "Outcome", backend: str) -> dict[str, object]:
    return {
        "backend": backend,
        "ranks": len(outcome.per_rank_ns),
        "time_ns": outcome.time_ns,
        "exposed_communication_ns": max(outcome.exposed_ns),
        "per_rank_ns": outcome.per_rank_ns,
        "per_rank_exposed_communication_ns": outcome.exposed_ns,
        "per_rank_compute_ns": outcome.compute_ns,
        "per_rank_communication_ns": outcome.communication_ns,
    }


def _print(outcome: "Outcome") -> None:
    """Print a line a rank as ASTRA-sim does, then the first and the last rank to finish."""
    lines = [
        f"sys[{rank}] finished, {end} cycles, exposed communication {exposed} cycles."
        for rank, (end, exposed) in enumerate(zip(outcome.per_rank_ns, outcome.exposed_ns, strict=True))
    ]
    by_end = sorted(range(len(lines)), key=lambda rank: outcome.per_rank_ns[rank])
    columns = (outcome.per_rank_ns, outcome.compute_ns, outcome.communication_ns, outcome.exposed_ns)
    rows = [["", "rank", "finish [ns]", "compute [ns]", "communication [ns]", "exposed [ns]"]]
    rows += [
        [name, *map(str, (rank, *(column[rank] for column in columns)))]
        for name, rank in (("first", by_end[0]), ("last", by_end[-1]))
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    say("\n".join([*lines, "", *table, ""]))


def _compared(outcome: "Outcome", name: str, *, physical: bool) -> "SideBySide":
    from scaleout.interop.astra.physical import side_by_side
    from scaleout.simulation.options import NETWORKS

    return side_by_side(outcome, name=name, networks=NETWORKS if physical else ())


def _write(outcome: "Outcome", compared: "SideBySide | None", summary: dict[str, Any], folder: Path) -> dict[str, str]:
    from scaleout.interop.astra.physical import FILES, write_tables
    from scaleout.report.files import write

    assert compared is not None
    write_tables(outcome, compared, folder)
    return write(compared.comparison, folder, summary) | FILES


def _print_dimensions(outcome: "Outcome") -> None:
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes
    from scaleout.interop.astra.physical import dimension_loads

    print_table(
        "busiest link of each dimension, for collectives by ASTRA-sim's algorithms",
        ("dimension", "kind", "ranks", "bytes", "busy [ns]", "of the run"),
        [
            [
                str(load.dimension),
                load.kind,
                str(load.size),
                format_bytes(load.link_bytes),
                f"{load.link_ns:.0f}",
                f"{load.link_ns / max(outcome.time_ns, 1):.1%}",
            ]
            for load in dimension_loads(outcome)
        ],
        left=2,
    )


def _print_compared(compared: "SideBySide") -> None:
    """Print transfers, finish times, and where ASTRA-sim is faster than the links allow."""
    from scaleout.cli.console import console, print_links, print_table
    from scaleout.config.units import format_bytes, format_count, format_seconds
    from scaleout.interop.astra.physical import network_facts

    outcomes = compared.comparison.outcomes
    names = [outcome.schedule for outcome in outcomes]
    print_table(
        "collectives and messages",
        ("kind", "ranks", "bytes", "count", *names, "link bound", "faster by"),
        [
            [
                one.kind,
                str(one.num_ranks),
                format_bytes(one.size_bytes),
                format_count(one.count),
                *(format_seconds(one.mean_s[name]) for name in names),
                format_seconds(one.bound_s),
                format_seconds(one.under_bound_s) if one.under_bound_s else "-",
            ]
            for one in compared.transfers[:_MOST_ROWS]
        ],
    )
    for outcome in outcomes:
        if outcome.result.busiest_links:
            print_links(f"busiest links of {outcome.schedule}", network_facts(outcome)["busiest_links"])
    columns = ("network", "first [ns]", "last [ns]", "exposed [ns]", "compute", "communication", "exposed", "idle")
    rows = []
    for outcome in outcomes:
        facts, parts = network_facts(outcome), outcome.breakdown
        ends = f"{min(facts['per_rank_ns']):.0f}", f"{facts['time_ns']:.0f}", f"{facts['exposed_communication_ns']:.0f}"
        means = parts.compute_s, parts.communication_s, parts.exposed_communication_s, parts.idle_s
        rows.append([outcome.schedule, *ends, *map(format_seconds, means)])
    print_table("finish of ranks, most exposed communication of a rank, and means over ranks", columns, rows)
    if len(outcomes) > 1:
        chosen = ", ".join(f"{kind} by {name}" for kind, name in compared.algorithms.items())
        console().print(f"algorithms under alpha_beta and link: {chosen or 'none needed'}")
    under = [one for one in compared.transfers if one.under_bound_s]
    if under:
        worst = max(under, key=lambda one: one.under_bound_s / one.bound_s)
        console().print(
            f"{outcomes[0].schedule} is faster than the links allow in {len(under)} of "
            f"{len(compared.transfers)} kinds of transfer: the "
            f"{worst.kind} of {format_bytes(worst.size_bytes)} takes {worst.mean_s[names[0]] / worst.bound_s:.1%} of "
            f"the time that the links need for its bytes",
        )
