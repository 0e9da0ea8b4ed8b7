"""Networks as products of dimensions: what is linked to what, how fast, how far.

Maps a YAML file to a `Topology`. Knows neither groups nor messages; `placement` finds a group in a topology.

A rank is its coordinates, dimension 0 fastest (innermost): ``rank = d0 + n0 * (d1 + n1 * (d2 + ...))``. The ranks
that differ in one coordinate only form a *line*, and every line of a dimension is wired alike, each on its own:

ring
    One full-duplex link between neighbours, the last and the first included. Messages go the shorter way round;
    at half way they split evenly. Two ranks share one link, not two; one rank has none.
mesh
    A ring without the link from the last to the first: a line.
switch
    One full-duplex port a rank into a switch that never blocks. The latency is from rank to rank.
fully_connected
    One full-duplex link between each two ranks.
fat_tree
    Levels of switches; `radices` says how many ranks a leaf switch has, how many leaves the switches of the next level
    join, and so on (two levels are a leaf-spine network). What the switches above a subtree carry is one bundle, up
    and down, over which messages spread evenly: the bandwidth of all ports in the subtree, over the product of
    `oversubscription` up to it. A message turns at the lowest level that joins both ends: ``2 l - 1`` switches for
    level ``l``, each of the latency.

A message crosses the dimensions one after another, dimension 0 first, and is forwarded at once (cut-through): the
latencies of its hops add, and the slowest dimension bounds its bandwidth. A torus is a product of rings.

Symbols: n ranks along a dimension; alpha [s] one hop; beta [s/B] the inverse of a link's bandwidth each way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout import config, library
from scaleout.errors import ConfigError
from scaleout.transport import Library, load_library
from scaleout.units import BytesPerSecond, Seconds

KINDS = {
    "ring": "a link to each of two neighbours",
    "switch": "a port into a switch that never blocks",
    "fully_connected": "a link to every other rank",
    "mesh": "a link to each of two neighbours, on a line without ends joined",
    "fat_tree": "a port into the leaves of a tree of switches",
}
"""Kind of dimension to what a rank has in it."""


MAX_RANKS = 2**20
"""More ranks than any machine has; a larger number is a slip of the pen, and would only exhaust the memory."""


@dataclass(frozen=True)
class Dimension:
    """One dimension of a network.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    size : int
        Ranks along it.
    bytes_per_s : float
        What one link (ring, fully connected) or port (switch) carries each way.
    latency_s : float
        One hop: to the neighbour (ring), through the switch, or over the link.
    radices : tuple of int
        Fat trees only: what a switch of each level joins, leaves first; their product is the size.
    oversubscription : tuple of float
        Fat trees only: bandwidth into over bandwidth out of the switches of each level but the last.
    link : str
        Kind of link, such as `nvlink`, by which the protocols of a library know it; empty if it does not matter.
    """

    kind: str
    size: int
    bytes_per_s: float
    latency_s: float
    radices: tuple[int, ...] = ()
    oversubscription: tuple[float, ...] = ()
    link: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"unknown kind of dimension {self.kind!r}; {config.nearest(self.kind, KINDS)}")
        if self.size < 1:
            raise ConfigError(f"a dimension has {self.size} ranks; give a size of 1 or more")
        if not (math.isfinite(self.bytes_per_s) and self.bytes_per_s > 0):
            raise ConfigError(f"a link carries {self.bytes_per_s} B/s; give a bandwidth above zero")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise ConfigError(f"a hop takes {self.latency_s} s; give a latency of zero or more")
        _check_levels(self)

    @property
    def levels(self) -> list[tuple[int, float]]:
        """Of each level of a fat tree's links: ranks below one bundle, and its bandwidth in ports; ports first."""
        sizes = [math.prod(self.radices[:level]) for level in range(len(self.radices))]
        ratios = [math.prod(self.oversubscription[:level]) for level in range(len(self.radices))]
        return [(size, size / ratio) for size, ratio in zip(sizes, ratios, strict=True)]


@dataclass(frozen=True)
class Topology:
    """A product of dimensions, innermost first.

    Attributes
    ----------
    name : str
        For messages and tables.
    dimensions : tuple of Dimension
        Dimension 0 is the innermost: consecutive ranks lie along it.
    startup_s : float
        Time to start one collective or message, whatever its steps (kernel launch, ranks meeting); 0 if the file
        describes the network alone.
    source : str
        Where the numbers come from.
    library : Library or None
        What the communication library adds to the wires; None for the wires alone.
    """

    name: str
    dimensions: tuple[Dimension, ...]
    startup_s: float = 0.0
    source: str = ""
    library: Library | None = None

    def __post_init__(self) -> None:
        if not self.dimensions:
            raise ConfigError(f"topology {self.name!r} has no dimensions; give at least one")
        if self.num_ranks > MAX_RANKS:
            raise ConfigError(f"topology {self.name!r} has {self.num_ranks} ranks; give it at most {MAX_RANKS}")

    @property
    def num_ranks(self) -> int:
        """Product of the dimensions' sizes."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dimension, innermost first."""
        return tuple(dimension.size for dimension in self.dimensions)

    def coordinates(self, ranks: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the coordinates of ranks, shape ``(R, D)``, innermost dimension first.

        >>> torus = Topology("torus-4x2", (Dimension("ring", 4, 1e9, 0.0), Dimension("ring", 2, 1e9, 0.0)))
        >>> torus.coordinates([6]).tolist()
        [[2, 1]]
        """
        array = np.asarray(ranks, dtype=np.int64)
        if array.size and (array.min() < 0 or array.max() >= self.num_ranks):
            wrong = array[(array < 0) | (array >= self.num_ranks)][0]
            raise ConfigError(
                f"rank {wrong} is not in topology {self.name!r}, which has {self.num_ranks} ranks; "
                f"give ranks 0 to {self.num_ranks - 1}"
            )
        return np.stack(np.unravel_index(array, self.shape, order="F"), axis=-1).astype(np.int64)


def _check_levels(dimension: Dimension) -> None:
    radices, ratios = dimension.radices, dimension.oversubscription
    if dimension.kind != "fat_tree":
        if radices or ratios:
            raise ConfigError(f"a {dimension.kind} has no levels; leave out 'radices' and 'oversubscription'")
        return
    if min(radices, default=0) < min(2, dimension.size) or math.prod(radices) != dimension.size:
        raise ConfigError(
            f"a fat tree of {dimension.size} ranks has radices {list(radices)}; give one a level, 2 or more, leaves "
            f"first, whose product is {dimension.size}"
        )
    if len(ratios) != len(radices) - 1 or not all(math.isfinite(ratio) and ratio >= 1 for ratio in ratios):
        raise ConfigError(
            f"a fat tree of {len(radices)} levels has oversubscription {list(ratios)}; give a number of 1 or more for "
            f"each level but the last"
        )


class _DimensionFile(config.Config):
    kind: str
    size: int
    bandwidth: BytesPerSecond | None = None
    bandwidth_per_rank: BytesPerSecond | None = None
    bandwidth_source: str
    latency: Seconds
    latency_source: str
    radices: tuple[int, ...] = ()
    oversubscription: tuple[float, ...] = ()
    levels_source: str = ""
    link: str = ""


class _TopologyFile(config.Config):
    dimensions: list[_DimensionFile]
    startup: Seconds = 0.0
    startup_source: str = ""
    library: str | None = None
    source: str


def load_topology(name_or_file: str) -> Topology:
    """Read a shipped topology by its name, or the user's by its path.

    Raises
    ------
    ConfigError
        If there is no such name or file, or a key, unit or value in the file is wrong; the message names the file
        and the key.

    >>> load_topology("torus-8x16").num_ranks
    128
    """
    path = library.find("topology", name_or_file)
    values = config.validate(_TopologyFile, config.read_yaml(path), where=str(path))
    try:
        dimensions = tuple(_dimension(number, entry) for number, entry in enumerate(values.dimensions))
        found = None if values.library is None else load_library(path.parent / values.library)
        _check_links(dimensions, found)
        return Topology(path.stem, dimensions, values.startup, _join_sources(values, found), found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def check_ranks(topology: Topology, num_ranks: int) -> None:
    """Refuse a job whose ranks are not those of the topology.

    Raises
    ------
    ConfigError
        With both numbers.
    """
    if num_ranks != topology.num_ranks:
        raise ConfigError(
            f"the job has {num_ranks} ranks and topology {topology.name!r} has {topology.num_ranks}; "
            f"take a topology of {num_ranks} ranks, or run the job on {topology.num_ranks} ranks"
        )


def _dimension(number: int, entry: _DimensionFile) -> Dimension:
    where = f"dimensions.{number}"
    if (entry.bandwidth is None) == (entry.bandwidth_per_rank is None):
        raise ConfigError(f"{where}: give either 'bandwidth' (of a link or port) or 'bandwidth_per_rank'")
    if entry.bandwidth is not None:
        bytes_per_s = entry.bandwidth
    else:
        assert entry.bandwidth_per_rank is not None
        bytes_per_s = entry.bandwidth_per_rank / _links_of_a_rank(entry.kind, entry.size)
    try:
        levels = (entry.radices, entry.oversubscription)
        return Dimension(entry.kind, entry.size, bytes_per_s, entry.latency, *levels, entry.link)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _check_links(dimensions: Sequence[Dimension], found: Library | None) -> None:
    for number, dimension in enumerate(dimensions):
        if found and dimension.link not in found.links:
            hint = config.nearest(dimension.link, found.links)
            raise ConfigError(f"dimensions.{number}: library {found.name!r} knows no link {dimension.link!r}; {hint}")


def _links_of_a_rank(kind: str, size: int) -> int:
    """Links over which a rank sends: what its total bandwidth is divided by."""
    if kind in ("switch", "fat_tree") or size < 2:
        return 1
    return min(2, size - 1) if kind in ("ring", "mesh") else size - 1


def _join_sources(values: _TopologyFile, found: Library | None) -> str:
    lines = [values.source]
    for number, entry in enumerate(values.dimensions):
        lines.append(f"dimension {number}: bandwidth: {entry.bandwidth_source}; latency: {entry.latency_source}")
        if entry.levels_source:
            lines[-1] += f"; levels: {entry.levels_source}"
    if values.startup_source:
        lines.append(f"startup: {values.startup_source}")
    if found:
        lines.append(f"{found.name}: {found.source}")
    return "\n".join(lines)
