"""Jobs and traces under several schedules: what `scaleout run` prints, as an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleout.api.advised import advised
from scaleout.api.answer import Answer
from scaleout.api.inputs import inputs_of, stated_as_inputs
from scaleout.api.networks import Network, changes_of, load_topology, name_of
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.what_if import NetworkChanges
from scaleout.config.arguments import checked
from scaleout.errors import ConfigError, shown
from scaleout.report.box import box_of
from scaleout.simulation.options import SimulationOptions
from scaleout.study.comparison import Comparison, compare
from scaleout.study.job import Outcome, Tell
from scaleout.study.realism import options_for
from scaleout.study.sized import job_on_gpus
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.families import load_workload

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.report.plots.schedules import Axes


_ALWAYS = ("schedule", "about", "choice", "time_s", "chosen")
"""Columns of decisions, which there are even where none has such a thing."""


@dataclass(frozen=True, eq=False, repr=False)
class RunAnswer(Answer):
    """A job under several schedules; a row of its table is a schedule.

    `outcomes` has the schedules in the order in which they were given, each with its `result`, and ``answer["fused"]``
    is one by name. `comparison` has all that is known. Where the network was changed by more than its nodes,
    `unchanged` is the fastest schedule without the changes.
    """

    comparison: Comparison
    asked: Mapping[str, Any]
    unchanged: Outcome | None = None
    command: str = "run"

    @property
    def title(self) -> str:
        """What ran, on what, and how long it takes."""
        from scaleout.config.units import format_seconds  # noqa: PLC0415

        found = self.comparison
        times = ", ".join(
            f"{each.schedule} {format_seconds(each.makespan_s)}"
            + ("" if each.fit is None or each.fit.fits else ", does not fit")
            for each in found.outcomes
        )
        return f"{found.workload} on {found.topology}, ranks {found.ranks:,}, device {found.device}: {times}"

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What was asked."""
        return self.asked

    @property
    def models(self) -> tuple[str, ...]:
        """What answered."""
        model = self.comparison.provenance
        return () if model is None else (model.models,)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Each schedule's."""
        return self.comparison.outcomes

    def __getitem__(self, schedule: str) -> Outcome:
        found = {each.schedule: each for each in self.outcomes}
        if not isinstance(schedule, str) or schedule not in found:
            raise KeyError(f"{shown(schedule)} was not run; there are {', '.join(found)}")
        return found[schedule]

    def found(self) -> Mapping[str, Any]:
        """Return the results as plain values."""
        before = self.unchanged
        if before is None:
            return self.comparison.summary()
        idle = {"idle_s": before.breakdown.idle_s, "idle_by_cause_s": dict(before.waits.by_cause_s)}
        known = {"schedule": before.schedule, "makespan_s": before.makespan_s, **idle}
        return {**self.comparison.summary(), "unchanged": known}

    def answer(self) -> Mapping[str, str]:
        """Return what the fastest schedule comes to."""
        return box_of(self.comparison, self.unchanged)

    def columns(self) -> tuple[str, ...]:
        """Return those of the terminal's tables of schedules."""
        times = ("makespan_s", "speedup", "compute_s", "communication_s", "exposed_communication_s", "idle_s")
        return ("schedule", *times, "tokens_per_s_per_rank", "mfu", "peak_memory_bytes", "fits")

    def to_frame(self) -> "pd.DataFrame":
        """Return a row for each schedule, see `Answer.to_frame`; what one decided stands in a cell, in words."""
        frame = super().to_frame()
        if any(each.decisions for each in self.outcomes):
            frame["decisions"] = ["; ".join(map(str, each.decisions)) or None for each in self.outcomes]
        return frame

    def decisions(self) -> "pd.DataFrame":
        """Return a row for each choice that a schedule weighed, those of a decision below each other.

        Columns are those of `decisions` in the document, as far as any row has one; `choice` and `time_s` are of the
        row, and `chosen` says whether it was taken.

        >>> import scaleout
        >>> answer = scaleout.run("dlrm-128", schedules=["fused"], changes={"global_batch": 4096})
        >>> frame = answer.decisions()
        >>> list(frame.choice[:2]), list(frame.chosen[:2])
        (['fused', 'not fused'], [True, False])
        """
        import pandas as pd  # noqa: PLC0415 - takes half a second

        rows = []
        for outcome in self.outcomes:
            for each in outcome.decisions:
                found = {"schedule": outcome.schedule, **each.summary()}
                others_s = found.pop("alternatives_s", {})
                rows.append({**found, "chosen": True})
                others = [{"choice": name, "time_s": other_s} for name, other_s in others_s.items()]
                rows += [{**found, **other, "chosen": False} for other in others]
        columns = ("schedule", "about", "count", "choice", "time_s", "chosen", "time_of", "saved_s", "reason", "called")
        known = [name for name in columns if name in _ALWAYS or any(name in row for row in rows)]
        frame = pd.DataFrame(rows, columns=known).fillna(dict.fromkeys(("time_of", "reason", "called"), ""))
        return frame.astype({"count": "Int64"}) if "count" in known else frame

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw a bar for each schedule: compute, exposed communication and idle time."""
        from scaleout.report.plots.schedules import plot_bars  # noqa: PLC0415 - matplotlib takes half a second

        return plot_bars(self.comparison, ax)

    @checked
    def write(self, folder: str | Path) -> dict[str, str]:
        """Write tables, a timeline for Perfetto and figures, as ``--output`` does; return files and what each holds."""
        from scaleout.config.writing import RECORD, check_writable, into  # noqa: PLC0415
        from scaleout.report.files import write  # noqa: PLC0415

        check_writable(Path(folder), own=RECORD, command="run")
        with into(Path(folder), recorded=True) as unfinished:
            return write(self.comparison, unfinished, self.to_dict())


def run(
    workload: ModelFamily | str,
    *,
    topology: Network | None = None,
    device: Device | str | None = None,
    gpus: int | None = None,
    schedules: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    network_changes: Mapping[str, Any] | NetworkChanges | None = None,
    options: SimulationOptions | None = None,
    tell: Tell | None = None,
    **attributes: Any,
) -> RunAnswer:
    """Simulate a step of a workload under several schedules; speed-ups are over the first.

    Parameters
    ----------
    workload : str or ModelFamily
        The name or file of a workload, or a loaded one.
    topology, device : optional
        A name, a file or what was loaded; a topology also as an expression or a graph of networkx. By default the
        workload's.
    gpus : int, optional
        As many replicas, and nodes of the topology, as make so many ranks, as ``--gpus``.
    schedules : sequence of str
        To compare, parts of one joined by ``+``; by default the workload's.
    changes : mapping, optional
        Keys of the workload to set, where it is given by name, as ``--set``.
    network_changes : mapping or NetworkChanges, optional
        What is changed of the network, see `load_topology`.
    options, **attributes : optional
        How the step is simulated: attributes of `SimulationOptions` as keywords, such as ``network="link"``. What is
        left out follows from the device, as far as its file knows: its host, sustained clocks, contention;
        ``ideal=True`` leaves these out. `SimulationOptions` hold as they are, under keywords beside them.
    tell : callable, optional
        Called before each schedule with how many are done, of how many, and its name.

    Raises
    ------
    ScaleoutError
        If anything in the input is wrong; the message says what, where and what to do. What concerns some schedules
        alone is in `RunAnswer.comparison.failures`.

    Examples
    --------
    >>> import scaleout
    >>> answer = scaleout.run("dlrm-128", schedules=["baseline", "fused"], changes={"global_batch": 4096})
    >>> list(answer.to_frame().schedule)
    ['baseline', 'fused']
    >>> round(answer["fused"].speedup, 2)
    1.57
    """
    given = changes_of(network_changes)
    if gpus is not None:
        topology, changes, given = job_on_gpus(
            workload, gpus, topology=topology, device=device, settings=changes or {}, changes=given
        )
    job = load_workload(workload, changes) if isinstance(workload, str) else workload
    if changes and not isinstance(workload, str):
        raise ConfigError(f"changes are for a workload given by name; load {job.name} with them: load_workload")
    named_topology = job.topology if topology is None else topology
    named_device = job.device if device is None else device
    network = load_topology(named_topology, given)
    on = load_device(named_device) if isinstance(named_device, str) else named_device
    how = options_for(job, on, options=options, **attributes)
    simulate = partial(compare, job, device=on, options=how, tell=tell)
    found = simulate(topology=network, schedules=schedules)
    unchanged = None
    if given != given.size_alone:
        unchanged = simulate(topology=load_topology(named_topology, given.size_alone), schedules=[fastest(found)])
    if all(each is None or isinstance(each, str) for each in (workload, topology, device)):
        names = {"workload": workload, "topology": topology, "device": device}
        said = inputs_of(names, settings=changes, changes=given, options=options)
        found = advised(found, {**said, **stated_as_inputs(attributes)}, tell)
    asked = inputs_of(
        {"workload": workload, "topology": name_of(named_topology, network), "device": named_device},
        settings=changes, changes=given, options=how, schedules=ran(found),
    )  # fmt: skip
    return RunAnswer(found, asked, None if unchanged is None else unchanged.outcomes[0])


def fastest(found: Comparison) -> str:
    """Return the schedule of the shortest step."""
    return min(found.outcomes, key=lambda outcome: outcome.makespan_s).schedule


def ran(found: Comparison) -> list[str]:
    """Return the schedules of a comparison, those that failed last."""
    return [each.schedule for each in found.outcomes] + [each.schedule for each in found.failures]
