"""GPipe: all microbatches forward, then all backward, the last first. Huang et al., arXiv:1811.06965, Fig. 2."""

from scaleout.workloads.pipeline.pipeline import LOOP, Action, Order, Pipeline, alone


def _order(_rank: int, _p: int, m: int, _v: int) -> Order:
    forwards = [alone(Action.FORWARD, i) for i in range(m)]
    return (*forwards, *(alone(Action.BACKWARD, i) for i in reversed(range(m))))


GPIPE = Pipeline(
    "gpipe",
    "all forwards, then all backwards",
    "Huang et al., arXiv:1811.06965",
    num_chunks=1,
    order=_order,
    layout=LOOP,
)
