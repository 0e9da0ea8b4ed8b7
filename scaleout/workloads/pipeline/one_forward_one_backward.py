"""1F1B: each rank takes in as many microbatches as it needs to stay busy, then alternates forward and backward.

Rank r starts with ``p - 1 - r`` forwards. The bubble is GPipe's, ``(p - 1) (F + B)``, but at most ``p - r``
microbatches are in flight on rank r.

Symbols: p ranks; r a rank; m microbatches; F, B seconds of a forward and a backward.
Source: Narayanan et al., arXiv:2104.04473, section 2.2 (PipeDream-Flush).
"""

from scaleout.workloads.pipeline.layout import LOOP
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, Slot, alone


def alternate(forwards: list[Slot], backwards: list[Slot], warm_up: int) -> Order:
    """Put forwards and backwards in turn after a number of forwards; what is left of the backwards comes last."""
    ahead = min(warm_up, len(forwards))
    pairs = zip(forwards[ahead:], backwards, strict=False)
    return (*forwards[:ahead], *(slot for pair in pairs for slot in pair), *backwards[len(forwards) - ahead :])


def _order(rank: int, p: int, m: int, _v: int) -> Order:
    forwards = [alone(Action.FORWARD, i) for i in range(m)]
    backwards = [alone(Action.BACKWARD, i) for i in range(m)]
    return alternate(forwards, backwards, p - 1 - rank)


PIPELINE = Pipeline(
    "1f1b",
    "one forward, one backward: GPipe's bubble, at most p microbatches in flight",
    "Narayanan et al., arXiv:2104.04473",
    num_chunks=1,
    order=_order,
    layout=LOOP,
)
