"""A recording that is edited: its program, what its metadata tells, and how an edit writes numbers."""

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.config.documents import number, whole
from scaleout.errors import ConfigError
from scaleout.program.calls import entire
from scaleout.program.graph import NONE, ExecutionGraph, Ints, NodeKind, NodeRole
from scaleout.program.operations import Kernel, kernel
from scaleout.program.program import Program


class Change(NamedTuple):
    """A number that changes: by a factor, and from what to what where that was said."""

    factor: Fraction
    old: int | None = None
    new: int | None = None


@dataclass(frozen=True)
class Recorded:
    """A recording to edit: what its metadata tells beside the program."""

    program: Program
    device: Device | None
    host_bound: float = 0.0  # share of the time in which the GPU waited for the host
    steps: int = 1
    parameters: tuple[tuple[int, int], ...] = ()  # number of elements, and how many parameters have as many


def operators_of(graph: ExecutionGraph) -> tuple[list[Kernel], Ints]:
    """Return what operators did, and for each node which of it, (N,): alike for all kernels of an operator."""
    numbers: dict[Kernel, int] = {}
    of_kernel = [numbers.setdefault(entire(call), len(numbers)) for call in graph.kernels]
    return list(numbers), np.array([*of_kernel, NONE], np.int64)[graph.kernel]


@dataclass
class Edited:
    """The program of an edited job, and what the reader must know of it."""

    program: Program
    notes: list[str]


_MOST_TIMES = 10**6
"""As much as a number grows or shrinks."""


def parse_change(text: str, *, where: str) -> Change:
    """Read ``2x`` or ``OLD->NEW``.

    >>> parse_change("3->1", where="batch")
    Change(factor=Fraction(1, 3), old=3, new=1)
    """
    old_text, arrow, new_text = text.partition("->")
    if arrow:
        old, new = whole(old_text.strip(" ")), whole(new_text.strip())
        if old and new and 1 / _MOST_TIMES <= Fraction(new, old) <= _MOST_TIMES:
            return Change(Fraction(new, old), old, new)
    elif text.endswith("x") and (factor := number(text[:-1])) is not None and 1 / _MOST_TIMES <= factor <= _MOST_TIMES:
        return Change(Fraction(factor).limit_denominator(_MOST_TIMES))
    raise ConfigError(
        f"{where}={text}: write a factor, such as 2x, or OLD->NEW, such as 4->8, of at most {_MOST_TIMES:,}"
    )


_SHORT = 0.05
"""The quantile of kernels' times that is taken for what any kernel takes."""


_SMALLER = 4
"""By how much a collective must be smaller than another of its kind for its time to be mostly its start."""


def shortest(program: Program, device: Device | None) -> tuple[float, float]:
    """Return what any kernel takes, and what any collective takes, however little it does.

    Of a kernel the device tells, by one addition, and the shortest recorded ones where no file of it is known: these
    may be large. Of collectives the small ones tell; where all of a kind are alike nothing does, and they scale with
    their bytes.
    """
    kernels, small = [np.zeros(0)], [np.zeros(0)]
    for graph in program.graphs:
        timed = np.isfinite(graph.duration_s) & (graph.duration_s > 0) & ~graph.has_role(NodeRole.HOST)
        kernels.append(graph.duration_s[timed & (graph.kind == NodeKind.COMPUTE)])
        for kind in np.unique(graph.collective[graph.kind == NodeKind.COLLECTIVE]).tolist():
            mine = timed & (graph.kind == NodeKind.COLLECTIVE) & (graph.collective == kind)
            small.append(graph.duration_s[mine & (graph.bytes * _SMALLER <= graph.bytes[mine].max(initial=0))])
    found = [np.concatenate(each) for each in (kernels, small)]
    short_s = float(np.quantile(found[0], _SHORT)) if len(found[0]) else 0.0
    if device is not None:
        short_s = min(short_s, float(kernel_times(device, [kernel("add", dtype="bf16", elements=1)])[0][0]))
    return (
        short_s,
        float(found[1].min()) if len(found[1]) else 0.0,
    )
