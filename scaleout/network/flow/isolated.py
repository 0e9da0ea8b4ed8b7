"""Transfers in isolation: when they have sent all, and are done, if nothing else crosses their links."""

import hashlib
from dataclasses import replace
from functools import cached_property

import numpy as np

from scaleout.network.flow.flows import Demand
from scaleout.network.flow.shared import SharedTraffic, Transfer
from scaleout.network.routes.crossing import Crossing
from scaleout.network.routes.links import Floats, Ints, Links

_MOST_COMPARED = 100_000
"""Pairs of a message and a link up to which demands are compared; larger ones are told apart by identity."""


class _Route:
    """The links that a demand crosses; equal for demands that are the same but for the names of their links."""

    def __init__(self, links: Links, demand: Demand) -> None:
        self._links = links
        self._demand = demand
        self._kinds = list({id(flows): flows for flows in demand.rounds}.values())
        self._wholes: list[Crossing] = list({id(flows.whole): flows.whole for flows in self._kinds}.values())
        self._num_pairs = sum(whole.num_pairs for whole in self._wholes)

    @cached_property
    def crossed(self) -> Ints:
        """(H,) the links that messages cross, in order."""
        if self._num_pairs < len(self._links):
            return np.unique(np.concatenate([np.zeros(0, np.int64), *(whole.pairs[1] for whole in self._wholes)]))
        crosses = np.zeros(len(self._links), np.bool_)
        for whole in self._wholes:
            for way in whole.ways:
                crosses[way.links] = True
            if crosses.all():
                break
        return np.flatnonzero(crosses)

    def __hash__(self) -> int:
        return hash((self._num_pairs, self._demand.num_members, self._demand.fractions, self._demand.chain_of_round))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Route) or max(self._num_pairs, other._num_pairs) > _MOST_COMPARED:
            return self is other
        return self is other or (hash(self), self._named[1]) == (hash(other), other._named[1])

    @property
    def order(self) -> Ints:
        """(H,) the links in the order in which messages first cross them, as indices of `crossed`."""
        return self._named[0]

    @cached_property
    def _named(self) -> tuple[Ints, bytes]:
        """Return that order, and a digest of all that counts, with links numbered in it."""
        rows = [whole.by_message() for whole in self._wholes]
        links = np.concatenate([np.zeros(0, np.int64), *(row[1] for row in rows)])
        named, firsts, which = np.unique(links, return_index=True, return_inverse=True)
        order = np.argsort(firsts, kind="stable")
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        kind_of = {id(flows): kind for kind, flows in enumerate(self._kinds)}
        whole_of = {id(whole): at for at, whole in enumerate(self._wholes)}
        places = [(whole_of[id(flows.whole)], flows.begin, len(flows)) for flows in self._kinds]
        columns = [number[which], self._links.bytes_per_s(named[order]), np.array(self._demand.fractions)]
        columns += [np.array([kind_of[id(flows)] for flows in self._demand.rounds]), np.array(places)]
        columns += [np.array(self._demand.chain_of_round), *(row[at] for row in rows for at in (0, 2))]
        for name in ("sources", "destinations", "latency_s", "times"):
            columns.append(np.concatenate([np.zeros(0), *(getattr(flows, name) for flows in self._kinds)]))
        shape = hashlib.blake2b(np.array([self._demand.num_members, *map(len, columns)]).tobytes())
        for column in columns:
            shape.update(np.ascontiguousarray(column).tobytes())
        return order, shape.digest()


class _Run:
    """A transfer that was run in isolation, without what comes before its first message and after its last."""

    def __init__(self, route: _Route, transfer: Transfer, traffic: SharedTraffic) -> None:
        self.route = route
        self._traffic = traffic
        traffic.start(0, replace(transfer, before_s=0.0, after_s=0.0), 0.0)
        self.sent_s = self.done_s = 0.0
        done: list[int] = []
        while not done:
            self.done_s, sent, done = traffic.advance()
            self.sent_s = self.done_s if sent else self.sent_s

    @cached_property
    def link_bytes(self) -> Floats:
        """(H,) what it sends over each link that it crosses."""
        return self._traffic.link_bytes[self.route.crossed]


class Isolated:
    """A transfer that has its links to itself; run when it is first asked what it takes."""

    def __init__(self, transfers: "IsolatedTransfers", transfer: Transfer) -> None:
        self._transfers = transfers
        self._transfer = transfer
        self._route = transfers.route(transfer.demand)

    @property
    def links(self) -> Ints:
        """(H,) the links that it crosses."""
        return self._route.crossed

    @property
    def sent_s(self) -> float:
        """When it has sent all, from its start."""
        return self._transfer.before_s + self._run.sent_s

    @property
    def done_s(self) -> float:
        """When it is done."""
        return self._transfer.before_s + self._run.done_s + self._transfer.after_s

    @cached_property
    def link_bytes(self) -> Floats:
        """(H,) what it sends over each of them."""
        if self._route is self._run.route:
            return self._run.link_bytes
        found = np.empty(len(self.links))
        found[self._route.order] = self._run.link_bytes[self._run.route.order]
        return found

    @cached_property
    def _run(self) -> _Run:
        return self._transfers.run(self._route, self._transfer)


class IsolatedTransfers:
    """What transfers over some links take in isolation; those that are alike but for the names of their links once."""

    def __init__(self, links: Links, worth_s: float | None = None) -> None:
        self._links = links
        self._worth_s = worth_s
        self._routes: dict[int, tuple[Demand, _Route]] = {}
        self._runs: dict[tuple[_Route, float, bool], _Run] = {}
        self._found: dict[int, tuple[Transfer, Isolated]] = {}

    def of(self, transfer: Transfer) -> Isolated:
        """Return what a transfer takes."""
        if id(transfer) not in self._found:
            self._found[id(transfer)] = transfer, Isolated(self, transfer)  # kept, lest the id returns
        return self._found[id(transfer)][1]

    def route(self, demand: Demand) -> _Route:
        """Return the links that a demand crosses."""
        if id(demand) not in self._routes:
            self._routes[id(demand)] = demand, _Route(self._links, demand)  # kept, lest the id returns
        return self._routes[id(demand)][1]

    def run(self, route: _Route, transfer: Transfer) -> _Run:
        """Run a transfer over a route, or return the run of one that is alike."""
        key = route, transfer.size_bytes, transfer.latencies
        if key not in self._runs:
            self._runs[key] = _Run(route, transfer, SharedTraffic(self._links, self._worth_s))
        return self._runs[key]
