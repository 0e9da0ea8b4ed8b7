"""Who shares parameters: what reduces their gradients, who steps them, and what gathers what others have stepped.

Where shards have copies (hybrid sharding), gradients are reduce-scattered among the shards and then summed over the
copies.

Source: ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277 (hybrid sharding).
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
    """

    group: int
    degree: int
    sharded: bool = False
    copies: int = 0
    num_copies: int = 1

    @property
    def shards(self) -> int:
        """Parts into which the group divides what is sharded."""
        return self.degree if self.sharded else 1

    def reduces(self, size_bytes: int) -> Iterator[Call]:
        """Yield what reduces gradients within the group."""
        if size_bytes and self.degree > 1:
            yield Call("reduce_scatter" if self.sharded else "all_reduce", size_bytes, self.group)

    def sums_copies(self, size_bytes: int) -> Iterator[Call]:
        """Yield what sums gradients, of so many bytes before they are sharded, over the copies of their shards."""
        if size_bytes and self.num_copies > 1:
            yield Call("all_reduce", -(-size_bytes // self.degree), self.copies)

    def gathers(self, size_bytes: int, *, zero: int) -> Iterator[Call]:
        """Yield what gathers parameters that others have stepped, where no layer does it itself (`zero` 3)."""
        if size_bytes and zero < 3 and self.shards > 1:
            yield Call("all_gather", size_bytes, self.group)
