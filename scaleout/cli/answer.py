"""The box of a comparison: what the fastest schedule comes to, on what, and what bounds it."""

from collections.abc import Mapping
from math import fsum
from typing import TYPE_CHECKING, Any

from scaleout.analysis import breakdown as analysis
from scaleout.analysis.bounds import MEMORY, bound_of_step, of_memory
from scaleout.analysis.waits import told_waits
from scaleout.cluster.topology.nodes import of_device
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
from scaleout.study.provenance import devices_of

if TYPE_CHECKING:
    from scaleout.analysis.cost import Rent
    from scaleout.analysis.efficiency import Efficiency, Fit
    from scaleout.cluster.topology.topology import Topology
    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome

_MENTIONED = 1e-3
"""Share of a step from which a collective that is exposed is named."""
_OF_FRAMEWORKS = ("baseline", "overlap")
"""Schedules that frameworks run as they are, the nearest last."""


def answer_of(comparison: "Comparison", unchanged: "Outcome | None") -> tuple[str, dict[str, str]]:
    """Say what the fastest schedule comes to, under a title that says of what."""
    best = min(comparison.outcomes, key=lambda outcome: outcome.makespan_s)
    found, exposed = best.efficiency, best.breakdown.exposed_communication_s
    by_axis = (
        ""
        if found is None
        else ", ".join(f"{axis} {format_seconds(each)}" for axis, each in sorted(found.exposed_s.items()) if each)
    )
    steps, step = comparison.steps or 1, _step(best, comparison)
    each_s, exposed = best.makespan_s / steps, exposed / steps
    fits = best.fit is None or best.fit.fits
    facts = {"step": step} if fits else {"memory": room(best.fit, comparison.ranks), "step": f"{step}, if it fitted"}
    facts |= _today(best, comparison)
    facts |= _unchanged(best, unchanged, steps)
    if found is not None:
        facts["speed"] = speed_words(found, comparison) + ("" if fits else ", if it fitted")
        if best.workload is not None and best.workload.mode == "decode":
            facts["speed"] += f", a token of each sequence behind {best.workload.sequence:,} in the cache"
    elif comparison.samples and best.makespan_s:
        per_s = comparison.samples / best.makespan_s
        facts["speed"] = f"{format_rate(per_s / comparison.ranks)} samples/s/GPU, {format_rate(per_s)} in all"
    facts |= {} if best.topology is None else network_of(best.topology, comparison.device, comparison.ranks)
    facts |= _kernels(best, comparison.device)
    share = format_share(exposed / each_s) if each_s else "0%"
    facts["exposed"] = f"{format_seconds(exposed)} of communication, {share} of the step" + (
        f": {by_axis}" if by_axis else ""
    )
    facts["exposed"] += _waited(best, steps)
    facts["exposed"] += "" if comparison.bucketed else "; gradients lie in no buckets (--set gradient_bucket=25MiB)"
    facts["bound by"] = _bound(best, steps)
    idle_s = None if unchanged is None else (best.breakdown.idle_s, unchanged.breakdown.idle_s)
    if words := told_waits(best.waits.by_rank, best.result.program.num_ranks, best.makespan_s, steps, idle_s):
        facts["waits"] = words
    facts.setdefault("memory", room(best.fit, comparison.ranks))
    if best.workload is not None and best.workload.left_out:
        facts["memory"] += f"; {best.workload.left_out} not counted"
    facts |= rent_of_step(comparison, best)
    if comparison.provenance:
        facts["model"] = comparison.provenance.title
    altered = () if best.topology is None else best.topology.altered
    nodes = "".join(f" ({words})" for words in altered if words.startswith("nodes="))
    on = f"{comparison.topology}{nodes}, ranks {comparison.ranks:,}"
    return f"{comparison.workload} on {on}, device {comparison.device}", facts


def _unchanged(best: "Outcome", unchanged: "Outcome | None", steps: int) -> dict[str, str]:
    """Say how long a step is without the changes of the machine, and what these cost."""
    if unchanged is None:
        return {}
    altered = () if best.topology is None else best.topology.altered
    cost = cost_of_changes(altered, unchanged.makespan_s, best.makespan_s, steps)
    return {"unchanged": f"{format_seconds(unchanged.makespan_s / steps)} under {_name(unchanged)}; {cost}"}


def _step(best: "Outcome", comparison: "Comparison") -> str:
    """Say how long a step of the fastest schedule is, and against what."""
    first, bars, steps = comparison.outcomes[0], best.interval, comparison.steps or 1
    each_s = best.makespan_s / steps
    took = format_seconds(each_s) if bars is None else format_span(each_s, *bars.of(each_s))
    step = f"{took} under {_name(best)}"
    if steps > 1:
        step += f", the mean of {steps} recorded ones"
    if best is not first:
        step += f", {format_times(best.speedup)} as fast as under {first.schedule}"
    elif len(comparison.outcomes) > 1:
        step += f", the fastest of {len(comparison.outcomes)} schedules"
    return step


def _name(outcome: "Outcome") -> str:
    """Name a schedule, and the simpler one that it runs as."""
    return f"{outcome.schedule}, which runs as {outcome.runs_as}" if outcome.runs_as else outcome.schedule


def _today(best: "Outcome", comparison: "Comparison") -> dict[str, str]:
    """Say how long the step is under the schedule of today's frameworks, where another was simulated too and wins."""
    if best.schedule in _OF_FRAMEWORKS:
        return {}
    found = next((each for each in comparison.outcomes if each.schedule == _OF_FRAMEWORKS[-1]), None)
    if found is None:
        return {}
    took = format_seconds(found.makespan_s / (comparison.steps or 1))
    return {"today": f"{took} under {_name(found)}, nearest to what PyTorch and Megatron-LM run"}


def network_of(topology: "Topology", device: str, ranks: int) -> dict[str, str]:
    """Say whose network it is, where it is that of other devices, and which is the device's own."""
    others = devices_of(topology, device)
    if not others:
        return {}
    own = of_device(device, ranks)
    hint = "" if own is None else f"; its own: {own.options}"
    return {"network": f"of {' or '.join(others)}, not of {device}{hint}"}


def _kernels(outcome: "Outcome", device: str) -> dict[str, str]:
    """Say which kernels' times are estimates, where that is much of the step."""
    words = analysis.told_estimates(outcome.result, device)
    return {"kernels": words} if words else {}


def speed_words(found: "Efficiency", comparison: "Comparison") -> str:
    """Say how fast a step is, and how much of the device's peak that is."""
    words = f"{format_rate(found.tokens_per_s_per_rank)} tokens/s/GPU, MFU {format_share(found.mfu)}"
    return f"{words} of {peak_words(comparison.mfu_peak)}"


def rent_of_step(comparison: "Comparison", best: "Outcome") -> dict[str, str]:
    """Say what the step costs where the machine is rented; nothing of a device of which a trace has the name alone."""
    rent, machine = comparison.rent(best), comparison.bill
    if machine is None:
        return {}
    if rent is None:
        return {"rent": no_rent(comparison.device)}
    return {"rent": rent_words(rent, machine.rent_per_s, comparison.ranks, comparison.mode)}


def no_rent(device: str) -> str:
    """Say why a rent is not known, and how to give one."""
    file = f"a file with `like: {device}` and `rent`"
    return f"not known: no price of {device} with a source; for yours give --device {file}"


def peak_words(peak: "Mapping[str, Any] | None") -> str:
    """Say which rate MFU is a share of."""
    return "" if peak is None else f"{format_flops_per_s(peak['flops_per_s'])} in {peak['dtype']}"


def rent_words(rent: "Rent", rent_per_s: float | None, ranks: int, mode: str | None) -> str:
    """Say what a step of a machine of a rent costs, and tokens, and at which rent of a device."""
    words = rent.words(mode)
    return words if rent_per_s is None else f"{words}, at {format_rent(rent_per_s / ranks)} a device"


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


def room(found: "Fit | None", ranks: int) -> str:
    """Say whether a job of so many ranks fits its devices, and by how much; what helps on as many ranks comes first."""
    if found is None:
        return "not known: a trace does not say what its ranks keep"
    total, capacity = found.peak.total_bytes, found.capacity_bytes
    words = f"{format_bytes(total)} of {format_bytes(capacity)}"
    if found.fits:
        return f"fits: {words}, {format_bytes(capacity - total)} left"
    words = f"does not fit: {words}, {format_bytes(total - capacity)} too much"
    advice = min((each for each in found.advice if each.fits), key=lambda each: each.ranks != ranks, default=None)
    if advice is None:
        return words
    where = "" if advice.ranks == ranks else f" on {counted(advice.ranks, 'rank')}"
    step = "" if advice.step_s is None else f", step {format_seconds(advice.step_s)}"
    return f"{words}; with {advice.settings}{where} it does{step}"
