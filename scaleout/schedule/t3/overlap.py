"""A GEMM and the collective behind it, stage by stage through one memory: when each is done, and what was moved.

What the GEMM writes is tracked; where a region's own output and what arrives for it are both there, copy engines read
it and send it on, without compute units. Reads and updates wait for the memory in order; its policy divides its time
between them and the GEMM. What a rank sends arrives there from the rank before it, a chunk further on. The clock goes
from event to event. See docs/models/t3.md. Source: T3, Secs. 4.1 to 4.5, Figs. 7, 8 and 10.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from scaleout.cluster.device.sections import Stages
from scaleout.schedule.t3.gemm import Region, Staged
from scaleout.schedule.t3.memory import Policy, Traffic
from scaleout.schedule.t3.ring import Ring

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


@dataclass
class _State:
    """What the clock knows at one time."""

    now_s: float = 0.0
    link_free_s: float = 0.0
    waiting: deque[_Job] = field(default_factory=deque)
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    local: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    served: list[Served] = field(default_factory=list)
    added_bytes: list[float] = field(default_factory=list)
    counted: int = 0

    def at(self, time_s: float, what: str, region: int) -> None:
        heapq.heappush(self.events, (time_s, self.counted, what, region))
        self.counted += 1


@dataclass(frozen=True, eq=False)
class _Run:
    """The job, and the clock's steps over a `_State`."""

    staged: Staged
    regions: list[Region]
    of_place: list[list[int]]
    ring: Ring
    constants: Stages
    policy: Policy
    memory_bytes_per_s: float
    update_cost: float
    state: _State

    def send(self, index: int) -> None:
        """Put a region that is complete on the link, as soon as that is free."""
        state, region = self.state, self.regions[index]
        if index in state.sent:
            return
        state.sent.add(index)
        start_s = max(state.now_s, state.link_free_s)
        state.link_free_s = start_s + region.size_bytes / self.ring.link_bytes_per_s
        state.at(start_s, "start", index)

    def start(self, index: int) -> None:
        """Let the link take a region: from the memory, or, of the first chunk, from the GEMM itself."""
        self.read(index)
        if self.regions[index].place > 0:
            self.wait("scatter_reads", index, 1.0)

    def read(self, index: int) -> None:
        """Say when the link has carried a region that the memory gives it: no sooner than its bytes take."""
        carried_s = self.regions[index].size_bytes / self.ring.link_bytes_per_s
        self.state.at(self.state.now_s + carried_s + self.ring.latency_s, "carried", index)

    def wait(self, kind: str, index: int, cost: float) -> None:
        """Let a region wait for the memory."""
        size = self.regions[index].size_bytes
        self.state.waiting.append(_Job(kind, index, size, size * cost / self.memory_bytes_per_s, cost))

    def trigger(self, place: int) -> None:
        """Send the regions of a chunk whose own output and arrivals are there; the last chunk stays."""
        if place == self.ring.ranks - 1:
            return
        state = self.state
        for index in self.of_place[place]:
            region = self.regions[index]
            there = state.added_bytes[place] >= region.end - region.size_bytes * 1e-6
            if there and index in state.local and index not in state.sent:
                self.send(index)

    def happen(self) -> None:
        """Do what is due."""
        state = self.state
        while state.events and state.events[0][0] <= state.now_s + _ALMOST:
            _, _, what, index = heapq.heappop(state.events)
            if what == "start":
                self.start(index)
            else:
                self.wait("scatter_writes", index, self.update_cost)

    def serve(self, until_s: float, share: float) -> None:
        """Let the memory serve the collective's side for some time, at a share of its own."""
        state = self.state
        if share <= 0 or not state.waiting:
            return
        job, span_s = state.waiting[0], until_s - state.now_s
        done_s = min(span_s * share, job.left_s)
        if done_s > 0:
            size = done_s * self.memory_bytes_per_s / job.cost
            state.served.append(Served(job.kind, state.now_s, until_s, size))
        job.left_s -= done_s

    def finish_job(self) -> None:
        """Go on with what the memory has served in full."""
        state = self.state
        while state.waiting and state.waiting[0].left_s <= _ALMOST:
            job = state.waiting.popleft()
            if job.kind == "scatter_writes":
                place = self.regions[job.region].place + 1
                state.added_bytes[place] += job.size_bytes
                self.trigger(place)

    def advance(self, phase_s: float, *, kind: str, cost: float, size_bytes: float) -> None:
        """Let the GEMM's phase go by, with all that happens meanwhile; `kind` is empty without memory accesses."""
        state, left_s = self.state, phase_s
        self.happen()
        while left_s > _ALMOST:
            self.happen()
            mine, others = self.shares(kind, cost)
            ends = [state.now_s + left_s / mine]
            if state.waiting and others:
                ends.append(state.now_s + state.waiting[0].left_s / others)
            if state.events:
                ends.append(max(state.events[0][0], state.now_s))
            until_s = min(ends)
            self.serve(until_s, others)
            done_s = min((until_s - state.now_s) * mine, left_s)
            if kind and done_s > 0:
                state.served.append(Served(kind, state.now_s, until_s, size_bytes * done_s / phase_s))
            left_s -= done_s
            state.now_s = until_s
            self.finish_job()

    def shares(self, kind: str, cost: float) -> tuple[float, float]:
        """Return how fast the GEMM's phase and the collective's side go on."""
        waiting = self.state.waiting
        if not kind:
            return 1.0, float(self.policy.fills_gaps)
        if not waiting:
            return 1.0, 0.0
        return self.policy.shares(cost, waiting[0].cost, self.constants, self.memory_bytes_per_s)

    def drain(self) -> None:
        """After the GEMM: let the memory and the link do what is left."""
        state = self.state
        while state.waiting or state.events:
            self.happen()
            self.finish_job()
            ends = [state.now_s + state.waiting[0].left_s] if state.waiting else []
            if state.events:
                ends.append(max(state.events[0][0], state.now_s))
            if not ends:
                break
            until_s = min(ends)
            self.serve(until_s, 1.0)
            state.now_s = until_s
            self.finish_job()


def overlap(
    staged: Staged,
    regions: list[Region],
    *,
    ring: Ring,
    constants: Stages,
    policy: Policy,
    memory_bytes_per_s: float,
    adds: bool = True,
) -> Overlapped:
    """Run a GEMM and its collective overlapped.

    Parameters
    ----------
    staged : Staged
        The GEMM, its output bypassing the cache.
    regions : list of Region
        What is tracked and sent as one; see `regions_of`.
    adds : bool
        Whether what is written is added to what is there, as in a reduce-scatter.
    """
    state = _State(added_bytes=[0.0] * (ring.ranks + 1))
    of_place: list[list[int]] = [[] for _ in range(ring.ranks)]
    for index, region in enumerate(regions):
        of_place[region.place].append(index)
    cost = constants.update_cost if adds else 1.0
    run = _Run(staged, regions, of_place, ring, constants, policy, memory_bytes_per_s, cost, state)
    turn_s = policy.turn_s(constants, memory_bytes_per_s)
    by_stage: list[list[int]] = [[] for _ in staged.tiles]
    for index, region in enumerate(regions):
        by_stage[region.stage].append(index)
    ends = []
    for stage, made in enumerate(by_stage):
        reads = float(staged.read_bytes[stage])
        run.advance(reads / memory_bytes_per_s, kind="gemm_reads", cost=1.0, size_bytes=reads)
        compute_s = float(staged.compute_s[stage]) + (turn_s if state.waiting else 0.0)
        run.advance(compute_s, kind="", cost=1.0, size_bytes=0.0)
        remote = sum(regions[index].size_bytes for index in made if regions[index].place == 0)
        writes = float(staged.write_bytes[stage]) * (1 - remote / float(staged.output_bytes[stage]))
        for index in made:
            if regions[index].place == 0:
                run.send(index)
        run.advance(writes * cost / memory_bytes_per_s, kind="gemm_writes", cost=cost, size_bytes=writes)
        state.local.update(made)
        for place in sorted({regions[index].place for index in made} - {0}):
            run.trigger(place)
        ends.append(state.now_s)
    gemm_s = state.now_s
    run.drain()
    return Overlapped(gemm_s, state.now_s, tuple(ends), _traffic(state.served), tuple(state.served))


def _traffic(served: list[Served]) -> Traffic:
    sums: dict[str, float] = {}
    for each in served:
        sums[each.kind] = sums.get(each.kind, 0.0) + each.size_bytes
    return Traffic(**sums)
