"""Zero-bubble schedules: the backward is split, and gradients of weights fill what was bubble.

**ZB-H1**: forwards and input gradients take 1F1B's turns, so the stage before waits for half a backward only. Rank r
defers its gradients of weights by r microbatches: with the ``p - r`` that 1F1B has in flight there, every rank has p.

**ZB-V** has two chunks a rank laid out as a V: the first and the last stage lie on rank 0. Where a forward, an input
and a weight gradient last equally long, messages reach rank r as its slots end:

1. forwards of its first chunk until the first microbatch comes back: ``2 (p - r) - 1``;
2. forwards of both chunks in turn until that microbatch's gradient comes down: r of each;
3. forward, input and weight gradient of the second chunk, as one, until the gradient comes up: ``p - r`` times;
4. the same of each chunk in turn, to the last forward;
5. input gradients of both chunks in turn, r of each; input and weight gradient of the first chunk, ``p - r`` times;
   the 2 r gradients of weights that were deferred.

With fewer than ``2 p - 1`` microbatches ranks wait.

Symbols: p ranks; r a rank; m microbatches.
Source: Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241: section 2.1 (ZB-H1), ZB-V.
"""

from collections.abc import Iterator

from scaleout.workloads.pipeline.pipeline import LOOP, VEE, Action, Order, Pipeline, Slot, Step, alone

FORWARD, _, INPUT, WEIGHT = Action


def _order_h1(rank: int, p: int, m: int, _v: int) -> Order:
    ahead = min(p - 1 - rank, m)
    order: list[Slot] = [alone(FORWARD, i) for i in range(ahead)]
    for i in range(m + rank):
        if ahead + i < m:
            order.append(alone(FORWARD, ahead + i))
        if i < m:
            order.append(alone(INPUT, i))
        if i >= rank:
            order.append(alone(WEIGHT, i - rank))
    return tuple(order)


ZB_H1 = Pipeline(
    "zb_h1",
    "1f1b with weight gradients deferred into the bubble, at 1f1b's memory",
    "Qi et al., arXiv:2401.10241",
    num_chunks=1,
    order=_order_h1,
    layout=LOOP,
)


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


def _order_v(rank: int, p: int, m: int, _v: int) -> Order:
    reached = dict.fromkeys(((action, chunk) for action in Action for chunk in range(2)), 0)
    order = []
    for turn in _turns(rank, p, max(m, 2 * p - 1)):
        action, chunk = turn
        if reached[turn] < m:  # fewer microbatches keep the order of those that they have
            order.append((Step(action, chunk, reached[turn]),))
        reached[turn] += 1
    return tuple(order)


ZB_V = Pipeline(
    "zb_v",
    "two virtual stages a rank in a V: no bubble where forward, input and weight gradient are alike, at 1f1b's memory",
    "Qi et al., arXiv:2401.10241",
    num_chunks=2,
    order=_order_v,
    layout=VEE,
)
