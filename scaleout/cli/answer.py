"""The box of a comparison: what the fastest schedule comes to, on what, and what bounds it."""

from math import fsum
from typing import TYPE_CHECKING

from scaleout.analysis import breakdown as analysis
from scaleout.analysis.bounds import MEMORY, bound_of_step, of_memory
from scaleout.analysis.waits import told_waits
from scaleout.cluster.topology.what_if import cost_of_changes
from scaleout.config.units import (
    format_seconds,
    format_share,
    ranks_in_words,
)
from scaleout.report import box
from scaleout.study.provenance import told_network

if TYPE_CHECKING:
    from scaleout.analysis.efficiency import Efficiency, Fit
    from scaleout.cluster.topology.topology import Topology
    from scaleout.study.comparison import Comparison
    from scaleout.study.job import Outcome

_MENTIONED = 1e-3
"""Share of a step from which a collective that is exposed is named."""


def answer_of(comparison: "Comparison", unchanged: "Outcome | None") -> tuple[str, dict[str, str]]:
    """Say what the fastest schedule comes to, under a title that says of what."""
    best = min(comparison.outcomes, key=lambda outcome: outcome.makespan_s)
    found, steps, step = best.efficiency, comparison.steps or 1, _step(best, comparison)
    each_s, exposed_s = best.makespan_s / steps, best.breakdown.exposed_communication_s / steps
    fits = best.fit is None or best.fit.fits
    facts = {"step": step} if fits else {"memory": room(best.fit, comparison.ranks), "step": step + box.FITTED}
    facts |= box.today(best.schedule, {o.schedule: (o.makespan_s / steps, o.runs_as) for o in comparison.outcomes})
    facts |= _unchanged(best, unchanged, steps)
    if found is not None:
        facts["speed"] = speed_words(found, comparison) + ("" if fits else box.FITTED)
        if best.workload is not None and best.workload.mode == "decode":
            facts["speed"] += f", a token of each sequence behind {best.workload.sequence:,} in the cache"
    elif comparison.samples and best.makespan_s:
        facts["speed"] = box.speed_of_samples(comparison.samples / best.makespan_s, comparison.ranks)
    facts |= {} if best.topology is None else network_of(best.topology, comparison.device, comparison.ranks)
    facts |= _kernels(best, comparison.device)
    facts["exposed"] = box.exposed(exposed_s, each_s, {} if found is None else found.exposed_s)
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
    took = f"{format_seconds(unchanged.makespan_s / steps)} under {box.named(unchanged.schedule, unchanged.runs_as)}"
    return {"unchanged": f"{took}; {cost}"}


def _step(best: "Outcome", comparison: "Comparison") -> str:
    """Say how long a step of the fastest schedule is, and against what."""
    bars, steps = best.interval, comparison.steps or 1
    each_s = best.makespan_s / steps
    took = box.took(each_s, None if bars is None else bars.of(each_s))
    step = f"{took} under {box.named(best.schedule, best.runs_as)}{box.recorded(steps)}"
    return step + box.among(best.schedule, [each.schedule for each in comparison.outcomes], best.speedup)


def network_of(topology: "Topology", device: str, ranks: int) -> dict[str, str]:
    """Say whose network it is, where it is that of other devices, and which is the device's own."""
    words = told_network(topology, device, ranks)
    return {"network": words} if words else {}


def _kernels(outcome: "Outcome", device: str) -> dict[str, str]:
    """Say which kernels' times are estimates, where that is much of the step."""
    words = analysis.told_estimates(outcome.result, outcome.breakdown.kernel_time_sources, device=device)
    return {"kernels": words} if words else {}


def speed_words(found: "Efficiency", comparison: "Comparison") -> str:
    """Say how fast a step is, and how much of the device's peak that is."""
    return box.speed(found.tokens_per_s_per_rank, found.mfu, comparison.mfu_peak)


def rent_of_step(comparison: "Comparison", best: "Outcome") -> dict[str, str]:
    """Say what the step costs where the machine is rented; nothing of a device of which a trace has the name alone."""
    rent, machine = comparison.rent(best), comparison.bill
    if machine is None:
        return {}
    if rent is None:
        return {"rent": box.no_rent(comparison.device)}
    return {"rent": box.rent(rent, machine.rent_per_s, comparison.ranks, comparison.mode)}


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
        return box.ROOM_UNKNOWN
    helps = [(each.settings, each.ranks, each.step_s) for each in found.advice if each.fits]
    return box.room(found.peak.total_bytes, found.capacity_bytes, ranks, helps)
