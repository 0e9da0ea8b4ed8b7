"""How often Python looks for cycles of objects that nothing uses any longer: seldom, while scaleout works.

Graphs, and what imports make, are tuples without cycles, and stay; to look through them as often as Python does by
itself takes a tenth of a step's simulation.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (250_000, 100, 4)
"""Thresholds of Python's collector."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Have the collector look seldom, and afterwards as before; where it does already, or is off, nothing changes."""
    before = gc.get_threshold()
    if not 0 < before[0] < SELDOM[0]:
        yield
        return
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
