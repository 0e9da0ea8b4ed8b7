"""Studies: one job under several schedules, compared.

The one call that goes all the way from names to numbers; the command line and the figures are built on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

from scaleout.analysis.breakdown import Breakdown, breakdown, ends_of_ranks
from scaleout.analysis.efficiency import Efficiency, Fit, efficiency, fit
from scaleout.cluster.device.annotate import annotate
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.backends import with_policy
from scaleout.cluster.topology.topology import Topology, check_ranks, load_topology
from scaleout.errors import ConfigError
from scaleout.program.program import Program
from scaleout.schedule import plan_schedule, prepare, substituting
from scaleout.schedule.decision import Decision, in_words
from scaleout.simulation.clocks import settled
from scaleout.simulation.contention import Contention, contention_of, undisturbed
from scaleout.simulation.result import Result
from scaleout.simulation.run import simulate
from scaleout.simulation.what_if import map_ranks, places_of
from scaleout.workloads.config import LayeredModel, ModelFamily, load_workload
from scaleout.workloads.generate import generate

DEFAULT_SCHEDULES = ("baseline", "overlap", "fused")
"""Schedules that are compared where neither the user nor the workload says which."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One schedule of a comparison.

    Attributes
    ----------
    schedule : str
    result : Result
        When everything ran.
    speedup : float
        Makespan of the comparison's first schedule over this one's.
    efficiency : Efficiency or None
        Of the step of a transformer: tokens a second, MFU and what they are lost to.
    decisions : tuple of str
        What a schedule that weighs has decided, in words.
    transformer : LayeredModel or None
        What it ran, where that is a transformer; a schedule may choose keys of its workload.
    fit : Fit or None
        Whether that fits.
    """

    schedule: str
    result: Result
    speedup: float
    efficiency: Efficiency | None = None
    decisions: tuple[str, ...] = ()
    transformer: LayeredModel | None = None
    fit: Fit | None = None

    @property
    def makespan_s(self) -> float:
        """Time of the step."""
        return self.result.makespan_s

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time goes."""
        return breakdown(self.result)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A job on a cluster under several schedules; of a transformer also its workload, and whether the first fits."""

    workload: str
    topology: str
    device: str
    ranks: int
    outcomes: tuple[Outcome, ...]
    transformer: LayeredModel | None = None
    fit: Fit | None = None

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values, as `scaleout run --json` prints them."""
        return {
            "workload": self.workload,
            "topology": self.topology,
            "device": self.device,
            "ranks": self.ranks,
            **({} if self.fit is None else {"memory": self.fit.summary()}),
            "results": [
                {
                    "schedule": outcome.schedule,
                    **asdict(outcome.breakdown),
                    "speedup": outcome.speedup,
                    **({} if outcome.efficiency is None else asdict(outcome.efficiency)),
                    **({"decisions": list(outcome.decisions)} if outcome.decisions else {}),
                    **({} if outcome.fit in (None, self.fit) else {"memory": outcome.fit.summary()}),
                    **_ranks(outcome.result),
                    **_links(outcome.result),
                }
                for outcome in self.outcomes
            ],
        }


def _ranks(result: Result) -> dict[str, Any]:
    """Return when each rank is done with each phase, where ranks put slices at times of their own."""
    return {"ranks": [asdict(each) for each in ends_of_ranks(result)]} if result.has_puts else {}


def _links(result: Result) -> dict[str, Any]:
    """Return the busiest links and the traffic by dimension, where the network model knows links."""
    if result.link_traffic is None:
        return {}
    return {
        "busiest_links": [asdict(use) for use in result.busiest_links],
        "traffic": result.link_traffic.by_port(),
    }


def compare(
    workload: ModelFamily | str,
    *,
    topology: Topology | str | None = None,
    device: Device | str | None = None,
    schedules: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    algorithms: Mapping[str, str] | None = None,
    network: str = "alpha_beta",
    placement: str | Sequence[int] = "linear",
    injection_bytes_per_s: float | None = None,
    contention: bool = True,
    host: str = "none",
    clocks: str = "alone",
    policy: str | None = None,
) -> Comparison:
    """Simulate a workload under several schedules.

    Parameters
    ----------
    workload : ModelFamily or str
        A loaded workload, or the name or file of one.
    topology, device : optional
        Loaded, or a name or file; by default those that the workload names.
    schedules : sequence of str
        Names in `scaleout.schedule.SCHEDULES`, joined by ``+`` where wanted; by default the workload's.
    changes : mapping, optional
        Keys of the workload's file to change, where it is given by name.
    algorithms : mapping, optional
        Kind of collective to the algorithm to use instead of the fastest.
    network : str
        The network model.
    placement : str or sequence of int
        Which rank of the topology each rank of the job is, see `what_if.places_of`.
    injection_bytes_per_s : float, optional
        What a rank can send over all its links together, under the link model.
    contention : bool
        Whether kernels, collectives and messages that run at the same time take SMs and memory from each other, where
        the network's library says how much.
    host : str
        How the host issues a step, a name in `host.HOSTS`.
    clocks : str
        How kernels are clocked, a name in `clocks.CLOCKS`; it matters where the device says what it may draw.
    policy : str, optional
        Which of the topology's back ends reduces gradients, see `backends`. One that blocks the host leaves nothing
        to overlap: every schedule is then the baseline.

    Raises
    ------
    ScaleoutError
        If anything in the input is wrong; the message says what, where and what to do.
    """
    if isinstance(workload, str):
        workload = load_workload(workload, changes)
    device = load_device(workload.device if device is None else device) if not isinstance(device, Device) else device
    topology = workload.topology if topology is None else topology
    topology = load_topology(topology) if isinstance(topology, str) else topology
    topology = topology if policy is None else with_policy(topology, policy)
    check_ranks(topology, workload.num_ranks)
    _check_policy(policy, schedules or workload.schedules)
    schedules = tuple(dict.fromkeys(schedules or workload.schedules or DEFAULT_SCHEDULES))
    machine = Machine(device, topology if contention else undisturbed(topology), algorithms or {})
    chosen = {name: prepare(workload, _carried_out(name, topology), machine) for name in schedules}
    jobs = {id(job): job for job, _ in chosen.values()}
    programs = {key: annotate(generate(job), device, host=host) for key, job in jobs.items()}
    comparison = compare_program(
        {name: programs[id(job)] for name, (job, _) in chosen.items()},
        topology=topology,
        device=device.name,
        schedules=schedules,
        algorithms=algorithms,
        network=network,
        placement=placement,
        injection_bytes_per_s=injection_bytes_per_s,
        contention=contention_of(device, topology) if contention else None,
        machine=machine,
        clocks=clocks,
    )
    fits = {key: fit(job, device) for key, job in jobs.items() if isinstance(job, LayeredModel)}
    outcomes = tuple(
        replace(_of_job(outcome, *chosen[outcome.schedule], device), fit=fits.get(id(chosen[outcome.schedule][0])))
        for outcome in comparison.outcomes
    )
    if not isinstance(workload, LayeredModel):
        return replace(comparison, outcomes=outcomes)
    return replace(comparison, outcomes=outcomes, transformer=workload, fit=outcomes[0].fit)


def _check_policy(policy: str | None, schedules: Sequence[str]) -> None:
    """Refuse schedules that would take all-reduces away from the back ends that a policy is about."""
    for name in schedules if policy is not None else ():
        found = substituting(name)
        if found:
            raise ConfigError(
                f"policy {policy!r} says who serves all-reduces, which {found[0]} replaces by other collectives; leave "
                f"out one of the two"
            )


def _of_job(outcome: Outcome, job: ModelFamily, words: tuple[str, ...], device: Device) -> Outcome:
    """Add what is known of an outcome's workload."""
    outcome = replace(outcome, decisions=(*words, *outcome.decisions))
    if not isinstance(job, LayeredModel):
        return outcome
    return replace(outcome, efficiency=efficiency(outcome.result, job, device), transformer=job)


def _carried_out(schedule: str, topology: Topology) -> str:
    """Return the schedule that is carried out: a back end that blocks the host leaves nothing to overlap."""
    return "baseline" if topology.library is not None and topology.library.blocks_host else schedule


def compare_program(
    program: Program | Mapping[str, Program],
    *,
    topology: Topology,
    device: str,
    schedules: Sequence[str],
    algorithms: Mapping[str, str] | None = None,
    network: str = "alpha_beta",
    placement: str | Sequence[int] = "linear",
    injection_bytes_per_s: float | None = None,
    contention: Contention | None = None,
    machine: Machine | None = None,
    clocks: str = "alone",
) -> Comparison:
    """Simulate a timed program under several schedules, or a program for each; see `compare`."""
    programs = program if isinstance(program, Mapping) else dict.fromkeys(schedules, program)
    for each in programs.values():
        check_ranks(topology, each.num_ranks)
    if placement != "linear":
        places = places_of(placement, topology) if isinstance(placement, str) else placement
        programs = {name: map_ranks(each, places) for name, each in programs.items()}
    machine = None if machine is None else replace(machine, algorithms=algorithms or {})
    outcomes: list[Outcome] = []
    for name in dict.fromkeys(schedules):
        own = programs[name]
        planned: list[tuple[Decision, ...]] = []  # of each run, as clocks settle
        run = partial(
            _run, planned=planned, schedule=_carried_out(name, topology), machine=machine, topology=topology,
            network=network, algorithms=algorithms, injection_bytes_per_s=injection_bytes_per_s, contention=contention,
        )  # fmt: skip
        result = settled(own, machine.device, run, clocks=clocks) if machine else run(own)
        first_s = outcomes[0].makespan_s if outcomes else result.makespan_s
        speedup = first_s / result.makespan_s if result.makespan_s else 1.0
        outcomes.append(Outcome(name, result, speedup, decisions=in_words(planned[-1])))
    any_program = next(iter(programs.values()))
    return Comparison(any_program.name, topology.name, device, any_program.num_ranks, tuple(outcomes))


def _run(
    program: Program,
    *,
    planned: list[tuple[Decision, ...]],
    schedule: str,
    machine: Machine | None,
    topology: Topology,
    network: str,
    injection_bytes_per_s: float | None,
    contention: Contention | None,
    **options: Any,
) -> Result:
    """Plan and simulate a step; one that was simulated as it was planned is not simulated again."""
    scheduled = plan_schedule(program, schedule, machine=machine)
    planned.append(scheduled.decisions)
    if scheduled.result is not None and machine is not None and network == "alpha_beta":
        as_planned = contention == contention_of(machine.device, machine.topology)
        if as_planned and injection_bytes_per_s is None:
            return scheduled.result
    return simulate(
        scheduled.program,
        topology,
        network=network,
        injection_bytes_per_s=injection_bytes_per_s,
        contention=contention,
        **options,
    )
