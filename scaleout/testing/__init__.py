"""Contracts of schedules and collective algorithms, to hold your own to: the same that scaleout's tests hold ours to.

    import scaleout.testing

    scaleout.testing.check_schedule("my-pass")
    scaleout.testing.check_algorithm("my_ring")

A law that does not hold is an `AssertionError` that says which, and for what.
"""

from scaleout.config.arguments import checked
from scaleout.testing import algorithms, schedules

__all__ = ["check_algorithm", "check_schedule"]

check_algorithm = checked(algorithms.check_algorithm)
check_schedule = checked(schedules.check_schedule)
