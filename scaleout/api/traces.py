"""Folders of Chakra traces: read, edited where they are recordings, and simulated as they ran or on another network."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scaleout.api.answer import Answer
from scaleout.api.inputs import inputs_of
from scaleout.api.networks import Network, changes_of, load_topology, name_of
from scaleout.api.runs import RunAnswer, fastest, ran
from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.topology import check_ranks
from scaleout.cluster.topology.what_if import NetworkChanges, change_network
from scaleout.config import library
from scaleout.config.arguments import checked
from scaleout.config.units import counted
from scaleout.errors import ConfigError, TraceError, shown
from scaleout.interop.chakra.load import load_program
from scaleout.program.program import Program
from scaleout.simulation.options import SimulationOptions
from scaleout.study import recording as recordings
from scaleout.study.comparison import DEFAULT_SCHEDULES, Comparison, compare_program
from scaleout.study.edits import edit_to, edited
from scaleout.study.job import Tell, check_traced
from scaleout.study.neighbours import beside_collectives
from scaleout.study.realism import stated_options

if TYPE_CHECKING:
    import pandas as pd

    from scaleout.report.plots.schedules import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Answer):
    """Traces of a job, one graph a rank or role; a row of the table is a graph node, the document that of `show`.

    `edit` returns another one, of a recorded job that was changed, and `run` simulates it.
    """

    path: str
    program: Program
    facts: Mapping[str, str]
    edits: Mapping[str, str] = field(default_factory=dict)
    command: str = "show"

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Where it is read from, and what is edited."""
        return {"name": self.path, **{f"edit.{key}": value for key, value in self.edits.items()}}

    def found(self) -> Mapping[str, Any]:
        """Return what is in the files, before edits."""
        from scaleout.report.traces import trace  # noqa: PLC0415 - reads them again

        return trace(self.path)

    @property
    def notes(self) -> Sequence[str]:
        """None; `run` has some."""
        return ()

    @property
    def is_recording(self) -> bool:
        """Whether it was recorded on GPUs, and is replayed; other traces were written from a workload."""
        return "recorded" in self.facts

    @property
    def title(self) -> str:
        """What it is of."""
        what = "recording" if self.is_recording else "traces"
        changed = "".join(f", {key}={value}" for key, value in self.edits.items())
        return f"{what} of {self.program.name}, {counted(self.program.num_ranks, 'rank')}, in {self.path}{changed}"

    def edit(self, **edits: str) -> "Trace":
        """Return the recorded job with edits, as ``--edit`` takes them.

        `batch`, `sequence`, `layers`, `microbatches`, `accumulate`, or ranks of `data`, `tensor` or `expert`, by a
        factor (``"2x"``) or as ``"8->4"``; `bucket` of gradients by a size, `chunks` of an exchange by a number,
        `recompute` as ``"full"`` or ``"none"``.

        Raises
        ------
        ConfigError
            If the traces are no recording, or something is edited twice; `run` says what cannot be edited.
        """
        for key, value in edits.items():
            if not isinstance(value, str):
                raise ConfigError(f"edit({key}=...) must be a text such as '2x', not {shown(value)}")
            if not self.is_recording:
                raise ConfigError(
                    f"--edit {key}={value}: {self.path} is no recording of `scaleout import`; change the job that it "
                    f"is of"
                )
            if key in self.edits:
                raise ConfigError(f"--edit {key}={value}: {key} is edited already; give it once")
        return replace(self, edits={**self.edits, **edits})

    @checked
    def run(
        self,
        *,
        topology: Network | None = None,
        device: Device | str | None = None,
        schedules: Sequence[str] = (),
        network_changes: Mapping[str, Any] | NetworkChanges | None = None,
        options: SimulationOptions | None = None,
        tell: Tell | None = None,
        **attributes: Any,
    ) -> RunAnswer:
        """Simulate the traces on the network that they ran on or shall run on; on another device if one is given.

        Where no schedules are given, a recording is replayed, and other traces run under the default ones.

        Raises
        ------
        ScaleoutError
            As `scaleout.run`.
        """
        how = stated_options(options, **attributes)
        check_traced(how)
        given = changes_of(network_changes)
        network = None if topology is None else load_topology(topology, given)
        on = load_device(device) if isinstance(device, str) else device
        simulate = _recorded if self.is_recording else _written
        found = simulate(self, network, on, schedules, _How(how, given, tell))
        named = None if topology is None or network is None else name_of(topology, network)
        asked = inputs_of(
            {"trace": self.path, "topology": named or self.facts.get("topology"), "device": device or found.device},
            changes=given, options=how, schedules=ran(found),
        )  # fmt: skip
        unchanged = None
        if given != given.size_alone:
            unchanged = self.run(
                topology=topology, device=device, schedules=[fastest(found)], network_changes=given.size_alone,
                options=how, tell=tell,
            ).outcomes[0]  # fmt: skip
        return RunAnswer(found, {**asked, **{f"edit.{key}": value for key, value in self.edits.items()}}, unchanged)

    def to_frame(self) -> "pd.DataFrame":
        """Return all graph nodes: the first rank of each graph, and how long each node takes where that is known."""
        import pandas as pd  # noqa: PLC0415 - takes half a second

        from scaleout.report.files import node_columns  # noqa: PLC0415

        ranks = self.program.role_of_rank.tolist()
        first_of = {role: ranks.index(role) for role in sorted(set(ranks))}
        frames = [
            pd.DataFrame({"rank": rank, **node_columns(self.program.graphs[role]), "duration_s": graph.duration_s})
            for role, rank in first_of.items()
            for graph in (self.program.graphs[role],)
        ]
        return pd.concat(frames, ignore_index=True)

    def columns(self) -> tuple[str, ...]:
        """Return those of the terminal's table of kernels."""
        return ("kernel", "count", "time_s", "work_flops", "moved_bytes")

    def _main(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        import pandas as pd  # noqa: PLC0415 - takes half a second

        return pd.DataFrame(self.found()["kernels"])

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the time of each operation, the longest first."""
        from scaleout.report.plots.schedules import plot_operations  # noqa: PLC0415 - matplotlib takes half a second

        return plot_operations(self.to_frame(), ax)


def read_trace(path: str | Path) -> Trace:
    """Read Chakra traces: a folder of ``<name>.<rank>.et``, or the beginning of their names.

    Raises
    ------
    TraceError
        If there are none, or one is damaged; the message says which and where.

    Examples
    --------
    >>> import scaleout
    >>> trace = scaleout.read_trace("recording")  # doctest: +SKIP
    >>> trace.edit(batch="2x").run().outcomes[0].makespan_s  # doctest: +SKIP
    """
    try:
        loaded = load_program(str(path))
    except OSError as error:
        raise TraceError(f"{shown(str(path))}: cannot be read ({error.strerror}); give a folder of traces") from None
    gc.collect()  # gives back what reading took, a tenth of the memory of a large trace's simulation
    return Trace(str(path), loaded.program, loaded.facts)


class _How(NamedTuple):
    options: SimulationOptions
    changes: NetworkChanges
    tell: Tell | None


def _known_device(name: str) -> Device | str:
    """Return the device that a trace ran on; only its name where no file is known."""
    return load_device(name) if name in library.names("device") else name


def _written(trace: Trace, topology: Any, device: Device | None, schedules: Sequence[str], how: _How) -> Comparison:
    """Simulate traces that were written from a workload."""
    options, changes, tell = how
    if topology is None:
        if "topology" not in trace.facts:
            raise ConfigError(f"{trace.path}: the trace does not say on which network it ran; give --topology")
        topology = load_topology(trace.facts["topology"], changes)
    program = trace.program if device is None else time_kernels(trace.program, device, recompute=True)
    on = device or _known_device(trace.facts.get("device", "as traced"))
    return compare_program(
        program, topology=topology, device=on, schedules=schedules or DEFAULT_SCHEDULES, options=options, tell=tell
    )


def _recorded(trace: Trace, topology: Any, device: Device | None, schedules: Sequence[str], how: _How) -> Comparison:
    """Replay a recording, or simulate its kernels on another network."""
    options, changes, tell = how
    recorded_on = _known_device(trace.facts.get("device", "as recorded"))
    recording = recordings.described(trace.program, trace.facts, recorded_on)
    changed = edited(recording, trace.edits, device=device)
    program, replay = changed.program, topology is None
    schedules = schedules or ("recorded",)
    recordings.check_schedules(schedules, on_network=not replay)
    if replay:
        if changes != NetworkChanges(slow=changes.slow):
            raise ConfigError(f"{trace.path}: a recording does not say on which network it ran; give --topology")
        topology, options = recordings.replayed(program, options)
        topology = change_network(topology, changes)
    else:
        check_ranks(topology, program.num_ranks, option=edit_to(recording.program, topology.num_ranks) or None)
        program = recordings.on_network(program)
        if any(recordings.rewrites(name) for name in schedules):
            program = beside_collectives(program)
            changed.notes.append(
                f"schedules that join or cut kernels and collectives leave out the host, for which the GPU waited "
                f"{recording.host_bound:.1%} of the time; copies beside collectives are part of a kernel next to them"
            )
        if set(schedules) == {"recorded"}:  # what ran at the same time has slowed each other down already
            options = replace(options, contention=False)
    simulate = partial(compare_program, program, topology=topology, device=device or recorded_on, options=options)
    compared = recordings.without_unchanged(
        simulate(schedules=schedules, tell=tell), lambda plain: simulate(schedules=plain)
    )
    edits = [f"{key}={value}" for key, value in trace.edits.items()]
    compared = recordings.with_edits(compared, edits, replay=replay)
    predicts = not replay or device is not None or changes != NetworkChanges()
    compared = recordings.with_interval(compared, trace.facts, trace.edits, predicts=predicts)
    return recordings.with_shares(compared, trace.facts, tuple(changed.notes))
