"""Ports: what a rank has of each dimension's links, the same on every rank.

Maps a `Dimension` to its ports. Knows neither routes nor which link is slow or broken.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scaleout.dimension import Dimension
from scaleout.wiring import edges_of


@dataclass(frozen=True)
class Port:
    """What a rank has of one dimension's links: the same on every rank.

    Attributes
    ----------
    dimension : int
        Its number; the number of dimensions for the rank's injection, which is in none.
    role : str
        ``"next"``, ``"previous"`` (rings and meshes), ``"up"``, ``"down"`` (switches, trees and dragonflies),
        ``"pair"``, ``"edge"`` (between routers of a dragonfly, and on graphs) or ``"injection"``.
    bytes_per_s : float
        On a graph the fastest link's, see `Links.bytes_per_s`.
    offset : int
        How much further along the dimension the other end lies, for links between two ranks.
    span : int
        Ranks along the dimension that share it: more than one for the bundles of a fat tree.
    """

    dimension: int
    role: str
    bytes_per_s: float
    offset: int = 0
    span: int = 1


def _ring_ports(dimension: Dimension) -> list[Port]:
    ports = [Port(0, "next", dimension.bytes_per_s, 1), Port(0, "previous", dimension.bytes_per_s, -1)]
    return ports[: max(0, dimension.size - 1)]


def _mesh_ports(dimension: Dimension) -> list[Port]:
    """Two ports each; the last rank's next and the first one's previous are never used."""
    return [Port(0, "next", dimension.bytes_per_s, 1), Port(0, "previous", dimension.bytes_per_s, -1)]


def _switch_ports(dimension: Dimension) -> list[Port]:
    return [Port(0, role, dimension.bytes_per_s) for role in ("up", "down")] if dimension.size > 1 else []


def _pair_ports(dimension: Dimension) -> list[Port]:
    return [Port(0, "pair", dimension.bytes_per_s, offset) for offset in range(1, dimension.size)]


def _tree_ports(dimension: Dimension) -> list[Port]:
    return [
        Port(0, role, dimension.bytes_per_s * ports, span=span)
        for span, ports in dimension.levels
        for role in ("up", "down")
    ]


def _dragonfly_ports(dimension: Dimension) -> list[Port]:
    """A port up and down for each rank, and for each router links within its group and to others."""
    ranks, routers, _ = dimension.radices
    local, far = dimension.level_bytes_per_s or (dimension.bytes_per_s,) * 2
    speeds = [local] * (routers - 1) + [far] * dimension.global_links
    own = [Port(0, role, dimension.bytes_per_s) for role in ("up", "down")]
    return own + [Port(0, "edge", speed, span=ranks) for speed in speeds]


def _graph_ports(dimension: Dimension) -> list[Port]:
    """As many as it takes to number all edges of a line by port and place."""
    count = math.ceil(len(edges_of(dimension).tails) / dimension.size)
    return [Port(0, "edge", dimension.bytes_per_s) for _ in range(count)]


PORTS: dict[str, Callable[[Dimension], list[Port]]] = {
    "ring": _ring_ports,
    "mesh": _mesh_ports,
    "switch": _switch_ports,
    "fully_connected": _pair_ports,
    "fat_tree": _tree_ports,
    "dragonfly": _dragonfly_ports,
    "graph": _graph_ports,
}
"""Kind of dimension to the ports of a rank in it."""
