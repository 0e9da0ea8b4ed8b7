"""1F1B: each rank takes in as many microbatches as it needs to stay busy, then alternates forward and backward.

Rank r starts with ``p - 1 - r`` forwards. Interleaved, every rank holds v chunks of the model, and microbatches pass
all ranks v times. They go in groups of L, p if nothing else is said: the first chunk takes all of a group, then the
second, and so on; backwards take the chunks the other way round. Rank r then starts with
``2 (p - 1 - r) + (v - 1) L`` forwards of a chunk. Groups of p, depth-first, hold least; one of all m, breadth-first,
lets most of a chunk's gathers and reductions overlap. A last group is no smaller than p: ranks would wait within it.

Symbols: p ranks; r a rank; m microbatches; v chunks; L microbatches of a group.
Source: Narayanan et al., arXiv:2104.04473, section 2.2; groups of all: Lamy-Poirier, arXiv:2211.05953.
"""

from dataclasses import replace
from functools import partial

from scaleout.workloads.pipeline.pipeline import LOOP, Action, Order, Pipeline, Slot, alone


def _alternate(forwards: list[Slot], backwards: list[Slot], warm_up: int) -> Order:
    """Put forwards and backwards in turn after a number of forwards; what is left of the backwards comes last."""
    ahead = min(warm_up, len(forwards))
    pairs = zip(forwards[ahead:], backwards, strict=False)
    return (*forwards[:ahead], *(slot for pair in pairs for slot in pair), *backwards[len(forwards) - ahead :])


def _order(rank: int, p: int, m: int, _v: int) -> Order:
    forwards = [alone(Action.FORWARD, i) for i in range(m)]
    backwards = [alone(Action.BACKWARD, i) for i in range(m)]
    return _alternate(forwards, backwards, p - 1 - rank)


ONE_FORWARD_ONE_BACKWARD = Pipeline(
    "1f1b",
    "one forward, one backward: GPipe's bubble, at most p microbatches in flight",
    "Narayanan et al., arXiv:2104.04473",
    num_chunks=1,
    order=_order,
    layout=LOOP,
)


def _order_interleaved(rank: int, p: int, m: int, v: int, *, group: int | None = None) -> Order:
    size = group or p
    groups = [range(first, min(first + size, m)) for first in range(0, m, size)]
    forwards = [alone(Action.FORWARD, i, chunk) for each in groups for chunk in range(v) for i in each]
    backwards = [alone(Action.BACKWARD, i, chunk) for each in groups for chunk in reversed(range(v)) for i in each]
    return _alternate(forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * size)


def _check(p: int, m: int, v: int, *, group: int | None = None) -> str | None:
    if v < 2:
        return "a rank holds one chunk, which is 1f1b; interleave 2 chunks or more"
    if group is None:
        if m % p:
            return (
                f"{m} microbatches do not divide into groups of {p}, the number of stages; choose microbatch and batch "
                f"so that there are a multiple of {p}"
            )
        return None
    if not p <= group <= m:
        advice = (
            f"choose groups of {p} to {m}" if p <= m else f"choose microbatch and batch so that there are {p} or more"
        )
        return f"groups of {group} microbatches are not between {p} stages and {m} microbatches; {advice}"
    if 0 < m % group < p:
        return (
            f"{m} microbatches in groups of {group} leave {m % group} for the last, fewer than {p} stages; "
            f"choose groups of {', '.join(str(n) for n in range(p, m + 1) if not 0 < m % n < p)}"
        )
    return None


def _in_groups(group: int) -> Pipeline:
    return replace(INTERLEAVED, order=partial(_order_interleaved, group=group), check=partial(_check, group=group))


INTERLEAVED = Pipeline(
    "interleaved_1f1b",
    "1f1b over v virtual stages a rank: a bubble v times smaller, more messages",
    "Narayanan et al., arXiv:2104.04473",
    num_chunks=None,
    order=_order_interleaved,
    layout=LOOP,
    check=_check,
    in_groups=_in_groups,
)
