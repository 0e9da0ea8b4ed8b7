"""Schedules: passes from program to program that decide what may run at the same time.

A schedule is the name of a pass, or of several joined by `+` that are applied from left to right, such as
`overlap+fused`. A pass either puts nodes on streams or rewrites the graph; a rewrite alone stands on `baseline`.
Passes conserve FLOPs and payload bytes and leave their input as it is. `track-and-trigger:round-robin` names the policy
of the memory, `centauri:group` the last dimension that is partitioned.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from scaleout.cluster.machine import Machine
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.program.program import Program
from scaleout.schedule import coconet, out_of_order
from scaleout.schedule.async_tp import async_tp, blocking_tp
from scaleout.schedule.baseline import baseline
from scaleout.schedule.centauri import schedule as centauri
from scaleout.schedule.centauri.model_tier import ModelTier, model_tier
from scaleout.schedule.decision import Planned
from scaleout.schedule.fusion.passes import fuse, fuse_oblivious
from scaleout.schedule.order import in_program_order
from scaleout.schedule.overlap import concurrent, overlap
from scaleout.schedule.t3.memory import policy_named
from scaleout.schedule.t3.schedule import track
from scaleout.workloads.config import Workload

Pass = Callable[[Program, Machine | None], Program]
Plan = Callable[[Program, Machine | None], Planned]
"""A pass that also says what it decided."""

REWRITES: dict[str, Pass] = {
    "fused": fuse,
    "fused-oblivious": fuse_oblivious,
    "track-and-trigger": track,
    "async-tp": async_tp,
}
"""Passes that change what the graphs hold."""

PASSES: dict[str, Pass] = {
    "baseline": baseline,
    "overlap": overlap,
    "concurrent": concurrent,
    "blocking-tp": blocking_tp,
    **REWRITES,
}
"""Passes that decide nothing."""

PLANS: dict[str, Plan] = {"centauri": centauri.plan, "out-of-order": out_of_order.plan, "coconet": coconet.plan}
"""Passes that cut and order what a program has by what it costs; they need a machine."""

SUBSTITUTING = ("centauri", "coconet")
"""Passes that replace all-reduces by other collectives."""

PREPARES: dict[str, Callable[[Workload, Machine], ModelTier]] = dict.fromkeys(
    ("centauri", "centauri:model", "centauri:gradients"), model_tier
)
"""Passes that choose keys of the workload before it becomes a program; with other options they are passes alone."""

SCHEDULES: dict[str, str] = {
    "baseline": "bulk-synchronous: kernels and collectives one after another",
    "overlap": "collectives beside kernels that do not wait for them",
    "concurrent": "overlap, with several collectives of a group at a time",
    "blocking-tp": "overlap, but kernels wait for the collectives of the tensor axis, as in PyTorch",
    "fused": "a kernel and the collective next to it as one persistent kernel, what others wait for first; "
    "arXiv:2305.06942",
    "fused-oblivious": "the same, in the order of the ranks",
    "track-and-trigger": "products and the collectives behind them on hardware that tracks and triggers; "
    "with :POLICY of the memory; T3, arXiv:2401.16677",
    "async-tp": "products and collectives of the tensor axis in parts beside each other, as PyTorch's async TP",
    "centauri": "every communication partitioned and ordered where that pays; :primitive, :group, :workload, :order or "
    ":model stop there, the last of them the paper's end, and :workload=M or =N cuts products along that dimension "
    "alone; Chen et al., ASPLOS 2024",
    "out-of-order": "gradients of weights of the first layers put off; Oh et al., EuroSys 2022",
    "coconet": "all-reduces substituted, in even chunks with their products; Jangda et al., ASPLOS 2022",
}
"""The names of all passes, and what each does."""

_OPTIONS: dict[str, Callable[[str], Plan]] = {
    "track-and-trigger": lambda option: _deciding_nothing(partial(track, policy=policy_named(option))),
    "centauri": centauri.plan_of,
}
"""Passes that take an option, with it."""


def apply_schedule(program: Program, name: str, *, machine: Machine | None = None) -> Program:
    """Apply a schedule to a timed program; see `plan_schedule`."""
    return plan_schedule(program, name, machine=machine).program


def plan_schedule(program: Program, name: str, *, machine: Machine | None = None) -> Planned:
    """Apply a schedule to a timed program, and return what its passes decided, too.

    Parameters
    ----------
    machine : Machine, optional
        What it will run on; passes that model operators of their own, or weigh costs, need it.

    Raises
    ------
    ConfigError
        If a pass is unknown, needs a machine and there is none, or is to track or cut what another pass has cut.
    """
    passes = passes_of(name)
    if name.split("+", maxsplit=1)[0].partition(":")[0] in REWRITES:
        program = baseline(program, machine)
    planned = Planned(program)
    for each in passes:
        decided = planned.decisions
        planned = each(planned.program, machine)
        planned = replace(planned, decisions=decided + planned.decisions)
    return replace(planned, program=in_program_order(planned.program))


def prepare(workload: Workload, name: str, machine: Machine) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload that a schedule runs, and what was chosen of it in words.

    Raises
    ------
    ConfigError
        If no plan that the schedule may choose fits in the memory of the devices.
    """
    words: tuple[str, ...] = ()
    for part in name.split("+"):
        if part in PREPARES:
            chosen = PREPARES[part](workload, machine)
            workload, words = chosen.workload, (*words, chosen.words)
    return workload, words


def passes_of(name: str) -> list[Plan]:
    """Return the passes that a schedule's name stands for.

    Raises
    ------
    ConfigError
        If a pass is unknown, or is to track or cut what another pass has cut.
    """
    parts = name.split("+")
    passes = [_pass(part) for part in parts]
    rewrites = [part for part in parts if part.partition(":")[0] in (*REWRITES, *PLANS)]
    if len(rewrites) > 1 and any(part.partition(":")[0] in ("track-and-trigger", *PLANS) for part in rewrites):
        raise ConfigError(
            f"schedule {name!r}: {' and '.join(rewrites)} replace the same operators, and parts of a product are none "
            f"that could be tracked or cut again; give each as a schedule of its own"
        )
    return passes


def _pass(part: str) -> Plan:
    """Return the pass that a part of a schedule's name stands for, with its option."""
    name, colon, option = part.partition(":")
    if name not in SCHEDULES:
        raise ConfigError(f"unknown schedule {name!r}; {nearest(name, SCHEDULES)} (join several with '+')")
    if not colon:
        return PLANS[name] if name in PLANS else _deciding_nothing(PASSES[name])
    if name not in _OPTIONS:
        raise ConfigError(f"schedule {name!r} takes no option {option!r}; leave ':{option}' out")
    return _OPTIONS[name](option)


def _deciding_nothing(made: Pass) -> Plan:
    return lambda program, machine: Planned(made(program, machine))
