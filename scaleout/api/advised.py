"""Advice on memory to whole commands, each with the time of its step: every change that fits is simulated.

Of jobs that are named: a loaded workload, topology or device has no words that a command line could give.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scaleout.analysis.efficiency import Fit
from scaleout.api.inputs import given_of
from scaleout.cluster.device.spec import sold_as
from scaleout.cluster.topology.nodes import Sized, of_device, sized
from scaleout.errors import ConfigError, ScaleoutError
from scaleout.study.comparison import Comparison
from scaleout.study.job import Job, Programs, Tell, run
from scaleout.study.sweep.cases import Resolver, run_line
from scaleout.study.sweep.grid import Value
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.memory import peak
from scaleout.workloads.memory.advice import Advice


def advised(found: Comparison, inputs: Mapping[str, Any], tell: Tell | None = None) -> Comparison:
    """Return a comparison whose advice has its commands and its steps, under the schedule that is the fastest now.

    Parameters
    ----------
    found : Comparison
        Of the job; what fits is returned as it is.
    inputs : mapping
        Of the job, by the keys of a study's file: what was given, without what follows from it.
    tell : callable, optional
        Called before each change with how many are done, of how many, and what runs.
    """
    fits = {id(each.fit): each.fit for each in found.outcomes if each.fit is not None and each.fit.advice}
    if not fits:
        return found
    told = dict[int, Fit]()
    for key, each in fits.items():
        under = [outcome for outcome in found.outcomes if id(outcome.fit) == key]
        schedule = min(under, key=lambda outcome: outcome.makespan_s).schedule
        told[key] = _told(each, {**inputs, "schedule": schedule}, found, tell)
    outcomes = tuple(replace(each, fit=told.get(id(each.fit), each.fit)) for each in found.outcomes)
    return replace(found, outcomes=outcomes, fit=told.get(id(found.fit), found.fit))


def _told(fit: Fit, inputs: Mapping[str, Any], found: Comparison, tell: Tell | None) -> Fit:
    """Return advice with its commands and steps; what fits comes first, on fewest ranks, the fastest first."""
    programs, rows = Programs(), list[Advice]()
    able = sum(each.fits for each in fit.advice)
    for each in fit.advice:
        if not each.fits:
            rows.append(each)
            continue
        if tell is not None:
            tell(len(rows), able, f"{inputs['schedule']} with {each.settings}")
        try:
            rows.append(_simulated(each, _changed(inputs, each, found), fit.capacity_bytes, programs))
        except ScaleoutError:  # such as a topology that has no more nodes
            rows.append(each)
    steps_s = {id(row): math.inf if row.step_s is None else row.step_s for row in rows}
    return replace(fit, advice=tuple(sorted(rows, key=lambda row: (not row.fits, row.ranks, steps_s[id(row)]))))


def _changed(inputs: Mapping[str, Any], advice: Advice, found: Comparison) -> dict[str, Value]:
    """Return the inputs of a job that takes an advice, on as many nodes as that needs."""
    changed = with_changes(inputs, advice)
    if advice.ranks != found.ranks:
        device = sold_as(inputs.get("device") or advice.workload.device)
        topology = _sized(inputs.get("topology") or advice.workload.topology, advice.ranks, device)
        changed |= {"topology": topology.topology, "nodes": topology.nodes}
    return given_of(changed)


def with_changes(inputs: Mapping[str, Any], advice: Advice) -> dict[str, Any]:
    """Return the inputs of a job with the keys that an advice changes, whatever names they were given by.

    Without those that change nothing.
    """
    known, idle = type(advice.workload).RENAMED, {f"set.{key}" for key in advice.workload.without_effect}
    kept = {
        key: value
        for key, value in inputs.items()
        if known.get(key.removeprefix("set.")) not in advice.changes and key not in idle
    }
    return {**kept, **{f"set.{key}": value for key, value in advice.changes.items()}}


def _sized(topology: str, ranks: int, device: str) -> Sized:
    """Return a topology with so many ranks, or if it cannot have these, one that the device is sold with."""
    try:
        return sized(topology, ranks, device=device)
    except ConfigError:
        found = of_device(device, ranks)
        if found is None:
            raise
        return found


def _simulated(advice: Advice, inputs: Mapping[str, Value], capacity_bytes: float, programs: Programs) -> Advice:
    """Simulate the job that an advice makes; as it is, where that is not a job that fits."""
    case = Resolver().resolve(0, inputs)
    if case.error or case.workload is None or case.device is None or case.topology is None:
        return advice
    work: LayeredModel = case.workload.value
    if peak(work).total_bytes > capacity_bytes:
        return advice
    outcome = run(Job(work, case.device.value, case.topology.value, case.schedule, case.options), programs)
    speed = None if outcome.efficiency is None else outcome.efficiency.tokens_per_s_per_rank
    return replace(advice, step_s=outcome.makespan_s, tokens_per_s_per_rank=speed, run=run_line(inputs))
