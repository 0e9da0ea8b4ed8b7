"""One collective under the link model: its messages over the links, with all groups of its axis.

Where the members of all groups are alike, this is what `alpha_beta` charges: a step takes the latency of its farthest
message and the time of its busiest link. Where they are not, a member may start its next step before others have
ended theirs. A pipelined schedule is charged its chunks' latency as there, and one steady flow for its bytes.

Symbols: n bytes, as in `collectives.convention`; L links.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.network import alpha_beta
from scaleout.network.demand import demand_of, messages_of
from scaleout.network.links import Ints, links_of
from scaleout.network.symmetry import Symmetry, symmetry
from scaleout.network.traffic import Traffic
from scaleout.placement import place, siblings
from scaleout.topology import Topology

BUSIEST = 5
"""Links that are named as the busiest."""


@dataclass(frozen=True)
class LinkUse:
    """What a link carries.

    Attributes
    ----------
    link : str
        Its name.
    alike : int
        Links that carry as much for the same reason, this one included.
    size_bytes : float
    utilisation : float
        Part of its bandwidth that is used, over the whole time.
    """

    link: str
    alike: int
    size_bytes: float
    utilisation: float


@dataclass(frozen=True)
class LinkCost:
    """What a collective costs under the link model.

    Attributes
    ----------
    time_s : float
    algorithm : str
    num_transfers : int
        Messages of all groups; a pipelined schedule is one for each group.
    busiest_links : tuple of LinkUse
        The busiest first.
    """

    time_s: float
    algorithm: str = ""
    num_transfers: int = 0
    busiest_links: tuple[LinkUse, ...] = ()


def collective_cost(
    kind: str,
    size_bytes: float,
    topology: Topology,
    ranks: Sequence[int],
    algorithm: str,
    *,
    injection_bytes_per_s: float | None = None,
) -> LinkCost:
    """Cost of one collective, with all groups of its axis active at the same time.

    Parameters
    ----------
    kind, size_bytes
        As in `alpha_beta.collective_cost`.
    topology : Topology
    ranks : sequence of int
        The group; its siblings are all groups like it that the topology has room for.
    algorithm : str
        One of `collectives.ALGORITHMS`.
    injection_bytes_per_s : float, optional
        What a rank can send over all its links together.

    Returns
    -------
    LinkCost
        Zero for no bytes or a group of one.

    Raises
    ------
    ConfigError
        If kind or algorithm are unknown, the algorithm cannot do it on this group or sends more messages than can be
        routed, or the size is negative.

    >>> from scaleout.topology import load_topology
    >>> cost = collective_cost("all_to_all", 128e6, load_topology("torus-8x16"), range(128), "direct")
    >>> round(cost.time_s * 1e6, 3)  # 12 hops of 0.7 us, and 2 n over a link of 25 GB/s
    10248.4
    >>> cost.busiest_links[0].link, cost.busiest_links[0].alike
    ('ring 1: 0 -> 8', 128)
    """
    placement = place(topology, ranks)
    charged = alpha_beta.collective_cost(kind, size_bytes, placement, algorithm)
    if not charged.algorithm:
        return LinkCost(0.0)
    groups = siblings(topology, ranks)
    found = _symmetry(topology, groups, kind, algorithm)
    links = links_of(topology, injection_bytes_per_s=injection_bytes_per_s)
    demand = demand_of(links, found, groups, kind, algorithm)
    traffic = Traffic(links)
    chunked_s = charged.latency_s - placement.startup_s if demand.steady else 0.0
    traffic.begin(0, demand, size_bytes, now_s=0.0, before_s=placement.startup_s, after_s=chunked_s)
    done: list[int] = []
    time_s = 0.0
    while not done:
        time_s = traffic.next_s
        _, done = traffic.advance(time_s)
    return LinkCost(time_s, algorithm, demand.num_transfers, busiest_links(traffic, found, time_s))


def busiest_links(traffic: Traffic, found: Symmetry, time_s: float) -> tuple[LinkUse, ...]:
    """Name the links of the highest utilisation over a time; of links that are alike, one."""
    links, carried = traffic.links, traffic.link_bytes
    used = np.flatnonzero(carried)
    if not len(used):
        return ()
    utilisation = carried[used] / links.bytes_per_s(used) / time_s
    chosen = np.argsort(-utilisation, kind="stable")[:BUSIEST]
    return tuple(
        LinkUse(
            links.name(int(used[index])),
            found.order // found.fixing(*links.spread(links.ports[used[index] // links.topology.num_ranks])),
            float(carried[used[index]]),
            float(utilisation[index]),
        )
        for index in chosen
    )


def _symmetry(topology: Topology, groups: Sequence[tuple[int, ...]], kind: str, algorithm: str) -> Symmetry:
    family: Ints = np.full(topology.num_ranks, -1, np.int64)
    for number, group in enumerate(groups):
        family[list(group)] = number
    return symmetry(topology, [family], messages=messages_of(topology, groups, kind, algorithm))
