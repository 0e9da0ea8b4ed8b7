"""Double binary tree: the whole buffer climbs one of two trees to its root and comes back: an all-reduce.

ASTRA-sim does so whatever the kind of collective, and leaves the size of the buffer as it was.

A tree is a perfect one over all members but the root, numbered in order, and the root above it: the last member in
tree 0, the first in tree 1. Streams take the trees in turn. A member with children reduces what it receives, from
above too; a leaf does not. Members must be a power of two.
"""

from dataclasses import dataclass

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Tree:
    """Who sends to whom.

    Attributes
    ----------
    num_ranks : int
        Members n.
    size_bytes : int
        Bytes of every message.
    parents : tuple of int, length n
        Position of each member's parent; `NOBODY` for the root.
    children : tuple of tuple of int, length n
        Positions of each member's children, in the order in which it sends to them.
    """

    num_ranks: int
    size_bytes: int
    parents: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the messages, once."""
        return (self.size_bytes,)

    @property
    def root(self) -> int:
        """Position of the member without a parent."""
        return self.parents.index(NOBODY)


def build(num_ranks: int, size_bytes: int, tree: int) -> Tree:
    """Build tree 0 or 1."""
    root, first = (num_ranks - 1, 0) if tree == 0 else (0, 1)
    parents = [NOBODY] * num_ranks
    children: list[tuple[int, ...]] = [()] * num_ranks
    # A subtree of 2 h - 1 members is rooted in its middle; halves of h / 2 lie on either side.
    middle = first + num_ranks // 2 - 1
    parents[middle] = root
    children[root] = (middle,)
    level, half = [middle], num_ranks // 4
    while half:
        for parent in level:
            children[parent] = (parent - half, parent + half)
            for child in children[parent]:
                parents[child] = parent
        level = [child for parent in level for child in children[parent]]
        half //= 2
    return Tree(num_ranks, size_bytes, tuple(parents), tuple(children))
