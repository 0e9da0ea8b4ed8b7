"""DualPipeV: DualPipe folded in its middle, so that no parameters are held twice.

The upper half of DualPipe's ranks is a mirror image of the lower. Without it, microbatches that go down turn round at
the last rank and come back as the far ones: a V of two chunks a rank, every rank with the order that it has in a
DualPipe of 2 p ranks and 2 m microbatches, and with its bubble, ``(p - 1) (F&B + B - 3 W)``, and activations.

Symbols: p ranks; m microbatches; F&B, B, W seconds of an overlapped pair, a whole backward, its weights' part.
Source: Qi et al., Cut-in-half, https://hackmd.io/@ufotalent/r1lVXsa9Jg, 2025; bubble: deepseek-ai/DualPipe, README.
"""

from scaleout.workloads.pipeline.dualpipe import two_sided
from scaleout.workloads.pipeline.layout import VEE
from scaleout.workloads.pipeline.pipeline import Order, Pipeline


def _order(rank: int, p: int, m: int, _v: int) -> Order:
    return two_sided(rank, p, near=range(m), far=range(m))


def _check(p: int, m: int, _v: int) -> str | None:
    return f"{m} microbatches are too few for {p} ranks; give {2 * p} or more" if m < 2 * p else None


PIPELINE = Pipeline(
    "dualpipe_v",
    "dualpipe folded into a V: forward and backward overlapped, one copy of the parameters",
    "Qi et al., 2025; deepseek-ai/DualPipe",
    num_chunks=2,
    order=_order,
    layout=VEE,
    check=_check,
)
