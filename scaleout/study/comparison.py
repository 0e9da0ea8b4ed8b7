"""One job under several schedules, side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scaleout.analysis.bounds import bound_of_step
from scaleout.analysis.breakdown import busy_times, decisive, ends_of_ranks, estimated_beside_measured
from scaleout.analysis.cost import Bill, Rent, bill, rent_of
from scaleout.analysis.efficiency import Fit, fit, mfu_peak
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.config.arguments import check_fields
from scaleout.config.units import format_share
from scaleout.errors import ConfigError
from scaleout.program.program import Program
from scaleout.simulation.options import SimulationOptions, changed
from scaleout.simulation.result import Result
from scaleout.study.job import Failure, Job, Outcome, Tell, run_all
from scaleout.study.provenance import Provenance, provenance_of, reduces_one_by_one
from scaleout.workloads.config.family import ModelFamily, WholeModel
from scaleout.workloads.families import load_workload

DEFAULT_SCHEDULES = ("baseline", "overlap", "fused")
"""Schedules that are compared where neither the user nor the workload says which."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A job on a cluster under several schedules; for a model of layers also whether the first fits into memory.

    Of other models `fit` is there only where the parameters alone do not fit.

    `failures` are schedules under which it could not be simulated, with the reason of each.
    """

    workload: str
    topology: str
    device: str
    ranks: int
    outcomes: tuple[Outcome, ...]
    fit: Fit | None = None
    failures: tuple[Failure, ...] = ()
    recorded_s: float | None = None  # of a recording, the time of its steps
    steps: int | None = None
    notes: tuple[str, ...] = ()  # what was assumed
    provenance: Provenance | None = None  # which model answered
    bill: Bill | None = None  # what the machine costs; None where the device is only a name
    samples: int | None = None  # of a step over all ranks, of a model without tokens
    bucketed: bool = True  # whether gradients that are all-reduced lie in buckets

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def mode(self) -> str | None:
        """Whether the step trains or serves; None of traces, which do not say it."""
        workload = self.outcomes[0].workload
        return None if workload is None else workload.mode

    @property
    def mfu_peak(self) -> dict[str, Any] | None:
        """The rate that MFU and HFU are shares of; None where there are none."""
        workload, device = self.outcomes[0].workload, self.outcomes[0].device
        return None if workload is None or device is None else mfu_peak(workload, device)

    def rent(self, outcome: Outcome) -> Rent | None:
        """Return what a step under a schedule costs where the machine is rented; None where no rent is known."""
        speed = None if outcome.efficiency is None else outcome.efficiency.tokens_per_s
        known = None if self.bill is None else self.bill.rent_per_s
        return rent_of(outcome.makespan_s / (self.steps or 1), known, tokens_per_s=speed)

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values, as `scaleout run --json` prints them."""
        return {
            "workload": self.workload,
            "topology": self.topology,
            "device": self.device,
            "ranks": self.ranks,
            **({} if self.mode is None else {"mode": self.mode}),
            **({} if self.provenance is None else {"model": self.provenance.summary()}),
            **({} if self.samples is None else {"samples": self.samples}),
            **({} if self.bill is None else {"cost": self.bill.summary()}),
            **({} if self.mfu_peak is None else {"mfu_peak": self.mfu_peak}),
            **({} if self.fit is None else {"memory": self.fit.summary()}),
            **({} if self.recorded_s is None else {"recorded_s": self.recorded_s, "steps": self.steps}),
            **({"notes": list(self.notes)} if self.notes else {}),
            "results": [
                {
                    "schedule": outcome.schedule,
                    **asdict(outcome.breakdown),
                    "speedup": outcome.speedup,
                    "bound_by": bound_of_step(outcome.result, outcome.breakdown.compute_s, outcome.device)[0],
                    "bounds": _plain(outcome.bounds),
                    "critical_path": _plain(decisive(outcome.result)),
                    **({} if outcome.interval is None else outcome.interval.summary(outcome.makespan_s)),
                    **outcome.shares,
                    **({} if (rent := self.rent(outcome)) is None else asdict(rent)),
                    **({} if outcome.efficiency is None else asdict(outcome.efficiency)),
                    **({} if outcome.energy is None else {"energy": outcome.energy.summary()}),
                    "decisions": [each.summary() for each in outcome.decisions],
                    **({"runs_as": outcome.runs_as} if outcome.runs_as else {}),
                    **({} if outcome.fit in (None, self.fit) else {"memory": outcome.fit.summary()}),
                    **({"ranks": list(map(asdict, ends_of_ranks(outcome.result)))} if outcome.result.has_puts else {}),
                    "idle_by_cause_s": dict(outcome.waits.by_cause_s),
                    "waits": _plain(outcome.waits.by_rank),
                    **_links(outcome.result),
                    "busy": _plain(busy_times(outcome.result)),
                }
                for outcome in self.outcomes
            ],
            **({"failures": {each.schedule: str(each.error) for each in self.failures}} if self.failures else {}),
        }


def _plain(rows: Iterable[object]) -> list[dict[str, Any]]:
    """Return dataclasses of plain values as mappings, of which there may be thousands, without copies of the values."""
    return [dict(vars(row)) for row in rows]


def _links(result: Result) -> dict[str, Any]:
    """Return the busiest links and the traffic by dimension, where the network model knows links."""
    if result.link_traffic is None:
        return {}
    return {"busiest_links": [asdict(use) for use in result.busiest_links], "traffic": result.link_traffic.by_port()}


def compare(
    workload: ModelFamily | str,
    *,
    topology: Topology | str | None = None,
    device: Device | str | None = None,
    schedules: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    options: SimulationOptions | None = None,
    tell: Tell | None = None,
    **attributes: Any,
) -> Comparison:
    """Simulate a workload under several schedules; speed-ups are over the first.

    Parameters
    ----------
    workload : ModelFamily or str
        A workload, or the name or file of one.
    topology, device : optional
        Loaded, or a name or file; by default the workload's.
    schedules : sequence of str
        Names of `schedule.SCHEDULES`, joined by ``+`` where wanted; by default the workload's.
    changes : mapping, optional
        Keys of the workload's file to change, where it is given by name.
    options : SimulationOptions, optional
        How the step is simulated.
    tell : callable, optional
        Called before each schedule with how many are done, of how many, and its name.
    **attributes
        Attributes of the options as keywords, such as ``network="link"``, which go before those of `options`.

    Raises
    ------
    ScaleoutError
        If anything in the input is wrong; the message says what, where and what to do. What concerns some schedules
        alone is in `Comparison.failures`.
    """
    if isinstance(workload, str):
        workload = load_workload(workload, changes)
    elif changes:
        raise ConfigError(f"changes are for a workload given by name; load {workload.name} with them: load_workload")
    device = workload.device if device is None else device
    device = load_device(device) if isinstance(device, str) else device
    topology = workload.topology if topology is None else topology
    topology = load_topology(topology) if isinstance(topology, str) else topology
    job = Job(workload, device, topology, options=options_of(options, **attributes))
    found = compare_job(job, schedules or workload.schedules or DEFAULT_SCHEDULES, tell)
    ran = [workload if each.workload is None else each.workload for each in found.outcomes]
    fits = {id(each): fit(each, device) for each in {id(each): each for each in ran}.values()}
    outcomes = tuple(replace(each, fit=fits[id(work)]) for each, work in zip(found.outcomes, ran, strict=True))
    samples = workload.samples if isinstance(workload, WholeModel) else found.samples
    bucketed = not reduces_one_by_one(workload)
    return replace(found, outcomes=outcomes, fit=outcomes[0].fit, samples=samples, bucketed=bucketed)


def compare_program(
    program: Program,
    *,
    topology: Topology,
    device: Device | str,
    schedules: Sequence[str],
    options: SimulationOptions | None = None,
    tell: Tell | None = None,
    **attributes: Any,
) -> Comparison:
    """Simulate the timed program of a trace under several schedules; see `compare`.

    `device` is a name alone where no more is known of it; schedules that weigh costs then have nothing to weigh, and
    nothing is known of contention.
    """
    job = Job(program, device, topology, options=options_of(options, **attributes), traced=True)
    return compare_job(job, schedules, tell)


def compare_job(job: Job, schedules: Sequence[str], tell: Tell | None = None) -> Comparison:
    """Simulate a job under several schedules instead of its own; each once.

    A `ScaleoutError` if there is none or one contradicts itself, before any is simulated, or if none can be.
    """
    if not schedules:
        raise ConfigError("no schedules to compare; give at least one, such as ['baseline', 'overlap']")
    found = run_all([replace(job, schedule=name) for name in dict.fromkeys(schedules)], tell)
    outcomes = [each for each in found if isinstance(each, Outcome)]
    device, fastest = job.device, min(outcomes, key=lambda outcome: outcome.makespan_s)
    compared = compare_outcomes(outcomes, device=device if isinstance(device, str) else device.name)
    return replace(
        compared,
        notes=() if isinstance(device, str) else _mixed_sources(fastest, device),
        failures=tuple(each for each in found if isinstance(each, Failure)),
        provenance=provenance_of(job),
        bill=None if isinstance(device, str) else bill(job.network, device),
    )


def _mixed_sources(outcome: Outcome, device: Device) -> tuple[str, ...]:
    """Say which kernels have times of another kind than those beside them, so that the two are not compared alike."""
    found = estimated_beside_measured(outcome.result, outcome.breakdown.kernel_time_sources)
    if not found:
        return ()
    words = ", ".join(f"{name}, {format_share(share)} of the kernels' time" for name, share in found.items())
    reference = f"{device.efficiency_from}'s" if device.efficiency_from != device.name else "like kernels'"
    return (
        f"not measured on {device.name}: {words}; it is the roofline at {reference} efficiency, so that what it gains "
        f"over kernels that were measured there has the errors of both",
    )


def compare_outcomes(outcomes: Sequence[Outcome], *, device: str) -> Comparison:
    """Return outcomes as one comparison; speed-ups are over the first."""
    first = outcomes[0].result
    compared = tuple(
        replace(each, speedup=first.makespan_s / each.makespan_s if each.makespan_s else 1.0) for each in outcomes
    )
    return Comparison(first.program.name, first.topology, device, first.program.num_ranks, compared)


def options_of(options: SimulationOptions | None = None, **keywords: Any) -> SimulationOptions:
    """Return options with some of their attributes given as keywords; None stands for the default."""
    return changed(options or SimulationOptions(), keywords)
