"""Double binary tree: two trees, each for half of the buffer, in chunks that follow one another.

A rank that is an inner node of one tree is a leaf of the other (all but one, if ``p`` is odd). The second tree is the
first with the ranks in the opposite order (in the same order, one further on, if ``p`` is odd). For broadcast the root
of the first, rank 0, gives the root of the second its half.

Source: Sanders, Speck and Traeff, Parallel Computing 35(12), 2009; the shape of the trees is that of NCCL 2.4.
"""

from functools import lru_cache

import numpy as np

from scaleout.cluster.topology.kinds.kind import Ints
from scaleout.network.collectives.algorithm import Algorithm
from scaleout.network.collectives.rounds import Edges, Round, Schedule


def _parents(num_ranks: int) -> Ints:
    """(p,) parent in the first tree: the lowest bit cleared and the next set, or cleared only; of rank 0 itself."""
    rank = np.arange(num_ranks)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return np.where(up < num_ranks, up, rank ^ bit)


def _levels(num_ranks: int) -> list[tuple[Ints, Ints]]:
    """Parents and children of the first tree by the child's depth, the root's children first."""
    parent, depth = _parents(num_ranks), np.zeros(num_ranks, np.int64)
    above = np.arange(num_ranks)
    while above.any():
        depth += above > 0
        above = parent[above]
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.cumsum(np.bincount(depth))[:-1])[1:]
    return [(parent[children], children) for children in levels]


def _mirrored(rank: Ints, num_ranks: int) -> Ints:
    """Ranks that stand in the second tree where these stand in the first."""
    return num_ranks - 1 - rank if num_ranks % 2 == 0 else (rank + 1) % num_ranks


@lru_cache(maxsize=8)
def _down(num_ranks: int) -> tuple[Edges, ...]:
    """Messages from each level of both trees to the next, the roots' first."""
    return tuple(
        Edges(*(tuple(np.concatenate([ends, _mirrored(ends, num_ranks)]).tolist()) for ends in level))
        for level in _levels(num_ranks)
    )


def _from_root(num_ranks: int) -> tuple[Edges, ...]:
    """Messages of a broadcast from rank 0, which needs none itself."""
    levels = [Edges((0,), (int(_mirrored(np.zeros(1, np.int64), num_ranks)[0]),)), *_down(num_ranks)]
    others = [[pair for pair in zip(edges.sources, edges.destinations, strict=True) if pair[1]] for edges in levels]
    return tuple(Edges(tuple(sent for sent, _ in pairs), tuple(got for _, got in pairs)) for pairs in others)


def _pipeline(levels: tuple[Edges, ...]) -> Schedule:
    return Schedule(tuple(Round(edges, 0.5) for edges in levels), pipelined=True)


def _reversed(levels: tuple[Edges, ...]) -> tuple[Edges, ...]:
    return tuple(edges.reversed() for edges in levels[::-1])


ALGORITHM = Algorithm(
    "double_binary_tree",
    "two binary trees over all ranks, each for half of the buffer, in chunks; NCCL has it over nodes alone",
    {
        "all_reduce": lambda group: _pipeline(_reversed(_down(group.num_ranks)) + _down(group.num_ranks)),
        "broadcast": lambda group: _pipeline(_from_root(group.num_ranks)),
        "reduce": lambda group: _pipeline(_reversed(_from_root(group.num_ranks))),
    },
)
