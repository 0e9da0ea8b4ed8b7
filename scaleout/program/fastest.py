"""The fastest of several ways. Times that differ by rounding alone are a tie, which an order decides.

The last bit of a sum differs between versions of NumPy and between machines; a choice must not.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

MARGIN = 1e-12
"""Times that differ by less, relative, are a tie."""

_Way = TypeVar("_Way")


def is_faster(one_s: float, other_s: float) -> bool:
    """Whether one time is shorter than another by more than rounding.

    >>> is_faster(0.1 + 0.2, 0.3), is_faster(0.3, 0.1 + 0.2), is_faster(0.3, 0.31)
    (False, False, True)
    """
    return one_s < other_s * (1 - MARGIN)


def fastest(ways: Iterable[_Way], key: Callable[[_Way], float]) -> _Way:
    """Return the way whose key is least; of those that tie the first.

    >>> fastest({"split": 0.1 + 0.2, "whole": 0.3, "other": 0.4}.items(), key=lambda item: item[1])
    ('split', 0.30000000000000004)
    """
    found = [(key(way), way) for way in ways]
    least_s = min(seconds for seconds, _ in found)
    return next(way for seconds, way in found if not is_faster(least_s, seconds))


def ranked(ways: Iterable[_Way], key: Callable[[_Way], float], order: Callable[[_Way], Any]) -> list[_Way]:
    """Return all ways, those with the least key first; those that tie with the first of them by their `order`.

    >>> ranked([(0.3, "b"), (0.1 + 0.2, "a"), (0.1, "c")], key=lambda way: way[0], order=lambda way: way[1])
    [(0.1, 'c'), (0.30000000000000004, 'a'), (0.3, 'b')]
    """
    found: list[_Way] = []
    tied: list[_Way] = []
    for way in sorted(ways, key=key):
        if tied and is_faster(key(tied[0]), key(way)):
            found += sorted(tied, key=order)
            tied = []
        tied.append(way)
    return found + sorted(tied, key=order)
