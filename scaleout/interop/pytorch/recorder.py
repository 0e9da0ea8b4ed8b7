"""What recording takes of the host's time, as a recording itself tells.

An operator that returns a view of a tensor computes nothing. One that calls nothing but another of these takes longer
than that one by what it takes to enter and leave an operator: a fraction of a microsecond, and what the profiler and an
execution trace observer write meanwhile, 10 to 20 us with both on H200's host. All operators are taken to cost as much.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from scaleout.interop.pytorch.kineto import NONE, Recording

_VIEW_NAMES = (
    "alias", "as_strided", "chunk", "detach", "expand", "expand_as", "flatten", "movedim", "narrow", "permute",
    "reshape", "select", "slice", "split", "squeeze", "t", "transpose", "unflatten", "unsqueeze", "view", "view_as",
)  # fmt: skip
"""Operators that return views (PyTorch's documentation, "Tensor Views"); `reshape` and `flatten` where they can."""
_VIEWS = {"detach"}.union(f"aten::{name}" for name in _VIEW_NAMES)
_FEWEST = 5
"""Of such pairs, for their median to count."""


class Recorder:
    """What recording took of stretches of the host's time."""

    def __init__(self, recording: Recording) -> None:
        self.operator_us = _operator_us(recording)
        edges: dict[tuple[str, str], list[float]] = defaultdict(list)
        for operator in recording.operators if self.operator_us else ():
            edges[operator.thread] += (operator.start_us, operator.end_us)
        self._edges_us = {thread: sorted(times) for thread, times in edges.items()}

    def share(self, threads: Iterable[tuple[str, str]], begin_us: float, end_us: float) -> float:
        """Return which share of a stretch recording took, by the operators that threads entered and left in it."""
        if not self.operator_us or end_us <= begin_us:
            return 0.0
        edges = 0
        for thread in set(threads):
            times = self._edges_us.get(thread, [])
            edges += bisect_right(times, end_us) - bisect_right(times, begin_us)
        return min(1.0, edges * self.operator_us / 2 / (end_us - begin_us))


def _operator_us(recording: Recording) -> float:
    """Return what one operator takes to be recorded; 0 where nothing tells."""
    called: dict[int, int] = {}  # operator to the one that it calls, `NONE` if several
    for number, operator in enumerate(recording.operators):
        called[operator.parent] = NONE if operator.parent in called else number
    costs = []
    for outer, inner in called.items():
        if NONE in (outer, inner):
            continue
        caller, callee = recording.operators[outer], recording.operators[inner]
        if caller.name in _VIEWS and callee.name in _VIEWS:
            costs.append((caller.end_us - caller.start_us) - (callee.end_us - callee.start_us))
    return max(0.0, median(costs)) if len(costs) >= _FEWEST else 0.0
