"""Where the members of a phase are, as far as its timing goes: the time between any two, and what a rank costs.

Knows no algorithms.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Place:
    """Where the members of a phase are.

    Attributes
    ----------
    send_ns : callable
        Position, position and bytes to time.
    is_regular : bool
        Whether the time depends on the members' distance alone, be it forward or in the bits that differ.
    endpoint_ns : int
    reduction_ns : callable
        Bytes to time.
    rendezvous : bool
    """

    send_ns: Callable[[int, int, int], int]
    is_regular: bool
    endpoint_ns: int
    reduction_ns: Callable[[int], int]
    rendezvous: bool
