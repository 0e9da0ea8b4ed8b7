"""Halving-doubling: partners at distance 1, 2, 4, ... exchange halves, then the same way back.

A reduction is charged on the size of the next message that halves, so that the last step reduces nothing.
Members must be a power of two.
"""

from scaleout.astra.algorithms.exchange import Exchange


def build(kind: str, num_ranks: int, size_bytes: int, window: int | None, direction: int) -> Exchange:
    """Build the exchange of a reduce-scatter, an all-gather, or both after each other."""
    levels = num_ranks.bit_length() - 1
    distances = tuple(1 << level for level in range(levels))
    if kind == "all-gather":
        sizes = tuple(size_bytes << level for level in range(levels))
        return Exchange(num_ranks, distances[::-1], sizes, levels, xor=True)
    halves = tuple(size_bytes >> (level + 1) for level in range(levels))
    if kind == "reduce-scatter":
        return Exchange(num_ranks, distances, halves, levels, reduced=halves[1:], xor=True)
    return Exchange(
        num_ranks, distances + distances[::-1], halves + halves[::-1], 2 * levels, reduced=halves[1:], xor=True
    )
