"""The fastest plans of parallelism of a training job: what `scaleout search` prints, as an answer."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from scaleout.analysis.cost import Rent, rent_of
from scaleout.analysis.efficiency import fit, mfu_peak
from scaleout.analysis.uncertainty import Interval
from scaleout.api.answer import Answer
from scaleout.api.inputs import changes_as_inputs, inputs_of
from scaleout.api.networks import Network, changes_of, load_topology, name_of
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.what_if import NetworkChanges
from scaleout.config.arguments import checked
from scaleout.config.reading import nearest
from scaleout.config.units import BYTES, format_bytes, format_difference, format_seconds, format_share, parse
from scaleout.config.workers import MOST_WORKERS
from scaleout.config.writing import RECORD, check_writable
from scaleout.errors import ConfigError, ScaleoutError, shown
from scaleout.interop.models import import_model
from scaleout.interop.models.plans import FORMATS, Written, write_plan
from scaleout.report import box
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.study.provenance import Provenance, provenance_of
from scaleout.study.realism import IDEAL, as_stated
from scaleout.study.search.best import Choice, EvaluatedPlan
from scaleout.study.search.checkpoint import Memory, PlanLog
from scaleout.study.search.evaluate import Estimate, unlike_blocks
from scaleout.study.search.execution import SoFar, TellPlans, execution_of
from scaleout.study.search.explanation import Explanation, explanation, fastest_step, why_none
from scaleout.study.search.request import SearchRequest, request_of, zero_of_framework
from scaleout.study.search.search import Answer as Found
from scaleout.study.search.search import found_by
from scaleout.study.sized import job_on_gpus
from scaleout.study.sweep.cases import run_line
from scaleout.workloads.families import load_workload

if TYPE_CHECKING:
    from scaleout.report.plots.schedules import Axes


_USUAL = (None, False, 1, "none")
"""Values of a plan's keys that need no column where all plans have one of them."""
_ABOUT = ("name", "description", "source", "topology", "device", "schedules")
"""Keys of a workload that are no part of its step."""


class ReadBack(NamedTuple):
    """What a step of an exported configuration takes, read back by `import_model` and simulated as the plan was."""

    makespan_s: float
    peak_memory_bytes: float
    differs: Mapping[str, Any]  # keys that the framework's own way of doing a step sets otherwise than the plan


class Export(NamedTuple):
    """The fastest plan that a framework can run, as its configuration."""

    format: str
    plan: int  # its place among the fastest
    text: str
    notes: tuple[str, ...]
    why: str  # faster ones are not written; empty if it is the fastest
    read_back: ReadBack | None  # none of a format that is not read, or a model that the framework has no name of

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        read = {} if self.read_back is None else self.read_back._asdict()
        return {
            "plan_number": self.plan, "text": self.text, "notes": list(self.notes), "faster_ones": self.why, **read
        }  # fmt: skip

    def words(self, plan_s: float) -> str:
        """Say what a step of the file takes as the framework does it; that of the plan takes `plan_s`."""
        if self.read_back is None:
            return f"plan {self.plan}; what a step of the file takes is not known, as it is not read back"
        step_s, peak_bytes, _ = self.read_back
        return (
            f"plan {self.plan}; read back as {self.format} runs it {format_seconds(step_s)}, "
            f"{format_difference(step_s, plan_s)}, {format_bytes(peak_bytes)}"
        )


def _batch(request: SearchRequest) -> str:
    """Say for how many sequences plans are, and if these are too few."""
    few = request.batch < request.num_ranks
    what = "fewer than ranks, so that no plan is data parallel alone; --global-batch gives more" if few else "a step"
    return f"{request.batch:,} sequences of {request.base.sequence:,} tokens" + (f", {what}" if few else f" {what}")


class SearchInterrupted(KeyboardInterrupt):
    """An interrupt of a search that had found plans; its `answer` has them, and says what was not tried."""

    def __init__(self, answer: "SearchAnswer") -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True, eq=False, repr=False)
class SearchAnswer(Answer):
    """The fastest plans that fit the memory; a row of the table is a plan, with the command that runs it.

    `plans` has all that is known, `explanation` what the fastest overlaps where schedules were asked for, `interval`
    its error bars, `sources` and `estimates` where its kernels' times are from, `not_tried` what an interrupt left;
    `export` writes the configuration of a framework; `exports` are those that the document has.
    """

    request: SearchRequest
    plans: Found
    explanation: Explanation | None
    interval: Interval | None
    asked: Mapping[str, Any]
    changes: Mapping[str, Any]
    not_tried: str = ""
    sources: Mapping[str, float] | None = None
    estimates: str = ""
    exports: Sequence[Export] = ()
    command: str = "search"
    rows: str = "fastest"

    @property
    def title(self) -> str:
        """What was searched, and the fastest plan."""
        request, best = self.request, self.plans.fastest[0]
        where = f"{request.base.name} on {request.topology.name}, ranks {request.num_ranks}"
        return f"{where}, global batch {request.batch}: {best.plan}, under {best.schedule}"

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What was asked."""
        return self.asked

    @cached_property
    def model(self) -> Provenance:
        """Which model answered."""
        request = self.request
        planned = request.workload(self.plans.fastest[0].plan)
        found = provenance_of(Job(planned, request.device, request.topology, options=request.options))
        notes, framework = list(found.notes), f"framework {request.base.framework}"
        if own := zero_of_framework(request.base):
            notes.append(
                f"all plans have zero {own['zero']}, which is how {framework} shards; --set zero=N holds another"
            )
        if left_out := unlike_blocks(planned):
            notes.append(
                f"plans are chosen without {', '.join(left_out)} of {framework}, which a closed form does not know; "
                f"those that are shown are simulated with it"
            )
        return replace(found, notes=tuple(notes))

    @property
    def models(self) -> tuple[str, ...]:
        """What answered."""
        return (self.model.models,)

    @cached_property
    def jobs(self) -> Mapping[Choice, dict[str, Any]]:
        """Each plan to the inputs of its job, as a study has them: what differs from the job that was asked of."""
        return {each.choice: self._job(each) for each in (*self.plans.fastest, *self.plans.front)}

    def _job(self, found: EvaluatedPlan) -> dict[str, Any]:
        request, asked = self.request, self.asked
        planned = request.workload(found.plan)
        written = {key: getattr(planned, key) for key in ("batch_per_replica", "stage_layers")}
        wanted = found.plan._asdict() | written
        given = {key: value for key, value in asked.items() if key.startswith("set.")}
        chosen = {f"set.{key}": value for key, value in wanted.items() if getattr(request.base, key) != value}
        return {
            "workload": asked["workload"],
            **given,
            **chosen,
            "topology": asked["topology"],
            "device": asked["device"],
            **self.changes,
            **as_stated(request.options, planned, request.device),
            "schedule": found.schedule,
        }

    def found(self) -> Mapping[str, Any]:
        """Return the results as plain values."""
        request, plans = self.request, self.plans
        summary: dict[str, Any] = {
            "workload": request.base.name,
            "topology": request.topology.name,
            "device": request.device.name,
            "ranks": request.num_ranks,
            "mode": request.base.mode,
            "model": self.model.summary(),
            "global_batch": request.batch,
            "memory_bytes": request.memory_bytes,
            "mfu_peak": self.mfu_peak,
            "counts": vars(plans.counts),
            "fastest": [self._row(found) for found in plans.fastest],
            "front": [self._row(found) for found in plans.front],
        }
        if self.not_tried:
            summary["not_tried"] = self.not_tried
        if self.interval is not None:
            summary["fastest"][0] |= self.interval.summary(plans.fastest[0].estimate.step_s)
        if self.sources:
            summary["fastest"][0]["kernel_time_sources"] = dict(self.sources)
        if self.explanation is not None and plans.simulated is not None:
            counts = {key: value for key, value in vars(plans.simulated).items() if key != "found"}
            summary["simulated"] = {"simulated": len(plans.simulated.found), **counts}
            summary["explanation"] = self.explanation.summary()
        if self.exports:
            summary["exports"] = {each.format: each.summary() for each in self.exports}
        return summary

    def answer(self) -> Mapping[str, str]:
        """Return what the fastest plan comes to."""
        request, best = self.request, self.plans.fastest[0]
        each, device = best.estimate, request.device.name
        exposed = (f"{axis} {format_share(of / each.step_s)}" for axis, of in each.exposed_s.items() if of)
        overlap = ", which overlaps no collective; --schedule overlap may favour another"
        return {
            **({"not tried": f"{self.not_tried}; below is the best until then"} if self.not_tried else {}),
            "plan": f"{best.plan}, under {best.schedule}" + ("" if request.schedules else overlap),
            "batch": _batch(request),
            "step": box.took(each.step_s, self.interval),
            "speed": box.speed(each.tokens_per_s / request.num_ranks, each.mfu, self.mfu_peak),
            **box.network_of(request.topology, device, request.num_ranks),
            **({"kernels": self.estimates} if self.estimates else {}),
            "exposed": ", ".join(exposed) or "nothing",
            "memory": box.room_left(each.peak_bytes, request.memory_bytes),
            "rent": box.rent(
                self.rent(each), self.rent_per_s, ranks=request.num_ranks, mode=request.base.mode, device=device
            ),
            **{file.format: file.words(self.plans.fastest[file.plan - 1].estimate.step_s) for file in self.exports},
            "model": self.model.title,
        }  # fmt: skip

    @property
    def mfu_peak(self) -> dict[str, Any]:
        """The rate that MFU is a share of."""
        return mfu_peak(self.request.base, self.request.device)

    def rent(self, found: Estimate) -> Rent | None:
        """Return what a step of a plan costs where the machine is rented; None where no rent is known."""
        return rent_of(found.step_s, self.rent_per_s, tokens_per_s=found.tokens_per_s)

    @property
    def rent_per_s(self) -> float | None:
        """What all devices rent for, in US dollars a second; None where no price is known."""
        each_per_s = self.request.device.rent_per_s
        return None if each_per_s is None else each_per_s * self.request.num_ranks

    def _row(self, found: EvaluatedPlan) -> dict[str, Any]:
        inputs, rent = self.jobs[found.choice], self.rent(found.estimate)
        return {
            "plan": found.plan._asdict(),
            "schedule": found.schedule,
            **found.estimate.summary(),
            "tokens_per_s_per_rank": found.estimate.tokens_per_s / self.request.num_ranks,
            **({} if rent is None else asdict(rent)),
            "headroom_bytes": self.request.memory_bytes - found.estimate.peak_bytes,
            "inputs": inputs,
            "run": run_line(inputs),
        }

    @checked
    def export(self, format: str) -> Export:  # noqa: A002 - the field's word
        """Return the fastest plan that a framework can run: ``torchtitan``, ``megatron`` or ``deepspeed``.

        Raises
        ------
        ConfigError
            If there is no such framework, or it can run none of those that were found; the message says why.
        """
        if format not in FORMATS:
            raise ConfigError(f"no plan is exported as {shown(format)}; {nearest(format, FORMATS)}")
        why = ""
        for number, each in enumerate(self.plans.fastest, start=1):
            try:
                written = write_plan(format, self.request.workload(each.plan), schedule=each.schedule)
            except ConfigError as error:
                why = why or f"plan {number}: {error}"
            else:
                return Export(format, number, written.text, written.notes, why, self._read_back(format, each, written))
        raise ConfigError(
            f"--export {format}: none of the {len(self.plans.fastest)} fastest plans can be written; {why} (--set "
            f"holds a key, --top finds more plans, and with --output the same search resumes)"
        )

    def _read_back(self, format: str, found: EvaluatedPlan, written: Written) -> ReadBack | None:  # noqa: A002
        request, planned = self.request, self.request.workload(found.plan)
        with TemporaryDirectory() as folder:
            file = Path(folder) / FORMATS[format].file
            file.write_text(written.text, encoding="utf-8")
            try:
                workload = import_model(file, ranks=request.num_ranks).workload
                outcome = run(Job(workload, request.device, request.topology, found.schedule, request.options))
            except ScaleoutError:  # DeepSpeed's says nothing of a model, and not all models have a name
                return None
        there = {key: (value, getattr(planned, key, None)) for key, value in workload.model_dump().items()}
        differs = {key: value for key, (value, ours) in there.items() if value != ours and key not in _ABOUT}
        return ReadBack(outcome.makespan_s, fit(workload, request.device).peak.total_bytes, differs)

    def columns(self) -> tuple[str, ...]:
        """Return what tells plans apart, and what they come to."""
        plans = [each.plan._asdict() for each in self.plans.fastest]
        keys = [key for key in plans[0] if any(plan[key] not in _USUAL for plan in plans)]
        found = (
            "makespan_s",
            "tokens_per_s_per_rank",
            "mfu",
            "bubble",
            "peak_memory_bytes",
            "headroom_bytes",
            "bound_by",
        )
        return (*(f"plan.{key}" for key in keys), "schedule", *found)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw step time against memory of all plans that were evaluated."""
        from scaleout.report.plots.studies import plot_plans  # noqa: PLC0415 - matplotlib takes half a second

        return plot_plans(self.request, self.plans, ax)


def search(
    workload: str,
    *,
    topology: Network | None = None,
    device: Device | str | None = None,
    gpus: int | None = None,
    changes: Mapping[str, Any] | None = None,
    network_changes: Mapping[str, Any] | NetworkChanges | None = None,
    schedules: Sequence[str] = (),
    global_batch: int | None = None,
    memory: float | str | None = None,
    num_ranks: int | None = None,
    simulations: int | None = None,
    top: int = 10,
    options: SimulationOptions | None = None,
    directory: str | Path | None = None,
    workers: int | None = None,
    tell: TellPlans | None = None,
    **attributes: Any,
) -> SearchAnswer:
    """Find the fastest plans of parallelism that fit the memory.

    Parameters
    ----------
    workload : str
        The name or file of a model of layers in training.
    topology, device, gpus, network_changes : optional
        As of `run`; plans choose the replicas.
    changes : mapping, optional
        Keys of the workload; those that a plan chooses are held fixed.
    schedules : sequence of str
        Schedules under which the most promising plans are simulated, besides the baseline.
    global_batch, memory, num_ranks, simulations, top : optional
        Sequences in a step, memory of a rank (bytes, or a text such as ``"80GB"``), ranks, which must be the
        topology's, how many plans are simulated under each schedule, and how many are returned.
    options, **attributes : optional
        Host, clocks and contention, or ``ideal=True``, as of `run`.
    directory : str or Path, optional
        Where plans are kept, so that the same search resumes.
    workers : int, optional
        Processes; by default one per core.
    tell : function, optional
        Called now and then with steps done, all steps, what these are, and the best so far.

    Raises
    ------
    ScaleoutError
        If anything in the input is wrong, no plan fits, or a worker is killed.
    SearchInterrupted
        On an interrupt once plans are found.

    Examples
    --------
    >>> import scaleout
    >>> answer = scaleout.search("llama-3-8b", topology="dgx-h200-1", top=3, workers=1)
    >>> answer.to_frame()[["plan.data_parallel", "makespan_s"]].shape
    (3, 2)
    """
    for name, count in (
        ("global_batch", global_batch),
        ("simulations", simulations),
        ("top", top),
        ("workers", workers),
    ):
        if count is not None and count < 1:
            raise ConfigError(f"search(): {name}: must be 1 or more, not {count}")
    if workers is not None and workers > MOST_WORKERS:
        raise ConfigError(f"search(): workers: must be {MOST_WORKERS} or fewer, not {workers:,}")
    shipped = load_workload(workload)  # without settings: those that a plan chooses are no keys of the workload's
    given = changes_of(network_changes)
    if gpus is not None:
        topology, _, given = job_on_gpus(
            workload, gpus, topology=topology, device=device, settings={}, changes=given, replicas=False
        )
    network = shipped.topology if topology is None else topology
    named_device = shipped.device if device is None else device
    request = request_of(
        workload,
        load_topology(network, given),
        load_device(named_device) if isinstance(named_device, str) else named_device,
        changes=changes,
        memory_bytes=None if memory is None else parse(memory, BYTES),
        batch=global_batch,
        num_ranks=num_ranks,
        simulations=simulations,
        top=top,
        schedules=schedules,
        options=options,
        stated=attributes,
    )
    if simulations and not request.schedules:
        raise ConfigError("--simulations is for schedules that are simulated; give --schedule as well, or leave it out")
    kept: AbstractContextManager[Memory] = nullcontext(Memory())
    if directory is not None:
        check_writable(Path(directory), own=RECORD, command="search")
        kept = PlanLog(Path(directory), request)
    chosen = {name: getattr(request.options, name) for name in IDEAL}
    named = {"workload": workload, "topology": name_of(network, request.topology), "device": named_device}
    asked = inputs_of(named, settings=changes, changes=given, schedules=("baseline", *request.schedules))
    asked |= {**chosen, "global_batch": request.batch, "memory_bytes": request.memory_bytes, "top": request.top}
    so_far, answer = SoFar(), partial(SearchAnswer, request, asked=asked, changes=changes_as_inputs(given))
    try:
        with kept as known, execution_of(workers, known, tell, so_far) as execution:
            plans = found_by(request, execution)
            if not plans.fastest:
                raise ConfigError(why_none(request, plans))
            step = fastest_step(request, plans, execution)
            why = explanation(request, plans, step.overlap, execution) if request.schedules else None
    except KeyboardInterrupt:
        best = so_far.best
        if best is None or not best.fastest:
            raise
        found = Found(tuple(best.fastest), tuple(best.near), (), so_far.counts, None)
        raise SearchInterrupted(answer(found, None, None, not_tried=so_far.left)) from None
    return answer(plans, why, step.interval, sources=step.sources, estimates=step.estimates)
