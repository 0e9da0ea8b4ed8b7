"""Networks of so many ranks, by name: more nodes of one, a part of a node, and those that a device is sold with.

A part of a node's switch is a smaller switch, as each rank has a port of its own; it is named by an expression, where a
link type says the same as the node's file. Parts of other kinds of dimension are not known.
"""

from dataclasses import replace
from shlex import quote
from typing import NamedTuple

from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.config.library import names
from scaleout.config.units import counted
from scaleout.errors import ConfigError


class Sized(NamedTuple):
    """A topology by name or expression, and how many nodes of it, if not its own number."""

    topology: str
    nodes: int | None = None

    @property
    def options(self) -> str:
        """Words of a command line that name it."""
        return f"--topology {quote(self.topology)}" + (f" --nodes {self.nodes}" if self.nodes else "")


def without_nodes(topology: Topology) -> str:
    """Say that a topology of one dimension is one node."""
    ranks = counted(topology.num_ranks, "rank")
    return f"topology {topology.name!r} has {ranks} and no nodes that there could be more of"


def part_of_node(topology: Topology, ranks: int) -> str:
    """Return the expression of so many ranks of a node, or of a whole one; nothing where no link type says the same."""
    node = topology.dimensions[0]
    if node.kind != "switch" or not 0 < ranks <= node.size or len(topology.dimensions) > 2:
        return ""
    for link in names("link type"):
        found = load_topology(f"switch({ranks},{link})")
        part = replace(node.resized(ranks), link_type=found.dimensions[0].link_type)
        if found == replace(topology, name=found.name, source=found.source, dimensions=(part,)):
            return found.name
    return ""


def nodes_like(topology: Topology, ranks: int) -> Sized | None:
    """Return the shipped network of several nodes, each the one that a topology is, with so many ranks."""
    family = topology.name.rpartition("-")[0]
    shipped = [load_topology(name) for name in names("topology") if family and name.startswith(f"{family}-")]
    alike = [each for each in shipped if each.dimensions[:-1] == topology.dimensions]
    alike.sort(key=lambda each: (each.num_ranks != ranks, each.num_ranks))
    return next(filter(None, (_sized(each.name, each, ranks) for each in alike)), None)


def several_nodes(topology: Topology) -> str:
    """Name a topology of two nodes like the one that another is."""
    like = f"{topology.name.rpartition('-')[0]}-2"
    node = part_of_node(topology, topology.num_ranks)
    if like in names("topology"):
        return f"such as {like}"
    return f"such as '{node} x switch(2,ndr)'" if node else "see `scaleout list topologies`"


def sized(name: str, ranks: int, *, device: str) -> Sized:
    """Return the named topology with as many nodes as have so many ranks, or a part of a node.

    Raises
    ------
    ConfigError
        If there is none; the message has one that the device is sold with.
    """
    topology = load_topology(name)
    found = _sized(name, topology, ranks)
    if found is not None:
        return found
    own = of_device(device, ranks)
    hint = "" if own is None else f", such as {own.options}"
    node = _node_ranks(topology)
    if ranks < node:
        raise ConfigError(
            f"a node of topology {name!r} has {counted(node, 'rank')}, of which no part is known; give {node}{hint}"
        )
    if len(topology.dimensions) > 1:
        raise ConfigError(f"a node of topology {name!r} has {node}; give a multiple")
    if own is not None:
        raise ConfigError(f"{without_nodes(topology)}; give a topology of several nodes{hint}")
    multiple = f"a multiple of {node} and " if ranks % node else ""
    like = several_nodes(next(iter(_own(device, ranks)), topology))
    raise ConfigError(f"{without_nodes(topology)}; give {multiple}a topology of several nodes, {like}")


def of_device(device: str, ranks: int) -> Sized | None:
    """Return the network of so many ranks that is named for a device, DGX first; None where none ships."""
    return next(filter(None, (_sized(each.name, each, ranks) for each in _own(device, ranks))), None)


def without_network(device: str, ranks: int) -> str:
    """Say that no network of so many ranks is named for a device, and of how many there are."""
    own = _own(device, ranks)
    if not own:
        return f"no network that {device} is sold with ships; give --topology"
    several = next((f"a multiple of {_node_ranks(each)}" for each in own if len(each.dimensions) > 1), "")
    give = several or " or ".join(str(each.num_ranks) for each in own)
    return f"no network that {device} is sold with has so many ranks; give {give}, or --topology"


def _node_ranks(topology: Topology) -> int:
    """Return how many ranks of a topology are one node."""
    return topology.num_ranks if len(topology.dimensions) < 2 else topology.num_ranks // topology.shape[-1]


def _own(device: str, ranks: int) -> list[Topology]:
    """Return the networks that are named for a device: DGX first, of these those of so many ranks, then small ones."""
    dgx = f"dgx-{device.partition('-')[0]}-"
    found = [load_topology(name) for name in names("topology") if name.startswith((dgx, f"{device}-"))]
    return sorted(found, key=lambda each: (not each.name.startswith(dgx), each.num_ranks != ranks, each.num_ranks))


def _sized(name: str, topology: Topology, ranks: int) -> Sized | None:
    if topology.num_ranks == ranks:
        return Sized(name)
    nodes, rest = divmod(ranks, topology.num_ranks // topology.shape[-1])
    if len(topology.dimensions) > 1 and not rest:
        return Sized(name, nodes)
    part = part_of_node(topology, ranks)
    return Sized(part) if part else None
