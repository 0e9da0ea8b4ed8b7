"""`scaleout goodput`: from the step of a job to the time that training takes, with failures, checkpoints and jitter."""

from functools import partial
from math import isinf
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli import completion
from scaleout.cli.options import (
    SIMULATION,
    NamedJob,
    Output,
    Share,
    Stated,
    Whole,
    job_options,
    output_options,
    pairs_of,
    simulation_options,
)
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from scaleout.analysis.goodput import Disturbance, Goodput
    from scaleout.cluster.device.spec import Device
    from scaleout.cluster.topology.topology import Topology


@click.command()
@job_options()
@click.option(
    "--schedule",
    default="overlap",
    show_default=True,
    metavar="NAME",
    shell_complete=completion.schedules,
    help="As of `scaleout run`.",
)
@click.option("--tokens", required=True, metavar="N", help="Tokens to train on, such as 15T.")
@click.option("--checkpoint", required=True, metavar="TIME", help="How long training waits for a checkpoint: 10s.")
@click.option("--restart", default="10min", show_default=True, metavar="TIME", help="From a failure until it goes on.")
@click.option("--interval", metavar="TIME", help="Training between checkpoints; by default the best.")
@click.option(
    "--failures",
    metavar="RATE",
    help="Of a device with its port, such as 0.17/year; by default those of the device's and the link types' files.",
)
@click.option(
    "--jitter",
    type=Share(),
    metavar="SHARE",
    help="Standard deviation of a rank's compute in a step over its mean; by default the device's, or 0.",
)
@click.option(
    "--stragglers", multiple=True, metavar="SHARE=FACTOR", help="Ranks that are slow, and how much, such as 0.005=1.1."
)
@click.option("--seed", type=Whole(2**32 - 1, least=0), default=0, show_default=True, help="Of the samples.")
@simulation_options(*SIMULATION)
@output_options("Write the numbers here.")
def goodput(job: NamedJob, schedule: str, tokens: str, options: Stated, output: Output, **asked: Any) -> None:
    """Say how long training WORKLOAD takes, and what is lost on the way.

    A step is simulated as by `scaleout run`; then its slowest rank, failures, checkpoints and restarts are added.

    Example: scaleout goodput llama-3-8b --set tensor_parallel=8 --set data_parallel=16 --topology dgx-h200-16
    --tokens 15T --checkpoint 10s.
    """
    from scaleout.analysis.goodput import goodput as find
    from scaleout.cli.progress import progress
    from scaleout.config.units import TOKENS, parse
    from scaleout.report.documents import document
    from scaleout.study.job import Job, run
    from scaleout.study.provenance import provenance_of
    from scaleout.study.realism import options_for
    from scaleout.workloads.config import layered

    loaded, topology, device = job.load()
    workload = layered(loaded, wants="goodput is of training a model of layers")
    if workload.mode != "training":
        raise ConfigError(f"workload {workload.name!r} is in mode {workload.mode!r}; goodput is of training")
    wanted = parse(tokens, TOKENS)
    if not wanted:
        raise ConfigError("--tokens 0 trains on nothing; give more than zero, such as 15T")
    disturbance = _disturbance(topology, device, **asked)
    how = options_for(workload, device, **options)
    simulated = Job(workload, device, topology, schedule, how)
    with progress(kept="nothing is kept", quiet=output.as_json) as tell:
        tell(0, 1, "step simulated")
        outcome = run(simulated)
    compute_s = outcome.breakdown.compute_s
    found = find(outcome.makespan_s, compute_s=compute_s, ranks=workload.num_ranks, disturbance=disturbance)
    steps = wanted / (workload.tokens * workload.data_parallel)
    energy_j = None if outcome.energy is None else outcome.energy.total_j * steps / found.goodput
    model = provenance_of(simulated)
    found_all = {
        "workload": workload.name,
        "topology": topology.name,
        "device": device.name,
        "ranks": workload.num_ranks,
        "schedule": schedule,
        "model": model.summary(),
        "tokens": wanted,
        "steps": steps,
        "training_s": found.training_s(steps),
        "energy_j": energy_j,
        **found.summary(),
        "disturbance": vars(disturbance),
    }
    inputs = {**job.inputs(workload, how, (schedule,)), "tokens": wanted, **vars(disturbance)}
    summary = document("goodput", found_all, inputs=inputs, models=[model.models])

    def write(folder: Any) -> dict[str, str]:
        from scaleout.config.writing import write_json

        write_json(folder / "goodput.json", summary)
        return {"goodput.json": "the numbers of the table"}

    title = f"{workload.name} on {topology.name}, ranks {workload.num_ranks}, device {device.name}"
    output.give(summary, partial(_print, title, model.title, found, disturbance, summary), write)


def _disturbance(topology: "Topology", device: "Device", **asked: Any) -> "Disturbance":
    """Read what disturbs the job, by default as the files of the device and its link types say."""
    from scaleout.analysis.goodput import disturbance_on
    from scaleout.config.documents import LEAST_NUMBER, number
    from scaleout.config.units import FAILURES, SECONDS, parse

    pairs = list(pairs_of(asked["stragglers"], option="--stragglers", form="like 0.005=1.1").items())
    share, slowdown = (number(each) for each in pairs[0]) if pairs else (0.0, 1.0)
    if len(pairs) > 1 or share is None or slowdown is None or 0 < share < LEAST_NUMBER:
        raise ConfigError("--stragglers: give one share and factor, such as --stragglers 0.005=1.1")
    given, interval = asked["failures"], asked["interval"]
    return disturbance_on(
        topology,
        device,
        failures=None if given is None else parse(given, FAILURES),
        jitter=asked["jitter"],
        checkpoint_s=parse(asked["checkpoint"], SECONDS),
        restart_s=parse(asked["restart"], SECONDS),
        interval_s=None if interval is None else parse(interval, SECONDS),
        stragglers=share,
        straggler_slowdown=slowdown,
        seed=asked["seed"],
    )


def _print(title: str, model: str, found: "Goodput", disturbance: "Disturbance", summary: dict[str, Any]) -> None:
    from scaleout.cli.console import console, print_answer, print_table
    from scaleout.config.units import format_joules, format_rate, format_seconds, format_share, format_tokens

    energy = summary["training_joules"]
    days = f"{format_rate(summary['training_s'] / 86400)} days for {format_tokens(summary['tokens'])} tokens"
    answer = {
        "training": days,
        "speed": f"{format_share(found.speed)} of the simulated speed",
        "step": f"{format_seconds(found.step_s)} simulated, {format_seconds(found.step_median_s)} in the median",
        **({} if energy is None else {"energy": format_joules(energy)}),
        "model": model,
    }
    print_answer(title, answer)
    interval_s = found.interval_s
    rows = [
        ["step, 95th percentile", format_seconds(found.step_p95_s)],
        ["failures a day", format_rate(disturbance.failures_per_s * 86400)],
        ["training between checkpoints", "no checkpoints" if isinf(interval_s) else format_seconds(interval_s)],
        ["time that trains", format_share(found.goodput)],
        ["time of checkpoints", format_share(found.checkpoint_share)],
        ["time lost to failures: computed again, restarts", format_share(found.failure_share)],
    ]
    print_table("where the time goes", ("", ""), rows)
    for note in summary["model"]["notes"]:
        console().print(f"note: {note}")
