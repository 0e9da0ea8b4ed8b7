"""`scaleout import pytorch`: the recordings of a job's ranks to its program, and a report of what was kept."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, stdev
from typing import Any

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import Device, load_device
from scaleout.config import library
from scaleout.config.documents import MAX_RANKS
from scaleout.config.units import counted
from scaleout.errors import ConfigError, TraceError
from scaleout.interop.pytorch.as_program import Imported, program_of
from scaleout.interop.pytorch.files import Found, job_name, recorded_files
from scaleout.interop.pytorch.host import HostTrace, is_host_trace, link, read_host
from scaleout.interop.pytorch.host_program import launched_by
from scaleout.interop.pytorch.kernels import parameters_of
from scaleout.interop.pytorch.kineto import NONE, Recording, WorkKind, read_kineto
from scaleout.interop.pytorch.timeline import Timeline, timeline_of
from scaleout.program.program import Program
from scaleout.program.recorded import BEFORE

DEVICE = "h200"
"""On which kernels run whose times were not recorded, unless told otherwise."""

_SAME_STEP = 0.25
"""Of a step: ranks begin the same one less far apart."""


@dataclass(frozen=True)
class Step:
    """A step of a recording, by the number that the profiler gave it."""

    step: int
    recorded_s: float


@dataclass
class Report:
    """What an import kept; kernels are counted without copies and memsets."""

    name: str
    device: str  # as the library calls it, or else as the recording does
    ranks: int
    recorded_ranks: int
    steps: list[Step]
    kernels: int = 0  # in the files
    kernels_kept: int = 0
    kernels_linked: int = 0  # of those kept, to the host's call that launched them
    operators_linked: int = 0  # to those of host traces
    copies: int = 0  # copies and memsets that were kept
    collectives: int = 0  # calls of ranks, as are those with a size
    collectives_sized: int = 0
    waits_linked: int = 0  # between streams, as recorded
    waits_inferred: int = 0  # from launches and times
    by_group: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return plain values, as ``--json`` prints them."""
        return asdict(self)


def load_recording(
    paths: Sequence[Path], *, step: int | None = None, device: Device | None = None, allow_partial: bool = False
) -> tuple[Program, dict[str, str], Report]:
    """Read the recordings of a job.

    Parameters
    ----------
    paths : sequence of Path
        Files, folders, archives or beginnings of names, of all ranks.
    step : int, optional
        Number of the profiler's step to read alone; all steps that the host marked, if left out.
    device : Device, optional
        On which kernels run whose times were not recorded, those of host traces alone; `DEVICE` if left out.
    allow_partial : bool
        Go on without ranks or collectives that are missing, and say so.

    Returns
    -------
    program : Program
        One graph a rank, its times as recorded.
    facts : mapping
        For the metadata of the traces: workload, device, recorded steps and their time.
    report : Report

    Raises
    ------
    TraceError
        If a file is damaged or foreign, ranks are missing, twice there, or of different steps or devices, or a
        collective was not seen by all its ranks; the message says what to do.
    ConfigError
        If a device is given for kernels whose times were recorded.
    """
    found = list(recorded_files(paths))
    recordings = _recordings([each for each in found if not is_host_trace(each.content)])
    hosts = _host_traces([each for each in found if is_host_trace(each.content)], recordings)
    if not found:
        raise TraceError(f"{paths[0]}: holds no recording; give the trace that torch.profiler exported")
    name = job_name(found)
    if not recordings:
        if step is not None:
            raise TraceError(f"{paths[0]}: --step {step}: a host trace without a device trace marks no steps")
        return _without_devices(name, hosts, device or load_device(DEVICE), allow_partial=allow_partial)
    if device is not None:
        raise ConfigError("--device: kernels of a recording take the time that was recorded; leave it out")
    hosts_linked, notes = _link_hosts(hosts, recordings)
    notes += _check_devices(recordings, allow_partial=allow_partial)
    numbers = _steps(recordings, step)
    timelines = {rank: timeline_of(recording, _indices(recording, numbers)) for rank, recording in recordings.items()}
    idle = sorted(
        rank for rank, timeline in timelines.items() if all(moment.work == NONE for moment in timeline.moments)
    )
    if idle:
        raise TraceError(
            f"{recordings[idle[0]].path}: nothing ran on the GPU{'' if step is None else f' in step {step}'}; record "
            f"with ProfilerActivity.CUDA"
        )
    sizes = [recording.world_size or 0 for recording in recordings.values()]
    num_ranks = max(*sizes, max(recordings) + 1, 1)
    if num_ranks > MAX_RANKS:
        raise TraceError(f"{paths[0]}: is of a job of {num_ranks:,} ranks; at most {MAX_RANKS:,} are simulated")
    imported = program_of(timelines, name=name, num_ranks=num_ranks, allow_partial=allow_partial)
    report = _report(name, timelines, numbers, imported)
    report.operators_linked = hosts_linked
    report.notes += notes
    host_bound = max(
        timeline.host_bound_us / max(timeline.ends_us[-1] - timeline.begin_us, 1e-9) for timeline in timelines.values()
    )
    facts = {
        "workload": name,
        "device": report.device,
        "recorded": f"steps {', '.join(map(str, numbers))}" if numbers else "one step",
        "recorded_s": repr(sum(imported.steps_s)),
        "recorded_steps": str(len(imported.steps_s)),
        **({"recorded_spread": f"{_spread(imported.steps_s):.4f}"} if len(imported.steps_s) > 1 else {}),
        "host_bound": f"{host_bound:.4f}",
        "parameters": _parameters(timelines),
    }
    return imported.program, facts, report


def _spread(steps_s: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms of times."""
    return stdev(math.log(max(each_s, _LEAST_STEP_S)) for each_s in steps_s)


_LEAST_STEP_S = 1e-9
"""What profilers tell apart."""


def _parameters(timelines: Mapping[int, Timeline]) -> str:
    """Write how many parameters of each number of elements the first rank has: ``131072000x2 4096x17``."""
    added, times = parameters_of(next(iter(timelines.values())).recording)
    counts: Counter[int] = Counter()
    for shape, count in added.items():
        counts[math.prod(shape)] += max(1, count // times)
    return " ".join(f"{size}x{count}" for size, count in sorted(counts.items(), reverse=True))


def _recordings(found: Sequence[Found]) -> dict[int, Recording]:
    """Read the Kineto traces, by rank."""
    recordings: dict[int, Recording] = {}
    for each in found:
        recording = read_kineto(each.content, each.path)
        told = recording.rank if recording.rank is not None else each.rank
        if told is None and len(found) > 1:
            raise TraceError(f"{each.path}: neither file nor name tells its rank; call it like name.rank0.json")
        rank = told or 0
        if rank in recordings:
            raise _both(recordings[rank].path, each, rank)
        recording.rank = rank
        recordings[rank] = recording
    return dict(sorted(recordings.items()))


def _both(path: Path, each: Found, rank: int) -> TraceError:
    return TraceError(
        f"{path} and {each.path}: both are of rank {rank}; give the files of one job, or the beginning of their names, "
        f"such as {each.path.parent / each.job}"
    )


def _host_traces(found: Sequence[Found], recordings: Mapping[int, Recording]) -> dict[int, HostTrace]:
    """Read the host traces, by rank."""
    traces: dict[int, HostTrace] = {}
    for each in found:
        trace = read_host(each.content, each.path)
        told = trace.rank if trace.rank is not None else each.rank
        if told is None and len(found) == 1 and len(recordings) < 2:
            told = next(iter(recordings), 0)
        if told is None:
            raise TraceError(f"{each.path}: neither file nor name tells its rank; call it like name.rank0.json")
        if told in traces:
            raise _both(traces[told].path, each, told)
        traces[told] = trace
    return dict(sorted(traces.items()))


def _link_hosts(traces: Mapping[int, HostTrace], recordings: Mapping[int, Recording]) -> tuple[int, list[str]]:
    """Give recordings what host traces of their ranks tell; return how many operators were linked, and what to say."""
    notes, linked = [], 0
    for rank, trace in traces.items():
        if rank not in recordings:
            notes.append(f"{trace.path}: rank {rank} has no device trace; the host trace is left out")
            continue
        count, why_not = link(recordings[rank], trace)
        linked += count
        if why_not:
            notes.append(f"{trace.path}: {why_not}; the host trace is left out")
    return linked, notes


def _without_devices(
    name: str, traces: Mapping[int, HostTrace], device: Device, *, allow_partial: bool
) -> tuple[Program, dict[str, str], Report]:
    """Return what host traces without device traces launch, its kernels as long as our model says."""
    launched = launched_by(traces, allow_partial=allow_partial)
    num_ranks = max(*(trace.world_size or 0 for trace in traces.values()), max(traces) + 1, 1)
    if num_ranks > MAX_RANKS:
        raise TraceError(f"{name}: is of a job of {num_ranks:,} ranks; at most {MAX_RANKS:,} are simulated")
    imported = program_of(launched.timelines, name=name, num_ranks=num_ranks, allow_partial=allow_partial)
    program = time_kernels(imported.program, device)
    kernels = sum(len(timeline.modelled or ()) for timeline in launched.timelines.values())
    report = Report(
        name, device.name, program.num_ranks, len(traces), [], kernels=kernels, kernels_kept=kernels,
        collectives=imported.collectives, collectives_sized=imported.collectives_sized, by_group=imported.by_group,
    )  # fmt: skip
    report.notes.append(
        f"without device traces no time was recorded: kernels ({kernels:,}) take what our model says on "
        f"{device.name} (--device), collectives what a network takes (run --topology), and the host takes none"
    )
    if launched.unknown:
        named = ", ".join(f"{operator} ({count:,})" for operator, count in launched.unknown.most_common(5))
        unknown = counted(sum(launched.unknown.values()), "operator")
        report.notes.append(f"left out: {unknown} of unknown kernels, such as {named}")
    if launched.copies:
        report.notes.append(f"left out: copies between host and GPU ({launched.copies:,})")
    report.notes += imported.notes
    return program, {"workload": name, "device": device.name}, report


def _check_devices(recordings: Mapping[int, Recording], *, allow_partial: bool) -> list[str]:
    """Refuse recordings on different GPUs, which are of different jobs; return what to say where they are let in."""
    ranks_on: dict[str, list[int]] = {}
    for rank, recording in recordings.items():
        ranks_on.setdefault(recording.device, []).append(rank)
    ranks_on.pop("", None)
    if len(ranks_on) < 2:
        return []
    told = " and ".join(
        f"{device} (rank {ranks[0]}{f' and {len(ranks) - 1} more' if len(ranks) > 1 else ''})"
        for device, ranks in sorted(ranks_on.items())
    )
    if not allow_partial:
        raise TraceError(f"ranks were recorded on {told}; give recordings of one job, or --allow-partial")
    return [f"ranks were recorded on {told}; an edit scales all their kernels as those of the first rank's device"]


def _number(name: str) -> int:
    return int(name.partition("#")[2])


def _steps(recordings: Mapping[int, Recording], step: int | None) -> list[int]:
    """Return the numbers of the steps that all ranks have; none where no rank marks steps."""
    marked = {rank: [_number(each.name) for each in recording.steps] for rank, recording in recordings.items()}
    _check_numbers(recordings)
    common = set.intersection(*map(set, marked.values()))
    if any(marked.values()) and not common:
        told = "; ".join(f"rank {rank}: {', '.join(map(str, steps)) or 'none'}" for rank, steps in marked.items())
        raise TraceError(f"ranks have no step in common ({told}); give recordings of the same steps")
    if step is not None and step not in common:
        known = ", ".join(map(str, sorted(common))) or "none"
        raise TraceError(f"--step {step}: the recording marks {known}; give one of them, or leave it out")
    chosen = sorted(common) if step is None else [step]
    ran = {
        _number(recording.steps[index].name)
        for recording in recordings.values()
        for index in {work.step for work in recording.works} - {NONE}
        if recording.steps
    }
    # what was launched in a step ran in it, so a step without work of its own is none
    return [number for number in chosen if step is not None or number in ran]


def _check_numbers(recordings: Mapping[int, Recording]) -> None:
    """Refuse ranks that number their steps differently: as many, by other numbers, of which the first ran together."""
    told = all(recording.epoch_us is not None for recording in recordings.values())
    begun_us = {
        rank: {_number(step.name): step.start_us + ((told and each.epoch_us) or each.start_us) for step in each.steps}
        for rank, each in recordings.items()
    }
    first, of_first_us = next(iter(begun_us.items()))
    for rank, of_rank_us in begun_us.items():
        shift = min(of_rank_us, default=0) - min(of_first_us, default=0)
        if not shift or len(of_first_us) < 2 or set(of_rank_us) != {number + shift for number in of_first_us}:
            continue
        apart_us = median(abs(of_rank_us[number + shift] - start_us) for number, start_us in of_first_us.items())
        step_us = median(later - start for start, later in pairwise(sorted(of_first_us.values())))
        if apart_us < _SAME_STEP * step_us:
            raise TraceError(
                f"{recordings[rank].path}: step {min(of_rank_us)} of rank {rank} ran when step {min(of_first_us)} of "
                f"rank {first} did, so their numbers differ by {abs(shift)}; call the profiler's step() equally "
                "often on all ranks, and record again"
            )


def _indices(recording: Recording, numbers: Sequence[int]) -> tuple[int, ...]:
    if not numbers:
        return (0,)
    index_of = {_number(step.name): index for index, step in enumerate(recording.steps)}
    return tuple(index_of[number] for number in numbers)


def device_named(product: str) -> str:
    """Return the library's name of a device by that of the product; the product's own where none is meant.

    >>> device_named("NVIDIA H200"), device_named("NVIDIA H100 80GB HBM3"), device_named("NVIDIA L4")
    ('h200', 'h100', 'NVIDIA L4')
    """
    words = re.split(r"[^a-z0-9]+", product.lower())
    fitting = [name for name in library.names("device") if all(part in words for part in name.split("-"))]
    memory = next((word.removesuffix("b") for word in words if re.fullmatch(r"\d+gb", word)), "")
    fitting += [
        name
        for name in library.names("device")
        if (parts := name.split("-"))[0] in words and memory and parts[1:] == [memory]
    ]
    return max(fitting, key=len, default=product or "as recorded")


def _report(name: str, timelines: Mapping[int, Timeline], numbers: Sequence[int], imported: Imported) -> Report:
    first = next(iter(timelines.values())).recording
    report = Report(
        name,
        device_named(first.device),
        imported.program.num_ranks,
        len(timelines),
        [Step(number, seconds) for number, seconds in zip(numbers or [0], imported.steps_s, strict=True)],
        collectives=imported.collectives,
        collectives_sized=imported.collectives_sized,
        by_group=imported.by_group,
    )
    before = unlinked = untold = 0.0
    others = 0
    for timeline in timelines.values():
        recording = timeline.recording
        works = [recording.works[moment.work] for moment in timeline.moments if moment.work != NONE]
        report.kernels += sum(work.kind is WorkKind.KERNEL for work in recording.works)
        works += timeline.before
        kept = [work for work in works if work.kind is WorkKind.KERNEL]
        report.kernels_kept += len(kept)
        report.kernels_linked += sum(work.call != NONE for work in kept)
        report.copies += len(works) - len(kept)
        unlinked += sum(work.call == NONE and work.step != NONE for work in kept)
        before += sum(work.kind is WorkKind.KERNEL for work in timeline.before)
        there = {*timeline.steps, *([NONE] if timeline.before else [])}
        others += sum(work.kind is WorkKind.KERNEL and work.step not in there for work in recording.works)
        report.waits_linked += timeline.linked_waits
        report.waits_inferred += timeline.found_waits + timeline.timed_waits
        untold = max(untold, timeline.untold_us)
    if before:
        report.notes.append(
            f"kept as phase {BEFORE!r}, which no replay counts: {counted(int(before), 'kernel')} launched before the "
            f"recording began"
        )
    if others:
        report.notes.append(f"left out: {counted(others, 'kernel')} of other steps")
    if unlinked:
        report.notes.append(
            f"in the order of their stream: {counted(int(unlinked), 'kernel')} without a call that launched it"
        )
    if untold > 1000:
        report.notes.append(
            f"kernels of a rank waited up to {untold / 1e3:.1f} ms for what the recording does not tell; these waits "
            f"are kept as they were"
        )
    report.notes += imported.notes
    return report
