"""Owns the KV cache's blocks: who holds each, which are free, and which still have content worth finding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Fixed-size KV blocks, handed out by number; several sequences may hold one. All it does to a block is O(1).

    A block registered under the hash of its content is found by it, also after its last holder let go, until it is
    handed out again. Free blocks leave in this order: those without a hash, then the least recently used.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self.ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # the first is taken next
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, those with content worth finding included."""
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that can be found by a hash, held or free."""
        return len(self._block_of)

    @property
    def usage(self) -> float:
        """Held blocks as a share of all, 0 to 1."""
        return 1.0 - len(self._free) / self.num_blocks

    def allocate(self, n_blocks: int) -> list[int] | None:
        """`n_blocks` free blocks, whose content is lost; None (and nothing taken) when there are not that many."""
        if n_blocks > len(self._free):
            return None
        taken = [self._free.popitem(last=False)[0] for _ in range(n_blocks)]
        for block in taken:
            self.ref_counts[block] = 1
            if self._hash_of[block] is not None:
                self._forget(block)
                self.num_evictions += 1
        return taken

    def find(self, block_hash: bytes) -> int | None:
        """The block registered under a hash, or None. It may be free: hold it before anything is allocated."""
        return self._block_of.get(block_hash)

    def hold(self, blocks: Sequence[int]) -> None:
        """One more hold on each of some blocks that `find` returned."""
        for block in blocks:
            if not self.ref_counts[block]:
                del self._free[block]
            self.ref_counts[block] += 1

    def register(self, block: int, block_hash: bytes) -> None:
        """Make a held block findable; no effect where another block has the same content already."""
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one hold on each block, the last first, so that the tail of a sequence is evicted before its head.

        Raises ValueError for a block that nobody holds.
        """
        for block in reversed(blocks):
            if self.ref_counts[block] < 1:
                raise ValueError(f"block {block} is free already")
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def forget_all(self) -> None:
        """Empty the prefix cache; holds are untouched."""
        for block in list(self._block_of.values()):
            self._forget(block)

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        assert block_hash is not None
        del self._block_of[block_hash]
        self._hash_of[block] = None
