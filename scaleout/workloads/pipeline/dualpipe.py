"""DualPipe: microbatches enter at both ends of the pipeline, and forwards overlap with backwards of the other way.

Every rank holds two stages, one for each direction. On a rank k from the nearer end, *near* microbatches are those that
entered at this end, and *far* ones those that come from the middle. `_turns` writes the phases of the schedule.

DualPipeV is DualPipe folded in its middle, so that no parameters are held twice: the upper half of DualPipe's ranks is
a mirror image of the lower. Without it, microbatches that go down turn round at the last rank and come back as the far
ones, and every rank has the order that it has in a DualPipe of 2 p ranks and 2 m microbatches.

Symbols: p ranks, h = p / 2, d = h - 1 - k; m microbatches of both directions.
Source: DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.2.1, Fig. 5 and Table 2; DualPipeV: Qi et al.,
Cut-in-half, https://hackmd.io/@ufotalent/r1lVXsa9Jg, 2025, and deepseek-ai/DualPipe, README.
"""

from collections import deque
from collections.abc import Iterator

from scaleout.workloads.pipeline.pipeline import TWO_WAY, VEE, Action, Order, Pipeline, Step

FORWARD, BACKWARD, INPUT, WEIGHT = Action
NEAR, FAR = range(2)

Turn = tuple[tuple[Action, int], ...]
"""A slot before its microbatches have numbers: action and side of each step."""


def _two_sided(k: int, h: int, *, near: range, far: range, near_chunk: int = 0) -> Order:
    """Return the slots of a rank, k from its end and h - 1 - k from the middle; one chunk takes all near microbatches.

    There are as many near ones, which entered at this end, as far ones: 2 h or more.
    """
    chunks = (near_chunk, 1 - near_chunk)
    forwards, backwards = ([iter(near), iter(far)] for _ in range(2))
    owed: deque[tuple[int, int]] = deque()  # gradients of weights deferred: chunk and microbatch

    def step(action: Action, side: int) -> Step:
        if action == WEIGHT:
            return Step(action, *owed.popleft())
        microbatch = next(forwards[side] if action == FORWARD else backwards[side])
        if action == INPUT:
            owed.append((chunks[side], microbatch))
        return Step(action, chunks[side], microbatch)

    return tuple(tuple(step(*part) for part in turn) for turn in _turns(k, h, len(near)))


def _turns(k: int, h: int, n: int) -> Iterator[Turn]:
    d = h - 1 - k
    near, far = ((FORWARD, NEAR),), ((FORWARD, FAR),)
    deferred = ((WEIGHT, NEAR),)  # of whichever side is owed
    yield from [near] * (2 * d)  # until the far microbatches come
    yield from [near, far] * (k + 1)
    yield from [((INPUT, FAR),), deferred, far] * d
    # Pairs of a forward and a backward overlap.
    yield from [(*near, (BACKWARD, FAR)), (*far, (BACKWARD, NEAR))] * (n - 2 * d - (k + 1))
    yield from [((BACKWARD, FAR),), (*far, (BACKWARD, NEAR))] * d
    ends = [(BACKWARD, FAR), (BACKWARD, NEAR)] * (k + 1)
    yield from ((part,) for part in ends[: k + 1])
    yield from (((INPUT, side),) for _, side in ends[k + 1 :])
    yield from [deferred, ((INPUT, NEAR),)] * d
    yield from [deferred] * (k + 1)


def _order(rank: int, p: int, m: int, _v: int) -> Order:
    ways = (range(m // 2), range(m // 2, m))
    near = 0 if rank < p // 2 else 1
    return _two_sided(min(rank, p - 1 - rank), p // 2, near=ways[near], far=ways[1 - near], near_chunk=near)


def _check(p: int, m: int, _v: int) -> str | None:
    if p % 2:
        return f"{p} stages have no middle where the two directions meet; give an even number"
    if m % 2:
        return f"{m} microbatches do not halve into two directions; give an even number"
    if m < 2 * p:
        return f"{m} microbatches are too few for {p} stages; give {2 * p} or more"
    return None


DUALPIPE = Pipeline(
    "dualpipe",
    "microbatches from both ends, forward and backward overlapped; two copies of the parameters",
    "DeepSeek-AI, arXiv:2412.19437",
    num_chunks=2,
    order=_order,
    layout=TWO_WAY,
    check=_check,
)


def _order_v(rank: int, p: int, m: int, _v: int) -> Order:
    return _two_sided(rank, p, near=range(m), far=range(m))


def _check_v(p: int, m: int, _v: int) -> str | None:
    return f"{m} microbatches are too few for {p} ranks; give {2 * p} or more" if m < 2 * p else None


DUALPIPE_V = Pipeline(
    "dualpipe_v",
    "dualpipe folded into a V: forward and backward overlapped, one copy of the parameters",
    "Qi et al., 2025; deepseek-ai/DualPipe",
    num_chunks=2,
    order=_order_v,
    layout=VEE,
    check=_check_v,
)
