"""Ring: every step passes a chunk to the next member.

All-reduce takes 2 (n - 1) steps, reduce-scatter and all-gather n - 1, all-to-all n (n - 1) / 2 of a chunk each;
the first n - 1 chunks of a reducing collective are reduced.
"""

from scaleout.interop.astra.algorithms.exchange import Exchange, Manner


def build(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Build the exchange; an all-gather passes the whole of its input on, other kinds the n-th part."""
    chunk = size_bytes if kind == "all-gather" else size_bytes // num_ranks
    steps = {"all-reduce": 2 * (num_ranks - 1), "all-to-all": num_ranks * (num_ranks - 1) // 2}.get(kind, num_ranks - 1)
    reduced = (chunk,) * (num_ranks - 1) if kind in ("all-reduce", "reduce-scatter") else ()
    return Exchange(num_ranks, (manner.direction,), (chunk,), steps, reduced=reduced)
