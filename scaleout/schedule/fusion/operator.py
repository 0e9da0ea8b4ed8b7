"""What every operator gives: its baseline in parts, its fused recipe, and how it would be split into small kernels.

`evaluate` turns these into times. Symbols: c chunks of the split.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from scaleout.config.units import Count, Share, ShareOrZero
from scaleout.config.validated import Config
from scaleout.errors import ConfigError
from scaleout.program.fastest import fastest
from scaleout.schedule.fusion.fused import ORDERS, Recipe, Run, run
from scaleout.schedule.fusion.machine import FusedMachine

CHUNKS = (2, 4, 8, 16, 32, 64)
"""Small kernels that the split is tried with."""


@dataclass(frozen=True)
class Plan:
    """An operator on a machine."""

    baseline_s: Mapping[str, float]  # part of the bulk-synchronous operator (kernel, ...) to its time, one by one
    recipes: Mapping[str, Recipe]  # order to the fused operator
    # From chunks to the time of one of as many kernels, launch included, and of its collective.
    part_s: Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Evaluation:
    """Times of an operator on a machine; `runs` maps an order to the fused operator's run.

    `split_s` and `chunks`: the operator as kernels and collectives on two streams, in the fastest number of chunks.
    """

    plan: Plan
    runs: Mapping[str, Run]
    split_s: float
    chunks: int

    @property
    def baseline_s(self) -> float:
        """All parts, one after the other."""
        return fsum(self.plan.baseline_s.values())

    @property
    def ideal_parts_s(self) -> dict[str, float]:
        """Computing in the fastest kernel or kernels, and what the links take for all that is sent, each alone."""
        recipe, parts = self.plan.recipes["aware"], self.plan.baseline_s
        whole_s = parts["kernel"] + parts.get("launch", 0.0)
        split_s = min(chunks * self.plan.part_s(chunks)[0] for chunks in CHUNKS)
        kernels_s = min(recipe.launch_s + recipe.work.isolated_s, whole_s, split_s)
        return {"fastest kernels": kernels_s, "links": recipe.link_s}

    @property
    def ideal_s(self) -> float:
        """Lower bound of all ways to run it: the longer of its parts hides the other."""
        return max(self.ideal_parts_s.values())

    @property
    def saving(self) -> float:
        """Part of the baseline's time that fusing in aware order saves."""
        return 1 - self.runs["aware"].time_s / self.baseline_s

    def plain(self) -> dict[str, Any]:
        """Return the times as plain values."""
        aware = self.plan.recipes["aware"]
        return {
            "baseline_s": self.baseline_s,
            "baseline_parts_s": dict(self.plan.baseline_s),
            "fused_aware_s": self.runs["aware"].time_s,
            "fused_oblivious_s": self.runs["oblivious"].time_s,
            "ideal_s": self.ideal_s,
            "ideal_parts_s": self.ideal_parts_s,
            "kernel_split_s": self.split_s,
            "kernel_split_chunks": self.chunks,
            "saving": self.saving,
            "skew_aware": self.runs["aware"].skew,
            "skew_oblivious": self.runs["oblivious"].skew,
            "logical_work_groups": aware.work.tasks,
            "work_groups": aware.work.slots,
            "slices": aware.work.slices,
            "sent_bytes": aware.sent_bytes + aware.shared_bytes * (aware.ranks - 1),
        }


def evaluate(plan: Plan) -> Evaluation:
    """Simulate an operator in all ways."""
    runs = {order: run(plan.recipes[order], order) for order in ORDERS}
    split = {chunks: _split_s(plan, chunks) for chunks in CHUNKS}
    chunks = fastest(split, split.__getitem__)
    return Evaluation(plan, runs, split[chunks], chunks)


def _split_s(plan: Plan, chunks: int) -> float:
    """Equal parts on two streams, ``k + (c - 1) max(k, a) + a``, and what no part is split from (shuffles)."""
    kernel_s, collective_s = plan.part_s(chunks)
    if not math.isfinite(kernel_s + collective_s):
        return math.inf
    whole = {"kernel", "collective", "launch"}
    rest_s = fsum(seconds for part, seconds in plan.baseline_s.items() if part not in whole)
    return kernel_s + (chunks - 1) * max(kernel_s, collective_s) + collective_s + rest_s


class Settings(Config):
    """Keys that all operators share.

    `slice_size` counts logical work-groups; without it stores go one by one, and PUTs by what the operator says.
    `work_groups` are persistent ones; without it as many as the device holds, or `occupancy` of them. `spread` is how
    much slower the slowest persistent work-group is than the fastest.
    """

    slice_size: Count | None = None
    work_groups: Count | None = None
    occupancy: Share | None = None
    spread: ShareOrZero = 0.0

    def slots(self, most: int, usual: int) -> int:
        """Return the persistent work-groups, at most `most`; a ConfigError says which key is wrong."""
        if self.work_groups is not None and self.occupancy is not None:
            raise ConfigError("work_groups and occupancy say the same; give one of them")
        if self.occupancy is not None:
            return max(1, int(self.occupancy * most))
        if self.work_groups is None:
            return usual
        if self.work_groups > most:
            raise ConfigError(f"work_groups: the GPU holds {most} of this kernel, not {self.work_groups}; give fewer")
        return self.work_groups

    def tasks_of_slice(self, machine: FusedMachine, usual: int) -> int:
        """Return the logical work-groups of a slice."""
        return self.slice_size or (1 if machine.stores else usual)


def shard_of(key: str, size: int, ranks: int) -> int:
    """Return each rank's share of a size; a ConfigError says that it does not divide, or that there are no peers."""
    if ranks < 2:
        raise ConfigError("a fused operator needs peers to send to; give a topology of two ranks or more")
    if size % ranks:
        raise ConfigError(f"{key} {size} does not divide over {ranks} ranks; give a multiple")
    return size // ranks
