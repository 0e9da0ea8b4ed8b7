"""`scaleout strategies`: a training job as DDP, ZeRO, Megatron-LM, breadth-first pipelines, Centauri would run it."""

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli import completion
from scaleout.cli.job import NamedJob
from scaleout.cli.options import (
    SIMULATION,
    Output,
    Stated,
    job_options,
    output_options,
    simulation_options,
    verbose_option,
)
from scaleout.cli.printing import FILES_OF_RUN

_SECONDS = ("compute_s", "communication_s", "exposed_communication_s", "idle_s")

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scaleout.study.comparison import Comparison
    from scaleout.study.strategies import Followed


@click.command()
@job_options()
@click.option(
    "--strategy",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.strategies,
    help="Strategy, such as ddp or centauri (`scaleout list strategies`); repeatable; by default all.",
)
@simulation_options(*SIMULATION)
@verbose_option
@output_options("Write tables, timelines and a figure here.", *FILES_OF_RUN)
def strategies(job: NamedJob, names: tuple[str, ...], options: Stated, verbose: bool, output: Output) -> None:
    """Compare strategies of training frameworks on one WORKLOAD.

    A strategy, such as DDP, ZeRO, Megatron-LM's or Centauri's, says how a step is sharded, and how its communication is
    partitioned and ordered. The degrees of parallelism are the workload's. Strategies that do not fit the memory of a
    device are simulated as well, and marked.

    Example: scaleout strategies llama-big --topology a100-cluster-a-6 --set layers=30 --set tensor_parallel=4
    --set pipeline_parallel=3 --set data_parallel=4 --set batch_per_replica=6 --set microbatch=1.
    """
    from scaleout.analysis.cost import bill
    from scaleout.cli.progress import progress
    from scaleout.cluster.topology.topology import check_ranks
    from scaleout.report.box import network_of
    from scaleout.report.documents import document
    from scaleout.report.files import write
    from scaleout.study.job import Job
    from scaleout.study.provenance import provenance_of
    from scaleout.study.realism import options_for
    from scaleout.study.strategies import STRATEGIES, follow, same_as, side_by_side
    from scaleout.workloads.config.layered import layered

    loaded, topology, device = job.load()
    workload = layered(loaded, wants="strategies train models of layers")
    check_ranks(topology, workload.num_ranks)
    wanted = list(dict.fromkeys(names or STRATEGIES))
    how = options_for(workload, device, **options)
    found = []
    with progress(kept="nothing is kept", quiet=output.as_json) as show:
        for number, name in enumerate(wanted):
            show(number, len(wanted), name)
            found.append(follow(name, workload, topology=topology, device=device, options=how))
    comparison = replace(side_by_side(found, device=device), bill=bill(topology, device))
    given, same = job.given(options), same_as(found)
    rows = [_row(each, comparison.outcomes[0].makespan_s, same, given) for each in found]
    model = provenance_of(Job(workload, device, topology, options=how))
    about = {"workload": workload.name, "topology": topology.name, "device": device.name, "ranks": workload.num_ranks}
    inputs = {**job.inputs(workload, how), "strategy": [each.name for each in found]}
    network = network_of(topology, device.name, workload.num_ranks)
    answer = _answer(comparison, rows, {**network, "model": model.title})
    plain = {**about, "model": model.summary(), "results": rows}
    summary = document("strategies", plain, inputs=inputs, models=[model.models], answer=answer)
    title = f"{workload.name} on {topology.name}, ranks {workload.num_ranks:,}, device {device.name}"
    printed = partial(_print, title, answer, rows, verbose=verbose)
    output.give(summary, printed, partial(write, comparison, summary=summary))


def _row(each: "Followed", first_s: float, same: "Mapping[str, str]", given: "Mapping[str, Any]") -> dict[str, Any]:
    from scaleout.analysis.breakdown import busy_times
    from scaleout.api.inputs import given_of
    from scaleout.study.strategies import STRATEGIES
    from scaleout.study.sweep.cases import run_line

    found = each.outcome
    if found is None or found.fit is None or found.efficiency is None:
        return {"strategy": each.name, "reason": each.reason}
    schedule = STRATEGIES[each.name].schedule
    keys = {f"set.{key}": value for key, value in each.keys.items()}
    return {
        "strategy": each.name,
        "schedule": found.schedule,
        "speedup": first_s / found.makespan_s,
        **asdict(found.breakdown),
        "tokens_per_s_per_rank": found.efficiency.tokens_per_s_per_rank,
        "mfu": found.efficiency.mfu,
        "memory_bytes": found.fit.peak.total_bytes,
        "fits": each.fits,
        "decisions": [decision.summary() for decision in found.decisions],
        **({"runs_as": found.runs_as} if found.runs_as else {}),
        **({"same_as": same[each.name]} if each.name in same else {}),
        "run": run_line(given_of({**given, **keys, "schedule": schedule})),
        "busy": list(map(asdict, busy_times(found.result))),
    }


def _best(rows: "Sequence[dict[str, Any]]") -> "dict[str, Any] | None":
    """Return the fastest strategy that fits, or the fastest where none does."""
    ran = [row for row in rows if "makespan_s" in row]
    return min(ran, key=lambda row: (not row["fits"], row["makespan_s"]), default=None)


def _answer(
    comparison: "Comparison", rows: "Sequence[dict[str, Any]]", facts: "Mapping[str, str]"
) -> dict[str, str] | None:
    """Say what the best strategy comes to, and other facts; None where none ran."""
    from scaleout.config.units import format_seconds, format_times
    from scaleout.report.box import rent_of, room, speed_of

    ran, best = [row for row in rows if "makespan_s" in row], _best(rows)
    if best is None:
        return None
    outcome = next(each for each in comparison.outcomes if each.schedule == best["strategy"])
    fits = "the fastest that fits" if best["fits"] else "the fastest; none fits"
    same = [row["strategy"] for row in ran if row.get("same_as") == best["strategy"]]
    first = ran[0]["strategy"] if ran[0]["fits"] else f"{ran[0]['strategy']}, which does not fit"
    faster = f"{format_times(best['speedup'])} as fast as {first}"
    return {
        "strategy": f"{best['strategy']}, {fits}" + (f"; the same step here as {', '.join(same)}" if same else ""),
        "step": f"{format_seconds(best['makespan_s'])}, {faster}",
        **({} if outcome.efficiency is None else {"speed": speed_of(outcome.efficiency, comparison)}),
        "memory": room(outcome.fit, comparison.ranks),
        **rent_of(comparison, outcome),
        "exposed": format_seconds(best["exposed_communication_s"]),
        **facts,
    }


def _print(title: str, answer: "Mapping[str, str] | None", rows: "Sequence[dict[str, Any]]", *, verbose: bool) -> None:
    from scaleout.cli.console import console, print_answer, print_table
    from scaleout.cli.printing import say
    from scaleout.config.units import format_seconds, format_share, format_sizes, format_times
    from scaleout.schedule.decision import Decision

    ran, best = [row for row in rows if "makespan_s" in row], _best(rows)
    if answer is not None and best is not None:
        print_answer(title, answer)
        say(f"{best['run']}\n")
    cells = [
        [
            row["strategy"],
            format_seconds(row["makespan_s"]),
            format_times(row["speedup"]),
            format_share(row["mfu"]),
            *(format_seconds(row[key]) for key in _SECONDS),
            size,
            ", ".join(([f"as {row['same_as']}"] if "same_as" in row else []) + ["does not fit"] * (not row["fits"])),
        ]
        for row, size in zip(ran, format_sizes(row["memory_bytes"] for row in ran), strict=True)
    ]
    columns = ("strategy", "step", "speed-up", "MFU", "compute", "communication", "exposed", "idle", "memory", "")
    print_table("strategies", columns, cells)
    if any("same_as" in row for row in ran):
        console().print("as another: the same step, of the same operations at the same times, on this job\n")
    for row in rows:
        if "reason" in row:
            console().print(f"{row['strategy']}: {row['reason']}")
        if verbose and row.get("decisions"):
            print_table(
                f"what {row['strategy']} decided", ("choice",), [[str(Decision(**each))] for each in row["decisions"]]
            )
