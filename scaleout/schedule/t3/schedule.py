"""Track and trigger: a GEMM and the collective behind it overlap as T3's hardware would overlap them.

A GEMM whose output is reduced becomes slices as long as its stages take, each scattered as the next is made; an
all-reduce is then gathered in a collective of its own. Before an all-to-all each slice is stored where it belongs. What
arrives in the memory meanwhile comes over the links of the job's own topology, and the network says how long slices
travel. GEMMs of unknown sizes stay as they are. See docs/models/t3.md.
Source: Pati et al., T3, ASPLOS 2024, Secs. 4 and 7.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum

import numpy as np

from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import Placement, place
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.load import load_of
from scaleout.network.collectives import schedule
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph
from scaleout.program.operations import Kernel
from scaleout.program.program import Program
from scaleout.schedule.overlap import COMPUTE_STREAM, communication_stream
from scaleout.schedule.pairs import Pair, agreed, find_pairs
from scaleout.schedule.rewrite import Rewrite
from scaleout.schedule.t3.gemm import Gemm, constants_of, stage
from scaleout.schedule.t3.memory import COMPUTE_FIRST, Policy, Ring, policy_named
from scaleout.schedule.t3.sublayer import Sublayer, track_and_trigger, tracked

_SCATTERED = {"all_reduce": "reduce_scatter", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all"}
"""Collective to the one that overlaps its GEMM."""


def track_with(option: str) -> Callable[[Program, Machine | None], Program]:
    """Return `track` with the memory's policy of that name."""
    return partial(track, policy=policy_named(option))


def track(
    program: Program, machine: Machine | None = None, *, policy: Policy = COMPUTE_FIRST, slices: int = 16
) -> Program:
    """Overlap each GEMM of a timed program and the collective that takes its output, the memory under a policy.

    A GEMM is cut at the ends of stages, into `slices` at most; what is exposed because T3 tracks finer is a slice. A
    ConfigError says that there is no machine, that its device's file has no `stages`, or that no ranks communicate.
    """
    if machine is None:
        raise ConfigError("track-and-trigger models a device's memory; say which device the program is for")
    constants_of(machine.device)
    sizes = [max(len(members) for members in family.members) for family in program.groups]
    found = [_gemms(graph, find_pairs(graph, sizes, slices), sizes) for graph in program.graphs]
    if not any(found):
        raise ConfigError(
            "track-and-trigger found no GEMM whose output several ranks reduce or exchange; "
            "give tensor_parallel or expert_parallel of 2 or more, or take another schedule"
        )
    rings = _Rings(program, machine)
    rewrite = partial(_rewrite, rings=rings, policy=policy)
    pairs = agreed(program, found, uncut=0)  # also of one slice a collective becomes another kind
    graphs = (rewrite(graph, mine) for graph, mine in zip(program.graphs, pairs, strict=True))
    return replace(program, graphs=tuple(graphs))


def _gemms(graph: ExecutionGraph, pairs: Sequence[Pair], sizes: Sequence[int]) -> list[Pair]:
    """Keep pairs of one GEMM, of known sizes, with a collective of several ranks; slices are set to what it has."""
    kept = []
    for pair in pairs:
        maker = pair.kernels[-1]
        known = pair.produces and graph.operation(maker) == "gemm" and graph.kernel[maker] != NONE
        if known and sizes[graph.group[pair.collective]] > 1:
            size = sizes[graph.group[pair.collective]]
            whole = max(min(pair.slices, int(graph.bytes[pair.collective])), 1)
            kept.append(replace(pair, kernels=(maker,), slices=whole, kept=1 / size))
    return kept


@dataclass(frozen=True)
class _Rings:
    """What carries the output of tracked GEMMs, by the group and the kind of its collective."""

    program: Program
    machine: Machine
    known: dict[tuple[int, bool], Ring] = field(default_factory=dict)

    def of(self, family: int, kind: str) -> Ring:
        """Return a ring over a group's ranks, or, before an all-to-all, links to each, as its topology has them."""
        key = family, kind == "all_to_all"
        if key not in self.known:
            members = max(self.program.groups[family].members, key=len)
            self.known[key] = ring_over(place(self.machine.topology, members), direct=key[1])
        return self.known[key]


def ring_over(placement: Placement, *, direct: bool = False) -> Ring:
    """Return the ring of a group in its topology; `direct`: a link to each other rank, all as fast as they go at once.

    >>> from scaleout.cluster.topology.topology import load_topology
    >>> round(ring_over(place(load_topology("t3-ring-8"), range(8))).link_bytes_per_s / 1e9, 3)
    75.0
    """
    ranks = placement.num_ranks
    kind, algorithm = ("all_to_all", "direct") if direct else ("reduce_scatter", "ring")
    rounds = [each for chain in schedule(kind, placement, algorithm=algorithm).chains for each in chain]
    loads = [(each.repeat, load_of(each, placement)) for each in rounds]
    whole_s_per_byte = fsum(repeat * load.busiest_s_per_byte for repeat, load in loads)
    links = ranks - 1 if direct else 1
    latency_s = max(load.latency_s for _, load in loads)
    return Ring(ranks, (ranks - 1) / ranks / whole_s_per_byte / links, latency_s)


def _rewrite(graph: ExecutionGraph, pairs: Sequence[Pair], *, rings: _Rings, policy: Policy) -> ExecutionGraph:
    makers = {pair.kernels[0]: pair for pair in pairs}
    sent = {pair.collective: pair for pair in pairs}
    new = Rewrite(graph)
    ends: dict[tuple[Kernel, float, Ring, str], list[float]] = {}
    for node in range(len(graph)):
        if node in makers:
            pair = makers[node]
            kind = COLLECTIVES[graph.collective[pair.collective]]
            ring = rings.of(int(graph.group[pair.collective]), kind)
            key = (graph.kernels[graph.kernel[node]], float(graph.duration_s[node]), ring, kind)
            if key not in ends:
                ends[key] = _slice_ends(graph, pair, ring, rings.machine.device, policy)
            new.add_slices(node, pair.slices, pair.kept, ends_s=ends[key])
        elif node in sent:
            _collect(new, node, sent[node])
        else:
            new.done[node] = new.add(node, new.needs(node))
    return new.build()


def _slice_ends(graph: ExecutionGraph, pair: Pair, ring: Ring, device: Device, policy: Policy) -> list[float]:
    """When each slice of a GEMM ends, from its start; the last is what a rank keeps."""
    maker, slices = pair.kernels[0], pair.slices
    call, isolated_s = graph.kernels[graph.kernel[maker]], float(graph.duration_s[maker])
    kind = COLLECTIVES[graph.collective[pair.collective]]
    sizes = dict(call.shape)
    gemm = Gemm(sizes["M"], sizes["N"] * sizes.get("batch", 1), sizes["K"], call.dtype)
    layer = Sublayer(gemm, ring, device, isolated_s, policy=policy)
    outcome = tracked(layer, adds=False) if kind == "all_to_all" else track_and_trigger(layer)
    assert outcome.overlapped is not None
    work = np.cumsum(stage(gemm, device, isolated_s=isolated_s, bypassed=True).tiles)
    shares = [*np.linspace(0, 1 - pair.kept, slices + 1)[1:], 1.0]
    at = np.interp(np.array(shares) * work[-1], [0.0, *work], [0.0, *outcome.overlapped.stage_ends_s])
    return [float(end_s) for end_s in at]


def _collect(new: Rewrite, node: int, pair: Pair) -> None:
    """Write the slices of the collective, and of an all-reduce what gathers them."""
    graph, maker = new.graph, pair.kernels[0]
    kind = COLLECTIVES[graph.collective[node]]
    others = [done for done in new.needs(node) if done != new.done[maker]]
    scattered = COLLECTIVES.index(_SCATTERED[kind])
    slices = new.add_collective(node, [[part, *others] for part in new.sliced[maker]], collective=scattered)
    last = [*slices, new.done[maker]]
    if kind == "all_reduce":
        gather = COLLECTIVES.index("all_gather")
        stream = communication_stream(int(graph.group[node]))
        last = [new.add(node, last, name=f"{graph.names[node]}_gather", collective=gather, stream=stream)]
    new.done[node] = last[0] if len(last) == 1 else new.join(node, last)
    if graph.stream[node] == COMPUTE_STREAM:
        new.holds[COMPUTE_STREAM] = new.done[node]
