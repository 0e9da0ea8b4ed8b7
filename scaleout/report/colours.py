"""What all pictures share: colours, and the unit of times."""

COMPUTE, COMMUNICATION, IDLE, PUBLISHED = "#4477aa", "#ee7733", "#cccccc", "#222222"
"""Colours of all figures (Paul Tol's bright scheme, readable without colour vision)."""

OVERLAPPED = "#f8cda8"
"""Communication beside compute: the colour of communication, lighter."""

SERIES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#885522")
"""Colours of lines that are told apart by a number."""


def time_scale(longest_s: float) -> tuple[float, str]:
    """Return what to multiply seconds by, and the unit's name, so that the longest time reads well."""
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if longest_s * scale >= 1:
            return scale, unit
    return 1e9, "ns"
