"""Interleaved 1F1B: every rank holds v chunks of the model, and microbatches pass all ranks v times.

Microbatches go in groups of L, p if nothing else is said: the first chunk takes all of a group, then the second, and so
on; backwards take the chunks the other way round. Rank r starts with ``2 (p - 1 - r) + (v - 1) L`` forwards of a chunk,
then alternates. The bubble is ``(p - 1) (F + B) / v`` whatever L, a share ``(p - 1) / (v m + p - 1)`` of the makespan.
Rank 0 has ``min((v - 1) L + 2 p - 1, v m)`` chunks of microbatches in flight; where L = p that is
``1 + (p - 1) / (v p)`` times as much memory as 1F1B.

Groups of p, depth-first, hold least; one of all m, breadth-first, leaves communication of a chunk's parameters and
gradients most to run beside. A last group may be smaller, but not than p: ranks would wait within it.

Symbols: p ranks; r a rank; m microbatches; v chunks; L microbatches of a group; F, B seconds of a forward and a
backward of all v chunks.
Source: Narayanan et al., arXiv:2104.04473, section 2.2; memory: Korthikanti et al., arXiv:2205.05198, section 4; groups
of all: Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv:2211.05953.
"""

from dataclasses import replace
from functools import partial

from scaleout.workloads.pipeline.layout import LOOP
from scaleout.workloads.pipeline.one_forward_one_backward import alternate
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, alone


def _order(rank: int, p: int, m: int, v: int, *, group: int | None = None) -> Order:
    size = group or p
    groups = [range(first, min(first + size, m)) for first in range(0, m, size)]
    forwards = [alone(Action.FORWARD, i, chunk) for each in groups for chunk in range(v) for i in each]
    backwards = [alone(Action.BACKWARD, i, chunk) for each in groups for chunk in reversed(range(v)) for i in each]
    return alternate(forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * size)


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
    return replace(PIPELINE, order=partial(_order, group=group), check=partial(_check, group=group))


PIPELINE = Pipeline(
    "interleaved_1f1b",
    "1f1b over v chunks of the model a rank: a bubble v times smaller, more messages",
    "Narayanan et al., arXiv:2104.04473",
    num_chunks=None,
    order=_order,
    layout=LOOP,
    check=_check,
    in_groups=_in_groups,
)
