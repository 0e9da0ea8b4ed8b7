"""Fabrics: links between ranks and named switches, from a list, a GraphML file or an edge list, to a `Fabric`.

Nodes are numbered: first the ranks, ``0`` to ``n - 1``, then the switches. In a file of networkx
(``.graphml``, ``.edgelist``) the node attribute ``rank`` numbers the ranks; without it the nodes named by whole
numbers are the ranks. Every edge has a ``bandwidth`` and a ``latency``, each with its unit. Knows nothing of routes.
"""

import math
from ast import literal_eval
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from scaleout.config.documents import read_text, whole
from scaleout.config.reading import nearest
from scaleout.config.units import BYTES_PER_S, SECONDS, parse
from scaleout.errors import ConfigError, shown

SUFFIXES = (".graphml", ".edgelist")
"""Ends of the files that networkx reads."""


class FabricLink(NamedTuple):
    """One full-duplex link: its two nodes, what it carries each way, and how long a byte is on it."""

    a: int
    b: int
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Fabric:
    """Ranks, switches (nodes in this order), and at most one link between two nodes; all nodes are connected."""

    num_ranks: int
    switches: tuple[str, ...]
    links: tuple[FabricLink, ...]

    def __post_init__(self) -> None:
        seen: set[tuple[int, int]] = set()
        for link in self.links:
            a, b, bytes_per_s, latency_s = link
            if a == b:
                raise ConfigError(f"{self._named(link)} joins a node to itself; remove it")
            if not 0 < bytes_per_s < math.inf:
                raise ConfigError(f"{self._named(link)} carries {bytes_per_s:g} B/s; give a bandwidth above zero")
            if not 0 <= latency_s < math.inf:
                raise ConfigError(f"{self._named(link)} has a latency of {latency_s:g} s; give zero or more")
            pair = (a, b) if a < b else (b, a)
            if pair in seen:
                raise ConfigError(f"{self._named(link)} stands twice; give it once, with the bandwidth of both")
            seen.add(pair)
        _check_connected(self)

    def _named(self, link: FabricLink) -> str:
        return f"link {self.name(link.a)}-{self.name(link.b)}"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Hash thousands of links once, not at every look-up of a cost."""
        return hash((self.num_ranks, self.switches, self.links))

    @property
    def num_nodes(self) -> int:
        """Ranks and switches ``V``."""
        return self.num_ranks + len(self.switches)

    def scaled(self, *, bandwidth: float = 1.0, latency: float = 1.0) -> "Fabric":
        """Return the same nodes and links, with bandwidths and latencies times a factor."""
        links = ((a, b, speed * bandwidth, seconds * latency) for a, b, speed, seconds in self.links)
        return replace(self, links=tuple(map(FabricLink._make, links)))

    def name(self, node: int) -> str:
        """Name a node: a rank by its number."""
        return str(node) if node < self.num_ranks else self.switches[node - self.num_ranks]


def _check_connected(fabric: Fabric) -> None:
    neighbours: list[list[int]] = [[] for _ in range(fabric.num_nodes)]
    for link in fabric.links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    reached, fresh = {0}, {0}
    while fresh:
        fresh = {node for at in fresh for node in neighbours[at]} - reached
        reached |= fresh
    if len(reached) < fabric.num_nodes:
        lost = next(node for node in range(fabric.num_nodes) if node not in reached)
        raise ConfigError(
            f"the graph is disconnected: no way leads from {fabric.name(0)} to {fabric.name(lost)}; "
            f"add the links that are missing"
        )


def fabric_of(num_ranks: int, switches: Sequence[str], links: Iterable[tuple[Any, Any, float, float]]) -> Fabric:
    """Number the nodes of listed links (node, node, bytes per second, seconds): ranks' numbers or switches' names.

    Raises
    ------
    ConfigError
        If a name stands twice, a node is unknown, or the links make no network; see `Fabric`.

    >>> fabric_of(2, ["leaf"], [(0, "leaf", 1e9, 1e-6), (1, "leaf", 1e9, 1e-6)]).num_nodes
    3
    """
    if num_ranks < 1:
        raise ConfigError(f"a graph of {num_ranks} ranks; give a size of 1 or more")
    twice = next((name for number, name in enumerate(switches) if name in switches[:number]), None)
    if twice is not None:
        raise ConfigError(f"switch {twice!r} stands twice; give each switch a name of its own")
    number_of: dict[str, int] = {str(rank): rank for rank in range(num_ranks)}
    for number, name in enumerate(switches):
        if name in number_of:
            raise ConfigError(f"switch {name!r} has the name of a rank; give it another")
        number_of[name] = num_ranks + number

    def node(name: Any) -> int:
        if str(name) not in number_of:
            hint = nearest(str(name), switches) if switches else "list the switches under 'switches'"
            raise ConfigError(f"unknown node {name!r}: neither a rank (0 to {num_ranks - 1}) nor a switch; {hint}")
        return number_of[str(name)]

    found = tuple(FabricLink(node(a), node(b), speed, latency_s) for a, b, speed, latency_s in links)
    return Fabric(num_ranks, tuple(switches), found)


def load_fabric(path: Path) -> Fabric:
    """Read a GraphML file through networkx, or an edge list as networkx reads it.

    Raises
    ------
    ConfigError
        If the file cannot be read, or what it says is no network; the message names the file.
    """
    text = read_text(path, what="graph")
    try:
        return fabric_of_graph(_graphml(text)) if path.suffix == ".graphml" else _of_edges(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def fabric_of_graph(graph: Any) -> Fabric:
    """Return the network that a graph of networkx is, with ranks and links as in files.

    Raises
    ------
    ConfigError
        If the graph is directed, its ranks are not numbered from 0, or a link lacks a bandwidth or latency.

    >>> import networkx
    >>> graph = networkx.Graph()
    >>> graph.add_edges_from([(0, "leaf"), (1, "leaf")], bandwidth="50 GB/s", latency="1 us")
    >>> fabric_of_graph(graph).switches
    ('leaf',)
    """
    if graph.is_directed():
        raise ConfigError("the graph is directed, and links are full-duplex; write it with undirected edges")
    given = {str(name): value for name, value in graph.nodes(data="rank") if value is not None}
    links = ((a, b, *_attributes(a, b, data)) for a, b, data in graph.edges(data=True))
    return _fabric(list(map(str, graph.nodes)), given, links)


def _graphml(text: str) -> Any:
    import networkx  # noqa: PLC0415 - half a second that only files of GraphML need

    try:
        return networkx.parse_graphml(text)
    except Exception as error:  # whatever networkx and its parsers raise on a file that is not what its name says
        raise _no_graph("a GraphML file", error) from None


def _no_graph(what: str, error: Exception) -> ConfigError:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(f"not {what} ({first}); mend the file")


def _of_edges(text: str) -> Fabric:
    """Read an edge list: of its nodes in order of appearance the links of each to later ones, as networkx has them.

    A graph of networkx takes twice the time and memory, which hundreds of thousands of links are short of.
    """
    place_of: dict[str, int] = {}
    rows = []
    try:
        for a, b, data in _edges(text):
            first, second = place_of.setdefault(a, len(place_of)), place_of.setdefault(b, len(place_of))
            link = (a, b) if first <= second else (b, a)
            rows.append((min(first, second), (*link, *_attributes(*link, data))))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:  # of literal_eval
        raise _no_graph("an edge list", error) from None
    rows.sort(key=itemgetter(0))
    return _fabric(list(place_of), {}, (link for _, link in rows))


def _edges(text: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the edges of an edge list, as `networkx.parse_edgelist` does; attributes that many have are read once."""
    attributes = lru_cache(maxsize=1024)(lambda text: literal_eval(" ".join(text.split())))
    for line in text.split("\n"):
        words = line.partition("#")[0].split(None, 2)
        if len(words) < 2:
            continue
        found = attributes(words[2]) if words[2:] else {}
        if not isinstance(found, dict):
            raise ValueError(f"{shown(' '.join(words))} does not end with attributes in braces")  # noqa: TRY004
        yield words[0], words[1], found


def _fabric(names: Sequence[str], given: Mapping[str, Any], links: Iterable[tuple[Any, Any, float, float]]) -> Fabric:
    """Return the network of some nodes; `given` are numbers of ranks, which otherwise are those with such names."""
    ranks = _ranks(given or {name: name for name in names if name.isdecimal()})
    switches = [name for name in names if name not in ranks]
    numbered = ((ranks.get(str(a), a), ranks.get(str(b), b), speed, seconds) for a, b, speed, seconds in links)
    return fabric_of(len(ranks), switches, numbered)


def _ranks(found: Mapping[str, Any]) -> dict[str, int]:
    """Return nodes that are ranks with their numbers, which must be 0, 1, 2, ..."""
    ranks = {name: number for name, value in found.items() if (number := whole(str(value))) is not None}
    if len(ranks) < len(found):
        raise ConfigError("the number of a rank is no whole number; number the ranks 0, 1, 2, ...")
    if not ranks:
        raise ConfigError("no node is a rank; number the ranks in the node attribute 'rank', or name them 0, 1, 2, ...")
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ConfigError(f"the {len(ranks)} ranks are not numbered 0 to {len(ranks) - 1}; number each once")
    return ranks


_QUANTITIES = {"bandwidth": BYTES_PER_S, "latency": SECONDS}
_READERS = {key: lru_cache(maxsize=1024)(partial(parse, quantity=each)) for key, each in _QUANTITIES.items()}
"""Attribute of a link to what it is, and to what reads its text; what many links have in common is read once."""


def _attributes(a: Any, b: Any, data: dict[str, Any]) -> tuple[float, float]:
    values = []
    for key, quantity in _QUANTITIES.items():
        if key not in data:
            raise ConfigError(f"link {a}-{b} has no attribute {key!r}; add it, such as {key}={quantity.example!r}")
        try:
            text = data[key]
            values.append(_READERS[key](text) if isinstance(text, str) else parse(text, quantity))
        except ConfigError as error:
            raise ConfigError(f"link {a}-{b}: {key}: {error}") from None
    return values[0], values[1]
