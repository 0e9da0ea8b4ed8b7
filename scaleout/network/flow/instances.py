"""Collectives and messages of a program as the clock meets them, over links that all of them share.

Adapts `traffic` to the `Network` that `engine` asks: a meeting is a number there, and here what it sends. A slice of
a larger transfer lets go of its streams when its bytes have left, and pays the latency of the whole after that, so
that slices follow each other back to back; so does a message. Everything else holds its streams until it is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.cluster.topology.topology import Topology
from scaleout.network.alpha_beta.cost import CollectiveCost, send_cost
from scaleout.network.flow.demand import Group, demand_of, demand_of_message
from scaleout.network.flow.flows import Demand
from scaleout.network.flow.traffic import Traffic
from scaleout.network.routes.links import links_of
from scaleout.network.routes.symmetry import Symmetry


@dataclass(frozen=True)
class _Offer:
    """What a meeting sends, see `Traffic.begin`; back to back if its streams are free as soon as it has left."""

    demand: Demand
    size_bytes: float
    before_s: float
    after_s: float
    back_to_back: bool


class LinkNetwork:
    """The links of a topology, for a program whose ranks are alike by a symmetry."""

    def __init__(self, topology: Topology, symmetry: Symmetry, *, injection_bytes_per_s: float | None = None) -> None:
        self.symmetry = symmetry
        self.traffic = Traffic(links_of(topology, injection_bytes_per_s=injection_bytes_per_s))
        self._offers: dict[int, _Offer] = {}
        self._messages: dict[tuple[int, int, float], _Offer] = {}
        self._routed: dict[tuple[int, int], Demand] = {}
        self._demands: dict[tuple[str, str, int], tuple[Demand, Sequence[Group]]] = {}

    def offer(
        self,
        instance: int,
        kind: str,
        size_bytes: float,
        *,
        groups: Sequence[Group],
        cost: CollectiveCost,
        slice_of_more: bool,
    ) -> None:
        """Say what a meeting is: a collective of some groups, with the algorithm and latency of its whole transfer.

        Groups are told apart by identity, as there may be many: the same object is routed once.
        """
        key = (kind, cost.algorithm, id(groups))
        if key not in self._demands:
            demand = demand_of(self.traffic.links, self.symmetry, groups, kind, cost.algorithm)
            self._demands[key] = demand, groups  # kept, lest the id returns
        demand = self._demands[key][0]
        sent_bytes = size_bytes * cost.inflation
        if slice_of_more:
            self._offers[instance] = _Offer(demand, sent_bytes, 0.0, cost.latency_s, True)
        else:
            after_s = cost.latency_s - cost.before_s if demand.steady else 0.0
            self._offers[instance] = _Offer(demand, sent_bytes, cost.before_s, after_s, False)

    def offer_message(self, instance: int, size_bytes: float, *, source: int, destination: int) -> None:
        """Say what a meeting is: one message between two ranks."""
        key = source, destination, size_bytes
        if key not in self._messages:
            links, ends = self.traffic.links, (source, destination)
            if ends not in self._routed:
                self._routed[ends] = demand_of_message(links, source, destination, self.symmetry)
            cost = send_cost(size_bytes, links.topology, source=source, destination=destination)
            self._messages[key] = _Offer(self._routed[ends], size_bytes * cost.inflation, 0.0, cost.latency_s, True)
        self._offers[instance] = self._messages[key]

    def come(self, instance: int, task: int, now_s: float) -> None:
        """Let a task come to a meeting, which takes nothing from the links yet."""

    def begin(self, instance: int, now_s: float) -> None:
        """Let a meeting begin."""
        offer = self._offers[instance]
        self.traffic.begin(
            instance,
            offer.demand,
            offer.size_bytes,
            now_s=now_s,
            before_s=offer.before_s,
            after_s=offer.after_s,
            latencies=not offer.back_to_back,
        )

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance; return the time, the meetings that let go of their streams, and those that are done."""
        now_s, sent, done = self.traffic.advance(until_s)
        return now_s, sorted(instance for instance in sent if self._offers[instance].back_to_back), sorted(done)
