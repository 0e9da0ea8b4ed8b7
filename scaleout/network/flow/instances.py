"""Instances of a program as flows over the links that all of them share.

Adapts `traffic` to the engine. A slice of a larger transfer, and a message, releases its streams when its
bytes have left, and pays the latency of the whole after that; everything else holds its streams until it is done. An
instance that shared devices slow down is *paced*: they set its speed from its start on, 0 until it has its SMs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from scaleout.network.alpha_beta.cost import CollectiveCost, send_cost
from scaleout.network.flow.demand import Alike, Group, demand_of, demand_of_message
from scaleout.network.flow.flows import Demand
from scaleout.network.flow.shared import Transfer
from scaleout.network.flow.traffic import Traffic
from scaleout.network.routes.links import Floats, Links
from scaleout.program.graph import NONE


class LinkNetwork:
    """The links of a topology; `alike` says which of them are, and which members of each process-group set.

    Its entry `NONE` says so of the ends of messages.
    """

    def __init__(self, links: Links, alike: Mapping[int, Alike]) -> None:
        self.alike = alike
        self.traffic = Traffic(links)
        self.transfers: dict[int, Transfer] = {}
        """Instance to what it sends."""
        self._messages: dict[tuple[int, int, float], Transfer] = {}
        self._routed: dict[tuple[int, int], Demand] = {}
        self._demands: dict[tuple[str, str, int], tuple[Demand, Sequence[Group]]] = {}
        self._speeds: dict[int, float] = {}
        """Speeds that were set at the present moment, which has to be over before they count: the last one does."""
        self._set_s = 0.0
        self.paced: set[int] = set()
        self._moving: set[int] = set()
        """Paced instances that have their SMs."""

    def register(
        self, instances: Sequence[int], kind: str, size_bytes: float, *, family: int, groups: Sequence[Group],
        cost: CollectiveCost, sliced: bool,
    ) -> None:  # fmt: skip
        """Register like collectives of groups, told apart by identity, with the algorithm and latency of the whole.

        Their bytes are those of a slice of the whole if they are `sliced`.
        """
        key = (kind, cost.algorithm, id(groups))
        if key not in self._demands:
            demand = demand_of(self.traffic.links, self.alike[family], groups, kind, cost.algorithm)
            self._demands[key] = demand, groups  # kept, lest the id returns
        transfer_of = _back_to_back if sliced else whole_transfer
        self.transfers |= dict.fromkeys(instances, transfer_of(self._demands[key][0], size_bytes, cost))

    def register_message(self, instance: int, size_bytes: float, *, source: int, destination: int) -> None:
        """Register one message between two ranks."""
        key = source, destination, size_bytes
        if key not in self._messages:
            links, ends = self.traffic.links, (source, destination)
            if ends not in self._routed:
                self._routed[ends] = demand_of_message(links, source, destination, self.alike[NONE])
            cost = send_cost(size_bytes, links.topology, source=source, destination=destination)
            self._messages[key] = _back_to_back(self._routed[ends], size_bytes, cost)
        self.transfers[instance] = self._messages[key]

    @property
    def sent_bytes(self) -> Floats:
        """(L,) what all transfers send over each link in a program that has ended, without what protocols add.

        Of links that are alike, the one that stands for them.
        """
        found = np.zeros(len(self.traffic.links))
        transfers = {id(each): each for each in self.transfers.values()}
        for key, times in Counter(map(id, self.transfers.values())).items():
            isolated = self.traffic.isolated.of(transfers[key])
            found[isolated.links] += times * isolated.link_bytes / transfers[key].inflation
        return found

    def pace(self, instances: Iterable[int]) -> None:
        """Let instances wait for their speeds, and go at them."""
        self.paced.update(instances)

    def start(self, instance: int, now_s: float) -> None:
        """Start an instance that is not paced; others start when they are given a speed."""
        if instance in self.transfers and instance not in self.paced:
            self.traffic.start(instance, self.transfers[instance], now_s)

    def set_speed(self, instance: int, speed: float, now_s: float) -> None:
        """Set the speed of a paced instance from now on, as a fraction of its fair rate; 0 before it moves."""
        self._speeds[instance] = speed
        self._set_s = now_s

    def _set_speeds(self) -> None:
        """Start instances that may move now, and give those whose speed has changed their new one."""
        changed: dict[int, float] = {}
        for instance, speed in self._speeds.items():
            if instance in self._moving:
                assert speed > 0, "what has its SMs keeps them"
                changed[instance] = speed
            elif speed > 0:
                self.traffic.start(instance, self.transfers[instance], self._set_s)
                self._moving.add(instance)
                if speed < 1:
                    changed[instance] = speed
        if changed:
            self.traffic.set_speeds(changed, self._set_s)
        self._speeds.clear()

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]:
        """Advance; return the time, the instances that release their streams early, and those that are done."""
        if self._speeds and until_s > self._set_s:
            self._set_speeds()
        now_s, sent, done = self.traffic.advance(until_s)
        return now_s, sorted(filter(self._releases_early, sent)), sorted(done)

    def _releases_early(self, instance: int) -> bool:
        return instance not in self.paced and not self.transfers[instance].latencies


def whole_transfer(demand: Demand, size_bytes: float, cost: CollectiveCost) -> Transfer:
    """Return what a whole collective sends; the latency of chunks comes after a steady flow."""
    after_s = cost.latency_s - cost.before_s if demand.steady else 0.0
    return Transfer(demand, size_bytes * cost.inflation, cost.before_s, after_s, inflation=cost.inflation)


def _back_to_back(demand: Demand, size_bytes: float, cost: CollectiveCost) -> Transfer:
    """Return what a slice or a message sends: its latency is paid once, after its bytes."""
    size_bytes *= cost.inflation
    return Transfer(demand, size_bytes, after_s=cost.latency_s, latencies=False, inflation=cost.inflation)
