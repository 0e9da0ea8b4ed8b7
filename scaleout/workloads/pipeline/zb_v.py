"""ZB-V: two chunks a rank laid out as a V, with the backward in two parts: no bubble where F, I and W are alike.

The first and the last stage lie on rank 0. With F, I and W alike, messages reach rank r as its slots end:

1. forwards of its first chunk until the first microbatch comes back: ``2 (p - r) - 1``;
2. forwards of both chunks in turn until that microbatch's gradient comes down: r of each;
3. forward, input and weight gradient of the second chunk, as one, until the gradient comes up: ``p - r`` times;
4. the same of each chunk in turn, to the last forward;
5. input gradients of both chunks in turn, r of each; input and weight gradient of the first chunk, ``p - r`` times;
   the 2 r gradients of weights that were deferred.

There are 2 p chunks, p whole microbatches, in flight on every rank: what rank 0 has under 1F1B. With
``F = I = W`` every rank is busy from its first forward, r slots after that of rank 0, to its last gradient: the
makespan is longer than a rank's work by ``(p - 1) F``. With fewer than ``2 p - 1`` microbatches ranks wait.

Symbols: p ranks; r a rank; m microbatches; F, I, W seconds of a forward, an input and a weight gradient of a chunk.
Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241 (ZB-V).
"""

from collections.abc import Iterator

from scaleout.workloads.pipeline.layout import VEE
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, Step

FORWARD, INPUT, WEIGHT = Action.FORWARD, Action.INPUT_GRADIENT, Action.WEIGHT_GRADIENT


def _turns(rank: int, p: int, m: int) -> Iterator[tuple[Action, int]]:
    """Yield action and chunk; the microbatches of each follow one another. Needs ``m >= 2 p - 1``."""
    down, up = 0, 1
    first = 2 * (p - rank) - 1
    yield from [(FORWARD, down)] * first
    yield from [(FORWARD, up), (FORWARD, down)] * rank
    whole = [[(FORWARD, chunk), (INPUT, chunk), (WEIGHT, chunk)] for chunk in (down, up)]
    yield from whole[up] * (p - rank)
    yield from (whole[down] + whole[up]) * (m - first - rank)
    yield from (whole[down][1:] + whole[up]) * (p - 1 - rank)
    yield from [(INPUT, down), (INPUT, up)] * rank
    yield from whole[down][1:] * (p - rank)
    yield from [(WEIGHT, up), (WEIGHT, down)] * rank


def _order(rank: int, p: int, m: int, _v: int) -> Order:
    reached = dict.fromkeys(((action, chunk) for action in Action for chunk in range(2)), 0)
    order = []
    for turn in _turns(rank, p, max(m, 2 * p - 1)):
        action, chunk = turn
        if reached[turn] < m:  # fewer microbatches keep the order of those that they have
            order.append((Step(action, chunk, reached[turn]),))
        reached[turn] += 1
    return tuple(order)


PIPELINE = Pipeline(
    "zb_v",
    "two chunks a rank in a V: no bubble where forward, input and weight gradient are alike, at 1f1b's memory",
    "Qi et al., arXiv:2401.10241",
    num_chunks=2,
    order=_order,
    layout=VEE,
)
