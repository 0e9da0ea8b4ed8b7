"""The kinds of collectives, what `bytes` means for each, and bandwidths in the manner of nccl-tests.

``bytes`` is the larger side, the full buffer of one rank, never a shard, as in nccl-tests:

=================  ==========================================================================
all_reduce         the buffer; every rank ends with the sum
reduce_scatter     the input; rank i ends with the i-th of p shards of the sum
all_gather         the output; each rank brings one of p shards
all_to_all         the input, as large as the output; one of p shards goes to each rank, the own one stays
broadcast, reduce  the buffer; the root is the first rank of the group
send               the message, from the first to the second of two ranks
=================  ==========================================================================

Only the transport is charged: the additions of a reduction are free.

Symbols: p ranks; n bytes; t [s].
Source: nccl-tests, doc/PERFORMANCE.md.
"""

from collections.abc import Callable

from scaleout import config
from scaleout.errors import ConfigError

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "send")
"""Every kind of collective; `send` is the message from one rank to another."""

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0,
    "reduce": lambda p: 1.0,
    "send": lambda p: 1.0,
}
"""Kind to the bytes that a rank must send or receive, for each of ``n``, as a function of the ranks ``p``."""


def algorithm_bandwidth(size_bytes: float, time_s: float) -> float:
    """Bandwidth as the caller sees it: ``n / t``, in bytes/s; zero where there was nothing to do.

    >>> algorithm_bandwidth(8e9, 2.0)
    4000000000.0
    """
    return size_bytes / time_s if time_s else 0.0


def bus_bandwidth(kind: str, size_bytes: float, *, time_s: float, num_ranks: int) -> float:
    """Bandwidth as a link sees it, comparable over numbers of ranks: ``factor(p) n / t``, in bytes/s.

    Raises
    ------
    ConfigError
        If the kind is unknown.

    >>> bus_bandwidth("all_reduce", 8e9, time_s=2.0, num_ranks=4)
    6000000000.0
    """
    check_kind(kind)
    return algorithm_bandwidth(size_bytes, time_s) * BUS_FACTORS[kind](num_ranks)


def check_kind(kind: str) -> None:
    """Refuse a kind that is not in `KINDS`, naming the nearest."""
    if kind not in KINDS:
        raise ConfigError(f"unknown collective {kind!r}; {config.nearest(kind, KINDS)}")
