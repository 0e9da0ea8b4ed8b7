"""Plans that do not fit to plans that would: changes of a workload's keys, each one tried.

A change leaves the model and the sequences of a step as they are, but for the batch of a server. Where an axis grows
and the data axis can shrink by as much, the ranks stay as many; otherwise the change needs more ranks, and says so by
its keys.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from shlex import quote
from typing import Any

from pydantic import ValidationError

from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.config.training import as_even
from scaleout.workloads.memory import Peak, peak

_FACTORS = (2, 3, 4, 6, 8, 12, 16)
"""By how much an axis is tried to grow, or a micro-batch to shrink."""

_LISTED = 32
"""Stages of unequal layers that an option lists."""

_ROUNDS = 6
"""Changes that are tried together at most."""


@dataclass(frozen=True)
class Advice:
    """A change that helps: keys of the workload with the values to set, and what that makes of it.

    Where it was simulated, `step_s` is its step, and `run` the command that gives it.
    """

    changes: Mapping[str, Any]
    workload: LayeredModel
    peak: Peak
    fits: bool
    run: str = ""
    step_s: float | None = None
    tokens_per_s_per_rank: float | None = None

    @property
    def ranks(self) -> int:
        """Ranks that the job then needs."""
        return self.workload.num_ranks

    @property
    def settings(self) -> str:
        """The changes as options of the command line, each with its ``--set``."""
        return settings_of(self.changes)


def settings_of(changes: Mapping[str, Any]) -> str:
    """Write changes of keys as options of the command line, each with its ``--set``."""
    written = {key: json.dumps(value, separators=(",", ":")).replace('"', "") for key, value in changes.items()}
    return " ".join(f"--set {quote(f'{key}={value}')}" for key, value in written.items())


def advise(workload: LayeredModel, capacity_bytes: float) -> list[Advice]:
    """Say what would make a job fit into the memory of its devices; nothing if it fits.

    Single changes that help, those that fit on fewest ranks first; of each kind the smallest of those that fit on
    fewest ranks, or else the one that helps most; ZeRO, where not enough alone, with a smaller micro-batch. If none
    fits on as many ranks as the job has, several that do so together come last, if any do: two of these, or else those
    that help most; if none fits at all, several on more ranks. Where whole layers are recomputed, they are no more than
    it takes to fit. Once something fits on as many ranks, nothing is said that needs more.
    """
    now = peak(workload).total_bytes
    if now <= capacity_bytes:
        return []
    best: dict[str, Advice] = {}
    for kind, changes in _changes(workload):
        found = _try(workload, changes, capacity_bytes)
        if found is None or found.peak.total_bytes >= now:
            continue
        known = best.get(kind)
        if known is None or _better(found, known):
            best[kind] = found
    if "zero" in best and not best["zero"].fits:
        best["zero"] = _with_smaller_microbatches(workload, best["zero"], capacity_bytes)
    ways = sorted(best.values(), key=lambda advice: (not advice.fits, advice.ranks))
    if not _here(ways, workload):
        together = _pair(workload, ways, capacity_bytes) or _combined(workload, capacity_bytes, more_ranks=False)
        if together is None and not (ways and ways[0].fits):
            together = _combined(workload, capacity_bytes, more_ranks=True)
        ways += [together] if together is not None else []
    if _here(ways, workload):
        ways = [each for each in ways if each.ranks <= workload.num_ranks]
    return [_with_fewest_layers(workload, each, capacity_bytes) for each in ways]


def _here(found: Sequence[Advice], workload: LayeredModel) -> bool:
    """Whether something fits on the ranks that the job has."""
    return any(each.fits and each.ranks <= workload.num_ranks for each in found)


def _better(found: Advice, known: Advice) -> bool:
    """Whether a larger change of a kind is better: nothing smaller fits, or it fits on fewer ranks."""
    if known.fits:
        return found.fits and found.ranks < known.ranks
    return found.peak.total_bytes < known.peak.total_bytes


def _with_smaller_microbatches(workload: LayeredModel, found: Advice, capacity_bytes: float) -> Advice:
    """Return shards of states with the largest smaller micro-batch that fits beside them; as they are if none does."""
    for factor in _FACTORS:
        if workload.microbatch_size % factor == 0:
            smaller = {**found.changes, "microbatch": workload.microbatch_size // factor}
            tried = _try(workload, smaller, capacity_bytes)
            if tried is not None and tried.fits:
                return tried
    return found


def _with_fewest_layers(workload: LayeredModel, found: Advice, capacity_bytes: float) -> Advice:
    """Return a change that fits by recomputing whole layers with as few of each stage as fit, the least by bisection.

    More layers recomputed hold less, and all of a stage are what the change recomputes already.
    """
    if not found.fits or found.changes.keys().isdisjoint(("recompute", "recompute_layers")):
        return found
    if found.workload.recompute != "full":
        return found
    too_few, enough = (workload.recompute_layers or 0) - 1, max(found.workload.layers_of_stage)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = _try(workload, {**found.changes, "recompute_layers": middle}, capacity_bytes)
        if tried is None:  # frameworks that recompute all layers or none
            return found
        too_few, enough, found = (too_few, middle, tried) if tried.fits else (middle, enough, found)
    return found


def _pair(workload: LayeredModel, singles: Sequence[Advice], capacity_bytes: float) -> Advice | None:
    """Return the first two changes, of different keys and on as many ranks, that fit together; None if none do."""
    alike = [each.changes for each in singles if each.ranks == workload.num_ranks]
    for one, other in combinations(alike, 2):
        found = None if one.keys() & other.keys() else _try(workload, {**one, **other}, capacity_bytes)
        if found is not None and found.fits:
            return found
    return None


def _combined(workload: LayeredModel, capacity_bytes: float, *, more_ranks: bool) -> Advice | None:
    """Change what helps most, again and again until the job fits; then take back what was not needed."""
    steps: list[Mapping[str, Any]] = []
    current, least = workload, peak(workload).total_bytes
    while least > capacity_bytes and len(steps) < _ROUNDS:
        tried = [_try(current, changes, capacity_bytes) for _, changes in _changes(current)]
        found = [each for each in tried if each is not None and (more_ranks or each.ranks <= workload.num_ranks)]
        most = min(found, key=lambda each: each.peak.total_bytes, default=None)
        if most is None or most.peak.total_bytes >= least:
            return None
        current, least = most.workload, most.peak.total_bytes
        steps.append(most.changes)
    best = _try(workload, _merged(steps), capacity_bytes)
    for step in list(steps):
        without = [other for other in steps if other is not step]
        fewer = _try(workload, _merged(without), capacity_bytes)
        if fewer is not None and fewer.fits:
            best, steps = fewer, without
    return best if best is not None and best.fits else None


def _merged(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for step in steps for key, value in step.items()}


def _try(workload: LayeredModel, changes: Mapping[str, Any], capacity_bytes: float) -> Advice | None:
    """Return what changes come to, or None if the changed workload cannot be."""
    try:
        changed = type(workload).model_validate({**workload.given, **changes})
    except ValidationError:
        return None
    found = peak(changed)
    return Advice(changes, changed, found, found.total_bytes <= capacity_bytes)


def _changes(workload: LayeredModel) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kinds of change and what they set, those that cost least time first."""
    w = workload
    replicas = w.data_parallel * w.context_parallel
    yield from w.lighter()
    if w.mode == "training":  # servers shard no parameters over their replicas
        yield from (("zero", {"zero": level}) for level in range(w.zero + 1, 4) if replicas > 1)
        yield from (("data_parallel", _spread(w, factor)) for factor in _FACTORS if w.batch_per_replica % factor == 0)
    if w.zero and w.shard_ranks is not None:
        without_copies = {"overlap_parameter_gather": False} if w.zero == 3 and w.overlap_parameter_gather else {}
        yield "shard_ranks", {"shard_ranks": None, **without_copies}
    if w.zero == 3 and not w.reshard_after_forward:
        yield "reshard_after_forward", {"reshard_after_forward": True}
    if w.mode == "training":
        yield from _training_changes(w)
    for axis in ("pipeline_parallel", "tensor_parallel", "context_parallel"):
        yield from ((axis, _grown(w, axis, factor)) for factor in _FACTORS)
    if w.has_experts:
        yield from (("expert_parallel", {"expert_parallel": w.expert_parallel * factor}) for factor in _FACTORS)
    if w.mode != "training":  # a trainer's batch is what its optimizer needs
        yield from (("batch", _smaller(w, factor)) for factor in _FACTORS if w.batch_per_replica % factor == 0)


def _training_changes(w: LayeredModel) -> Iterator[tuple[str, dict[str, Any]]]:
    if w.recompute == "none" and "selective" in w.recomputes:
        yield "selective", {"recompute": "selective"}
    if w.microbatch_group is not None:
        yield "microbatch_group", {"microbatch_group": None}
    if w.pipeline_schedule != "1f1b" and w.pipeline_parallel > 1:
        keys: dict[str, Any] = {"virtual_stages": None} if w.virtual_stages is not None else {}
        keys |= {"microbatch_group": None} if w.microbatch_group is not None else {}
        keys |= {"stage_layers": None} if w.stage_layers else {}
        yield "pipeline_schedule", {"pipeline_schedule": "1f1b"} | keys
    for factor in _FACTORS:
        if w.microbatch_size % factor == 0:
            yield "microbatch", {"microbatch": w.microbatch_size // factor}
    if w.recompute != "full":
        yield "full", {"recompute": "full"}
    elif w.recompute_layers is not None:
        yield "full", {"recompute_layers": None}


def _spread(w: LayeredModel, factor: int) -> dict[str, Any]:
    """Return what spreads the sequences of a step, and the states, over more replicas."""
    batch = w.batch_per_replica // factor
    return {
        "data_parallel": w.data_parallel * factor,
        "batch_per_replica": batch,
        "microbatch": min(w.microbatch_size, batch),
        "zero": max(w.zero, 1),
    }


def _stages(w: LayeredModel, stages: int) -> dict[str, Any]:
    """Return what makes so many stages as even as can be, where the layers do not divide; equal ones where they do."""
    if w.layers % stages and stages <= min(w.layers, _LISTED):
        return {"stage_layers": as_even(w.layers, stages)}
    return {"stage_layers": None} if w.stage_layers else {}


def _smaller(w: LayeredModel, factor: int) -> dict[str, Any]:
    """Return what serves fewer sequences at once."""
    batch = w.batch_per_replica // factor
    kept = w.microbatch is None or batch % w.microbatch == 0
    return {"batch_per_replica": batch, **({} if kept else {"microbatch": None})}


def _grown(w: LayeredModel, axis: str, factor: int) -> dict[str, Any]:
    """Return what makes an axis longer, the sequences of a step being as many as before."""
    changes: dict[str, Any] = {axis: getattr(w, axis) * factor}
    if axis == "pipeline_parallel":
        changes |= _stages(w, w.num_stages * factor)
    if w.data_parallel % factor == 0:
        batch = w.batch_per_replica * factor
        replicas = w.data_parallel // factor
        changes |= {"data_parallel": replicas, "batch_per_replica": batch}
        if w.folded_experts is None and replicas % w.expert_parallel:  # experts lie within data
            changes["expert_parallel"] = math.gcd(replicas, w.expert_parallel)
        if w.mode == "training":
            changes["microbatch"] = w.microbatch_size
    return changes
