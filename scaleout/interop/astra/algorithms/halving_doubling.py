"""Halving-doubling: partners at distance 1, 2, 4, ... exchange halves, then the same way back.

A reduction is charged on the size of the next message that halves, so that the last step reduces nothing. Halves are
whole bytes, and an all-reduce doubles on the way back what is left of one half more: an odd last half loses a byte.
Members must be a power of two.
"""

from scaleout.interop.astra.algorithms.exchange import Exchange, Manner


def build(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Build the exchange of a reduce-scatter, an all-gather, or both after each other."""
    levels = num_ranks.bit_length() - 1
    distances = tuple(1 << level for level in range(levels))
    if kind == "all-gather":
        sizes = tuple(size_bytes << level for level in range(levels))
        return Exchange(num_ranks, distances[::-1], sizes, levels, xor=True)
    halves = tuple(size_bytes >> (level + 1) for level in range(levels))
    if kind == "reduce-scatter":
        return Exchange(num_ranks, distances, halves, levels, reduced=halves[1:], xor=True)
    back = tuple((size_bytes >> (levels + 1) << 1) << level for level in range(levels))
    return Exchange(num_ranks, distances + distances[::-1], halves + back, 2 * levels, reduced=halves[1:], xor=True)
