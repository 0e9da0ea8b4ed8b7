"""Transfers in isolation: when they have sent all, and are done, if nothing else crosses their links."""

import hashlib
from dataclasses import dataclass

import numpy as np

from scaleout.network.flow.flows import Demand
from scaleout.network.flow.shared import SharedTraffic, Transfer
from scaleout.network.routes.links import Floats, Ints, Links

_MOST_COMPARED = 100_000
"""Pairs of a message and a link up to which demands are compared; larger ones are told apart by identity."""


@dataclass(frozen=True, eq=False)
class Isolated:
    """A transfer that has its links to itself.

    Attributes
    ----------
    sent_s, done_s : when it has sent all and is done, from its start
    links, link_bytes : (H,) the links that it crosses, and what it sends over each
    """

    sent_s: float
    done_s: float
    links: Ints
    link_bytes: Floats


class IsolatedTransfers:
    """What transfers over some links take in isolation; those that are alike but for the names of their links once."""

    def __init__(self, links: Links, worth_s: float | None = None) -> None:
        self._links = links
        self._worth_s = worth_s
        self._found: dict[int, tuple[Transfer, Isolated]] = {}
        self._alike: dict[tuple[object, ...], Isolated] = {}
        self._crossed: dict[int, tuple[Demand, Ints, object]] = {}

    def crossed(self, demand: Demand) -> Ints:
        """(H,) the links that messages of a demand cross, in the order in which they first do."""
        return self._shape_of(demand)[1]

    def of(self, transfer: Transfer) -> Isolated:
        """Return what a transfer takes."""
        if id(transfer) not in self._found:
            self._found[id(transfer)] = transfer, self._isolated(transfer)  # kept, lest the id returns
        return self._found[id(transfer)][1]

    def _isolated(self, transfer: Transfer) -> Isolated:
        _, crossed, shape = self._shape_of(transfer.demand)
        key = (shape, transfer.size_bytes, transfer.before_s, transfer.after_s, transfer.latencies)
        if key not in self._alike:
            traffic = SharedTraffic(self._links, self._worth_s)
            traffic.start(0, transfer, 0.0, 0.0)
            done: list[int] = []
            sent_s = now_s = 0.0
            while not done:
                now_s, sent, done = traffic.advance()
                sent_s = now_s if sent else sent_s
            self._alike[key] = Isolated(sent_s, now_s, crossed, traffic.link_bytes[crossed])
        found = self._alike[key]
        return Isolated(found.sent_s, found.done_s, crossed, found.link_bytes)

    def _shape_of(self, demand: Demand) -> tuple[Demand, Ints, object]:
        """Return a demand, the links that it crosses, and what is the same for demands over links that are alike."""
        if id(demand) not in self._crossed:
            self._crossed[id(demand)] = demand, *self._found_shape(demand)
        return self._crossed[id(demand)]

    def _found_shape(self, demand: Demand) -> tuple[Ints, object]:
        kinds = list({id(flows): flows for flows in demand.rounds}.values())
        wholes = {id(flows.whole): flows.whole for flows in kinds}.values()
        if sum(whole.num_pairs for whole in wholes) > _MOST_COMPARED:
            load = sum((way.load(len(self._links)) for whole in wholes for way in whole.ways), np.zeros(1))
            return np.flatnonzero(load), id(demand)
        rows = [flows.crossing.by_message() for flows in kinds]
        links = np.concatenate([np.zeros(0, np.int64), *(row[1] for row in rows)])
        named, firsts, which = np.unique(links, return_index=True, return_inverse=True)
        order = np.argsort(firsts, kind="stable")
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        at = {id(flows): kind for kind, flows in enumerate(kinds)}
        columns = [number[which], self._links.bytes_per_s(named[order]), np.array(demand.fractions)]
        columns.append(np.array([*map(at.__getitem__, map(id, demand.rounds)), *demand.chain_of_round]))
        for flows, (begins, _, shares) in zip(kinds, rows, strict=True):
            columns += [flows.sources, flows.destinations, flows.latency_s, begins, shares]
        shape = hashlib.blake2b(np.array([demand.num_members, *map(len, columns)]).tobytes())
        for column in columns:
            shape.update(np.ascontiguousarray(column).tobytes())
        return named[order], shape.digest()
