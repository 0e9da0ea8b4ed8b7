"""Networks as products of dimensions: what is linked to what, how fast, how far.

Maps a YAML file, or a graph's, to a `Topology`. A rank is its coordinates, dimension 0 fastest (innermost):
``rank = d0 + n0 * (d1 + n1 * (d2 + ...))``. Ranks that differ in one coordinate only form a *line*. A message crosses
the dimensions in order and is forwarded at once (cut-through): latencies add, the slowest dimension bounds the
bandwidth. Knows neither groups nor messages; `placement` finds a group. See docs/models/topologies.md.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.communication_library import Library, load_library
from scaleout.cluster.topology.dimension import Dimension, graph_dimension
from scaleout.cluster.topology.expression import is_expression, read_expression
from scaleout.cluster.topology.fabric import SUFFIXES, load_fabric
from scaleout.cluster.topology.faults import LinkChange, LinkPosition, find_link, link_bytes_per_s
from scaleout.cluster.topology.files import TopologyFile, join_sources, library_of, read_dimension, read_topology
from scaleout.config import library, validated
from scaleout.config.documents import MAX_RANKS, number
from scaleout.config.units import BYTES_PER_S, counted, parse
from scaleout.errors import ConfigError

__all__ = [
    "MAX_RANKS",
    "Dimension",
    "LinkChange",
    "Topology",
    "break_links",
    "check_ranks",
    "degrade_links",
    "load_topology",
    "slow_down",
]

LEAST_FACTOR = 1e-9
"""Of the bandwidth or speed that is left of a link or rank."""

_MOST_DIMENSIONS = 32
"""As many as an array may have (NumPy 1); a network of two ranks in each of 20 has all ranks that one may have."""


@dataclass(frozen=True)
class Topology:
    """A product of dimensions, innermost first."""

    name: str
    dimensions: tuple[Dimension, ...]  # dimension 0 is the innermost: consecutive ranks lie along it
    # time to start one collective or message, whatever its rounds and protocol: the library's, unless the file says it
    startup_s: float = 0.0
    source: str = ""  # where the numbers come from
    library: Library | None = None  # what the communication library adds to the links; None for bare links
    library_reason: str = ""  # why that one, or none, where the file says it
    # links that are slower than others, or broken; see `degrade_links` and `break_links`
    changes: tuple[LinkChange, ...] = ()
    slow_ranks: tuple[tuple[int, float], ...] = ()  # ranks whose kernels take longer, and how many times as long
    # communication back ends that the machine offers besides its library, by name; see `backends.with_policy`
    backends: tuple[tuple[str, Library], ...] = ()
    altered: tuple[str, ...] = ()  # in words, what `what_if.change_network` has changed
    cards_down: tuple[int, ...] = ()  # ranks whose network card is down
    # the network with all cards but for their changes of links, which channels of whole nodes share alike
    all_cards: "Topology | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.dimensions:
            raise ConfigError(f"topology {self.name!r} has no dimensions; give at least one")
        if len(self.dimensions) > _MOST_DIMENSIONS:
            raise ConfigError(
                f"topology {self.name!r} has {len(self.dimensions):,} dimensions; give at most {_MOST_DIMENSIONS}"
            )
        if self.num_ranks > MAX_RANKS:
            raise ConfigError(
                f"topology {self.name!r} has {counted(self.num_ranks, 'rank')}; give it at most {MAX_RANKS}"
            )

    @property
    def num_ranks(self) -> int:
        """Product of the dimensions' sizes."""
        return math.prod(self.shape)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dimension, innermost first."""
        return tuple(dimension.size for dimension in self.dimensions)

    @property
    def even(self) -> bool:
        """Whether all dimensions are even and no link is changed: congruent groups then cost the same."""
        return not self.changes and all(dimension.structure.even for dimension in self.dimensions)

    @cached_property
    def changes_of_line(self) -> dict[tuple[int, int], tuple[LinkChange, ...]]:
        """Dimension and lowest rank of each line that has changed links, and those."""
        found: dict[tuple[int, int], tuple[LinkChange, ...]] = {}
        for change in self.changes:
            line = (change.dimension, change.line)
            found[line] = (*found.get(line, ()), change)
        return found

    def ends_of_users(self, change: LinkChange) -> list[int]:
        """Return coordinates along its line at which all messages over a changed link start or end.

        Where ranks are interchangeable, none of them passes on what others send; elsewhere no such rank is known.
        """
        dimension = self.dimensions[change.dimension]
        return [end for end in change.ends if end < dimension.size] if dimension.structure.interchangeable else []

    def lines(self, number: int) -> npt.NDArray[np.int64]:
        """Return the lowest rank of each line of a dimension."""
        weight = math.prod(self.shape[:number])
        ranks = np.arange(self.num_ranks)
        return np.asarray(ranks[ranks // weight % self.shape[number] == 0])

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
                f"rank {wrong} is not in topology {self.name!r}, which has {counted(self.num_ranks, 'rank')}; "
                f"give ranks 0 to {self.num_ranks - 1}"
            )
        return np.stack(np.unravel_index(array, self.shape, order="F"), axis=-1).astype(np.int64)

    def ranks_at(self, columns: Iterable[npt.NDArray[np.int64]]) -> tuple[int, ...]:
        """Return the ranks at coordinates, one array (R,) a dimension, innermost first."""
        return tuple(np.ravel_multi_index(tuple(columns), self.shape, order="F").tolist())


def degrade_links(topology: Topology, slower: Mapping[str, float | str]) -> Topology:
    """Return the topology with slower links; messages take the routes that they took before.

    `slower` maps the name of a link (see `faults`) to a factor of its bandwidth, or to a bandwidth with its unit.

    Raises
    ------
    ConfigError
        If there is no such link, or it would not be slower.

    >>> torus = Topology("ring-4", (Dimension("ring", 4, 1e9, 0.0),))
    >>> degrade_links(torus, {"0-1": "250 MB/s"}).changes[0].factor
    0.25
    """
    return _changed(topology, [(name, _factor(topology, name, to)) for name, to in slower.items()])


def break_links(topology: Topology, names: Iterable[str]) -> Topology:
    """Return the topology without some links; messages take another route along their line.

    Raises
    ------
    ConfigError
        If there is no such link. A message without a route left is refused where it is sent.
    """
    return _changed(topology, [(name, 0.0) for name in names])


def _factor(topology: Topology, name: str, to: float | str) -> float:
    position = find_link(topology.dimensions, name)
    factor = number(to) if isinstance(to, str) else to
    if factor is None:  # a bandwidth
        try:
            factor = parse(to, BYTES_PER_S) / link_bytes_per_s(topology.dimensions[position[0]], position[2])
        except ConfigError as error:
            raise ConfigError(f"link {name!r}: {error}") from None
    if not LEAST_FACTOR <= factor <= 1:
        raise ConfigError(
            f"link {name!r} is degraded to {to}; give a factor from {LEAST_FACTOR:g} to 1, or a bandwidth of as much "
            f"of its own, or break the link"
        )
    return factor


def _changed(topology: Topology, factors: Iterable[tuple[str, float]]) -> Topology:
    """Replace the changes that the same links had before."""
    found = {(change.dimension, change.line, change.ends): change for change in topology.changes}
    names: dict[LinkPosition, str] = {}
    for name, factor in factors:
        position = find_link(topology.dimensions, name)
        if position in names:
            raise ConfigError(f"link {name!r} is given twice, first as {names[position]!r}; give it once")
        names[position] = name
        found[position] = LinkChange(*position, factor)
    return replace(topology, changes=tuple(found[position] for position in sorted(found)))


def load_topology(name_or_file: str | Path) -> Topology:
    """Read a shipped topology by its name, the user's by its path (YAML, GraphML or an edge list), or an expression.

    An expression, such as ``switch(8,nvlink4) x torus(4,4,ndr/4)``, says the dimensions; see `expression`.

    Raises
    ------
    ConfigError
        If there is no such name or file, or a key, unit or value in it is wrong; the message names the file and the
        key.

    >>> load_topology("torus-8x16").num_ranks
    128
    """
    text = str(name_or_file)
    if is_expression(text):
        return _topology(text, read_expression(text), Path(text))
    path = library.find("topology", text)
    if path.suffix in SUFFIXES:
        source = f"{path}\ndimension 0: bandwidth: {path}; latency: {path}"
        return Topology(path.stem, (graph_dimension(load_fabric(path)),), source=source)
    return _topology(path.stem, read_topology(path), path)


def _topology(name: str, values: TopologyFile, path: Path) -> Topology:
    """Make a network of the values of a file."""
    try:
        dimensions = tuple(read_dimension(number, entry, path) for number, entry in enumerate(values.dimensions))
        if values.nodes is not None and dimensions:
            dimensions = (*dimensions[:-1], dimensions[-1].resized(values.nodes))
        found = library_of(values, dimensions)
        startup_s = (found.startup_s if found else 0.0) if values.startup is None else values.startup
        backends = {name: load_library(Path(file)) for name, file in values.backends.items()}
        libraries = [*([found] if found else []), *backends.values()]
        for each in libraries:
            _check_links(dimensions, each)
        source = join_sources(values, libraries, path.parent)
        topology = Topology(
            name, dimensions, startup_s, source, found, values.library_reason, backends=tuple(backends.items())
        )
        topology = break_links(degrade_links(topology, values.changes.degrade), values.changes.broken)
        return slow_down(topology, values.changes.slow)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def slow_down(topology: Topology, factors: Mapping[int, float]) -> Topology:
    """Return the topology with ranks whose kernels take so many times as long.

    Raises
    ------
    ConfigError
        If a rank is not in the topology or a factor is below 1 or above a billion.
    """
    topology.coordinates(list(factors))
    for rank, factor in factors.items():
        if not 1 <= factor <= 1 / LEAST_FACTOR:
            raise ConfigError(
                f"rank {rank} is slowed by {factor}; give how many times as long it takes, from 1 to "
                f"{1 / LEAST_FACTOR:g}"
            )
    return replace(topology, slow_ranks=tuple(sorted({**dict(topology.slow_ranks), **factors}.items())))


def check_ranks(topology: Topology, num_ranks: int, *, option: str | None = "") -> None:
    """Refuse a job whose ranks are not those of the topology (`ConfigError`); say how they would be.

    `option` is the one that gives the job as many ranks as the topology has; empty if none is known, and None where
    nothing can, as the job is a trace.
    """
    if num_ranks != topology.num_ranks:
        how = f" ({option})" if option else ""
        instead = "" if option is None else f", or run the job on {counted(topology.num_ranks, 'rank')}{how}"
        raise ConfigError(
            f"the {'trace' if option is None else 'job'} has {counted(num_ranks, 'rank')} and topology "
            f"{topology.name!r} has {topology.num_ranks}; take a topology of {counted(num_ranks, 'rank')} "
            f"({_nodes_for(topology, num_ranks)}){instead}"
        )


def _nodes_for(topology: Topology, num_ranks: int) -> str:
    """Say which option gives a topology so many ranks."""
    from scaleout.cluster.topology.nodes import nodes_like, part_of_node  # noqa: PLC0415 - which read topologies

    unknown, inside = "--nodes gives one another size", topology.num_ranks // topology.shape[-1]
    if part := part_of_node(topology, num_ranks):
        return f"--topology '{part}'"
    if like := nodes_like(topology, num_ranks):
        return like.options
    if len(topology.dimensions) < 2 or num_ranks % inside:
        return "`scaleout list topologies`, or an expression of dimensions"
    try:
        topology.dimensions[-1].resized(num_ranks // inside)
    except ConfigError:
        return unknown
    return f"--nodes {num_ranks // inside}"


def _check_links(dimensions: Sequence[Dimension], found: Library) -> None:
    for index, dimension in enumerate(dimensions):
        if dimension.link not in found.links:
            hint = validated.nearest(dimension.link, found.links)
            if not dimension.link:
                known = " or ".join(f"`link: {each}`" for each in found.links)
                raise ConfigError(
                    f"dimensions.{index}: library {found.name!r} cannot know what link this is, as it has a bandwidth "
                    f"and a latency only; name a link type (`scaleout list link-types`), or write {known} in a file"
                )
            raise ConfigError(f"dimensions.{index}: library {found.name!r} knows no link {dimension.link!r}; {hint}")
