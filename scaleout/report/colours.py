"""What all pictures share: colours, the units of times and sizes, and which lines lie on which."""

from collections.abc import Mapping, Sequence
from typing import Any

COMPUTE, COMMUNICATION, IDLE, PUBLISHED = "#4477aa", "#ee7733", "#cccccc", "#222222"
"""Colours of all figures (Paul Tol's bright scheme, readable without colour vision)."""

OVERLAPPED = "#f8cda8"
"""Communication beside compute: the colour of communication, lighter."""

SERIES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#885522")
"""Colours of lines that are told apart by a number."""

DASHES: Sequence[Sequence[int]] = ((), (4, 4), (2, 6))
"""Of a line, and of one that lies on it: both colours are seen where two lines are one."""


def depths(lines: Sequence[Mapping[Any, float]], share: float = 0.0) -> list[int]:
    """Return of each line how many of the earlier ones lie below it, one on another.

    A line is a place above each of its points; two lie on each other if, at more than a share of the points that they
    have in common, their places are less than 1 apart.

    >>> depths([{1: 5.0, 2: 9.0}, {1: 5.5, 2: 7.0}, {1: 2.0}])
    [0, 1, 0]
    """
    found = list[int]()
    for number, line in enumerate(lines):
        below = [0]
        for earlier in range(number):
            common = [at for at in line if at in lines[earlier]]
            near = [at for at in common if abs(line[at] - lines[earlier][at]) < 1]
            if len(near) > share * len(common):
                below.append(found[earlier] + 1)
        found.append(max(below))
    return found


def time_scale(longest_s: float) -> tuple[float, str]:
    """Return what to multiply seconds by, and the unit's name, so that the longest time reads well."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if longest_s * scale >= 1:
            return scale, unit
    return 1e9, "ns"


def size_scale(largest_bytes: float) -> tuple[float, str]:
    """Return what to multiply bytes by, and the unit's name, so that the largest size reads well.

    >>> size_scale(48 * 2.0**30), size_scale(0)
    ((9.313225746154785e-10, 'GiB'), (1.0, 'B'))
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if largest_bytes >= 2.0**power:
            return 2.0**-power, unit
    return 1.0, "B"
