"""ZB-H1: 1F1B with the backward in two parts; the gradients of weights fill what was bubble, at 1F1B's memory.

Forwards and input gradients take 1F1B's turns, so the stage before waits for half a backward only. Rank r puts its
gradients of weights off by r microbatches: with the ``p - r`` that 1F1B has in flight there, every rank then has p.
The bubble is ``(p - 1) (F + B - 2 W)`` where W is no longer than F and than ``I = B - W``, the input's part; otherwise
``(p - 1) max(F, I)``, as long as ``m >= p``.

Symbols: p ranks; r a rank; m microbatches; F, B, W seconds of a forward, a whole backward, its weights' part.
Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 2.1.
"""

from scaleout.workloads.pipeline.layout import LOOP
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, Slot, alone


def _order(rank: int, p: int, m: int, _v: int) -> Order:
    ahead = min(p - 1 - rank, m)
    order: list[Slot] = [alone(Action.FORWARD, i) for i in range(ahead)]
    for i in range(m + rank):
        if ahead + i < m:
            order.append(alone(Action.FORWARD, ahead + i))
        if i < m:
            order.append(alone(Action.INPUT_GRADIENT, i))
        if i >= rank:
            order.append(alone(Action.WEIGHT_GRADIENT, i - rank))
    return tuple(order)


PIPELINE = Pipeline(
    "zb_h1",
    "1f1b with weight gradients put off into the bubble, at 1f1b's memory",
    "Qi et al., arXiv:2401.10241",
    num_chunks=1,
    order=_order,
    layout=LOOP,
)
