"""`scaleout goodput`: from the step of a job to the time that training takes, with failures, checkpoints and jitter."""

import shlex
from dataclasses import replace
from functools import partial
from math import isinf
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from scaleout.cli import completion
from scaleout.cli.job import NamedJob
from scaleout.cli.options import (
    SIMULATION,
    Number,
    Output,
    Stated,
    Whole,
    job_options,
    output_options,
    pairs_of,
    quantity_of,
    simulation_options,
)
from scaleout.cli.printing import say
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaleout.analysis.efficiency import Fit
    from scaleout.analysis.goodput import Disturbance, Goodput
    from scaleout.cluster.device.spec import Device
    from scaleout.cluster.topology.topology import Topology
    from scaleout.config.units import Quantity
    from scaleout.study.job import Job
    from scaleout.workloads.config.layered import LayeredModel


_OWN = ("tokens", "duration", "checkpoint", "restart", "interval", "failures", "jitter", "stragglers", "seed")
"""Options of what disturbs the training."""


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
@click.option("--tokens", metavar="N", help="Tokens to train on, such as 15T.")
@click.option("--duration", metavar="TIME", help="How long to train instead, such as 30day.")
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
    type=Number(1),
    metavar="SHARE",
    help="Standard deviation of a rank's compute in a step over its mean; by default the device's, or 0.",
)
@click.option(
    "--stragglers", multiple=True, metavar="SHARE=FACTOR", help="Ranks that are slow, and how much, such as 0.005=1.1."
)
@click.option("--seed", type=Whole(2**32 - 1, least=0), default=0, show_default=True, help="Of the samples.")
@simulation_options(*SIMULATION)
@output_options("Write the numbers here.")
def goodput(job: NamedJob, schedule: str, options: Stated, output: Output, **asked: Any) -> None:
    """Say how long training WORKLOAD takes, and what is lost on the way.

    A step is simulated as by `scaleout run`; then its slowest rank, failures, checkpoints and restarts are added. Give
    either --tokens or --duration. Where the network is changed (by more than --nodes), or a rank is slow, the box also
    has the training without the changes. Dollars are by the `rent` of the device's file; for yours give --device a file
    of two lines, such as "like: h100" and "rent: {value: 2.50 USD/h, source: my contract}".

    Example: scaleout goodput llama-3-8b --set tensor_parallel=8 --set data_parallel=16 --topology dgx-h200-16
    --tokens 15T --checkpoint 10s.
    """
    from scaleout.cli.progress import progress
    from scaleout.report.box import network_of, room
    from scaleout.report.documents import document
    from scaleout.study.provenance import provenance_of

    asked_for = _asked_for(asked.pop("tokens"), asked.pop("duration"))
    simulated, workload, disturbance = _prepared(job, schedule, options, asked)
    changes, unchanged = job.changes, None
    with progress(kept="nothing is kept", quiet=output.as_json) as tell:
        tell(0, 1, "step simulated")
        found, step_j, held, rent_per_s = _trained(simulated, disturbance)
        if changes != changes.size_alone:
            without = _prepared(job._replace(changes=changes.size_alone), schedule, options, asked)[0]
            unchanged = _trained(without, disturbance)[0]
    steps, tokens = asked_for.of(found, step_tokens=workload.tokens * workload.data_parallel)
    model, training_s = provenance_of(simulated), found.training_s(steps)
    found_all = {
        "workload": workload.name,
        "topology": simulated.topology.name,
        "device": model.inputs["device"],
        "ranks": workload.num_ranks,
        "schedule": schedule,
        "model": model.summary(),
        "tokens": tokens,
        "steps": steps,
        "training_s": training_s,
        "training_dollars": None if rent_per_s is None else rent_per_s * training_s,
        "energy_j": None if step_j is None else step_j * steps / found.goodput,
        **found.summary(),
        "memory": held.summary(),
        "disturbance": vars(disturbance),
        "assumed_from": _sources(simulated, disturbance, asked),
    }
    if unchanged is not None:
        found_all["unchanged"] = {"step_s": unchanged.step_s, "training_s": unchanged.training_s(steps)}
    named = {} if asked_for.tokens is None else {"tokens": tokens}
    inputs = {**job.inputs(workload, simulated.options, (schedule,)), **named, **vars(disturbance)}
    inputs |= {} if asked_for.duration_s is None else {"duration_s": asked_for.duration_s}
    network = network_of(simulated.topology, model.inputs["device"], workload.num_ranks)
    words = {**network, "memory": room(held, workload.num_ranks), "model": model.title}
    answer = _answer(found_all, found, words, unchanged)
    summary = document("goodput", found_all, inputs=inputs, models=[model.models], answer=answer)
    helps = _line_that_fits({**job.given(options), "schedule": schedule}, held, workload.num_ranks)
    output.give(summary, partial(_print, found, disturbance, summary, helps=helps), lambda _: {})


def _line_that_fits(given: "Mapping[str, Any]", held: "Fit", ranks: int) -> str:
    """Return this command with a change that makes the job fit as many ranks; nothing if it fits, or none does."""
    from scaleout.api.advised import with_changes
    from scaleout.api.inputs import given_of
    from scaleout.study.sweep.cases import run_line

    advice = next((each for each in held.advice if each.fits and each.ranks == ranks), None)
    if advice is None:
        return ""
    changed = given_of(with_changes(given, advice))
    context = click.get_current_context()
    own = [name for name in _OWN if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    values = {name: context.params[name] for name in own}
    words = [(f"--{name}", str(value[0] if isinstance(value, tuple) else value)) for name, value in values.items()]
    line = run_line(changed).replace("scaleout run", "scaleout goodput", 1)
    return f"{line} {shlex.join(word for pair in words for word in pair)}"


class _AskedFor(NamedTuple):
    """How much is to be trained: so many tokens, or so long."""

    tokens: float | None
    duration_s: float | None

    def of(self, found: "Goodput", *, step_tokens: int) -> tuple[float, float]:
        """Return steps and tokens; `ConfigError` if that is less than one step."""
        if self.tokens is not None:
            steps, tokens = self.tokens / step_tokens, self.tokens
        else:
            assert self.duration_s is not None
            steps = self.duration_s / found.training_s(1.0)
            tokens = steps * step_tokens
        if steps < 1:
            what = "--duration" if self.tokens is None else "--tokens"
            raise ConfigError(f"{what}: that is less than one step of {step_tokens:,} tokens; give more")
        return steps, tokens


def _asked_for(tokens: str | None, duration: str | None) -> _AskedFor:
    """Read --tokens or --duration."""
    from scaleout.config.units import TOKENS

    if (tokens is None) == (duration is None):
        raise ConfigError("give either --tokens, such as 15T, or --duration, such as 30day")
    found = _AskedFor(
        None if tokens is None else quantity_of("--tokens", tokens, TOKENS),
        None if duration is None else quantity_of("--duration", duration, _lasting()),
    )
    if not any(found):
        raise ConfigError(
            f"{'--tokens' if duration is None else '--duration'} 0 trains on nothing; give more than zero"
        )
    return found


def _prepared(
    job: NamedJob, schedule: str, options: Stated, asked: "Mapping[str, Any]"
) -> "tuple[Job, LayeredModel, Disturbance]":
    """Return the job of one step, its workload, and what disturbs the training."""
    from scaleout.study.job import Job
    from scaleout.study.realism import options_for
    from scaleout.workloads.config.layered import layered

    loaded, topology, device = job.load()
    workload = layered(loaded, wants="goodput is of training a model of layers")
    if workload.mode != "training":
        raise ConfigError(f"workload {workload.name!r} is in mode {workload.mode!r}; goodput is of training")
    how = options_for(workload, device, **options)
    return Job(workload, device, topology, schedule, how), workload, _disturbance(topology, device, **asked)


def _trained(job: "Job", disturbance: "Disturbance") -> "tuple[Goodput, float | None, Fit, float | None]":
    """Simulate a step; return what is left of its speed, a mean step's energy, whether it fits, and the rent."""
    from scaleout.analysis.cost import bill
    from scaleout.analysis.efficiency import fit
    from scaleout.analysis.goodput import goodput as find
    from scaleout.study.job import run

    outcome = run(job)
    compute_s = outcome.breakdown.compute_s
    found = find(outcome.makespan_s, compute_s=compute_s, ranks=job.topology.num_ranks, disturbance=disturbance)
    assert outcome.workload is not None
    assert outcome.device is not None
    held = fit(outcome.workload, outcome.device)
    rent_per_s, step_j, power = bill(job.network, outcome.device).rent_per_s, None, outcome.device.power
    if outcome.energy is not None and power is not None:
        waits_s, idle_w = found.step_mean_s - found.step_s, job.topology.num_ranks * power.idle_w
        step_j = outcome.energy.lasting(found.step_s, waits_s, idle_w=idle_w)
    return found, step_j, held, rent_per_s


def _disturbance(topology: "Topology", device: "Device", **asked: Any) -> "Disturbance":
    """Read what disturbs the job, by default as the files of the device and its link types say."""
    from scaleout.analysis.goodput import disturbance_on
    from scaleout.config.documents import LEAST_NUMBER, number
    from scaleout.config.units import FAILURES

    pairs = list(pairs_of(asked["stragglers"], option="--stragglers", form="like 0.005=1.1").items())
    share, slowdown = (number(each) for each in pairs[0]) if pairs else (0.0, 1.0)
    if len(pairs) > 1 or share is None or slowdown is None or 0 < share < LEAST_NUMBER:
        raise ConfigError("--stragglers: give one share and factor, such as --stragglers 0.005=1.1")
    given, interval = asked["failures"], asked["interval"]
    return disturbance_on(
        topology,
        device,
        failures=None if given is None else quantity_of("--failures", given, FAILURES),
        jitter=asked["jitter"],
        checkpoint_s=quantity_of("--checkpoint", asked["checkpoint"], _lasting()),
        restart_s=quantity_of("--restart", asked["restart"], _lasting()),
        interval_s=None if interval is None else quantity_of("--interval", interval, _lasting()),
        stragglers=share,
        straggler_slowdown=slowdown,
        seed=asked["seed"],
    )


def _lasting() -> "Quantity":
    """Return times as people give them, of longer things than messages."""
    from scaleout.config.units import SECONDS

    return replace(SECONDS, example="10s")


def _sources(job: "Job", disturbance: "Disturbance", asked: "Mapping[str, Any]") -> dict[str, str]:
    """Say of each number that disturbs the training whether it was given, or where else it is from."""
    from scaleout.analysis.goodput import RESTART_S

    links = dict.fromkeys(each.link_type for each in job.topology.dimensions if each.link_type and each.size > 1)
    file = f"file of {job.device if isinstance(job.device, str) else job.device.name}"
    files = f"{file} and of its links, {', '.join(links)}" if links else file
    own = disturbance.restart_s == RESTART_S
    return {
        "failures_per_s": "given" if asked["failures"] is not None else files,
        "checkpoint_s": "given",
        "restart_s": "default: Jiang et al., MegaScale, NSDI 2024" if own else "given",
        "interval_s": "given" if disturbance.interval_s is not None else "default: the best for these",
        "jitter": "given" if asked["jitter"] is not None else file if disturbance.jitter else "default",
    }


def _answer(
    all_found: "Mapping[str, Any]", found: "Goodput", words: dict[str, str], unchanged: "Goodput | None"
) -> dict[str, str]:
    """Say what training comes to; `words` are other facts, `unchanged` is of the job without its changes, if any."""
    from scaleout.config.units import (
        format_difference,
        format_dollars,
        format_joules,
        format_rent,
        format_seconds,
        format_share,
        format_tokens,
    )
    from scaleout.report.box import FITTED

    energy_j, dollars, training_s = (all_found[key] for key in ("energy_j", "training_dollars", "training_s"))
    answer = {
        "training": f"{_days(training_s)} for {format_tokens(all_found['tokens'])} tokens",
        "goodput": f"{format_share(found.goodput)} of the time; {format_share(found.speed)} of the simulated speed",
        "step": f"{format_seconds(found.step_s)} simulated, {format_seconds(found.step_median_s)} in the median",
    }
    if unchanged is not None:
        before_s = unchanged.training_s(1.0)
        answer["unchanged"] = (
            f"{_days(all_found['steps'] * before_s)} for the same tokens, a step {format_seconds(unchanged.step_s)} "
            f"simulated; {format_difference(found.training_s(1.0), before_s)} with the changes"
        )
    if dollars is not None:
        device_per_s = dollars / training_s / all_found["ranks"]
        answer["rent"] = f"{format_dollars(dollars)}, at {format_rent(device_per_s)} a device"
    answer |= {} if energy_j is None else {"energy": format_joules(energy_j)}
    if not all_found["memory"]["fits"]:
        answer = {"memory": words["memory"], **answer, "training": answer["training"] + FITTED}
    return answer | words


def _print(found: "Goodput", disturbance: "Disturbance", summary: dict[str, Any], *, helps: str) -> None:
    """Print what training comes to, where its time goes, and what was assumed."""
    from scaleout.cli.console import console, print_answer, print_table
    from scaleout.config.units import format_rate, format_seconds, format_share

    on = f"{summary['topology']}, ranks {summary['ranks']:,}, device {summary['device']}"
    print_answer(f"{summary['workload']} on {on}", summary["answer"])
    if helps:
        say(f"{helps}\n")
    interval_s = found.interval_s
    slowest = [f"jitter {format_share(disturbance.jitter)}"] if disturbance.jitter else []
    slowest += [f"{format_share(disturbance.stragglers)} stragglers"] if disturbance.stragglers else []
    rows = [
        ["step, 95th percentile", format_seconds(found.step_p95_s)],
        ["time of steps as simulated", format_share(found.speed)],
        [f"time waiting for the slowest rank: {', '.join(slowest) or 'none'}", format_share(found.waiting_share)],
        ["time of checkpoints", format_share(found.checkpoint_share)],
        ["time lost to failures: computed again, restarts", format_share(found.failure_share)],
    ]
    print_table("where the time goes", ("", ""), rows)
    interval = "no checkpoints" if isinf(interval_s) else format_seconds(interval_s)
    values = {
        "failures_per_s": ("failures a day", format_rate(disturbance.failures_per_s * 86400)),
        "checkpoint_s": ("a checkpoint", format_seconds(disturbance.checkpoint_s)),
        "restart_s": ("a restart", format_seconds(disturbance.restart_s)),
        "interval_s": ("training between checkpoints", interval),
        "jitter": ("jitter of a rank's compute", format_share(disturbance.jitter)),
    }
    cells = [[values[key][0], source, values[key][1]] for key, source in summary["assumed_from"].items()]
    print_table("what was assumed", ("", "from", "value"), cells, left=2)
    for note in summary["model"]["notes"]:
        console().print(f"note: {note}")


def _days(seconds: float) -> str:
    from scaleout.config.units import format_rate

    return f"{format_rate(seconds / 86400)} days"
