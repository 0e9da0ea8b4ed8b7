"""`scaleout strategies`: a training job as DDP, ZeRO, Megatron-LM, breadth-first pipelines, Centauri would run it."""

from dataclasses import asdict
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

_SECONDS = ("compute_s", "communication_s", "exposed_communication_s", "idle_s")

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
@output_options("Write tables, timelines and a figure here.")
def strategies(job: NamedJob, names: tuple[str, ...], options: Stated, verbose: bool, output: Output) -> None:
    """Compare strategies of training frameworks on one WORKLOAD.

    A strategy, such as DDP, ZeRO, Megatron-LM's or Centauri's, says how a step is sharded, and how its communication is
    partitioned and ordered. The degrees of parallelism are the workload's. Strategies that do not fit the memory of a
    device are simulated as well, and marked.

    Example: scaleout strategies llama-big --topology a100-cluster-a-6 --set layers=30 --set tensor_parallel=4
    --set pipeline_parallel=3 --set data_parallel=4 --set batch_per_replica=6 --set microbatch=1.
    """
    from scaleout.cli.answer import network_of
    from scaleout.cli.progress import progress
    from scaleout.cluster.topology.topology import check_ranks
    from scaleout.report.documents import document
    from scaleout.report.files import write
    from scaleout.study.job import Job
    from scaleout.study.provenance import provenance_of
    from scaleout.study.realism import options_for
    from scaleout.study.strategies import STRATEGIES, follow, side_by_side
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
    comparison = side_by_side(found, device=device)
    rows = [_row(each, comparison.outcomes[0].makespan_s) for each in found]
    model = provenance_of(Job(workload, device, topology, options=how))
    about = {"workload": workload.name, "topology": topology.name, "device": device.name, "ranks": workload.num_ranks}
    inputs = {**job.inputs(workload, how), "strategy": [each.name for each in found]}
    answer = {**about, "model": model.summary(), "results": rows}
    summary = document("strategies", answer, inputs=inputs, models=[model.models])
    title = f"{workload.name} on {topology.name}, ranks {workload.num_ranks}, device {device.name}"
    facts = {**network_of(topology, device.name, workload.num_ranks), "model": model.title}
    printed = partial(_print, title, facts, rows, verbose=verbose)
    output.give(summary, printed, partial(write, comparison, summary=summary))


def _row(each: "Followed", first_s: float) -> dict[str, Any]:
    from scaleout.analysis.breakdown import busy_times

    if each.outcome is None or each.outcome.fit is None:
        return {"strategy": each.name, "reason": each.reason}
    return {
        "strategy": each.name,
        "schedule": each.outcome.schedule,
        "speedup": first_s / each.outcome.makespan_s,
        **asdict(each.outcome.breakdown),
        "memory_bytes": each.outcome.fit.peak.total_bytes,
        "fits": each.fits,
        "decisions": [decision.summary() for decision in each.outcome.decisions],
        **({"runs_as": each.outcome.runs_as} if each.outcome.runs_as else {}),
        "busy": list(map(asdict, busy_times(each.outcome.result))),
    }


def _print(title: str, facts: "Mapping[str, str]", rows: "Sequence[dict[str, Any]]", *, verbose: bool) -> None:
    from scaleout.cli.console import console, print_answer, print_table
    from scaleout.config.units import format_bytes, format_seconds, format_times
    from scaleout.schedule.decision import Decision

    ran = [row for row in rows if "makespan_s" in row]
    if ran:
        best = min(ran, key=lambda row: (not row["fits"], row["makespan_s"]))
        faster = f"{format_times(best['speedup'])} as fast as {ran[0]['strategy']}"
        fits = "the fastest that fits" if best["fits"] else "the fastest; none fits"
        answer = {
            "strategy": f"{best['strategy']}, {fits}",
            "step": f"{format_seconds(best['makespan_s'])}, {faster}",
            "exposed": format_seconds(best["exposed_communication_s"]),
            "memory": format_bytes(best["memory_bytes"]),
            **facts,
        }
        print_answer(title, answer)
    cells = [
        [
            row["strategy"],
            format_seconds(row["makespan_s"]),
            format_times(row["speedup"]),
            *(format_seconds(row[key]) for key in _SECONDS),
            format_bytes(row["memory_bytes"]),
            "" if row["fits"] else "does not fit",
        ]
        for row in ran
    ]
    columns = ("strategy", "step", "speed-up", "compute", "communication", "exposed", "idle", "memory", "")
    print_table("strategies", columns, cells)
    for row in rows:
        if "reason" in row:
            console().print(f"{row['strategy']}: {row['reason']}")
        if verbose and row.get("decisions"):
            print_table(
                f"what {row['strategy']} decided", ("choice",), [[str(Decision(**each))] for each in row["decisions"]]
            )
