"""`scaleout search`: the best parallel plans of a training job on a cluster."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli import completion
from scaleout.cli.job import NamedJob
from scaleout.cli.options import Output, Stated, Whole, job_options, output_options, quantity_of, simulation_options
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scaleout.api.searches import Export, SearchAnswer
    from scaleout.study.search.best import Choice, EvaluatedPlan
    from scaleout.study.search.explanation import Explanation
    from scaleout.study.search.request import SearchRequest
    from scaleout.study.search.search import Answer
    from scaleout.workloads.config.layered import LayeredModel

_COUNTED = {
    "indivisible": "degrees do not divide",
    "bounded": "pruned by lower bound",
    "too_large": "out of memory",
}
"""What became of plans, a field of `Counts`, to its heading; others are headed by their names."""


@click.command()
@job_options(replicas=False)
@click.option(
    "--ranks",
    "num_ranks",
    type=Whole(),
    metavar="N",
    help="Ranks of the job; must be those of the topology, the default.",
)
@click.option("--memory", metavar="SIZE", help="Memory of a rank, such as 80GB; by default the device's.")
@click.option(
    "--global-batch",
    type=Whole(),
    metavar="N",
    help="Sequences in a step, over all replicas; by default those of the workload's own job.",
)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.schedules,
    help="Also evaluate every plan with communication overlapped, fused or partitioned, such as overlap or centauri "
    "(`scaleout list schedules`; not the pipeline schedule, which a plan chooses); repeatable. The baseline is always "
    "evaluated.",
)
@click.option(
    "--simulations",
    type=Whole(),
    metavar="N",
    help="Simulate at most this many plans under each --schedule; by default 8.",
)
@simulation_options("host", "clocks", "contention")
@click.option("--top", type=Whole(), default=10, show_default=True, metavar="N", help="How many plans to print.")
@click.option("--workers", type=Whole(256), metavar="N", help="Worker processes; by default one per core.")
@click.option(
    "--export",
    "formats",
    multiple=True,
    type=click.Choice(("torchtitan", "megatron", "deepspeed")),
    help="Also write the fastest plan that the framework can run as its configuration: torchtitan's TOML, "
    "Megatron-LM's arguments, DeepSpeed's JSON; into the directory of --output, or on standard output; repeatable.",
)
@output_options(
    "Write plans and a figure here; the same command resumes an interrupted search from them.", "pareto.png"
)
def search(
    job: NamedJob,
    options: Stated,
    workers: int | None,
    formats: tuple[str, ...],
    output: Output,
    **wanted: Any,
) -> None:
    """Find the fastest parallelisation plans that fit the memory.

    A plan sets the degrees of tensor, context, pipeline, data and expert parallelism, the micro-batch, the pipeline
    schedule, recomputation, the ZeRO stage, and sequence parallelism. --set fixes one of these keys at a value.

    Every plan is first evaluated in closed form under the baseline schedule, which overlaps no collective. With
    --schedule the most promising plans are simulated under that schedule, and a table says how much of the fastest
    plan's communication is overlapped with kernels, and why the rest is exposed. The fastest plans of the baseline are
    simulated as well if pipeline messages contend with kernels for SMs and memory, or the clocks are sustained.

    Plans of prefill and decode are compared by a study: `scaleout study serving` is one, to copy and edit.

    Examples: scaleout search gpt-3 --topology dgx-h200-128 --global-batch 1536 --memory 80GB --output plans; scaleout
    search llama-3-70b --global-batch 32 --schedule overlap --schedule centauri; scaleout search llama-3-8b
    --export torchtitan.
    """
    from scaleout.api.searches import SearchInterrupted

    _check_exports(formats, output.folder)
    try:
        answer = _search(job, options, workers, output, **wanted)
    except SearchInterrupted as interrupted:
        _give_so_far(interrupted.answer, output)
        raise KeyboardInterrupt(_kept(output)) from None
    exports, refused = list["Export"](), list[ConfigError]()
    for name in dict.fromkeys(formats):
        try:
            exports.append(answer.export(name))
        except ConfigError as error:  # which is said once the plans are
            refused.append(error)
    answer = replace(answer, exports=exports)
    summary = answer.to_dict()

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.plots.studies import draw_plans
        from scaleout.study.search.checkpoint import FILE

        draw_plans(answer.request, answer.plans, folder / "pareto.png")
        return {
            FILE: "every plan that was evaluated; the same search resumes from it",
            "pareto.png": "time against memory",
            **_write_exports(folder, exports),
        }

    def print_tables() -> None:
        from scaleout.cli.console import console

        _print_answer(answer, summary["answer"], output.folder)
        _print(answer)
        for note in answer.model.notes:
            console().print(f"note: {note}")
        _print_exports(exports, type(answer.request.base), whole=output.folder is None)

    output.give(summary, print_tables, write)
    if refused:
        raise ConfigError("; ".join(map(str, refused)))


def _check_exports(formats: tuple[str, ...], folder: Path | None) -> None:
    """Refuse other files in the places of exports, before the search."""
    if not formats or folder is None:
        return
    from scaleout.config.writing import RECORD, check_writable
    from scaleout.interop.models.plans import FORMATS

    check_writable(folder, own=RECORD, command="search", files=[FORMATS[name].file for name in formats])


def _write_exports(folder: Path, exports: "Sequence[Export]") -> dict[str, str]:
    from scaleout.config.writing import write_text
    from scaleout.interop.models.plans import FORMATS

    written = {}
    for each in exports:
        file = FORMATS[each.format]
        write_text(folder / file.file, each.text)
        written[file.file] = f"plan {each.plan} as {file.summary}"
    return written


def _print_exports(exports: "Sequence[Export]", model: "type[LayeredModel]", *, whole: bool) -> None:
    """Print what is to be known of what is to be pasted, and that itself."""
    from scaleout.cli.printing import say
    from scaleout.config.keys import in_words
    from scaleout.interop.models.plans import FORMATS

    for each in exports:
        told = "" if each.read_back is None else in_words(model, each.read_back.differs)
        for note in (each.why, *each.notes, f"the file's step differs from the plan's in {told}" if told else ""):
            if note:
                say(f"note: {each.format}: {note}")
        if whole:
            say(f"plan {each.plan} as {FORMATS[each.format].summary}")
            say(each.text)


def _kept(output: Output) -> str:
    if output.folder is None:
        return "nothing is kept; with --output plans are, and the same command goes on"
    return f"what is done is kept in {output.folder}; the same command goes on where it was"


def _give_so_far(answer: "SearchAnswer", output: Output) -> None:
    """Print the plans that an interrupted search has found."""
    from scaleout.cli.printing import say_json

    if output.as_json:
        say_json(answer.to_dict())
        return
    _print_answer(answer, answer.answer(), None)
    _print_best(answer)


_PARTS = (
    ("groups of plans weighed for bounds", 0.15, ""),
    ("plans judged again", 0.85, ""),
    ("plans judged", 0.75, " in closed form"),
    ("simulations of", 0.84, " in closed form"),
    ("groups of plans weighed for candidates", 0.86, ""),
    ("simulations under", 0.97, ""),
    ("", 1.0, ""),
)
"""What a search does, which share of its time is about over then, and by what its fastest step is known until then."""


def _search(
    job: NamedJob,
    options: Stated,
    workers: int | None,
    output: Output,
    *,
    memory: str | None,
    **wanted: Any,
) -> "SearchAnswer":
    """Search, with a bar of progress on standard error."""
    from scaleout.api.searches import search as find
    from scaleout.cli.progress import progress
    from scaleout.config.units import BYTES, format_seconds

    with progress(kept=_kept(output), quiet=output.as_json) as show:

        def tell(done: int, total: int, what: str, best: Any) -> None:
            until, how = next((until, how) for begins, until, how in _PARTS if what.startswith(begins))
            fastest = f", fastest {format_seconds(best.fastest[0].estimate.step_s)}{how}" if best.fastest else ""
            show(done, total, f"{what}{fastest}", until)

        return find(
            str(job.workload),
            topology=job.topology,
            device=job.device,
            changes=job.settings,
            network_changes=job.changes,
            memory=None if memory is None else quantity_of("--memory", memory, BYTES),
            **options,
            directory=output.folder,
            workers=workers,
            tell=tell,
            **wanted,
        )


def _print_answer(answer: "SearchAnswer", words: "Mapping[str, str]", folder: Path | None) -> None:
    """Print the fastest plan, what it reaches, and how to run it, on lines that can be pasted."""
    from scaleout.cli.console import print_answer
    from scaleout.cli.printing import say
    from scaleout.study.sweep.cases import run_line

    request = answer.request
    on = f"{request.topology.name}, ranks {request.num_ranks:,}, device {request.device.name}"
    print_answer(f"{request.base.name} on {on}", words)
    say(run_line(answer.jobs[answer.plans.fastest[0].choice]))
    if folder is not None:
        say(f"or: scaleout run --plan {folder}#1")
    say("")


def _print(answer: "SearchAnswer") -> None:
    from scaleout.cli.console import print_table

    plans, found = answer.plans, answer.explanation
    _print_best(answer)
    counts = vars(plans.counts)
    print_table("plans", [_COUNTED.get(key, key) for key in counts], [[f"{n:,}" for n in counts.values()]], left=0)
    if found is not None:
        _print_explanation(plans, found, answer.request.schedules)


def _print_best(answer: "SearchAnswer") -> None:
    from scaleout.cli.console import console
    from scaleout.study.search.evaluate import BASELINE

    request, plans = answer.request, answer.plans
    several = bool(request.schedules)
    labels = plans.labels
    _print_plans("the fastest plans", request, plans.fastest, labels, several=several)
    again = [str(n) for n, each in enumerate(plans.fastest, start=1) if _is_above(plans.fastest, each)]
    if again:
        same = "the same plan as one above, under a schedule that is no faster"
        console().print(f"left out, as each is {same}: {', '.join(again)} (--json has them)\n")
    for schedule, front in groupby(plans.front, key=lambda found: found.schedule):
        of = "all plans" if schedule == BASELINE else "those simulated"
        under = f", of {of} under {schedule}" if several else ""
        title = f"least memory for the step time (Pareto front){under}, up to a quarter slower than the fastest"
        _print_plans(title, request, tuple(front), labels, several=False)
    if any(labels[each.choice].isalpha() for each in plans.front):
        console().print("numbers: the fastest plans; letters: not among these (--top); --plan takes both\n")


def _print_explanation(answer: "Answer", found: "Explanation", schedules: "Sequence[str]") -> None:
    """Print what the fastest plan overlaps, the same plans under all schedules, and what was not simulated."""
    from scaleout.cli.console import console, print_table
    from scaleout.config.units import format_seconds, format_times
    from scaleout.study.search.explanation import REASONS

    rows = [
        [each.axis, *map(format_seconds, (each.communication_s, each.overlapped_s, *each.exposed_s.values()))]
        for each in found.overlap
    ]
    title = (
        "communication of the fastest plan: overlapped with kernels, and exposed by reason; moments of two axes count "
        "twice"
    )
    print_table(title, ("axis", "communication", "overlapped", *REASONS), rows)
    rows = []
    for compared in (found.same, found.other):
        for each in compared:
            gain = compared[0].estimate.step_s / each.estimate.step_s
            rows.append([str(each.plan), each.schedule, format_seconds(each.estimate.step_s), format_times(gain)])
    title = "the fastest plan, and the fastest under baseline, under every schedule"
    print_table(title, ("plan", "schedule", "step", "gain"), rows, left=2)
    _print_simulated(answer, schedules)
    same = "the same plan" if not found.other else str(found.other[0].plan)
    console().print(f"the fastest under baseline: {same}, which takes {format_times(found.gain)} as long")


def _print_simulated(answer: "Answer", schedules: "Sequence[str]") -> None:
    """Say of all plans how many were simulated under the other schedules, and why the rest were not."""
    from scaleout.cli.console import console
    from scaleout.config.units import counted, format_share

    simulated = answer.simulated
    assert simulated is not None
    parts = [f"{len(simulated.found):,} simulated"]
    if simulated.left:
        faster = "none can be faster"
        if simulated.lower_bound_s is not None:
            at_most = format_share(1 - simulated.lower_bound_s / answer.fastest[0].estimate.step_s)
            faster = f"none can be more than {at_most} faster; --simulations simulates more"
        parts.append(f"{simulated.left:,} less promising ({faster})")
    if simulated.bounded:
        parts.append(f"{simulated.bounded:,} that cannot be among the fastest or do not fit")
    once = ", each once under every schedule" if len(schedules) > 1 else ""
    total = f"{counted(simulated.choices, 'plan')} under {', '.join(schedules)}{once}"
    console().print(f"{total}: {', '.join(parts)}")


def _is_above(plans: "Sequence[EvaluatedPlan]", found: "EvaluatedPlan") -> bool:
    """Whether plans, the fastest first, have the one of an evaluation before it, under another schedule."""
    return next(each for each in plans if each.plan == found.plan) is not found


def _print_plans(
    title: str,
    request: "SearchRequest",
    plans: "tuple[EvaluatedPlan, ...]",
    labels: "Mapping[Choice, str]",
    *,
    several: bool,
) -> None:
    """Print plans, each by its label."""
    from scaleout.cli.console import print_table
    from scaleout.config.units import format_bytes, format_rate, format_seconds, format_share

    axes = list(dict.fromkeys(axis for found in plans for axis in found.estimate.exposed_s))
    rows = []
    for found in plans:
        each = found.estimate
        if _is_above(plans, found):
            continue
        rows.append(
            [
                labels[found.choice],
                str(found.plan),
                *([found.schedule] if several else []),
                format_seconds(each.step_s),
                format_rate(each.tokens_per_s),
                format_rate(each.tokens_per_s / request.num_ranks),
                format_share(each.mfu),
                format_share(each.bubble),
                *(format_share(each.exposed_s.get(axis, 0.0) / each.step_s) for axis in axes),
                format_bytes(each.peak_bytes, like=request.memory_bytes),
                format_share(1 - each.peak_bytes / request.memory_bytes),
                each.bound_by,
            ]
        )
    exposed = [f"exposed {axis}" for axis in axes]
    which = ("", "plan", "schedule") if several else ("", "plan")
    columns = (*which, "step", "tokens/s", "tokens/s/GPU", "MFU", "bubble", *exposed, "memory", "free", "bound by")
    print_table(title, columns, rows, left=len(which))
