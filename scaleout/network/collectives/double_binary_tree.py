"""Double binary tree: two trees, each for half of the buffer, in chunks that follow one another.

A rank that is an inner node of one tree is a leaf of the other (all but one, if ``p`` is odd). The second tree is the
first with the ranks in the opposite order (in the same order, one further on, if ``p`` is odd). For broadcast the root
of the first, rank 0, gives the root of the second its half.

Source: Sanders, Speck and Traeff, Parallel Computing 35(12), 2009; the shape of the trees is that of NCCL 2.4.
"""

from functools import lru_cache

from scaleout.network.collectives.algorithm import Algorithm
from scaleout.network.collectives.rounds import Edges, Round, Schedule


def _parent(rank: int, num_ranks: int) -> int:
    """Parent of a rank other than 0 in the first tree: clear the lowest bit and set the next, or clear it only."""
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return up if up < num_ranks else rank ^ bit


def _levels(num_ranks: int) -> list[list[tuple[int, int]]]:
    """Edges (parent, child) of the first tree by the child's depth, the root's children first."""
    depth = {0: 0}

    def depth_of(rank: int) -> int:
        if rank not in depth:
            depth[rank] = depth_of(_parent(rank, num_ranks)) + 1
        return depth[rank]

    deepest = max(depth_of(rank) for rank in range(num_ranks))
    levels: list[list[tuple[int, int]]] = [[] for _ in range(deepest)]
    for rank in range(1, num_ranks):
        levels[depth[rank] - 1].append((_parent(rank, num_ranks), rank))
    return levels


def _mirrored(rank: int, num_ranks: int) -> int:
    """Rank that stands in the second tree where `rank` stands in the first."""
    return num_ranks - 1 - rank if num_ranks % 2 == 0 else (rank + 1) % num_ranks


@lru_cache(maxsize=8)
def _down(num_ranks: int) -> tuple[Edges, ...]:
    """Messages from each level of both trees to the next, the roots' first."""
    levels = []
    for level in _levels(num_ranks):
        second = [(_mirrored(parent, num_ranks), _mirrored(child, num_ranks)) for parent, child in level]
        levels.append(_edges(level + second))
    return tuple(levels)


def _edges(pairs: list[tuple[int, int]]) -> Edges:
    return Edges(tuple(source for source, _ in pairs), tuple(destination for _, destination in pairs))


def _from_root(num_ranks: int) -> tuple[Edges, ...]:
    """Messages of a broadcast from rank 0, which needs none itself."""
    levels = [_edges([(0, _mirrored(0, num_ranks))]), *_down(num_ranks)]
    return tuple(
        _edges([pair for pair in zip(edges.sources, edges.destinations, strict=True) if pair[1] != 0])
        for edges in levels
    )


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
