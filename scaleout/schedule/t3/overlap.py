"""A GEMM and the collective behind or before it, stage by stage through one memory: when each ends, what was moved.

What the GEMM writes is tracked; where a region's own output and what arrives for it are both there, copy engines read
it at once, in a burst, and send it on as fast as the link goes, without compute units. Reads and updates wait for the
memory in order; its policy divides its time between them and the GEMM, and what they have put into its queues stands
before the reads of each iteration over K. What a rank sends arrives there from the rank before it, a chunk further on.
The clock goes from event to event. See docs/models/t3.md. Source: T3, Secs. 4.1 to 4.5 and 6.1.2, Figs. 7, 8 and 10.
"""

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np

from scaleout.cluster.device.spec import Device
from scaleout.schedule.t3.gemm import TRIGGER_BYTES, Region, Staged, constants_of, memory_rate
from scaleout.schedule.t3.memory import Policy, Ring, Traffic

_ALMOST = 1e-15
"""Seconds that count as none: what is left of a phase by rounding."""


@dataclass(frozen=True)
class Served:
    """One stretch of time in which the memory served one kind of access."""

    kind: str
    start_s: float
    end_s: float
    size_bytes: float


@dataclass(frozen=True)
class Overlapped:
    """A GEMM and its reduce-scatter, overlapped: when the GEMM, both and each stage end, and the traffic."""

    gemm_s: float
    end_s: float
    stage_ends_s: tuple[float, ...]
    traffic: Traffic
    served: tuple[Served, ...]


@dataclass
class _Job:
    """Something that waits for the memory on the collective's side: a read of what is sent, or an update."""

    kind: str
    region: int
    size_bytes: float
    left_s: float
    cost: float


class _Run:
    """The clock, and what the memory and the link do from event to event."""

    def __init__(
        self, regions: list[Region], ring: Ring, device: Device, policy: Policy, *, adds: bool, prefix: str = "scatter"
    ) -> None:
        self.reads, self.writes = f"{prefix}_reads", f"{prefix}_writes"
        self.regions, self.ring, self.policy, self.constants = regions, ring, policy, constants_of(device)
        self.memory_bytes_per_s = memory_rate(device)
        self.update_cost = self.constants.update_cost if adds else 1.0
        self.of_place: list[list[int]] = [[] for _ in range(ring.ranks)]
        for index, region in enumerate(regions):
            self.of_place[region.place].append(index)
        self.now_s = self.link_free_s = 0.0
        self.waiting: deque[_Job] = deque()
        self.arrivals: deque[tuple[float, int]] = deque()  # when, and which region; the link keeps their order
        self.local, self.sent = set[int](), set[int]()
        self.served: list[Served] = []
        self.added_bytes = [0.0] * (ring.ranks + 1)

    def send(self, index: int) -> None:
        """Read a region that is complete, at once, and carry it on; a GEMM's first chunk never was in the memory."""
        if index in self.sent:
            return
        self.sent.add(index)
        if self.regions[index].place > 0 or self.added_bytes[0]:
            self.wait(self.reads, index, 1.0)
        else:
            self.carry(index)

    def carry(self, index: int) -> None:
        """Put a region on the link, as soon as that is free."""
        carried_s = self.regions[index].size_bytes / self.ring.link_bytes_per_s
        self.link_free_s = max(self.now_s, self.link_free_s) + carried_s
        self.arrivals.append((self.link_free_s + self.ring.latency_s, index))

    def wait(self, kind: str, index: int, cost: float) -> None:
        """Let a region wait for the memory."""
        size = self.regions[index].size_bytes
        self.waiting.append(_Job(kind, index, size, size * cost / self.memory_bytes_per_s, cost))

    def trigger(self, place: int) -> None:
        """Send the regions of a chunk whose own output and arrivals are there; the last chunk stays."""
        if place == self.ring.ranks - 1:
            return
        for index in self.of_place[place]:
            region = self.regions[index]
            there = self.added_bytes[place] >= region.end - region.size_bytes * 1e-6
            if there and index in self.local:
                self.send(index)

    def arrive(self) -> None:
        """Let what has arrived wait for the memory."""
        while self.arrivals and self.arrivals[0][0] <= self.now_s + _ALMOST:
            self.wait(self.writes, self.arrivals.popleft()[1], self.update_cost)

    def serve(self, until_s: float, share: float) -> None:
        """Let the memory serve the collective's side for some time, at a share of its own."""
        if share <= 0 or not self.waiting:
            return
        job, span_s = self.waiting[0], until_s - self.now_s
        done_s = min(span_s * share, job.left_s)
        if done_s > 0:
            size = done_s * self.memory_bytes_per_s / job.cost
            self.served.append(Served(job.kind, self.now_s, until_s, size))
        job.left_s -= done_s

    def finish_job(self) -> None:
        """Go on with what the memory has served in full."""
        while self.waiting and self.waiting[0].left_s <= _ALMOST:
            job = self.waiting.popleft()
            if job.kind == self.writes:
                place = self.regions[job.region].place + 1
                self.added_bytes[place] += job.size_bytes
                self.trigger(place)
            elif job.kind == self.reads:
                self.carry(job.region)

    def advance(
        self, phase_s: float, *, kind: str = "", cost: float = 1.0, size_bytes: float = 0.0, waits_s: float = 0.0
    ) -> None:
        """Let the GEMM's phase go by, with all that happens meanwhile; `kind` is empty without memory accesses.

        It takes `waits_s` longer, times the cost of their accesses, if others wait for the memory all the while.
        """
        left_s = phase_s
        self.arrive()
        while left_s > _ALMOST:
            self.arrive()
            mine, others = self.shares(kind, cost, waits_s / phase_s)
            until_s = min([self.now_s + left_s / mine, *self.next_s(others)])
            self.serve(until_s, others)
            done_s = min((until_s - self.now_s) * mine, left_s)
            if kind and done_s > 0:
                self.served.append(Served(kind, self.now_s, until_s, size_bytes * done_s / phase_s))
            left_s -= done_s
            self.now_s = until_s
            self.finish_job()

    def shares(self, kind: str, cost: float, waits: float) -> tuple[float, float]:
        """Return how fast the GEMM's phase and the collective's side go on."""
        if not self.waiting:
            return 1.0, 0.0
        if not kind:
            return 1 / (1 + waits * self.waiting[0].cost), float(self.policy.fills_gaps)
        return self.policy.shares(cost, self.waiting[0].cost, self.constants, self.memory_bytes_per_s)

    def next_s(self, share: float) -> list[float]:
        """Return when the memory is done with what waits first, at a share of its time, and when something arrives."""
        ends = [self.now_s + self.waiting[0].left_s / share] if self.waiting and share else []
        return [*ends, max(self.arrivals[0][0], self.now_s)] if self.arrivals else ends

    def make(self, staged: Staged, stage: int) -> None:
        """Read what a stage needs, then multiply."""
        self.advance(float(staged.read_s[stage]), kind="gemm_reads", size_bytes=float(staged.read_bytes[stage]))
        turn_s = self.policy.turn_s(self.constants, self.memory_bytes_per_s)
        self.advance(float(staged.compute_s[stage]), waits_s=staged.iterations * turn_s)

    def write(self, staged: Staged, stage: int, size_bytes: float) -> None:
        """Write a stage's output, or as much as is this rank's: into the memory, or into the cache and back later."""
        if staged.bypassed:
            write_s = size_bytes * self.update_cost / self.memory_bytes_per_s
            self.advance(write_s, kind="gemm_writes", cost=self.update_cost, size_bytes=size_bytes)
        else:
            self.advance(float(staged.write_s[stage]))
            self.waiting.append(_Job("gemm_writes", 0, size_bytes, size_bytes / self.memory_bytes_per_s, 1.0))

    def step(self) -> None:
        """Without the GEMM: let the memory and the link go on to the next event."""
        self.arrive()
        self.finish_job()
        until_s = min(self.next_s(1.0), default=self.now_s)
        self.serve(until_s, 1.0)
        self.now_s = until_s
        self.finish_job()

    def until_there(self, places: int, chunk_bytes: float) -> None:
        """Let the GEMM wait for the first chunks of what is gathered."""
        while any(there < chunk_bytes * (1 - 1e-6) for there in self.added_bytes[:places]):
            self.step()

    def result(self, stage_ends_s: list[float]) -> Overlapped:
        """After the GEMM: do what is left, and return what was done."""
        gemm_s = self.now_s
        while self.waiting or self.arrivals:
            self.step()
        moved: dict[str, float] = {}
        for each in self.served:
            moved[each.kind] = moved.get(each.kind, 0.0) + each.size_bytes
        return Overlapped(gemm_s, self.now_s, tuple(stage_ends_s), Traffic(**moved), tuple(self.served))


def overlap(
    staged: Staged, regions: list[Region], *, ring: Ring, device: Device, policy: Policy, adds: bool = True
) -> Overlapped:
    """Run a GEMM and its collective overlapped; with `adds` what is written is added to what is there, as if reduced.

    An output that bypasses the cache is written where a stage ends, and its regions are tracked and sent as one each;
    see `regions_of`. A cached one is written back later, as the memory has time.
    """
    run = _Run(regions, ring, device, policy, adds=adds)
    by_stage: list[list[int]] = [[] for _ in staged.tiles]
    for index, region in enumerate(regions):
        by_stage[region.stage].append(index)
    ends = []
    for stage, made in enumerate(by_stage):
        run.make(staged, stage)
        first = [index for index in made if regions[index].place == 0]
        remote = fsum(regions[index].size_bytes for index in first)
        for index in first:
            run.send(index)
        run.write(staged, stage, float(staged.write_bytes[stage]) * (1 - remote / float(staged.output_bytes[stage])))
        run.local.update(made)
        for place in sorted({regions[index].place for index in made} - {0}):
            run.trigger(place)
        ends.append(run.now_s)
    return run.result(ends)


def gathered(staged: Staged, size_bytes: float, *, ring: Ring, device: Device, policy: Policy) -> Overlapped:
    """Run an all-gather of `size_bytes`, the left operand, and the GEMM that reads it, overlapped (Sec. 7.2).

    A rank's own rows come first, then those of the rank before it, and so on. Each region goes on as it arrives, and a
    stage starts where all rows of its tiles are there.
    """
    chunk = size_bytes / ring.ranks
    pieces = math.ceil(chunk / TRIGGER_BYTES)
    cuts = [float(cut) for cut in np.linspace(0.0, chunk, pieces + 1)]
    regions = [Region(0, place, *cut) for place in range(ring.ranks) for cut in pairwise(cuts)]
    run = _Run(regions, ring, device, policy, adds=False, prefix="gather")
    run.local.update(range(len(regions)))
    run.added_bytes[0] = chunk
    run.trigger(0)
    ends = []
    for stage, made in enumerate(np.cumsum(staged.tiles) / staged.tiles.sum()):
        run.until_there(min(math.ceil(float(made) * ring.ranks - 1e-9), ring.ranks), chunk)
        run.make(staged, stage)
        run.write(staged, stage, float(staged.write_bytes[stage]))
        ends.append(run.now_s)
    return run.result(ends)
