"""One collective under the link model: its messages over the links, with all groups of its axis.

Where the members of all groups are alike, this is the alpha-beta cost. Where they are not, a member may start its next
round before others have ended theirs. A pipelined schedule has its chunks' latency from there, and one steady flow for
its bytes. `decide` says which algorithm `auto` takes at each size, and how far from it the fastest other one is.

Symbols: n bytes, as in `collectives.algorithm`; L links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from scaleout.cluster.topology.placement import place, siblings
from scaleout.network import collectives
from scaleout.network.alpha_beta import cost as alpha_beta
from scaleout.network.collectives import schedule
from scaleout.network.flow.demand import check_rounds, demand_of, messages_of
from scaleout.network.flow.flows import Demand
from scaleout.network.flow.instances import whole_transfer
from scaleout.network.flow.link_traffic import LinkTraffic, LinkUse
from scaleout.network.flow.traffic import Traffic
from scaleout.network.routes.links import Links
from scaleout.network.routes.symmetry import Symmetry, group_of_rank, symmetry
from scaleout.program.fastest import fastest


@dataclass(frozen=True)
class LinkCost:
    """What a collective costs under the link model.

    Attributes
    ----------
    num_transfers : messages of all groups; a pipelined schedule is one for each group
    num_chunks : chunks that a pipelined algorithm cuts the buffer into
    traffic : what every link carried; None if there was nothing to do
    """

    time_s: float
    algorithm: str = ""
    num_transfers: int = 0
    num_chunks: int = 1
    traffic: LinkTraffic | None = field(default=None, compare=False)

    @property
    def busiest_links(self) -> tuple[LinkUse, ...]:
        """The links of the highest utilisation, the busiest first."""
        return self.traffic.busiest if self.traffic else ()


def collective_cost(
    kind: str, size_bytes: float, links: Links, ranks: Sequence[int], algorithm: str, *, num_chunks: int | None = None
) -> LinkCost:
    """Cost of one collective, with all groups of its axis active at the same time; zero for no bytes or one rank.

    Parameters
    ----------
    kind, size_bytes, num_chunks
        As in `alpha_beta.collective_cost`.
    links : Links
        From `links_of` a topology.
    ranks : sequence of int
        The group; its siblings are all groups like it that the topology has room for.
    algorithm : str
        One of `collectives.ALGORITHMS`, or ``"auto"`` for the one that is fastest on the links.

    Raises
    ------
    ConfigError
        As `alpha_beta.collective_cost`, or if the algorithm sends more messages than can be routed.

    >>> from scaleout.cluster.topology.topology import load_topology
    >>> from scaleout.network.routes.links import links_of
    >>> cost = collective_cost("all_to_all", 128e6, links_of(load_topology("torus-8x16")), range(128), "direct")
    >>> round(cost.time_s * 1e6, 3)  # 12 hops of 0.7 us, and 2 n over a link of 25 GB/s
    10248.4
    >>> cost.busiest_links[0].link, cost.busiest_links[0].alike
    ('0-8', 128)
    """
    if algorithm == "auto":
        costs = collective_costs(kind, size_bytes, links, ranks, num_chunks=num_chunks)
        return fastest(costs.values(), lambda cost: cost.time_s)
    placement = place(links.topology, ranks)
    if placement.num_ranks > 1:
        check_rounds(schedule(kind, placement, algorithm=algorithm), kind, algorithm, placement.num_ranks)
    cost = alpha_beta.collective_cost(kind, size_bytes, placement, algorithm, num_chunks=num_chunks)
    if not cost.algorithm:
        return LinkCost(0.0)
    found, demand = _demand(kind, links, tuple(ranks), algorithm)
    traffic = Traffic(links)
    traffic.start(0, whole_transfer(demand, size_bytes, cost), 0.0)
    done: list[int] = []
    time_s = 0.0
    while not done:
        time_s, _, done = traffic.advance()
    carried = LinkTraffic(links, found, traffic.link_bytes / cost.inflation, traffic.link_bytes, time_s)
    return LinkCost(time_s, algorithm, demand.num_transfers, cost.num_chunks, carried)


def collective_costs(
    kind: str, size_bytes: float, links: Links, ranks: Sequence[int], *, num_chunks: int | None = None
) -> dict[str, LinkCost]:
    """Cost of one collective with each algorithm that can do it but those with more messages than can be routed.

    Raises
    ------
    ConfigError
        If there is no other, and as `collective_cost`.
    """
    names = [algorithm.name for algorithm in collectives.candidates(kind, place(links.topology, ranks))]
    return collectives.possible(
        names, lambda name: collective_cost(kind, size_bytes, links, ranks, name, num_chunks=num_chunks)
    )


@lru_cache(maxsize=16)
def _demand(kind: str, links: Links, ranks: tuple[int, ...], algorithm: str) -> tuple[Symmetry, Demand]:
    """The demand of a collective for the links, at any size, and the symmetry that it is told up to."""
    groups = siblings(links.topology, ranks)
    messages = messages_of(links.topology, groups, kind, algorithm)
    found = symmetry(links.topology, [group_of_rank(groups, links.topology.num_ranks)], messages=messages)
    return found, demand_of(links, found, groups, kind, algorithm)


@dataclass(frozen=True)
class Decision:
    """What is taken at one size.

    Attributes
    ----------
    algorithm : what `auto` takes
    runner_up : the fastest other; empty if there is no other
    ratio : float
        Time of the fastest other over that of what is taken; 1 if there is no other, and less than 1 if `auto` does
        not take the fastest.
    changed : whether a smaller size takes another algorithm; false at the first size
    """

    bytes: int
    algorithm: str
    time_s: float
    runner_up: str
    ratio: float
    changed: bool


def decide(times_s: Mapping[int, Mapping[str, float]], taken: Mapping[int, str]) -> tuple[Decision, ...]:
    """Return the decision at each size in bytes, in order, from the time of each algorithm and what `auto` takes.

    >>> times_s = {10: {"ring": 2.0, "direct": 1.0}, 1000: {"ring": 3.0, "direct": 6.0}}
    >>> [first, second] = decide(times_s, {10: "direct", 1000: "ring"})
    >>> first.algorithm, second.algorithm, second.runner_up, second.ratio, second.changed
    ('direct', 'ring', 'direct', 2.0, True)
    >>> decide(times_s, {10: "ring", 1000: "ring"})[0].ratio
    0.5
    """
    decisions: list[Decision] = []
    for size_bytes, times in times_s.items():
        chosen, time_s = taken[size_bytes], times[taken[size_bytes]]
        others = {name: other_s for name, other_s in times.items() if name != chosen}
        runner_up = min(others, key=others.__getitem__, default="")
        changed = bool(decisions) and decisions[-1].algorithm != chosen
        ratio = others.get(runner_up, time_s) / time_s if time_s else 1.0
        decisions.append(Decision(size_bytes, chosen, time_s, runner_up, ratio, changed))
    return tuple(decisions)


def forget() -> None:
    """Forget all demands: an algorithm has been defined anew."""
    _demand.cache_clear()
