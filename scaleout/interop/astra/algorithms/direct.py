"""Direct: every member sends to all others, at growing distance, `window` messages at a time.

An all-reduce does so twice; its second wave begins when all messages of the first have come, and every permit since
then is spent at once.
"""

from scaleout.interop.astra.algorithms.exchange import Exchange, Manner


def build(kind: str, num_ranks: int, size_bytes: int, manner: Manner) -> Exchange:
    """Build the exchange; an all-gather sends the whole of its input, other kinds the n-th part."""
    chunk = size_bytes if kind == "all-gather" else size_bytes // num_ranks
    others = num_ranks - 1
    permits = others if manner.window is None else min(manner.window, others)
    return Exchange(
        num_ranks,
        tuple(manner.direction * distance for distance in range(1, num_ranks)),
        (chunk,),
        2 * others if kind == "all-reduce" else others,
        window=permits,
        reduced=_reduced(kind, others, permits, chunk, in_group=manner.in_group),
        gate=others if kind == "all-reduce" else 0,
    )


def _reduced(kind: str, others: int, permits: int, chunk: int, *, in_group: bool) -> tuple[int, ...]:
    """Bytes to reduce after each receipt.

    Receipts come in rounds: a block that may be reduced, of `permits` receipts, then `permits` that are not. A
    reduce-scatter reduces the blocks of all rounds, an all-reduce those of every other; with a window as wide as the
    group this is the first wave, as it should be. In a communicator group the blocks are `others` times as long, and
    an all-reduce with a window of two or more reduces its second wave too.
    """
    if kind not in ("all-reduce", "reduce-scatter"):
        return ()
    rounds, receipts = (2, 2 * others) if kind == "all-reduce" else (1, others)
    block = permits * others if in_group else permits
    numbered = [divmod(receipt, block + permits) for receipt in range(receipts)]
    return tuple(chunk if number % rounds == 0 and within < block else 0 for number, within in numbered)
