"""One job from names to numbers: the path that every verb, the search, the validation and Python take.

    prepare -> generate -> annotate (kernel times, host, placement) -> schedule -> simulate

Each stage is a function of its own, so that who needs no more takes the first of them: `scaleout trace` writes what
`timed` returns. `run` takes them all, `run_all` several jobs that share what they have in common.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from scaleout import schedule as schedules
from scaleout.analysis.bounds import Bound, bounds
from scaleout.analysis.breakdown import Breakdown, breakdown
from scaleout.analysis.cost import Energy, energy
from scaleout.analysis.efficiency import Efficiency, Fit, efficiency
from scaleout.analysis.roots import Roots
from scaleout.analysis.uncertainty import Interval, interval
from scaleout.analysis.waits import Waits, waits_of
from scaleout.cluster.device.annotate import annotate
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.backends import with_policy
from scaleout.cluster.topology.topology import Topology, check_ranks
from scaleout.config.arguments import check_fields
from scaleout.config.collector import seldom_collected
from scaleout.config.units import format_seconds
from scaleout.errors import ConfigError, ScaleoutError
from scaleout.program.fastest import fastest
from scaleout.program.program import Program
from scaleout.schedule import steps
from scaleout.schedule.decision import Decision, Planned, told_once
from scaleout.simulation.clocks import settled
from scaleout.simulation.contention import Contention, contention_of, undisturbed
from scaleout.simulation.options import SimulationOptions
from scaleout.simulation.result import Result
from scaleout.simulation.run import simulate
from scaleout.simulation.what_if import map_ranks, rank_mapping
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.generate import generate

Tell = Callable[[int, int, str], None]
"""Called with how much is done, of how much, and words for it."""


@dataclass(frozen=True, eq=False)
class Job:
    """One step to simulate.

    Attributes
    ----------
    work : ModelFamily or Program
        What runs; a program's kernels that have no time yet are timed on the device.
    device : Device or str
        What it runs on; the name alone of a device that has no file, on which a trace was recorded.
    topology : Topology
        With as many ranks as the work, and its slow ranks and links, but before a policy and contention are chosen.
    schedule : str
        Of `schedule.SCHEDULES`, joined by ``+`` where wanted.
    traced : bool
        Whether the work is the program of a trace, which says itself how long its kernels took and when they ran, and
        which collectives its gradients took.

    Raises
    ------
    ConfigError
        If the schedule is unknown or contradicts itself, if a trace is to have a host, clocks or a policy, or if the
        policy's all-reduces are replaced by the schedule.
    """

    work: ModelFamily | Program
    device: Device | str
    topology: Topology
    schedule: str = "baseline"
    options: SimulationOptions = field(default_factory=SimulationOptions)
    traced: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        schedules.passes_of(self.schedule)
        if self.traced:
            check_traced(self.options)
        if self.options.policy is not None:
            _check_policy(self.options.policy, self.schedule)

    @cached_property
    def network(self) -> Topology:
        """The topology with the library that the policy makes, which takes nothing from devices without contention."""
        policy = self.options.policy
        chosen = self.topology if policy is None else with_policy(self.topology, policy)
        return chosen if self.options.contention else undisturbed(chosen)

    @cached_property
    def machine(self) -> Machine | None:
        """What it runs on, as schedules weigh it; None where the device is only a name."""
        if isinstance(self.device, str):
            return None
        options = self.options
        return Machine(self.device, self.network, options.algorithms, options.network, options.injection_bytes_per_s)

    @property
    def contention(self) -> Contention | None:
        """What kernels and collectives that run at the same time take from each other; None for nothing."""
        return None if isinstance(self.device, str) else contention_of(self.device, self.network)

    @property
    def carried_out(self) -> str:
        """The schedule that is carried out: a host that waits for the device leaves nothing to overlap."""
        library = self.network.library
        blocks = self.options.host == "blocking" or (library is not None and library.blocks_host)
        return "baseline" if blocks else self.schedule

    def ready(self, program: Program) -> Program:
        """Return a program of the job's work timed, issued by the host and with its ranks where the options say."""
        if not (isinstance(self.device, str) or self.traced):
            program = annotate(program, self.device, host=self.options.host)
        placement = self.options.placement
        if placement == "linear":
            return program
        return map_ranks(program, rank_mapping(placement, self.network) if isinstance(placement, str) else placement)


def check_traced(options: SimulationOptions) -> None:
    """Refuse clocks, a host and a policy: a trace says itself how long its kernels took, when and on what it ran."""
    if options.clocks != "unthrottled":
        raise ConfigError("--clocks is for workloads: a trace's kernels say how long they took; leave it out")
    if options.host != "none":
        raise ConfigError("--host is for workloads: a trace's kernels say when they ran; leave it out")
    if options.policy is not None:
        raise ConfigError("--policy is for workloads; leave it out, or give --algorithm all_reduce=NAME")


def _check_policy(policy: str, schedule: str) -> None:
    """Refuse a schedule that would take all-reduces away from the back ends that a policy is about."""
    found = schedules.substituting(schedule)
    if found:
        raise ConfigError(
            f"policy {policy!r} says who serves all-reduces, which {found[0]} replaces by other collectives; leave "
            f"out one of the two"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """A job that was simulated.

    `speedup` is the makespan of a comparison's first schedule over this one's; `decisions` are what a schedule that
    weighs has decided; `runs_as` is the simpler schedule that it falls back to, or makes the same as. Where a model of
    layers ran, `workload` is it with the keys that the schedule chose, `device` what it ran on and, in a comparison,
    `fit` whether it fits.
    """

    schedule: str
    result: Result
    speedup: float = 1.0
    decisions: tuple[Decision, ...] = ()
    runs_as: str = ""
    workload: LayeredModel | None = None
    device: Device | None = None
    fit: Fit | None = None
    topology: Topology | None = None
    shares: Mapping[str, float] = field(default_factory=dict)  # of a recording: of its time, how much was recorded
    given: Interval | None = None  # of a replay: the error bars of what was recorded

    def __repr__(self) -> str:
        fits = "" if self.fit is None or self.fit.fits else ", does not fit"
        return f"<Outcome: {self.schedule} {format_seconds(self.makespan_s)}{fits}>"

    @property
    def makespan_s(self) -> float:
        """Time of the step."""
        return self.result.makespan_s

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time goes."""
        return breakdown(self.result)

    @cached_property
    def efficiency(self) -> Efficiency | None:
        """Of the step of a model of layers: tokens a second, MFU and what they are lost to."""
        if self.workload is None or self.device is None:
            return None
        return efficiency(self.result, self.workload, self.device)

    @cached_property
    def interval(self) -> Interval | None:
        """Error bars of the makespan; None where the device is only a name, or says no spread."""
        if self.given is not None:
            return self.given
        if self.device is None or self.topology is None:
            return None
        return interval(self.result, self.device, self.topology)

    @property
    def bounds(self) -> list[Bound]:
        """How long its collectives and messages are exposed, and what bounds each, the most exposed first."""
        return self._bounds_and_waits[0]

    @property
    def waits(self) -> Waits:
        """What idle time ends with, and who waits for whom."""
        return self._bounds_and_waits[1]

    @cached_property
    def _bounds_and_waits(self) -> tuple[list[Bound], Waits]:
        roots = Roots(self.result)
        found = [] if self.topology is None else bounds(self.result, self.topology, roots)
        return found, waits_of(self.result, roots)

    @cached_property
    def energy(self) -> Energy | None:
        """Of the step; None where the device has no power model."""
        if self.device is None or self.topology is None:
            return None
        return energy(self.result, self.device, self.topology)


class Prepared(NamedTuple):
    """A job, the work that its schedule makes of it, what it chose, and the timed program if there is one."""

    job: Job
    work: ModelFamily | Program
    decisions: tuple[Decision, ...] = ()
    program: Program | None = None


def _replicas(work: ModelFamily | Program, num_ranks: int) -> str | None:
    """Return the option that gives a model so many ranks; empty if none is known, None for a trace."""
    if isinstance(work, Program):
        return None
    model_ranks = work.num_ranks // work.data_parallel
    return "" if num_ranks % model_ranks else f"--set data_parallel={num_ranks // model_ranks}"


def prepare(job: Job) -> list[Prepared]:
    """Check the ranks of a job, and let its schedule choose keys of the workload.

    Of several workloads it runs the one with the shorter step.
    `ConfigError` if work and topology differ in ranks, or no plan that the schedule may choose fits the memory.
    """
    check_ranks(job.network, job.work.num_ranks, option=_replicas(job.work, job.network.num_ranks))
    if isinstance(job.work, Program):
        return [Prepared(job, job.work)]
    assert job.machine is not None, "the device of a workload is known"
    return [Prepared(job, *each) for each in schedules.prepare(job.work, job.carried_out, job.machine, job.ready)]


def timed(work: ModelFamily | Program, device: Device, *, host: str = "none") -> Program:
    """Generate the program of a workload, time those kernels that have no time yet, and say when they are issued."""
    return annotate(work if isinstance(work, Program) else generate(work), device, host=host)


def annotated(prepared: Prepared) -> Program:
    """Generate the program of a prepared job, with the times of its kernels and of the host, and its ranks in place.

    `ScaleoutError` if a kernel or the host cannot be timed, or the placement is none.
    """
    work = prepared.work
    return prepared.job.ready(prepared.program or (work if isinstance(work, Program) else generate(work)))


def simulated(prepared: Prepared, program: Program) -> Outcome:
    """Schedule and simulate the annotated program of a prepared job, repeatedly until the clocks settle."""
    job, options = prepared.job, prepared.job.options
    planned: list[Planned] = []  # of each run, as clocks settle

    def step(clocked: Program) -> Result:
        scheduled = schedules.plan_schedule(clocked, job.carried_out, machine=job.machine)
        planned.append(scheduled)
        if scheduled.result is not None:  # simulated as it was planned
            return scheduled.result
        if job.machine is not None:
            return steps.simulated(scheduled.program, job.machine)
        return simulate(
            scheduled.program, job.network, network=options.network, algorithms=options.algorithms,
            injection_bytes_per_s=options.injection_bytes_per_s, contention=job.contention,
        )  # fmt: skip

    device = None if isinstance(job.device, str) else job.device
    result = step(program) if device is None else settled(program, device, step, clocks=options.clocks)
    workload = prepared.work if isinstance(prepared.work, LayeredModel) else None
    decisions = told_once((*prepared.decisions, *planned[-1].decisions))
    runs_as = planned[-1].runs_as if prepared.work is job.work else ""
    return Outcome(
        job.schedule,
        result,
        decisions=decisions,
        runs_as=runs_as,
        workload=workload,
        device=device,
        topology=job.network,
    )


class Programs:
    """Annotated programs that jobs share: of the same work on the same device, issued by the same host, placed alike.

    The same is what is one object. The `most` programs that were used last are kept.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._kept: dict[tuple[Any, ...], tuple[Prepared, Program]] = {}  # which keeps their works, so that ids hold

    def of(self, prepared: Prepared) -> Program:
        """Return the program of a prepared job; `ScaleoutError` as `annotated`."""
        job, options = prepared.job, prepared.job.options
        linear = options.placement == "linear"
        place = "linear" if linear else (repr(options.placement), id(job.topology), options.policy)
        key = (id(prepared.work), id(job.device), job.traced, options.host, place)
        found = self._kept.pop(key, None) or (prepared, annotated(prepared))
        self._kept[key] = found
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return found[1]


@seldom_collected()
def run(job: Job, programs: Programs | None = None) -> Outcome:
    """Simulate a job, from its names to its numbers.

    Programs that jobs before it have made are taken from `programs`, and its own are left there for those after it.

    Raises
    ------
    ScaleoutError
        If anything in the job is wrong; the message says what, where and what to do.
    """
    programs = Programs() if programs is None else programs
    found = [simulated(prepared, programs.of(prepared)) for prepared in prepare(job)]
    return fastest(found, key=lambda outcome: outcome.makespan_s)


@dataclass(frozen=True, eq=False)
class Failure:
    """A schedule under which a job could not be simulated, and why."""

    schedule: str
    error: ScaleoutError

    def __str__(self) -> str:
        return f"schedule {self.schedule}: {self.error}"


def run_all(jobs: Sequence[Job], tell: Tell | None = None) -> list[Outcome | Failure]:
    """Simulate jobs that differ in their schedules alone; those that run the same work share its program.

    One that fails does not keep others from running; if all fail, that is raised, of each what keeps it. `tell` is
    called before each with how many are done, of how many, and its schedule.
    """
    programs = Programs()
    found: list[Outcome | Failure] = []
    for number, job in enumerate(jobs):
        if tell is not None:
            tell(number, len(jobs), job.schedule)
        try:
            found.append(run(job, programs))
        except ScaleoutError as error:
            found.append(Failure(job.schedule, error))
    failures = [each for each in found if isinstance(each, Failure)]
    if failures and len(failures) == len(found):
        first = failures[0].error
        same = len({str(each.error) for each in failures}) == 1
        raise first if same else type(first)("; ".join(map(str, failures)))
    return found
