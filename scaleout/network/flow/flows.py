"""Flows: messages that are sent at once, and a collective as steps of them.

Knows neither algorithms nor time: `demand` makes them, `traffic` carries them.

Symbols: F flows; H pairs of a flow and a link.
"""

from dataclasses import dataclass
from functools import cached_property

from scaleout.network.routes.crossing import Crossing
from scaleout.network.routes.links import Floats, Ints


@dataclass(frozen=True, eq=False)
class Flows:
    """Messages that a step sends at once.

    Attributes
    ----------
    sources, destinations : (F,) members, by their number in the `Demand`
    latency_s : (F,)
    whole : Crossing
        The links that messages cross, of this step and of others, and messages on the link for each of the flow.
    begin : int
        The first of this step among them.
    alike : int
        Messages that each flow stands for.
    """

    sources: Ints
    destinations: Ints
    latency_s: Floats
    whole: Crossing
    begin: int
    alike: int

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


@dataclass(frozen=True, eq=False)
class Demand:
    """A collective of some groups.

    Attributes
    ----------
    num_members : int
        Members of all groups, those that are alike counted once.
    steps : tuple of Flows
        In order, repeated steps repeated.
    fractions : tuple of float
        Bytes of a message of each step, as a fraction of the collective's.
    steady : bool
        Whether the one step stands for a pipelined schedule; its latency is then not in it.
    chain_of_step : tuple of int
        The parallel chain of each step; empty if there is only one.
    """

    num_members: int
    steps: tuple[Flows, ...]
    fractions: tuple[float, ...]
    steady: bool = False
    chain_of_step: tuple[int, ...] = ()

    @cached_property
    def chains(self) -> tuple["Demand", ...]:
        """One demand for each parallel chain; all of them begin at the same time."""
        if not self.chain_of_step:
            return (self,)
        chosen = [
            [at for at, each in enumerate(self.chain_of_step) if each == chain]
            for chain in sorted(set(self.chain_of_step))
        ]
        return tuple(
            Demand(self.num_members, tuple(self.steps[at] for at in chain), tuple(self.fractions[at] for at in chain))
            for chain in chosen
        )

    @property
    def latency_s(self) -> float:
        """Latency of all steps, of the farthest message of each."""
        return sum(float(step.latency_s.max(initial=0.0)) for step in self.steps)

    @property
    def num_transfers(self) -> int:
        """Messages in all, each counted."""
        return sum(len(step) * step.alike for step in self.steps)
