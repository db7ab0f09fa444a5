"""Owns the KV cache's blocks: which are free, and how many sequences hold each of the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class BlockPool:
    """Fixed-size KV blocks, handed out by number. Free blocks leave in the order they came back."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Held blocks as a share of all, 0 to 1."""
        return 1.0 - len(self._free) / self.num_blocks

    def allocate(self, n_blocks: int) -> list[int] | None:
        """`n_blocks` free blocks, or None (and nothing taken) when there are not that many."""
        if n_blocks > len(self._free):
            return None
        taken = [self._free.popleft() for _ in range(n_blocks)]
        for block in taken:
            self.ref_counts[block] = 1
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one hold on each block, the last first; raises ValueError for one that nobody holds."""
        for block in reversed(blocks):
            if self.ref_counts[block] < 1:
                raise ValueError(f"block {block} is free already")
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                self._free.append(block)
