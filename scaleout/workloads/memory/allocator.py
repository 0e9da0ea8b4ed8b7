"""PyTorch's caching allocator: allocations and frees of one stream, in order, to what it reserves of a GPU's memory.

Blocks are cut from segments that the driver gives; what is freed is kept, merged with its free neighbours, and the
smallest block that is large enough is given to the next allocation. A block that another stream used is free only when
that stream has passed it. Where the driver has no more, all segments that are wholly free go back to it first. It knows
nothing of models.

Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (2.1 to 2.11), with its defaults. A recording of 2,145 allocations of
a training on an H100 is reserved for to the byte (tests/workloads/test_allocator.py).
"""

import bisect
from collections import deque

_MIB = 2**20
_GRAIN = 512
"""Sizes are multiples of it."""
_SMALL = _MIB
"""Up to it, allocations are cut from segments of their own."""
_SMALL_SEGMENT, _LARGE_SEGMENT, _LARGE_GRAIN = 2 * _MIB, 20 * _MIB, 2 * _MIB
_OWN_SEGMENT = 10 * _MIB
"""From it on, an allocation for which no block is left gets a segment of its own."""
_APART = 2**40
"""Between the addresses of two segments, which never merge."""


class Block:
    """A part of a segment."""

    __slots__ = ("address", "following", "free", "preceding", "size", "small")

    def __init__(self, address: int, size: int, *, small: bool) -> None:
        self.address, self.size, self.small, self.free = address, size, small, False
        self.preceding: Block | None = None
        self.following: Block | None = None


class CachingAllocator:
    """What is reserved and free, while a program allocates and frees.

    Attributes
    ----------
    reserved : int
        Bytes of all segments.
    flushes : int
        How often all that was free went back to the driver, as it had no more.
    now_s : float
        Time of the host; a block that is free from later on waits.
    """

    def __init__(self, room_bytes: float) -> None:
        self.room_bytes, self.reserved, self.flushes, self.now_s = room_bytes, 0, 0, 0.0
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])  # large and small, by size
        self._at: dict[int, Block] = {}  # free blocks by address
        self._waiting: deque[tuple[float, Block]] = deque()
        self._segments = 0

    def allocate(self, size_bytes: float) -> Block:
        """Return a block of at least so many bytes; raise `MemoryError` where there is no room."""
        while self._waiting and self._waiting[0][0] <= self.now_s:
            self._release(self._waiting.popleft()[1])
        size = max(-(-int(size_bytes) // _GRAIN) * _GRAIN, _GRAIN)
        small = size <= _SMALL
        block = self._best(size, small=small) or self._segment(size, small=small)
        left = block.size - size
        if left >= _GRAIN if small else left > _SMALL:
            rest = Block(block.address + size, left, small=small)
            rest.preceding, rest.following = block, block.following
            if block.following is not None:
                block.following.preceding = rest
            block.following, block.size = rest, size
            self._keep(rest)
        return block

    def free(self, block: Block, done_s: float = 0.0) -> None:
        """Give a block back, which other streams have done with at some time."""
        if done_s > self.now_s:
            self._waiting.append((done_s, block))
        else:
            self._release(block)

    def reschedule(self, done_s: list[float]) -> None:
        """Say anew when the blocks that wait are free, in their order."""
        assert len(done_s) == len(self._waiting)
        self._waiting = deque(zip(done_s, (block for _, block in self._waiting), strict=True))

    @property
    def waiting_s(self) -> list[float]:
        """When the blocks that wait are free."""
        return [done_s for done_s, _ in self._waiting]

    def _best(self, size: int, *, small: bool) -> Block | None:
        """Take the smallest free block that is large enough."""
        blocks = self._free[small]
        found = bisect.bisect_left(blocks, (size, -1))
        return self._take(self._at[blocks[found][1]]) if found < len(blocks) else None

    def _segment(self, size: int, *, small: bool) -> Block:
        """Ask the driver for a segment, once more when all that is free has gone back to it."""
        length = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        if size >= _OWN_SEGMENT:
            length = -(-size // _LARGE_GRAIN) * _LARGE_GRAIN
        if self.reserved + length > self.room_bytes:
            self._flush()
            block = self._best(size, small=small)
            if block is not None:
                return block
            if self.reserved + length > self.room_bytes:
                raise MemoryError
        self.reserved += length
        self._segments += 1
        return Block(self._segments * _APART, length, small=small)

    def _flush(self) -> None:
        """Wait for all streams, and give segments that are wholly free back to the driver."""
        self.flushes += 1
        while self._waiting:
            self._release(self._waiting.popleft()[1])
        for _, address in [*self._free[0], *self._free[1]]:
            block = self._at[address]
            if block.preceding is None and block.following is None:
                self.reserved -= self._take(block).size

    def _release(self, block: Block) -> None:
        """Merge a block with its free neighbours."""
        assert not block.free
        before, after = block.preceding, block.following
        if before is not None and before.free:
            self._take(before)
            before.size, before.following = before.size + block.size, after
            if after is not None:
                after.preceding = before
            block = before
        if after is not None and after.free:
            self._take(after)
            block.size, block.following = block.size + after.size, after.following
            if after.following is not None:
                after.following.preceding = block
        self._keep(block)

    def _keep(self, block: Block) -> None:
        bisect.insort(self._free[block.small], (block.size, block.address))
        self._at[block.address], block.free = block, True

    def _take(self, block: Block) -> Block:
        blocks = self._free[block.small]
        del blocks[bisect.bisect_left(blocks, (block.size, block.address))]
        del self._at[block.address]
        block.free = False
        return block
