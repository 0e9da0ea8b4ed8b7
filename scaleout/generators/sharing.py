"""Who shares parameters: what reduces their gradients, who steps them, and what gathers what others have stepped.

Where shards have copies (hybrid sharding), gradients are reduce-scattered among the shards and then summed over the
copies: by an all-reduce, after which each copy steps its whole shard, or by a reduce-scatter, after which it steps a
part of it and gathers the others' parts in the next forward.

Source: ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277 (hybrid sharding); Centauri, ASPLOS 2024, Fig. 3 (parts of
shards).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Call(NamedTuple):
    """A collective of gradients or parameters: its kind, its bytes, and the family of its group."""

    kind: str
    size_bytes: int
    group: int


@dataclass(frozen=True)
class Sharing:
    """Who shares some parameters: the group that reduces their gradients, and how.

    Attributes
    ----------
    group, degree : int
        Index of the group's family in the program, and its ranks.
    sharded : bool
        Whether each rank of the group keeps a shard of the reduced gradients, instead of all.
    copies, num_copies : int
        Family and ranks of the groups that hold the same shard.
    parted : bool
        Whether each copy of a shard steps a part of it, instead of all.
    """

    group: int
    degree: int
    sharded: bool = False
    copies: int = 0
    num_copies: int = 1
    parted: bool = False

    @property
    def shards(self) -> int:
        """Parts into which the group divides what is sharded."""
        return self.degree if self.sharded else 1

    @property
    def owners(self) -> int:
        """Parts that are stepped by one rank each, or by one rank of each copy."""
        return self.shards * (self.num_copies if self.parted else 1)

    def reduces(self, size_bytes: int) -> Iterator[Call]:
        """Yield what reduces gradients within the group."""
        if size_bytes and self.degree > 1:
            yield Call("reduce_scatter" if self.sharded else "all_reduce", size_bytes, self.group)

    def sums_copies(self, size_bytes: int) -> Iterator[Call]:
        """Yield what sums gradients, of so many bytes before they are sharded, over the copies of their shards."""
        if size_bytes and self.num_copies > 1:
            yield Call("reduce_scatter" if self.parted else "all_reduce", -(-size_bytes // self.degree), self.copies)

    def gathers(self, size_bytes: int, *, zero: int) -> Iterator[Call]:
        """Yield what gathers parameters that others have stepped, where no layer does it itself (`zero` 3)."""
        if size_bytes and self.parted:
            yield Call("all_gather", -(-size_bytes // self.degree), self.copies)
        elif size_bytes and zero < 3 and self.shards > 1:
            yield Call("all_gather", size_bytes, self.group)
