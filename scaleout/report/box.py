"""The box of a step in words, a row a fact: what the fastest schedule comes to, on what, and what bounds it.

A document carries its rows as its `answer`; the terminal, a notebook and the page of an output show these.
"""

from math import fsum
from typing import TYPE_CHECKING, Any

from scaleout.analysis.bounds import MEMORY, bound_of_step, of_memory
from scaleout.analysis.breakdown import told_estimates
from scaleout.analysis.waits import told_waits
from scaleout.cluster.topology.what_if import cost_of_changes
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
    ranks_in_words,
)
from scaleout.study.provenance import told_network

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaleout.analysis.cost import Rent
    from scaleout.analysis.efficiency import Efficiency, Fit
    from scaleout.analysis.uncertainty import Interval
    from scaleout.cluster.topology.topology import Topology
    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome

FITTED = ", if it fitted"
"""Said behind what a job that does not fit comes to."""
_OF_FRAMEWORKS = ("baseline", "overlap")
"""Schedules that frameworks run as they are, the nearest last."""
_MENTIONED = 1e-3
"""Share of a step from which a collective that is exposed is named."""


def box_of(comparison: "Comparison", unchanged: "Outcome | None") -> dict[str, str]:
    """Say what the fastest schedule comes to; `unchanged` is it without the changes of the network."""
    best = min(comparison.outcomes, key=lambda outcome: outcome.makespan_s)
    steps, fits = comparison.steps or 1, best.fit is None or best.fit.fits
    facts = {} if fits else {"memory": room(best.fit, comparison.ranks)}
    facts["step"] = _step(best, comparison) + ("" if fits else FITTED)
    facts |= _today(best, comparison)
    facts |= _unchanged(best, unchanged, steps)
    if best.efficiency is not None:
        facts["speed"] = speed_of(best.efficiency, comparison) + ("" if fits else FITTED)
    elif comparison.samples and best.makespan_s:
        each_s = comparison.samples / best.makespan_s
        facts["speed"] = f"{format_rate(each_s / comparison.ranks)} samples/s/GPU, {format_rate(each_s)} in all"
    facts |= _batch(best, comparison.samples)
    facts |= {} if best.topology is None else network_of(best.topology, comparison.device, comparison.ranks)
    if words := told_estimates(best.result, best.breakdown.kernel_time_sources, device=comparison.device):
        facts["kernels"] = words
    facts["exposed"] = _exposed(best, steps) + _waited(best, steps)
    facts["exposed"] += "" if comparison.bucketed else "; gradients lie in no buckets (--set gradient_bucket=25MiB)"
    facts["bound by"] = _bound(best, steps)
    idle_s = None if unchanged is None else (best.breakdown.idle_s, unchanged.breakdown.idle_s)
    if words := told_waits(best.waits.by_rank, best.result.program.num_ranks, best.makespan_s, steps, idle_s):
        facts["waits"] = words
    facts.setdefault("memory", room(best.fit, comparison.ranks))
    if best.workload is not None and best.workload.left_out:
        facts["memory"] += f"; {best.workload.left_out} not counted"
    return facts | rent_of(comparison, best) | model_of(comparison)


def _batch(best: "Outcome", samples: int | None) -> dict[str, str]:
    """Say how much a step over all ranks works on; nothing of a trace, which does not say it."""
    work = best.workload
    if work is None:
        return {"batch": counted(samples, "sample")} if samples else {}
    words = counted(work.batch_per_replica * work.data_parallel, "sequence")
    if work.mode == "decode":
        return {"batch": f"{words}, a token of each behind {work.sequence:,} in the cache"}
    return {"batch": f"{words} of {counted(work.sequence, 'token')}, micro-batches of {work.microbatch_size:,}"}


def model_of(comparison: "Comparison") -> dict[str, str]:
    """Say what answered, and what was changed."""
    return {} if comparison.provenance is None else {"model": comparison.provenance.title}


def took(seconds: float, interval: "Interval | None") -> str:
    """Say how long a step is, and between which ends where that is known."""
    return format_seconds(seconds) if interval is None else format_span(seconds, *interval.of(seconds))


def _named(outcome: "Outcome") -> str:
    """Name a schedule, and the simpler one that it runs as."""
    return outcome.schedule + (f", which runs as {outcome.runs_as}" if outcome.runs_as else "")


def _step(best: "Outcome", comparison: "Comparison") -> str:
    """Say how long a step of the fastest schedule is, and against what."""
    steps, first = comparison.steps or 1, comparison.outcomes[0].schedule
    words = f"{took(best.makespan_s / steps, best.interval)} under {_named(best)}"
    words += f", the mean of {steps} recorded ones" if steps > 1 else ""
    if best.schedule != first:
        return f"{words}, {format_times(best.speedup)} as fast as under {first}"
    several = len(comparison.outcomes)
    return words + (f", the fastest of {several} schedules" if several > 1 else "")


def _today(best: "Outcome", comparison: "Comparison") -> dict[str, str]:
    """Say how long a step is under the schedule of today's frameworks, where another was simulated too and wins."""
    nearest = [each for each in comparison.outcomes if each.schedule == _OF_FRAMEWORKS[-1]]
    if best.schedule in _OF_FRAMEWORKS or not nearest:
        return {}
    words = f"{format_seconds(nearest[0].makespan_s / (comparison.steps or 1))} under {_named(nearest[0])}"
    return {"today": f"{words}, nearest to what PyTorch and Megatron-LM run"}


def _unchanged(best: "Outcome", unchanged: "Outcome | None", steps: int) -> dict[str, str]:
    """Say how long a step is without the changes of the machine, and what these cost."""
    if unchanged is None:
        return {}
    altered = () if best.topology is None else best.topology.altered
    cost = cost_of_changes(altered, unchanged.makespan_s, best.makespan_s, steps)
    return {"unchanged": f"{format_seconds(unchanged.makespan_s / steps)} under {_named(unchanged)}; {cost}"}


def speed_of(found: "Efficiency", comparison: "Comparison") -> str:
    """Say how fast a step of a comparison is, and how much of the device's peak that is."""
    assert comparison.mfu_peak is not None, "a model of layers on a device has one"
    return speed(found.tokens_per_s_per_rank, found.mfu, comparison.mfu_peak)


def speed(tokens_per_s_per_rank: float, mfu: float, peak: "Mapping[str, Any]") -> str:
    """Say how fast a step is, and how much of a peak, see `mfu_peak`, that is."""
    of = f"{format_flops_per_s(peak['flops_per_s'])} in {peak['dtype']}"
    return f"{format_rate(tokens_per_s_per_rank)} tokens/s/GPU, MFU {format_share(mfu)} of {of}"


def network_of(topology: "Topology", device: str, ranks: int) -> dict[str, str]:
    """Say whose network it is, where it is that of other devices, and which is the device's own."""
    words = told_network(topology, device, ranks)
    return {"network": words} if words else {}


def _exposed(outcome: "Outcome", steps: int) -> str:
    """Say how much communication is exposed, and over which axes."""
    exposed_s, found = outcome.breakdown.exposed_communication_s, outcome.efficiency
    share = format_share(exposed_s / outcome.makespan_s) if outcome.makespan_s else "0%"
    by_axis_s = {} if found is None else found.exposed_s
    axes = ", ".join(f"{axis} {format_seconds(each)}" for axis, each in sorted(by_axis_s.items()) if each)
    words = f"{format_seconds(exposed_s / steps)} of communication, {share} of the step"
    return words + (f": {axes}" if axes else "")


def _waited(outcome: "Outcome", steps: int) -> str:
    """Say how much of the exposed communication waits for a last member that still has kernels, and who is the root."""
    waits_s = fsum(row.waits_s for row in outcome.bounds)
    if waits_s < _MENTIONED * outcome.makespan_s:
        return ""
    roots = {row.waits_for: 0.0 for row in outcome.bounds}
    for row in outcome.bounds:
        roots[row.waits_for] += row.waits_for_s
    ranks, most_s = max(roots.items(), key=lambda item: item[1])
    at_once = max(1.0, waits_s / outcome.breakdown.exposed_communication_s)  # unlike ones that each have it
    waits, most = (format_seconds(seconds / at_once / steps) for seconds in (waits_s, most_s))
    if most == waits:
        return f"; {waits} of it waits for {ranks_in_words(ranks)}"
    return f"; {waits} of it waits for other ranks, {most} of that for {ranks_in_words(ranks)}"


def _bound(outcome: "Outcome", steps: int) -> str:
    """Say what takes the largest part of a step, and what bounds the collective that is exposed longest."""
    name, seconds = bound_of_step(outcome.result, outcome.breakdown.compute_s, outcome.device)
    words = f"{name}, {format_share(seconds / outcome.makespan_s if outcome.makespan_s else 0.0)} of the step"
    if name == MEMORY and outcome.device is not None:
        words += f" (its kernels reach {format_share(of_memory(outcome.result, outcome.device)[1])} of it)"
    most = outcome.bounds[0] if outcome.bounds else None
    if most is None or most.exposed_communication_s < _MENTIONED * outcome.makespan_s or not most.bound_by:
        return words
    over = f" over {most.axis}" if most.axis else ""
    exposed = format_seconds(most.exposed_communication_s / steps / most.member_share)
    why = f"which {most.words}" if most.mostly_waits else f"bound by {most.bound_by}"
    return f"{words}; exposed longest ({exposed}): {most.operation}{over}, {why}"


def room(found: "Fit | None", ranks: int) -> str:
    """Say whether a job of so many ranks fits its devices, and by how much; what helps on as many ranks comes first."""
    if found is None:
        return "not known: a trace does not say what its ranks keep"
    peak_bytes, capacity_bytes = found.peak.total_bytes, found.capacity_bytes
    if found.fits:
        return room_left(peak_bytes, capacity_bytes)
    peak, more = (format_bytes(size, like=capacity_bytes) for size in (peak_bytes, peak_bytes - capacity_bytes))
    words = f"does not fit: {peak} of {format_bytes(capacity_bytes)}, {more} too much"
    helps = [each for each in found.advice if each.fits]
    if not helps:
        return words
    best = min(helps, key=lambda each: each.ranks != ranks)
    where = "" if best.ranks == ranks else f" on {counted(best.ranks, 'rank')}"
    step = "" if best.step_s is None else f", step {format_seconds(best.step_s)}"
    return f"{words}; with {best.settings}{where} it does{step}"


def room_left(peak_bytes: float, capacity_bytes: float) -> str:
    """Say by how much a job fits its devices."""
    peak, left = (format_bytes(size, like=capacity_bytes) for size in (peak_bytes, capacity_bytes - peak_bytes))
    return f"fits: {peak} of {format_bytes(capacity_bytes)}, {left} left"


def rent_of(comparison: "Comparison", best: "Outcome") -> dict[str, str]:
    """Say what the step costs where the machine is rented; nothing of a device of which a trace has the name alone."""
    machine = comparison.bill
    if machine is None:
        return {}
    found, ranks, device = comparison.rent(best), comparison.ranks, comparison.device
    return {"rent": rent(found, machine.rent_per_s, ranks=ranks, mode=comparison.mode, device=device)}


def rent(found: "Rent | None", rent_per_s: float | None, *, ranks: int, mode: str | None, device: str) -> str:
    """Say what a step of a machine of a rent costs, and tokens; where none is known, how to give one."""
    if found is None or rent_per_s is None:
        file = f"a file with `like: {device}` and `rent`"
        return f"not known: no price of {device} with a source; for yours give --device {file}"
    return f"{found.words(mode)}, at {format_rent(rent_per_s / ranks)} a device"
