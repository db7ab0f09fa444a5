"""Decides which KV blocks a request holds: as many as its tokens need, shared with others where prefixes are equal."""

from __future__ import annotations

from array import array
from hashlib import blake2b

from engine_adapters.reference.block_pool import BlockPool
from engine_adapters.reference.config import EngineConfig
from engine_adapters.reference.request import Request

HASH_BYTES = 16


class KVCacheManager:
    """The block tables of all running requests, over one pool.

    A full block whose tokens are computed is registered under a hash of its tokens and of the block before it, so one
    hash stands for a whole prefix. Such a block is never written again, so it can be shared without a copy.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.pool = BlockPool(config.num_blocks)
        self._block_size = config.block_size
        self._caching = config.enable_prefix_caching
        self._reserved_tokens = config.max_model_len if config.admission == "reserve" else 0

    def cached_prefix(self, request: Request) -> list[int]:
        """The blocks of the longest prefix that is in the cache; at least one token is left to be computed."""
        if not self._caching:
            return []
        found: list[int] = []
        for block_hash in self._hashes(request, (len(request.token_ids) - 1) // self._block_size):
            block = self.pool.find(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def admit(self, request: Request, prefix: list[int], num_tokens: int) -> bool:
        """Give a request its cached `prefix` and blocks for `num_tokens` more; False and nothing taken if too few.

        Under admission "reserve" it gets blocks for max_model_len tokens, and never needs to ask again.
        """
        num_computed = len(prefix) * self._block_size
        num_new = -(-max(num_computed + num_tokens, self._reserved_tokens) // self._block_size) - len(prefix)
        num_revived = sum(not self.pool.ref_counts[block] for block in prefix)
        if num_new > self.pool.num_free_blocks - num_revived:
            return False
        self.pool.hold(prefix)
        request.block_ids = prefix + (self.pool.allocate(num_new) or [])
        request.num_computed_tokens = num_computed
        request.num_registered_blocks = len(prefix)
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Blocks for the next `num_tokens` of a running request; False and nothing taken if there are too few."""
        missing = request.num_computed_tokens + num_tokens - len(request.block_ids) * self._block_size
        if missing <= 0:
            return True
        blocks = self.pool.allocate(-(-missing // self._block_size))
        if blocks is None:
            return False
        request.block_ids += blocks
        return True

    def register_computed(self, request: Request) -> None:
        """Make the full blocks of a request findable, as far as they are computed."""
        if not self._caching:
            return
        num_full = request.num_computed_tokens // self._block_size
        hashes = self._hashes(request, num_full)
        for index in range(request.num_registered_blocks, num_full):
            self.pool.register(request.block_ids[index], hashes[index])
        request.num_registered_blocks = num_full

    def free(self, request: Request) -> None:
        """Take all blocks from a request; nothing of it counts as computed any more."""
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0

    def _hashes(self, request: Request, num_blocks: int) -> list[bytes]:
        """The hashes of the first `num_blocks` full blocks, each computed once in a request's life."""
        hashes, size = request.block_hashes, self._block_size
        for index in range(len(hashes), num_blocks):
            tokens = array("q", request.token_ids[index * size : (index + 1) * size])
            parent = hashes[-1] if hashes else b""
            hashes.append(blake2b(parent + tokens.tobytes(), digest_size=HASH_BYTES).digest())
        return hashes[:num_blocks]
