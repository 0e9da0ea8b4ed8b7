"""Interleaved 1F1B: every rank holds v chunks of the model, and microbatches pass all ranks v times.

Microbatches go in groups of p: the first chunk takes all of a group, then the second, and so on; backwards take the
chunks the other way round. Rank r starts with ``2 (p - 1 - r) + (v - 1) p`` forwards of a chunk, then alternates.
The bubble is ``(p - 1) (F + B) / v``, a share ``(p - 1) / (v m + p - 1)`` of the makespan; rank 0 has
``v p + p - 1`` chunks of microbatches in flight, ``1 + (p - 1) / (v p)`` times as much memory as 1F1B.

Symbols: p ranks; r a rank; m microbatches; v chunks; F, B seconds of a forward and a backward of all v chunks.
Source: Narayanan et al., arXiv:2104.04473, section 2.2; memory: Korthikanti et al., arXiv:2205.05198, section 4.
"""

from scaleout.pipelines.layout import LOOP
from scaleout.pipelines.one_forward_one_backward import alternate
from scaleout.pipelines.pipeline import Action, Order, Pipeline, alone


def _order(rank: int, p: int, m: int, v: int) -> Order:
    groups = [range(first, first + p) for first in range(0, m, p)]
    forwards = [alone(Action.FORWARD, i, chunk) for group in groups for chunk in range(v) for i in group]
    backwards = [alone(Action.BACKWARD, i, chunk) for group in groups for chunk in reversed(range(v)) for i in group]
    return alternate(forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * p)


def _check(p: int, m: int, v: int) -> str | None:
    if v < 2:
        return "a rank holds one chunk, which is 1f1b; interleave 2 chunks or more"
    if m % p:
        return f"{m} microbatches do not divide into groups of {p}, the number of stages; choose a multiple of {p}"
    return None


PIPELINE = Pipeline(
    "interleaved_1f1b",
    "1f1b over v chunks of the model a rank: a bubble v times smaller, more messages",
    "Narayanan et al., arXiv:2104.04473",
    num_chunks=None,
    order=_order,
    layout=LOOP,
    check=_check,
)
