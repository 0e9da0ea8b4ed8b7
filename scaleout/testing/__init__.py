"""Contracts of schedules and collective algorithms, to hold your own to: the same that scaleout's tests hold ours to.

    import scaleout.testing

    scaleout.testing.check_schedule("my-pass")
    scaleout.testing.check_algorithm("my_ring")

A law that does not hold is an `AssertionError` that says which, and for what.
"""

from scaleout.testing.algorithms import check_algorithm
from scaleout.testing.schedules import check_schedule

__all__ = ["check_algorithm", "check_schedule"]
