"""Flows: messages that are sent at once, and a collective as rounds of them.

Knows neither algorithms nor time. Symbols: F flows; H pairs of a flow and a link.
"""

from dataclasses import dataclass
from functools import cached_property
from math import fsum

import numpy as np

from scaleout.network.routes.crossing import Crossing
from scaleout.network.routes.links import Floats, Ints
from scaleout.network.routes.routing import Flags


@dataclass(frozen=True, eq=False)
class Flows:
    """Messages that a round sends at once.

    Attributes
    ----------
    sources, destinations : (F,) members, by their number in the `Demand`
    latency_s : (F,)
    whole : the links that messages of this and other rounds cross, and the load on the link for each byte of the flow
    begin : the first of this round among them
    num_messages : messages that they stand for
    times : (F,) messages of a flow that go between the same ends at once; bytes are added to links for each of them
    """

    sources: Ints
    destinations: Ints
    latency_s: Floats
    whole: Crossing
    begin: int
    num_messages: int
    times: Ints

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def crossing(self) -> Crossing:
        """The links that each crosses."""
        return self.whole.between(self.begin, self.begin + len(self))

    @property
    def pairs(self) -> tuple[Ints, Ints, Floats]:
        """(H,) pairs of a flow and a link that it crosses, and the messages on the link for each of the flow."""
        return self.crossing.pairs

    @property
    def num_added(self) -> int:
        """How many there are if each message is a flow."""
        return sum(int(self.times[part.message].sum()) * part.num_rows for part in self.crossing.parts)

    def added(self, which: Flags | None = None) -> tuple[Ints, Floats]:
        """Return links, and the messages on each, of all pairs if each message is a flow; or of some flows, (F,)."""
        flow, links, weights = self.pairs
        if which is not None:
            rows = which[flow]
            flow, links, weights = flow[rows], links[rows], weights[rows]
        times = self.times[flow]
        return np.repeat(links, times), np.repeat(weights / times, times)


@dataclass(frozen=True, eq=False)
class Demand:
    """A collective of some groups.

    Attributes
    ----------
    num_members : members of all groups, those that are alike counted once
    rounds : in order, repeated rounds repeated
    fractions : bytes of a message of each round, as a fraction of the collective's
    steady : whether the one round stands for a pipelined schedule; its latency is then not in it
    chain_of_round : the parallel chain of each round; empty if there is only one
    """

    num_members: int
    rounds: tuple[Flows, ...]
    fractions: tuple[float, ...]
    steady: bool = False
    chain_of_round: tuple[int, ...] = ()

    @cached_property
    def chains(self) -> tuple["Demand", ...]:
        """One demand for each parallel chain; all of them start at the same time."""
        if not self.chain_of_round:
            return (self,)
        chosen = [
            [at for at, each in enumerate(self.chain_of_round) if each == chain]
            for chain in sorted(set(self.chain_of_round))
        ]
        return tuple(
            Demand(self.num_members, tuple(self.rounds[at] for at in chain), tuple(self.fractions[at] for at in chain))
            for chain in chosen
        )

    @property
    def latency_s(self) -> float:
        """Latency of all rounds, of the farthest message of each."""
        return fsum(float(round_.latency_s.max(initial=0.0)) for round_ in self.rounds)

    @property
    def num_transfers(self) -> int:
        """Messages in all, each counted."""
        return sum(round_.num_messages for round_ in self.rounds)
