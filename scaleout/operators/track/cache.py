"""What a product in stages reads from memory, through a last-level cache.

A sweep is as many rows of tiles as a stage makes, or one if a row takes several stages. The rows of the left operand
are read once, by their sweep. The right operand is read by every sweep: between two readings of a line the rest of
it passes through the cache, with the sweep's share of the left operand and, unless they go round it, of the output.
A line is still there if fewer others than the cache has ways fell into its set; others fall into sets at random:

    missed(d) = P(X >= ways),  X ~ Poisson(ways d / cache)

Symbols: M x K times K x N; d bytes between two uses of a line.
Source: of the set-associative cache, Smith, A Comparative Study of Set Associative Memory Mapping Algorithms, IEEE
TSE SE-4(2), 1978; Hill and Smith, IEEE TC 38(12), 1989.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cache:
    """A last-level cache."""

    size_bytes: float
    ways: int


def missed(distance_bytes: float, cache: Cache) -> float:
    """Return the share of lines that are gone when they are used again after other bytes.

    >>> missed(0.0, Cache(16e6, 16)), round(missed(16e6, Cache(16e6, 16)), 3)
    (0.0, 0.533)
    """
    mean = cache.ways * distance_bytes / cache.size_bytes
    if mean == 0:
        return 0.0
    there = (math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) for count in range(cache.ways))
    return max(0.0, 1.0 - sum(there))


def read_bytes(
    rows: int, columns: int, depth: int, *, item_bytes: int, sweep_rows: float, cache: Cache, bypassed: bool
) -> float:
    """Return the bytes that a product of `rows` x `depth` by `depth` x `columns` reads from memory.

    Parameters
    ----------
    sweep_rows : float
        Rows of the output that are made between two uses of the right operand.
    bypassed : bool
        Whether the output goes round the cache.
    """
    left_bytes = rows * depth * item_bytes
    right_bytes = depth * columns * item_bytes
    sweep_rows = min(sweep_rows, rows)
    passing = right_bytes + sweep_rows * depth * item_bytes
    if not bypassed:
        passing += sweep_rows * columns * item_bytes
    sweeps = rows / sweep_rows
    return left_bytes + right_bytes * (1 + (sweeps - 1) * missed(passing, cache))
