"""Networks from whatever describes them: a name, a file, an expression, a graph of networkx, or a loaded one."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from scaleout.cluster.topology.dimension import graph_dimension
from scaleout.cluster.topology.fabric import fabric_of_graph
from scaleout.cluster.topology.topology import Topology
from scaleout.cluster.topology.topology import load_topology as load_file
from scaleout.cluster.topology.what_if import NetworkChanges, change_network


@runtime_checkable
class Graph(Protocol):
    """A graph of networkx, which need not be imported to know one."""

    name: str

    @property
    def nodes(self) -> Any:
        """Its nodes."""

    @property
    def edges(self) -> Any:
        """Its edges."""

    def is_directed(self) -> bool:
        """Whether its edges have a direction."""
        ...


Network: TypeAlias = Topology | Graph | str
"""What names or is a network."""


def load_topology(topology: Network, changes: Mapping[str, Any] | NetworkChanges | None = None) -> Topology:
    """Return a network, changed as asked.

    Parameters
    ----------
    topology : str, networkx.Graph or Topology
        The name of a shipped one, a file (YAML, GraphML or an edge list), an expression, or a graph: nodes named by
        whole numbers, or numbered by the attribute `rank`, are ranks, all others switches; each edge has a `bandwidth`
        and a `latency`.
    changes : mapping or NetworkChanges, optional
        ``nodes``, ``taper``, ``bandwidth``, ``latency``, ``nic_down``, ``degrade``, ``broken`` and ``slow``, as the
        options of the command line: ``{"bandwidth": {"ndr": "2x"}}``.

    Raises
    ------
    ConfigError
        If there is no such network, or it cannot be changed so; the message says where and why.

    Examples
    --------
    >>> import networkx, scaleout
    >>> scaleout.load_topology("switch(8,nvlink4) x torus(4,4,ndr)").num_ranks
    128
    >>> ring = networkx.cycle_graph(4)
    >>> networkx.set_edge_attributes(ring, "50 GB/s", "bandwidth")
    >>> networkx.set_edge_attributes(ring, "1 us", "latency")
    >>> scaleout.load_topology(ring).num_ranks
    4
    """
    found = topology
    if isinstance(found, Graph):
        name = str(found.name) or "graph"
        found = Topology(name, (graph_dimension(fabric_of_graph(found)),), source="a graph of networkx")
    elif not isinstance(found, Topology):
        found = load_file(found)
    return change_network(found, changes_of(changes))


def name_of(topology: Network, loaded: Topology) -> str:
    """Return what inputs call a network: a name, file or expression as it was given, or else the loaded one's."""
    return topology if isinstance(topology, str) else loaded.name


def changes_of(given: Mapping[str, Any] | NetworkChanges | None) -> NetworkChanges:
    """Return changes of a network, which may be given as a mapping; `ConfigError` if one is none."""
    return given if isinstance(given, NetworkChanges) else NetworkChanges.of(**(given or {}))
