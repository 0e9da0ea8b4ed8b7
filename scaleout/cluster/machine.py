"""A machine: a device, and the network that joins so many of them.

Knows no program and no measurement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import counted
from scaleout.errors import ConfigError


@dataclass(frozen=True)
class Machine:
    """The device and the network of a program, and how the network is simulated: `SimulationOptions` of these names."""

    device: Device
    topology: Topology
    algorithms: Mapping[str, str] = field(default_factory=dict)
    network: str = "alpha_beta"
    injection_bytes_per_s: float | None = None

    def of(self, ranks: int) -> "Machine":
        """Return the part of the machine that so many of its first ranks are."""
        return replace(self, topology=first_ranks(self.topology, ranks))


def first_ranks(topology: Topology, ranks: int) -> Topology:
    """Return the topology of the first ranks of a larger one: whole inner dimensions, and part of the next.

    A part of a ring is a line, and ports of a switch are as fast as before.

    Raises
    ------
    ConfigError
        If so many ranks are no such part, or more than there are.

    >>> from scaleout.cluster.topology.topology import load_topology
    >>> first_ranks(load_topology("h200-node-4"), 2).num_ranks
    2
    """
    if ranks == topology.num_ranks:
        return topology
    dimensions: list[Dimension] = []
    left = ranks
    for dimension in topology.dimensions:
        if left % dimension.size == 0 and left >= dimension.size:
            dimensions.append(dimension)
            left //= dimension.size
        elif left <= dimension.size and dimension.structure.part is not None:
            dimensions.append(replace(dimension, kind=dimension.structure.part, size=left))
            left = 1
        if left == 1:
            return replace(topology, dimensions=tuple(dimensions), name=f"{topology.name}[0:{ranks}]")
    raise ConfigError(
        f"topology {topology.name!r} has {counted(topology.num_ranks, 'rank')}, of which {ranks} "
        f"are no part that is known; "
        f"give a topology of {counted(ranks, 'rank')} (--topology)"
    )
