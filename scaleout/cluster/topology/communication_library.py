"""Communication libraries: a YAML file to the protocols of a library, and the rule by which it chooses one.

A `Protocol` is a way of moving bytes (NCCL: LL, LL128, Simple). A library chooses by its own model of time, which may
be wrong: the protocol with the shortest *modelled* time is chosen, and takes its *actual* time. Where a library joins
several back ends, a `Selection` chooses one for a number of ranks and a size. Knows no collective's rounds;
`network.alpha_beta` applies the costs. See docs/models/communication-libraries.md and docs/models/back-ends.md.

Symbols: p ranks; n bytes.
Source: NCCL, src/graph/tuning.cc and src/enqueue.cc; Hu et al., Demystifying NCCL, arXiv 2507.04786, for the protocols.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from scaleout.config import library, validated
from scaleout.config.documents import is_file
from scaleout.config.units import Count, LogRatio, NotNegative, Positive, Rate, Seconds, Share, Size, Slowdown, counted
from scaleout.errors import ConfigError
from scaleout.program.fastest import fastest


@dataclass(frozen=True)
class Rule:
    """One line of a table: on so many ranks and fewer, up to so many bytes, a back end."""

    num_ranks: float
    size_bytes: float
    backend: str


@dataclass(frozen=True)
class Table:
    """Rules; of those that fit the one of the fewest ranks holds, and of these that of the smallest size."""

    rules: tuple[Rule, ...]

    def choose(self, num_ranks: int, size_bytes: float) -> str:
        """Return the back end for a collective; refuse one that no rule fits."""
        fitting = [rule for rule in self.rules if num_ranks <= rule.num_ranks and size_bytes <= rule.size_bytes]
        if not fitting:
            raise ConfigError(
                f"the table has no back end for {size_bytes:.0f} B on {counted(num_ranks, 'rank')}; "
                f"end it with a rule without "
                f"ranks and size"
            )
        return min(fitting, key=lambda rule: (rule.num_ranks, rule.size_bytes)).backend

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the back ends in the table."""
        return tuple(dict.fromkeys(rule.backend for rule in self.rules))


@dataclass(frozen=True)
class Curve:
    """What a back end took on some ranks: seconds at sizes in ascending order."""

    backend: str
    num_ranks: int
    sizes_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def time_s(self, size_bytes: float) -> float:
        """Time at a size: between two on logarithmic axes, beyond the last in proportion, below the first the same."""
        sizes, seconds = np.log(self.sizes_bytes), np.log(self.seconds)
        found = float(np.exp(np.interp(math.log(max(size_bytes, 1.0)), sizes, seconds)))
        return found * max(1.0, size_bytes / self.sizes_bytes[-1])


@dataclass(frozen=True)
class Learned:
    """Benchmarks of back ends: `curves` of each on the same numbers of ranks and sizes, else a `ConfigError`."""

    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        for ranks in self.ranks:
            of = {curve.backend: curve for curve in self.curves if curve.num_ranks == ranks}
            for name in self.backends:
                if name not in of:
                    raise ConfigError(
                        f"the benchmark of {name} has no run on {counted(ranks, 'rank')}, and that "
                        f"of {next(iter(of))} has; run "
                        f"both on the same ranks"
                    )
            every = sorted({size for curve in of.values() for size in curve.sizes_bytes})
            for name, curve in of.items():
                missing = [f"{size:.0f} B" for size in every if size not in curve.sizes_bytes]
                if missing:
                    raise ConfigError(
                        f"the benchmark of {name} on {counted(ranks, 'rank')} lacks sizes that others have: "
                        f"{', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}; run all over the same sizes"
                    )

    def __hash__(self) -> int:
        return hash((len(self.curves), self.curves[0]))

    def choose(self, num_ranks: int, size_bytes: float) -> str:
        """Return the back end that was fastest where the benchmarks are nearest."""
        nearest = min(self.ranks, key=lambda ranks: (abs(math.log(ranks / num_ranks)), ranks))
        of = [curve for curve in self.curves if curve.num_ranks == nearest]
        return fastest(of, lambda curve: curve.time_s(size_bytes)).backend

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks that were run."""
        return tuple(sorted({curve.num_ranks for curve in self.curves}))

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the back ends that were run."""
        return tuple(dict.fromkeys(curve.backend for curve in self.curves))


Selection = Table | Learned


@dataclass(frozen=True)
class Hop:
    """A protocol on one kind of link, as the dimensions of a topology name it: `nvlink`, `infiniband`."""

    link: str
    latency_s: float = 0.0
    """What a round whose messages cross such a link costs beyond the link's latency."""
    efficiency: float = 1.0
    """Payload that the link carries, as a part of its bandwidth."""
    straggling: float = 0.0
    """Exponent of the slowest of n ends along the dimension: latency and seconds a byte are ``n ** straggling`` times
    those of one. Slowdowns of single ends that exceed x with ``x ** (-1 / straggling)`` have such a maximum."""


@dataclass(frozen=True)
class Terms:
    """What one call costs, or is expected to; `startup_s` before the first message."""

    startup_s: float = 0.0
    hops: tuple[Hop, ...] = ()  # one for each kind of link; on others a message costs what the link does
    local_bytes_per_s: float = math.inf  # at which a rank's own shard passes, which crosses no link
    # at which the whole buffer is copied into the host's memory before the first message, and back after the last
    staging_bytes_per_s: float = math.inf
    # at which what has arrived is added to what is there, where that takes time of its own
    adding_bytes_per_s: float = math.inf
    in_flight: int = 1  # chunks that a link has under way at once: a further chunk waits for 1 / in_flight of a latency

    def over(self, links: Sequence[tuple[str, int]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return latency and efficiency on each of some links, by their kinds and how many ends are along them."""
        known = {hop.link: hop for hop in self.hops}
        found = [(known.get(link, Hop(link)), ends) for link, ends in links]
        slower = [float(ends) ** hop.straggling for hop, ends in found]
        return (
            tuple(hop.latency_s * by for (hop, _), by in zip(found, slower, strict=True)),
            tuple(hop.efficiency / by for (hop, _), by in zip(found, slower, strict=True)),
        )


OVER = " over "
"""What stands between an algorithm and the kind of link of the groups that it is for."""

BARE_LINKS = Terms()
"""Nothing beyond the links: where a topology names no library."""


@dataclass(frozen=True)
class Protocol:
    """A way of moving bytes."""

    name: str
    collectives: tuple[str, ...]  # kinds of collectives that it serves
    actual: Terms = BARE_LINKS  # what a call costs
    modelled: Terms | None = None  # what the library expects it to cost; None if that is the same
    # the library takes the protocol for messages up to this size whatever else there is, where it names all of their
    # links; infinite if it weighs the protocol against the others
    largest_message_bytes: float = math.inf
    # algorithms that it serves, to the exclusion of protocols that name none; empty for all that none names
    algorithms: tuple[str, ...] = ()
    backend: str = ""  # the way to communicate that it belongs to, where a library is made of several; see `backends`
    concurrent: bool = False  # whether calls may run concurrently, so that their latencies overlap

    def serves(self, kind: str) -> bool:
        """Whether it carries a kind: that of messages also gathers and scatters, which are made of them."""
        return kind in self.collectives or (kind in _OF_MESSAGES and "send" in self.collectives)

    def crosses(self, links: Set[str]) -> bool:
        """Whether it goes over all of some kinds of links: one for small messages over those alone that it names."""
        known = {hop.link for hop in self.actual.hops}
        return self.largest_message_bytes == math.inf or not known or links <= known


_OF_MESSAGES = ("gather", "scatter")
"""Kinds that are grouped sends and receives (NCCL user guide, Point-to-point communication, one-to-all and all-to-one;
PyTorch, torch/csrc/cuda/nccl.cpp)."""


BARE = Protocol("", (), BARE_LINKS)
"""Bare links."""


class ResourceUse(validated.Config):
    """What a collective takes from the device, and how a concurrent kernel slows it down; see `contention`."""

    num_sms: Count = Field(alias="sms", description="SMs that a collective's own kernel holds, one for each channel")
    message_sms: Count = Field(description="SMs that either end of a message holds")
    memory_bytes_per_s: Rate = Field(
        alias="memory_bandwidth", description="traffic of the device's memory by a collective that nothing slows down"
    )
    channels_to_fill: Positive = Field(description="channels that the device's links can feed")
    slowdown: Slowdown = Field(description="how many times as slow a channel is with any concurrent kernel")
    slowdown_by_memory: NotNegative = Field(
        description="what a kernel adds to that which takes all of the memory's bandwidth"
    )
    queue_s: Seconds = Field(
        default=0.0,
        alias="queue",
        description="a kernel that was issued so long before takes the device before a collective that waits "
        "for the same event",
    )
    source: str = Field(description="where the numbers are from")


class LinkSpread(validated.Config):
    """How far off the library's times over a kind of link are: ``ln(actual / predicted)`` at either end of 90%."""

    faster: LogRatio = Field(description="by how much collectives are faster than predicted")
    slower: LogRatio = Field(description="by how much they are slower")
    source: str = Field(description="where the numbers are from")


@dataclass(frozen=True)
class Library:
    """A communication library."""

    name: str
    protocols: tuple[Protocol, ...]
    # kind of collective to the algorithms that `auto` chooses from, those for groups over one kind of link alone with
    # `OVER` and the link; from all if it is not there
    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    source: str = ""  # where the numbers come from
    # time to start any call, before what its protocol adds: its launch, and the arrival of its ranks
    startup_s: float = 0.0
    resource_use: ResourceUse | None = None  # what its collectives take from a device; without it they take nothing
    # whether a call returns to the host when it is done, so that nothing is concurrent with it
    blocks_host: bool = False
    # which back end serves an all-reduce, where a library is made of several; without it the fastest
    selection: Selection | None = None
    spread: tuple[tuple[str, LinkSpread], ...] = ()  # kind of link to how far off times over it are, where it says so
    devices: tuple[str, ...] = ()  # whose links and calls its numbers are of, as words of their names; any if none

    def __hash__(self) -> int:
        return hash(self.name)  # placements are hashed often

    def protocols_for(self, kind: str, algorithm: str) -> tuple[Protocol, ...]:
        """Return the protocols for a collective by an algorithm, with the bare links where none is for any size."""
        serving = tuple(protocol for protocol in self.protocols if protocol.serves(kind))
        own = tuple(protocol for protocol in serving if algorithm in protocol.algorithms)
        found = own or tuple(protocol for protocol in serving if not protocol.algorithms)
        return found if any(protocol.largest_message_bytes == math.inf for protocol in found) else (*found, BARE)

    def serving(
        self, kind: str, algorithm: str, message_bytes: float, links: Set[str] = frozenset()
    ) -> tuple[Protocol, ...]:
        """Return the protocols that the library weighs for messages of a size over some kinds of links."""
        found = [protocol for protocol in self.protocols_for(kind, algorithm) if protocol.crosses(links)]
        fitting = tuple(protocol for protocol in found if message_bytes <= protocol.largest_message_bytes < math.inf)
        return fitting or tuple(protocol for protocol in found if protocol.largest_message_bytes == math.inf)

    @property
    def links(self) -> tuple[str, ...]:
        """Kinds of links that its protocols know."""
        return tuple(dict.fromkeys(hop.link for protocol in self.protocols for hop in protocol.actual.hops))

    def algorithms_for(self, kind: str, links: Set[str] = frozenset()) -> tuple[str, ...]:
        """Return the names of the algorithms for a kind of collective, and for a group's links; none if any will do."""
        named = [text.partition(OVER) for text in dict(self.algorithms).get(kind, ())]
        return tuple(name for name, _, link in named if not links or not link or links == {link})


Kind = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send"
]
"""The kinds of `collectives.KINDS`, which are above this module."""


class _HopFile(validated.Config):
    latency: Seconds = Field(default=0.0, description="of a message over a link of the kind, beyond the link's own")
    efficiency: Share = Field(default=1.0, description="payload that the link carries, over its bandwidth")
    straggling: NotNegative = Field(
        default=0.0,
        le=1.0,
        description="exponent with which latency and seconds a byte grow with the ends of a dimension",
    )


class _ExpectedHopFile(validated.Config):
    latency: Seconds = Field(default=0.0, description="of a message over a link of the kind, as the library models it")
    efficiency: Positive = Field(
        default=1.0, description="part of the link's bandwidth that the library expects; may be above 1"
    )
    straggling: NotNegative = Field(
        default=0.0,
        le=1.0,
        description="exponent with which latency and seconds a byte grow with the ends of a dimension",
    )


class _ExpectedFile(validated.Config):
    startup: Seconds = Field(description="of a call, as the library models it")
    links: dict[str, _ExpectedHopFile] = Field(
        default_factory=dict, description="kind of link to what the library expects of it"
    )


class _ProtocolFile(validated.Config):
    name: str = Field(description="such as LL or Simple")
    collectives: tuple[Kind, ...] = Field(description="kinds of collectives that it serves")
    startup: Seconds = Field(description="of a call by it, beyond the library's own")
    links: dict[str, _HopFile] = Field(
        default_factory=dict, description="kind of link to what the protocol makes of it"
    )
    local_bandwidth: Rate = Field(
        default=math.inf,
        description="at which a rank's own shard passes, which crosses no link; without limit if unset",
    )
    staging_bandwidth: Rate = Field(
        default=math.inf,
        description="at which the buffer is copied into the host's memory and back; without limit if unset",
    )
    adding_bandwidth: Rate = Field(
        default=math.inf, description="at which what arrives is added to what is there; without limit if unset"
    )
    expected: _ExpectedFile | None = Field(
        default=None, description="what the library's own model says, by which it chooses; as actual if unset"
    )
    largest_message: Size = Field(
        default=math.inf, description="largest message that it sends, over the links that it names; any if unset"
    )
    algorithms: tuple[str, ...] = Field(default=(), description="algorithms that run over it; all if unset")
    in_flight: Count = Field(
        default=1,
        ge=1,
        description="chunks of a pipelined algorithm that a link has under way at once; each after the first waits for "
        "that part of the latency",
    )
    source: str = Field(description="where the numbers are from")


class LibraryFile(validated.Config):
    """What the file of a communication library holds; see `Library`."""

    name: str = Field(description="the library and its version")
    source: str = Field(description="where the numbers are from")
    startup: Seconds = Field(
        default=0.0, description="of any call, before its protocol's: its launch and the arrival of its ranks"
    )
    startup_source: str = Field(default="", description="where startup is from")
    contention: ResourceUse | None = Field(
        default=None, description="what collectives take from the device; nothing if unset"
    )
    concurrent: bool = Field(default=False, description="whether collectives of one rank run side by side")
    blocks_host: bool = Field(
        default=False,
        description="whether a call returns to the host when it is done, so that nothing is concurrent with it",
    )
    algorithms: dict[Kind, tuple[str, ...]] = Field(
        default_factory=dict,
        description="kind of collective to the algorithms that `auto` chooses from; `ALGORITHM over LINK` is for "
        "groups over that kind of link alone; all if unset",
    )
    spread: dict[str, LinkSpread] = Field(
        default_factory=dict, description="kind of link to how far off times over it are, for error bars"
    )
    devices: tuple[str, ...] = Field(
        default=(), description="devices on whose links its numbers hold, each a word of their names; any if unset"
    )
    protocols: tuple[_ProtocolFile, ...] = Field(description="what messages are sent by")


def load_library(path: Path) -> Library:
    """Read the file of a communication library.

    Raises
    ------
    ConfigError
        If there is no such file, or a key, unit or value in it is wrong; the message names the file and the key.
    """
    if not is_file(path):
        raise ConfigError(f"library file '{path}' does not exist; give one beside the topology file")
    values = validated.validate(LibraryFile, _keys(path), where=str(path))
    if not values.protocols:
        raise ConfigError(f"{path}: a library without protocols; give at least one")
    lines = [values.source]
    lines += [f"startup: {values.startup_source}"] if values.startup_source else []
    lines += [] if values.contention is None else [f"contention: {values.contention.source}"]
    lines += [f"{protocol.name}: {protocol.source}" for protocol in values.protocols]
    return Library(
        values.name,
        tuple(_protocol(entry, values.concurrent) for entry in values.protocols),
        tuple((kind, names) for kind, names in values.algorithms.items()),
        "\n".join(lines),
        values.startup,
        values.contention,
        values.blocks_host,
        spread=tuple(values.spread.items()),
        devices=values.devices,
    )


def _keys(path: Path, *, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file's keys over those of the library that it is `like`, if it names one; protocols are added to its."""
    chain = library.lengthened(seen, path, key="like")
    values = validated.read_yaml(path)
    like = library.pop_like(values, "library", path)
    if like is None:
        return values
    other = path.parent / like
    if not is_file(other, named_by=f"{path}: like"):
        raise ConfigError(f"{path}: like: library file '{other}' does not exist; give one beside this file")
    inherited = _keys(other, seen=chain)
    found = {**inherited, **values}
    if isinstance(own := values.get("protocols"), list) and isinstance(others := inherited.get("protocols"), list):
        found["protocols"] = own + others
    return found


def _protocol(entry: _ProtocolFile, concurrent: bool) -> Protocol:
    model = entry.expected
    expected = None if model is None else Terms(model.startup, _hops(model.links), in_flight=entry.in_flight)
    rates = (entry.local_bandwidth, entry.staging_bandwidth, entry.adding_bandwidth)
    actual = Terms(entry.startup, _hops(entry.links), *rates, entry.in_flight)
    shared = (entry.name, entry.collectives, actual, expected, entry.largest_message, entry.algorithms)
    return Protocol(*shared, concurrent=concurrent)


def _hops(links: dict[str, _HopFile] | dict[str, _ExpectedHopFile]) -> tuple[Hop, ...]:
    return tuple(Hop(link, hop.latency, hop.efficiency, hop.straggling) for link, hop in links.items())
