"""Rows of the box of a step, in words: the terminal and the page of an output say them alike.

They know nothing of outcomes and documents: each takes the numbers that its words are of.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scaleout.analysis.cost import Rent
from scaleout.config.units import (
    counted,
    format_bytes,
    format_flops_per_s,
    format_rate,
    format_rent,
    format_seconds,
    format_share,
    format_span,
    format_times,
)

FITTED = ", if it fitted"
"""Said behind the step and the speed of a job that does not fit."""
_OF_FRAMEWORKS = ("baseline", "overlap")
"""Schedules that frameworks run as they are, the nearest last."""


def named(schedule: str, runs_as: str | None) -> str:
    """Name a schedule, and the simpler one that it runs as."""
    return f"{schedule}, which runs as {runs_as}" if runs_as else schedule


def took(seconds: float, ends_s: tuple[float, float] | None) -> str:
    """Say how long a step is, and between which ends where that is known."""
    return format_seconds(seconds) if ends_s is None else format_span(seconds, *ends_s)


def recorded(steps: int) -> str:
    """Say that a step is the mean of several, which were recorded."""
    return f", the mean of {steps} recorded ones" if steps > 1 else ""


def among(schedule: str, schedules: Sequence[str], speedup: float) -> str:
    """Say what the fastest of several schedules gains over the first; nothing of one alone.

    >>> among("fused", ["overlap", "fused"], 1.25), among("fused", ["fused", "overlap"], 1.0), among("t3", ["t3"], 1.0)
    (', 1.25x as fast as under overlap', ', the fastest of 2 schedules', '')
    """
    if schedule != schedules[0]:
        return f", {format_times(speedup)} as fast as under {schedules[0]}"
    return f", the fastest of {len(schedules)} schedules" if len(schedules) > 1 else ""


def today(fastest: str, times_s: Mapping[str, tuple[float, str | None]]) -> dict[str, str]:
    """Say how long a step is under the schedule of today's frameworks, where another was simulated too and wins.

    `times_s` has the time of each schedule, and what it runs as.
    """
    nearest = _OF_FRAMEWORKS[-1]
    if fastest in _OF_FRAMEWORKS or nearest not in times_s:
        return {}
    seconds, runs_as = times_s[nearest]
    words = f"{format_seconds(seconds)} under {named(nearest, runs_as)}"
    return {"today": f"{words}, nearest to what PyTorch and Megatron-LM run"}


def speed(tokens_per_s_per_rank: float, mfu: float, peak: Mapping[str, Any] | None) -> str:
    """Say how fast a step is, and how much of the device's peak that is."""
    of = "" if peak is None else f"{format_flops_per_s(peak['flops_per_s'])} in {peak['dtype']}"
    return f"{format_rate(tokens_per_s_per_rank)} tokens/s/GPU, MFU {format_share(mfu)} of {of}"


def speed_of_samples(samples_per_s: float, ranks: float) -> str:
    """Say how fast a step of a model without tokens is."""
    return f"{format_rate(samples_per_s / ranks)} samples/s/GPU, {format_rate(samples_per_s)} in all"


def exposed(exposed_s: float, step_s: float, by_axis_s: Mapping[str, float]) -> str:
    """Say how much communication is exposed, and over which axes."""
    share = format_share(exposed_s / step_s) if step_s else "0%"
    axes = ", ".join(f"{axis} {format_seconds(each)}" for axis, each in sorted(by_axis_s.items()) if each)
    return f"{format_seconds(exposed_s)} of communication, {share} of the step" + (f": {axes}" if axes else "")


def rent(found: Rent, rent_per_s: float | None, ranks: int, mode: str | None) -> str:
    """Say what a step of a machine of a rent costs, and tokens, and at which rent of a device."""
    words = found.words(mode)
    return words if rent_per_s is None else f"{words}, at {format_rent(rent_per_s / ranks)} a device"


def no_rent(device: str) -> str:
    """Say why a rent is not known, and how to give one."""
    file = f"a file with `like: {device}` and `rent`"
    return f"not known: no price of {device} with a source; for yours give --device {file}"


ROOM_UNKNOWN = "not known: a trace does not say what its ranks keep"
"""Said of memory that is not counted."""


def room(
    peak_bytes: float, capacity_bytes: float, ranks: int, helps: Sequence[tuple[str, int, float | None]] = ()
) -> str:
    """Say whether a job of so many ranks fits its devices, and by how much; what helps on as many ranks comes first.

    `helps` are changes with which it fits: options of the command line, the ranks that it then needs, and the step.
    """
    words = f"{format_bytes(peak_bytes)} of {format_bytes(capacity_bytes)}"
    if peak_bytes <= capacity_bytes:
        return f"fits: {words}, {format_bytes(capacity_bytes - peak_bytes)} left"
    words = f"does not fit: {words}, {format_bytes(peak_bytes - capacity_bytes)} too much"
    if not helps:
        return words
    settings, needed, step_s = min(helps, key=lambda each: each[1] != ranks)
    where = "" if needed == ranks else f" on {counted(needed, 'rank')}"
    step = "" if step_s is None else f", step {format_seconds(step_s)}"
    return f"{words}; with {settings}{where} it does{step}"
