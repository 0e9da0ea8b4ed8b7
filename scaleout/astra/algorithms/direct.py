"""Direct: every member sends to all others, at growing distance, `window` messages at a time.

An all-reduce does so twice; its second wave begins when all messages of the first have come, and every permit since
then is spent at once.
"""

from scaleout.astra.algorithms.exchange import Exchange


def build(kind: str, num_ranks: int, size_bytes: int, window: int | None, direction: int) -> Exchange:
    """Build the exchange; an all-gather sends the whole of its input, other kinds the n-th part."""
    chunk = size_bytes if kind == "all-gather" else size_bytes // num_ranks
    others = num_ranks - 1
    permits = others if window is None else min(window, others)
    return Exchange(
        num_ranks,
        tuple(direction * distance for distance in range(1, num_ranks)),
        (chunk,),
        2 * others if kind == "all-reduce" else others,
        window=permits,
        reduced=_reduced(kind, others, permits, chunk),
        gate=others if kind == "all-reduce" else 0,
    )


def _reduced(kind: str, others: int, permits: int, chunk: int) -> tuple[int, ...]:
    """Bytes to reduce after each receipt.

    Receipts are taken in blocks of `permits`. A reduce-scatter reduces every other block, the first among them, an
    all-reduce every fourth; with a window as wide as the group this is the first wave, as it should be.
    """
    if kind not in ("all-reduce", "reduce-scatter"):
        return ()
    every, receipts = (4, 2 * others) if kind == "all-reduce" else (2, others)
    reduced = [chunk if receipt // permits % every == 0 else 0 for receipt in range(receipts)]
    return tuple(reduced)
