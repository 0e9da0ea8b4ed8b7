"""Schedules: passes from program to program that decide what may run concurrently.

A schedule is the name of a pass, or of several joined by `+` and applied from left to right: `overlap+fused`. A pass
puts nodes on streams or rewrites the graph; a rewrite alone stands on `baseline`. Passes conserve FLOPs and, but where
they substitute collectives, payload bytes, and leave their input as it is. `SCHEDULES` is the one table; a pass is
imported when it is first applied.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import combinations
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError
from scaleout.program.fastest import fastest
from scaleout.program.program import Program, alike
from scaleout.schedule.decision import Decision, Planned
from scaleout.schedule.overlap import baseline, in_program_order, overlap
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.pipeline import PIPELINES

Pass = Callable[[Program, Machine | None], Program | Planned]
"""A program and, where it weighs costs, the machine to a program, or to one with what was decided."""


@dataclass(frozen=True)
class Schedule:
    """One pass; a home is a module under `scaleout.schedule` and the name of a function there: ``overlap:overlap``.

    The home of a schedule that a user defines is its function.
    """

    summary: str
    home: str | Pass
    rewrites: bool = False  # it changes what the graphs hold, so that it stands on `baseline` where it comes first
    decides: bool = False  # it weighs costs and says what it decided; it needs a machine
    places: bool = False  # it says of every node on which stream it runs, so that it undoes what came before
    exclusive: bool = False  # no other rewriting pass can be joined to it, as parts of a GEMM cannot be cut again
    after: tuple[str, ...] = ()  # exclusive passes that it may follow, as it takes only what they left whole
    variant_of: str = ""  # the pass that does the same in another way, so that one of the two is enough
    substitutes: bool = False  # it replaces all-reduces by other collectives
    in_order: bool = False  # a rank still runs its pipeline's actions one after another: bounds of a search rely on it
    needs: str = ""  # section of the device's file without which it fails; empty if it runs on any device, or on none
    with_option: str = ""  # home of a function from the text behind ``:`` to a pass; empty if it takes no option
    prepares: str = ""  # home of a function from workload and machine to the workload that it runs, if not as it is
    prepares_for: tuple[str, ...] = ()  # options with which it prepares the workload; "" is none


SCHEDULES: dict[str, Schedule] = {
    "baseline": Schedule(
        "bulk-synchronous: kernels and collectives one after another; messages of pipelines and ring attention overlap",
        "overlap:baseline",
        places=True,
        in_order=True,
    ),
    "recorded": Schedule(
        "as recorded: every kernel and collective of a trace on the stream that it ran on",
        "overlap:recorded",
        places=True,
        in_order=True,
    ),
    "overlap": Schedule(
        "collectives concurrent with kernels that do not wait for them, where a step is shorter for it; "
        "overlap:always wherever they can be",
        "steps:overlap_where_shorter",
        places=True,
        in_order=True,
        with_option="steps:overlap_with",
    ),
    "concurrent": Schedule(
        "overlap, with several collectives of a group at a time", "overlap:concurrent", places=True, in_order=True
    ),
    "blocking-tp": Schedule(
        "overlap, but kernels wait for the collectives of the tensor axis, as in PyTorch",
        "async_tp:blocking_tp",
        in_order=True,
    ),
    "fused": Schedule(
        "a kernel and the collective next to it as one persistent kernel, the slices for other ranks first, where a "
        "step is shorter for it; arXiv:2305.06942",
        "fusion.trials:plan",
        rewrites=True,
        after=("centauri",),
        in_order=True,
    ),
    "fused-oblivious": Schedule(
        "as `fused`, but with slices in the order of the ranks, not those for other ranks first, and wherever the "
        "two are faster isolated",
        "fusion.passes:fuse_oblivious",
        rewrites=True,
        variant_of="fused",
        in_order=True,
    ),
    "track-and-trigger": Schedule(
        "GEMMs and the collectives behind them overlapped by T3's hardware, arXiv:2401.16677; "
        "track-and-trigger:POLICY names who goes first at the memory: round-robin, first-ready, compute-first or "
        "dedicated",
        "t3.schedule:track",
        rewrites=True,
        exclusive=True,
        needs="stages",
        with_option="t3.schedule:track_with",
    ),
    "async-tp": Schedule(
        "GEMMs and collectives of the tensor axis in overlapped slices, as PyTorch's async TP",
        "async_tp:async_tp",
        rewrites=True,
        in_order=True,
    ),
    "centauri": Schedule(
        "every communication partitioned and ordered where that pays; Chen et al., ASPLOS 2024. Five steps: "
        "centauri:primitive, centauri:group, centauri:workload, centauri:order and centauri:model end after the step "
        "that they name; centauri:model is all of the paper, and centauri also reduces gradients in chunks. "
        "centauri:workload=M (or N) cuts GEMMs along M (or N) alone; centauri:model-group is centauri:model with no "
        "collective by levels",
        "centauri.schedule:plan",
        decides=True,
        exclusive=True,
        substitutes=True,
        in_order=True,
        with_option="centauri.schedule:plan_of",
        prepares="centauri.model_tier:model_tier",
        prepares_for=("", "model", "model-group", "gradients"),
    ),
    "chunked": Schedule(
        "every all-to-all and the kernels next to it in two chunks, or with chunked:N in N, but no more than there are "
        "tables or tokens, whether that pays or not; centauri weighs it",
        "centauri.partition.exchange:chunked",
        rewrites=True,
        exclusive=True,
        in_order=True,
        with_option="centauri.partition.exchange:chunked_with",
    ),
    "substituted": Schedule(
        "every all-reduce as a reduce-scatter and an all-gather, or with substituted:WAY collectives in a way of "
        "Centauri's Table 2: unrooted, rooted or distinct-roots; centauri weighs the first",
        "centauri.partition.group:substituted",
        rewrites=True,
        substitutes=True,
        in_order=True,
        with_option="centauri.partition.group:substituted_with",
    ),
    "out-of-order": Schedule(
        "weight gradients of the first layers deferred (reverse first-k); Oh et al., EuroSys 2022",
        "out_of_order:plan",
        decides=True,
        exclusive=True,
    ),
    "coconet": Schedule(
        "all-reduces substituted, in even chunks with their GEMMs; Jangda et al., ASPLOS 2022",
        "coconet:plan",
        decides=True,
        exclusive=True,
        substitutes=True,
    ),
}
"""The names of all passes, and what each is."""


def _load(home: str | Pass) -> Any:
    if not isinstance(home, str):
        return home
    module, _, name = home.partition(":")
    return getattr(import_module(f"scaleout.schedule.{module}"), name)


def apply_schedule(program: Program, name: str, *, machine: Machine | None = None) -> Program:
    """Apply a schedule to a timed program; see `plan_schedule`."""
    return plan_schedule(program, name, machine=machine).program


def plan_schedule(program: Program, name: str, *, machine: Machine | None = None) -> Planned:
    """Apply a schedule to a timed program, and return what its passes decided, too.

    Passes that model operators of their own, or weigh costs, need the machine that it will run on.

    Raises
    ------
    ConfigError
        If a pass is unknown, contradicts another, or needs a machine and there is none.
    """
    passes = passes_of(name)
    if _schedule(name.split("+", maxsplit=1)[0])[0].rewrites:
        passes.insert(0, _load(SCHEDULES["baseline"].home))
    planned = Planned(program)
    for each in passes:
        found = [_applied(each, given, machine) for given in (planned, planned.whole) if given is not None]
        planned = fastest(found, lambda made: math.inf if made.result is None else made.result.makespan_s)
    return replace(planned, program=in_program_order(planned.program), runs_as=_runs_as(program, planned.program, name))


def _runs_as(given: Program, made: Program, name: str) -> str:
    """Return which simpler schedule makes the same of a program; nothing if none does, or it is this one."""
    if name in ("baseline", "recorded"):
        return ""
    simpler = (baseline,) if name.partition(":")[0] == "overlap" else (baseline, overlap)
    return next((each.__name__ for each in simpler if alike(each(given), made)), "")


def _applied(each: Pass, given: Planned, machine: Machine | None) -> Planned:
    """Apply a pass to what those before it have made; a pass that changes nothing keeps its step."""
    made = each(given.program, machine)
    if not isinstance(made, Planned):
        return Planned(made, given.decisions)
    unchanged = made.result is None and made.program is given.program
    return replace(made, decisions=given.decisions + made.decisions, result=given.result if unchanged else made.result)


def prepare(
    workload: ModelFamily, name: str, machine: Machine, ready: Callable[[Program], Program]
) -> list[tuple[ModelFamily, tuple[Decision, ...], Program | None]]:
    """Return the workloads of which a schedule runs the one with the shorter step.

    Each is with what was chosen, and its timed program if one was simulated. `ready` says when the host
    issues a program, and puts its ranks where they will run. Fails if no plan fits in memory.
    """
    for part in name.split("+"):
        schedule, option = _schedule(part)
        if schedule.prepares and option in schedule.prepares_for:
            chosen = _load(schedule.prepares)(workload, machine, ready)
            return [(each.workload, each.decisions, each.program) for each in (chosen, chosen.instead) if each]
    return [(workload, (), None)]


def passes_of(name: str) -> list[Pass]:
    """Return the passes that a schedule's name stands for, or raise ConfigError as `plan_schedule` does."""
    parts = name.split("+")
    found = [_schedule(part)[0] for part in parts]
    passes = [_pass(part) for part in parts]
    _check_once(name, parts)
    rewriting = [part for part, each in zip(parts, found, strict=True) if each.rewrites or each.decides]
    for index, part in enumerate(parts[1:], 1):
        before = parts[index - 1]
        if found[index].places:
            instead = "one of them" if found[0].places else f"{part} first"
            raise ConfigError(
                f"schedule {name!r}: {part} puts all kernels and collectives on streams, and so undoes what {before} "
                f"did; give {instead}, or each as a schedule of its own"
            )
        if part not in rewriting and before in rewriting:
            raise ConfigError(f"schedule {name!r}: {part} would move what {before} has rewritten; give it before that")
    for one, other in combinations(rewriting, 2):
        first, second = _schedule(one)[0], _schedule(other)[0]
        follows = one.partition(":")[0] in second.after and not second.exclusive
        if (first.exclusive or second.exclusive) and not follows:
            raise ConfigError(
                f"schedule {name!r}: {one} and {other} replace the same operators, and parts of a GEMM "
                f"cannot be tracked or cut again; give each as a schedule of its own"
            )
    return passes


def _check_once(name: str, parts: Sequence[str]) -> None:
    """Refuse a pass that is given twice, in the same way or in two."""
    seen: dict[str, str] = {}
    for part in parts:
        base = part.partition(":")[0]
        same = SCHEDULES[base].variant_of or base
        if same in seen:
            raise ConfigError(
                f"schedule {name!r}: {seen[same]} and {part} are the same pass twice; leave one of them out"
            )
        seen[same] = part


def in_order(name: str) -> bool:
    """Return whether all parts of a schedule's name keep the order of a rank's actions."""
    return all(_schedule(part)[0].in_order for part in name.split("+"))


def substituting(name: str) -> list[str]:
    """Return the parts of a schedule's name that replace all-reduces by other collectives."""
    return [part for part in name.split("+") if _schedule(part)[0].substitutes]


def _schedule(part: str) -> tuple[Schedule, str]:
    """Return what a part of a schedule's name stands for, and its option."""
    name, _, option = part.partition(":")
    if name in PIPELINES:
        raise ConfigError(
            f"schedule {name!r} is one of pipelines, which order micro-batches; give it as "
            f"--set pipeline_schedule={name} (scaleout list schedules has those of communication)"
        )
    if name.rstrip("12").lower() in ("ddp", "fsdp", "megatron", "deepspeed", "pytorch"):
        raise ConfigError(
            f"schedule {name!r} is how a framework trains; give it as --set framework=NAME (scaleout list frameworks)"
        )
    if name not in SCHEDULES:
        raise ConfigError(f"unknown schedule {name!r}; {nearest(name, SCHEDULES)} (join several with '+')")
    return SCHEDULES[name], option


def _pass(part: str) -> Pass:
    schedule, option = _schedule(part)
    if ":" not in part:
        found: Pass = _load(schedule.home)
        return found
    if not schedule.with_option:
        raise ConfigError(f"schedule {part.partition(':')[0]!r} takes no option {option!r}; leave ':{option}' out")
    pass_with: Callable[[str], Pass] = _load(schedule.with_option)
    return pass_with(option)
