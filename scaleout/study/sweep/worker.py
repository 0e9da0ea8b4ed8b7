"""What a worker does: cases to rows of results. What cases share is made once in a process.

Workloads, topologies and devices that are equal are one object here, so that all that hangs on them, as routes, costs
of collectives and kernel times, is found again; annotated programs are kept by `job.Programs`.
"""

import atexit
import gc
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from threading import Lock
from typing import Any, NamedTuple

from scaleout.analysis.cost import bill, energy, rent_of
from scaleout.analysis.efficiency import fit
from scaleout.analysis.traffic import bytes_by_dimension, slowest_dimension_bytes
from scaleout.cluster.device.kernel_times.analytical import SOURCE as ROOFLINE
from scaleout.cluster.device.kernel_times.measured import SOURCE as MEASURED
from scaleout.cluster.device.spec import Device
from scaleout.config.collector import SELDOM
from scaleout.errors import ConfigError, ScaleoutError
from scaleout.study.job import Job, Outcome, Programs, run
from scaleout.study.provenance import provenance_of
from scaleout.study.sweep.cases import Case, Piece
from scaleout.study.sweep.columns import DIMENSION_BYTES
from scaleout.study.sweep.expressions import Expression, parse
from scaleout.workloads.config.family import ModelFamily

OK, FAILED, LEFT_OUT = "ok", "failed", "left out"
"""Status of a case: it has numbers; it is none, or the simulator refuses it; a constraint on its memory is false."""

Row = dict[str, Any]
"""Key, status and message of a case, and its results by their column."""


class Chunk(NamedTuple):
    """Cases that a worker takes together, and constraints on what is known of them before they run, as texts."""

    cases: tuple[Case, ...]
    constraints: tuple[str, ...] = ()


class Done(NamedTuple):
    """A chunk that was run: its rows, and how long a worker took."""

    rows: list[Row]
    seconds: float


@lru_cache(maxsize=256)
def _same(piece: Piece) -> Any:
    """Return the value of a piece: of pieces that are equal, that of the first."""
    return piece.value


_LONG, _LOADS_FROM = 2_000, 20_000
"""Tasks of a case from which the compiled core is faster, and of all such cases from which it is worth loading: with
what schedules try that is about the half second that loading takes."""


@dataclass
class _Shared:
    """What the cases of this process share: programs, and how many tasks there were in long cases."""

    programs: Programs = field(default_factory=Programs)
    tasks: int = 0

    def run(self, job: Job) -> Outcome:
        """Simulate a job; load the compiled core once that pays."""
        outcome = run(job, self.programs)
        tasks = sum(len(timeline.graph) for timeline in outcome.result.timelines)
        self.tasks += tasks if tasks >= _LONG else 0
        if self.tasks >= _LOADS_FROM:
            import scaleout.simulation.core.run  # noqa: F401, PLC0415 - numba; `simulate` takes it where it is loaded
        return outcome


@lru_cache(maxsize=1)
def _shared() -> _Shared:
    return _Shared()


def run_chunk(chunk: Chunk) -> Done:
    """Run the cases of a chunk; one that fails is a row as well."""
    begin = time.perf_counter()
    constraints = [parse(text, where="where") for text in chunk.constraints]
    rows = [run_case(case, constraints) for case in chunk.cases]
    return Done(rows, time.perf_counter() - begin)


_ONE_AT_A_TIME = Lock()
"""Held while a process of Dask runs a chunk: one with several threads would share what is no thread's own."""


@cache
def _collect_seldom() -> None:
    """Have the collector look as seldom as that of the command line, and not as the process ends."""
    gc.set_threshold(*SELDOM)
    atexit.register(gc.freeze)


def on_worker(chunk: Chunk) -> Done:
    """Run a chunk in a process of Dask."""
    _collect_seldom()
    with _ONE_AT_A_TIME:
        return run_chunk(chunk)


def run_case(case: Case, constraints: Sequence[Expression] = ()) -> Row:
    """Return the row of a case: its results, or why it has none."""
    row: Row = {"key": case.key, "status": OK, "message": "", "ranks": case.ranks}
    try:
        if case.error:
            raise ConfigError(case.error)
        job = job_of(case)
        row |= known_before(job)
        broken = broken_of(constraints, case, row)
        if broken is not None:
            return {**row, **left_out(broken)}
        return {**row, **results_of(_shared().run(job), job)}
    except ScaleoutError as error:
        row.pop("fits", None)  # nobody can say so of what does not run
        return {**row, "status": FAILED, "message": str(error)}


def broken_of(constraints: Sequence[Expression], case: Case, row: Row) -> Expression | None:
    """Return the first constraint that is false of a case, of which a row says what is known."""
    return next((each for each in constraints if each({**case.inputs, **row}) is False), None)


def left_out(broken: Expression) -> Row:
    """Return what a row says of a case that a constraint leaves out."""
    return {"status": LEFT_OUT, "message": f"{broken.text} does not hold"}


def job_of(case: Case) -> Job:
    """Return the job of a case, made of what this process has."""
    assert case.workload is not None
    assert case.topology is not None
    assert case.device is not None
    return Job(_same(case.workload), _same(case.device), _same(case.topology), case.schedule, case.options)


def known_before(job: Job) -> Row:
    """Return what is known of a job before it runs: its ranks, and its memory where that is counted."""
    work, device = job.work, job.device
    assert isinstance(work, ModelFamily)
    assert isinstance(device, Device)
    found: Row = {"ranks": work.num_ranks, "memory_capacity_bytes": float(device.usable_bytes)}
    held = fit(work, device)
    return found | {"peak_memory_bytes": float(held.peak.total_bytes), "fits": held.fits}


def results_of(outcome: Outcome, job: Job) -> Row:
    """Return the numbers of a case that was simulated, by their column; those that there are not are left out."""
    times, sources = outcome.breakdown, outcome.breakdown.kernel_time_sources
    found: Row = {
        "makespan_s": times.makespan_s,
        "compute_s": times.compute_s,
        "communication_s": times.communication_s,
        "exposed_communication_s": times.exposed_communication_s,
        "idle_s": times.idle_s,
        "exposed_share": times.exposed_communication_s / times.makespan_s if times.makespan_s else None,
        "measured_share": sources.get(MEASURED) if sources else None,
        "roofline_share": sources.get(ROOFLINE) if sources else None,
        "decisions": "; ".join(map(str, outcome.decisions)),
    }
    if outcome.interval is not None:
        found["step_low_s"], found["step_high_s"] = outcome.interval.of(times.makespan_s)
    carried = bytes_by_dimension(outcome.result, job.network, job.options.algorithms)
    found["slowest_dimension_bytes"] = slowest_dimension_bytes(job.network, carried)
    found |= {f"{DIMENSION_BYTES}{number}": size_bytes for number, size_bytes in carried.items()}
    found |= _costs(outcome, job)
    samples = samples_of(job.work)
    if samples and times.makespan_s:
        found["samples_per_s"] = samples / times.makespan_s
    if outcome.workload is not None and outcome.workload is not job.work and outcome.device is not None:
        held = fit(outcome.workload, outcome.device)  # the schedule has chosen keys of the workload
        found |= {"peak_memory_bytes": float(held.peak.total_bytes), "fits": held.fits}
    if outcome.efficiency is not None:
        each = outcome.efficiency
        found |= {
            name: getattr(each, name) for name in ("tokens_per_s", "tokens_per_s_per_rank", "mfu", "hfu", "bubble")
        }
    return {name: value for name, value in found.items() if not (isinstance(value, float) and math.isnan(value))}


def _costs(outcome: Outcome, job: Job) -> Row:
    """Return what the machine costs and draws, and the energy of the step, as far as prices and powers are known."""
    assert isinstance(job.device, Device)
    bought, spent = bill(job.network, job.device), energy(outcome.result, job.device, job.network)
    speed = None if outcome.efficiency is None else outcome.efficiency.tokens_per_s
    rent = rent_of(outcome.makespan_s, bought.rent_per_s, tokens_per_s=speed)
    return {
        "dollars": bought.dollars,
        "network_dollars": bought.network_dollars,
        "network_watts": bought.network_w,
        **({} if rent is None else asdict(rent)),
        "joules": None if spent is None else spent.total_j,
        "model": provenance_of(job).models,
    }


def samples_of(work: Any) -> int | None:
    """Return the samples of a step over all ranks: sequences, images; None where the family does not say."""
    batch = getattr(work, "global_batch", None)
    if batch is None and (per_replica := getattr(work, "batch_per_replica", None)) is not None:
        batch = per_replica * work.data_parallel
    return batch
