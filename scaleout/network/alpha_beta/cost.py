"""Collectives and messages under the alpha-beta model: latency of the farthest, bytes on the busiest link.

Rounds of a chain add up to ``A + B n``; a pipelined schedule of ``c`` chunks takes
``A + B n / c + (c - 1) (a / d + b n / c)``. A communication library adds its protocols' terms and takes the algorithm
and protocol that it expects to be fastest. See docs/models/collectives.md, docs/models/communication-libraries.md.

Symbols: p members; n bytes, as in `collectives.algorithm`; c chunks, d in flight; A, a [s]; B, b [s/B].
"""

import functools
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from math import fsum

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.communication_library import BARE, BARE_LINKS, Library, Protocol, Terms
from scaleout.cluster.topology.placement import Placement, place_isolated
from scaleout.cluster.topology.topology import Topology
from scaleout.errors import ConfigError
from scaleout.network import collectives
from scaleout.network.alpha_beta.load import Load, check_routable, is_quick, load_of
from scaleout.network.collectives.rounds import Ring, Round
from scaleout.program.fastest import fastest

MAX_CHUNKS = 1024
"""Most chunks that a pipelined schedule may cut the buffer into; reached only where latencies are next to nothing."""

SHARDED = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"})
"""Kinds of which a rank, or the root, keeps one shard itself."""

REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce"})
"""Kinds that add up."""


@dataclass(frozen=True)
class CollectiveCost:
    """What a collective costs."""

    latency_s: float  # the part that slices sent back to back can hide behind one another, start-up included
    serialization_s: float  # the time that the busiest links are occupied: what each slice adds to the ones before it
    algorithm: str = ""  # empty if there was nothing to do
    num_chunks: int = 1  # chunks that a pipelined algorithm cuts the buffer into
    protocol: str = ""  # the library's; empty if the topology names no library
    # latency that passes before the first message: all but that of the links, and of a pipelined algorithm's chunks
    before_s: float = 0.0
    inflation: float = 1.0  # bytes that would keep the bare links busy as long, for each byte: 1 without a library
    backend: str = ""  # the way to communicate that served it, where the library is made of several
    concurrent: bool = False  # whether others like it may be in flight concurrently
    # of each dimension of the group, the busiest link's part of the serialization; 1 if it is busy all the time
    shares: tuple[float, ...] = ()

    @property
    def served_by(self) -> str:
        """The algorithm, and before it the back end where a policy chose one."""
        return f"{self.backend}: {self.algorithm}" if self.backend else self.algorithm

    @property
    def time_s(self) -> float:
        """Latency and serialization together."""
        return self.latency_s + self.serialization_s


def collective_cost(
    kind: str, size_bytes: float, placement: Placement, algorithm: str = "auto", *, num_chunks: int | None = None
) -> CollectiveCost:
    """Cost of one collective, with all groups of its axis active at the same time; zero for no bytes or one rank.

    Parameters
    ----------
    kind : str
        One of `collectives.KINDS`.
    size_bytes : float
        The ``bytes`` of `collectives.algorithm`: the larger side, never a shard.
    placement : Placement
        Where the group lies, from `placement.place`.
    algorithm : str
        One of `collectives.ALGORITHMS`, or ``"auto"`` for the fastest at this size, or the library's choice.
    num_chunks : int, optional
        Chunks that pipelined algorithms cut the buffer into, instead of the best number.

    Raises
    ------
    ConfigError
        If kind or algorithm are unknown, the algorithm cannot do it on this group, the size is negative, next to
        nothing or beyond 2**63, or there are no chunks. `TooManyMessagesError` where links are slow or broken, and more
        messages than can be routed.

    >>> from scaleout.cluster.topology.placement import place
    >>> from scaleout.cluster.topology.topology import load_topology
    >>> group = place(load_topology("ring-128"), range(128))
    >>> cost = collective_cost("all_reduce", 128e6, group, "ring")
    >>> round(cost.time_s * 1e6, 3)  # 2 * 127 * (0.7 us + 1 MB / 25 GB/s)
    10337.8
    """
    collectives.check_size(size_bytes)
    if num_chunks is not None and num_chunks < 1:
        raise ConfigError(f"a buffer of {num_chunks} chunks; give one or more")
    return _collective_cost(kind, float(size_bytes), placement.carrying(kind), algorithm, num_chunks)


def collective_costs(
    kind: str, size_bytes: float, placement: Placement, *, num_chunks: int | None = None
) -> dict[str, CollectiveCost]:
    """Cost of one collective with each algorithm that can do it but those with more messages than can be routed.

    Raises
    ------
    ConfigError
        If there is no other, and as `collective_cost`.
    """
    return collectives.possible(
        [algorithm.name for algorithm in collectives.candidates(kind, placement.carrying(kind))],
        lambda name: collective_cost(kind, size_bytes, placement, name, num_chunks=num_chunks),
    )


def send_cost(size_bytes: float, topology: Topology, *, source: int, destination: int) -> CollectiveCost:
    """Cost of one isolated message: ``hops alpha + n beta`` of the slowest dimension on its way; zero to oneself.

    Raises
    ------
    ConfigError
        If a rank is not in the topology or the size is negative.
    """
    return collective_cost("send", size_bytes, place_isolated(topology, sorted({source, destination})))


def one_sided(cost: CollectiveCost, gap_s: float = 0.0) -> CollectiveCost:
    """Cost of a collective that the work-groups of kernels carry out, by stores and puts, without the library.

    There is no call to start and no protocol to wait for, so of its latency that of the links is left. The links are
    busy for the collective's bytes, and for `gap_s` beyond them.
    """
    if cost.serialization_s == 0:
        return cost
    serialization_s = cost.serialization_s + gap_s
    return replace(
        cost,
        latency_s=max(0.0, cost.latency_s - cost.before_s),
        serialization_s=serialization_s,
        before_s=0.0,
        inflation=cost.inflation * serialization_s / cost.serialization_s,
    )


@dataclass(frozen=True)
class _Profile:
    """Sums over rounds: ``A`` and ``B`` of all, ``a`` and ``b`` of the most used links; `added` bytes for each byte."""

    latency_s: float
    seconds_per_byte: float
    link_latency_s: float
    link_s_per_byte: float
    pipelined: bool
    added: float
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """An algorithm with a protocol: its profile as the library expects it, as it is, and on the links alone."""

    algorithm: str
    protocol: Protocol
    expected: _Profile
    taken: _Profile
    bare: _Profile


@lru_cache(maxsize=262144)
def _collective_cost(
    kind: str, size_bytes: float, placement: Placement, algorithm: str, chunks: int | None
) -> CollectiveCost:
    found = _candidates(kind, placement, algorithm)
    if size_bytes == 0 or placement.num_ranks == 1:
        return CollectiveCost(0.0, 0.0)
    shard_bytes = size_bytes / placement.num_ranks if kind in SHARDED else 0.0
    if placement.library is not None:
        links = {extent.dimension.link for extent in placement.extents}
        serving = functools.partial(
            placement.library.serving, kind, message_bytes=shard_bytes or size_bytes, links=links
        )
        found = tuple(candidate for candidate in found if candidate.protocol in serving(candidate.algorithm))
        found = _selected(found, kind, placement.library, size_bytes, placement.num_ranks)

    def expected_s(candidate: _Candidate) -> float:
        terms = candidate.protocol.modelled or candidate.protocol.actual
        return _on_terms(terms, candidate.expected, size_bytes, shard_bytes, chunks=chunks).time_s

    candidate = fastest(found, expected_s)
    cost = _on_terms(candidate.protocol.actual, candidate.taken, size_bytes, shard_bytes, chunks=chunks)
    bare = _at_size(candidate.bare, size_bytes, chunks)
    before_s = candidate.protocol.actual.startup_s if candidate.bare.pipelined else cost.latency_s - bare.latency_s
    return replace(
        cost,
        algorithm=candidate.algorithm,
        latency_s=cost.latency_s + placement.startup_s,
        protocol=candidate.protocol.name,
        before_s=placement.startup_s + before_s,
        inflation=cost.serialization_s / bare.serialization_s,
        backend=candidate.protocol.backend,
        concurrent=candidate.protocol.concurrent,
        shares=candidate.taken.shares,
    )


def _selected(
    found: tuple[_Candidate, ...], kind: str, library: Library, size_bytes: float, num_ranks: int
) -> tuple[_Candidate, ...]:
    """Keep the candidates of the back end that the library selects for an all-reduce, if there are any."""
    if library.selection is None or kind != "all_reduce":
        return found
    wanted = library.selection.choose(num_ranks, size_bytes)
    return tuple(candidate for candidate in found if candidate.protocol.backend == wanted) or found


@lru_cache(maxsize=4096)
def _candidates(kind: str, placement: Placement, algorithm: str) -> tuple[_Candidate, ...]:
    """What there is to choose from, for messages of any size."""
    if algorithm != "auto":
        return _with_protocols(kind, placement, algorithm)
    names = [found.name for found in collectives.candidates(kind, placement)]
    if placement.topology is not None:
        names = [name for name in names if is_quick(collectives.schedule(kind, placement, algorithm=name), placement)]
        names = names or ["direct"]
    found = collectives.possible(names, functools.partial(_with_protocols, kind, placement))
    return tuple(candidate for each in found.values() for candidate in each)


def _with_protocols(kind: str, placement: Placement, name: str) -> tuple[_Candidate, ...]:
    """Return an algorithm with each protocol of the library."""
    profile = functools.partial(_profile, kind, placement, name)
    detours = any(extent.dimension.detour != 1 for extent in placement.extents)
    return tuple(
        _Candidate(
            name,
            protocol,
            profile(protocol.modelled or protocol.actual, detours=detours),
            profile(protocol.actual, detours=detours),
            profile(BARE_LINKS, detours=False),
        )
        for protocol in (placement.library.protocols_for(kind, name) if placement.library else (BARE,))
    )


def _on_terms(
    terms: Terms, profile: _Profile, size_bytes: float, shard_bytes: float, *, chunks: int | None
) -> CollectiveCost:
    """Cost of a profile with what its protocol's terms add to it, except for what any call costs."""
    cost = _at_size(profile, size_bytes, chunks)
    latency_s, serialization_s = cost.latency_s + terms.startup_s, shard_bytes / terms.local_bytes_per_s
    serialization_s += 2 * size_bytes / terms.staging_bytes_per_s
    serialization_s += profile.added * size_bytes / terms.adding_bytes_per_s
    return replace(cost, latency_s=latency_s, serialization_s=cost.serialization_s + serialization_s)


@lru_cache(maxsize=16384)
def _profile(kind: str, placement: Placement, algorithm: str, terms: Terms, *, detours: bool) -> _Profile:
    schedule = collectives.schedule(kind, placement, algorithm=algorithm)
    check_routable(schedule, placement, kind=kind, algorithm=algorithm)
    load_on = functools.partial(_load_on, terms=terms, detours=detours)
    chains = [[(round_.repeat, load_on(round_, placement)) for round_ in chain] for chain in schedule.chains]
    latency_s = max((fsum(repeat * load.latency_s for repeat, load in chain) for chain in chains), default=0.0)
    seconds_per_byte = max((fsum(r * load.busiest_s_per_byte for r, load in chain) for chain in chains), default=0.0)
    link_latency_s, by_extent = _most_used([each for chain in chains for each in chain])
    link_latency_s /= terms.in_flight
    link_s_per_byte = max(by_extent.values(), default=0.0)
    if len(chains) > 1:  # chains share the links that they meet on
        seconds_per_byte = max(seconds_per_byte, link_s_per_byte)
    if not schedule.pipelined:
        link_latency_s, link_s_per_byte = latency_s, seconds_per_byte
    added = (1 - 1 / placement.num_ranks if schedule.added is None else schedule.added) if kind in REDUCTIONS else 0.0
    shares = tuple(by_extent.get(number, 0.0) / (link_s_per_byte or 1.0) for number in range(len(placement.extents)))
    return _Profile(latency_s, seconds_per_byte, link_latency_s, link_s_per_byte, schedule.pipelined, added, shares)


def _load_on(round_: Round, placement: Placement, *, terms: Terms, detours: bool) -> Load:
    """Load of a round on a protocol's terms: with its slowest hop, or of a ring, passed once, the mean."""
    load = load_of(round_, placement)
    if detours:
        load = _through_host(load, round_, placement)
    if not terms.hops:
        return load
    latency_s, efficiency = terms.over([(extent.dimension.link, extent.size) for extent in placement.extents])
    used = load.seconds_per_byte
    added_s = max((latency_s[extent] for extent in used), default=0.0)
    if isinstance(round_.pattern, Ring) and placement.regular:
        added_s, share = 0.0, 1.0
        for extent in sorted(used):
            crossing = share / placement.extents[extent].size if extent < max(used) else 0.0
            added_s += (share - crossing) * latency_s[extent]
            share = crossing
    return Load(load.latency_s + added_s, {extent: seconds / efficiency[extent] for extent, seconds in used.items()})


def _through_host(load: Load, round_: Round, placement: Placement) -> Load:
    """Cost messages that reach a port through the host: all but those of a ring that ends at the port."""
    if isinstance(round_.pattern, Ring) and not placement.detours:
        return load
    detours = [extent.dimension.detour for extent in placement.extents]
    return Load(load.latency_s, {extent: detours[extent] * used for extent, used in load.seconds_per_byte.items()})


def _most_used(repeated: list[tuple[int, Load]]) -> tuple[float, dict[int, float]]:
    """Latency and serialization of the rounds that use a link, summed up; the largest of each, the latter by extent."""
    latency_s: dict[int, list[npt.NDArray[np.float64]]] = defaultdict(list)
    seconds_per_byte: dict[int, list[npt.NDArray[np.float64]]] = defaultdict(list)
    for repeat, load in repeated:
        for extent, links in load.seconds_per_byte.items():
            latency_s[extent].append(np.where(links > 0, repeat * load.latency_s, 0.0))
            seconds_per_byte[extent].append(repeat * links)
    most_s = max(map(_most, latency_s.values()), default=0.0)
    return most_s, {extent: _most(rounds) for extent, rounds in seconds_per_byte.items()}


def _most(rounds: list[npt.NDArray[np.float64]]) -> float:
    """Largest sum over an extent's links; of rounds that count other links (levels, ports) the sum of their largest."""
    if len({len(links) for links in rounds} - {1}) > 1:
        rounds = [links.max(keepdims=True) for links in rounds]
    return float(sum(rounds, np.zeros(1)).max())


def _at_size(profile: _Profile, size_bytes: float, given: int | None) -> CollectiveCost:
    whole_s = profile.seconds_per_byte * size_bytes
    if not profile.pipelined:
        return CollectiveCost(profile.latency_s, whole_s)
    link_s = profile.link_s_per_byte * size_bytes
    # d/dc of (whole - link) / c + c * a is zero at the best c; on both sides of it lies the best whole number.
    hidden_s = max(0.0, whole_s - link_s)
    chunks = math.sqrt(hidden_s / profile.link_latency_s) if profile.link_latency_s > 0 else math.inf
    chunks = min(max(chunks, 1.0), float(MAX_CHUNKS))
    latency_s, num_chunks = min(
        (profile.latency_s + (c - 1) * profile.link_latency_s + hidden_s / c, c)
        for c in ((math.floor(chunks), math.ceil(chunks)) if given is None else (given,))
    )
    return CollectiveCost(latency_s, link_s, num_chunks=num_chunks)


def forget() -> None:
    """Forget all costs: an algorithm has been defined anew."""
    for kept in (_collective_cost, _candidates, _profile):
        kept.cache_clear()
