"""GPipe: all microbatches forward, then all of them backward, the last one first.

With stages that are alike the bubble is ``(p - 1) (F + B)``, a share ``(p - 1) / (m + p - 1)`` of the makespan; all m
microbatches are in flight at once.

Symbols: p ranks; m microbatches; F, B seconds of a forward and a backward.
Source: Huang et al., GPipe, arXiv:1811.06965, Fig. 2.
"""

from scaleout.workloads.pipeline.layout import LOOP
from scaleout.workloads.pipeline.pipeline import Action, Order, Pipeline, alone


def _order(_rank: int, _p: int, m: int, _v: int) -> Order:
    forwards = [alone(Action.FORWARD, i) for i in range(m)]
    return (*forwards, *(alone(Action.BACKWARD, i) for i in reversed(range(m))))


PIPELINE = Pipeline(
    "gpipe",
    "all forwards, then all backwards",
    "Huang et al., arXiv:1811.06965",
    num_chunks=1,
    order=_order,
    layout=LOOP,
)
