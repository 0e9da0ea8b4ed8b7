"""A folder of Chakra traces to a comparison, for all verbs that take one."""

import gc
from typing import TYPE_CHECKING

from scaleout.cli.options import NamedJob, pairs_of
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaleout.interop.chakra.load import LoadedTrace
    from scaleout.simulation.options import SimulationOptions
    from scaleout.study.comparison import Comparison


def compare_trace(
    path: str,
    job: NamedJob,
    schedules: "Sequence[str]",
    options: "SimulationOptions",
    edits: "Sequence[str]" = (),
    *,
    only_one: bool = False,
) -> "Comparison":
    """Simulate traces on the network that they ran on or shall run on; kernels take their time on a device given.

    Where no schedules are given, a recording is replayed, and other traces run under the default ones, or the first
    of those if `only_one`.
    """
    from scaleout.cluster.device.annotate import time_kernels
    from scaleout.cluster.device.spec import load_device
    from scaleout.config import library
    from scaleout.interop.chakra.load import load_program
    from scaleout.study.comparison import DEFAULT_SCHEDULES, compare_program
    from scaleout.study.job import check_traced

    check_traced(options)
    if job.settings:
        raise ConfigError("--set changes a workload, which a trace has none of; leave it out")
    loaded = load_program(path)
    gc.collect()  # gives back what reading took, a tenth of the memory of a large trace's simulation
    program, traced_on = loaded.program, loaded.facts.get("device", "as traced")
    if "recorded" in loaded.facts:
        return _compare_recording(path, loaded, job, schedules, options, edits)
    if edits:
        raise ConfigError(
            f"--edit {edits[0]}: {path} is no recording of `scaleout import`; change the job that it is of"
        )
    if job.topology is None and "topology" not in loaded.facts:
        raise ConfigError(f"{path}: the trace does not say on which network it ran; give --topology")
    device = load_device(job.device or traced_on) if job.device or traced_on in library.names("device") else traced_on
    if job.device is not None:
        program = time_kernels(program, load_device(job.device), recompute=True)
    topology = job.load_topology(loaded.facts.get("topology", ""))
    schedules = schedules or DEFAULT_SCHEDULES[: 1 if only_one else None]
    return compare_program(program, topology=topology, device=device, schedules=schedules, options=options)


def _compare_recording(
    path: str,
    loaded: "LoadedTrace",
    job: NamedJob,
    schedules: "Sequence[str]",
    options: "SimulationOptions",
    edits: "Sequence[str]",
) -> "Comparison":
    """Replay a recording, or simulate its kernels on another network."""
    from dataclasses import replace

    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.what_if import NetworkChanges, change_network
    from scaleout.config import library
    from scaleout.study.comparison import compare_program
    from scaleout.study.edits import edited
    from scaleout.study.neighbours import beside_collectives
    from scaleout.study.recording import (
        check_schedules,
        described,
        on_network,
        replayed,
        rewrites,
        with_edits,
        with_shares,
        without_unchanged,
    )

    traced_on = loaded.facts.get("device", "as recorded")
    device = load_device(traced_on) if traced_on in library.names("device") else traced_on
    recording = described(loaded.program, loaded.facts, device)
    other = load_device(job.device) if job.device is not None else None
    changes = pairs_of(edits, option="--edit", form="as batch=2x or layers=8->4")
    changed = edited(recording, changes, device=other)
    program = changed.program
    schedules = schedules or ("recorded",)
    check_schedules(schedules, on_network=job.topology is not None)
    if job.topology is None:
        if job.changes != NetworkChanges(slow=job.changes.slow):
            raise ConfigError(f"{path}: a recording does not say on which network it ran; give --topology")
        topology, options = replayed(program, options)
        topology = change_network(topology, job.changes)
    else:
        program, topology = on_network(program), job.load_topology("")
        if any(rewrites(name) for name in schedules):
            program = beside_collectives(program)
            changed.notes.append(
                f"schedules that join or cut kernels and collectives leave out the host, for which the GPU waited "
                f"{recording.host_bound:.1%} of the time; copies beside collectives are part of a kernel next to them"
            )
        if set(schedules) == {"recorded"}:  # what ran at the same time has slowed each other down already
            options = replace(options, contention=False)
    compared = compare_program(program, topology=topology, device=other or device, schedules=schedules, options=options)
    compared = with_edits(compared, edits, replay=job.topology is None)
    return with_shares(without_unchanged(compared, program), loaded.facts, tuple(changed.notes))
