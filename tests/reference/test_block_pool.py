"""The block pool: no block is held twice, none is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.reference.block_pool import BlockPool


@given(st.lists(st.integers(0, 6), max_size=60))
def test_blocks_are_never_held_twice_and_never_lost(sizes: list[int]) -> None:
    pool, holds = BlockPool(12), list[list[int]]()
    for size in sizes:
        taken = pool.allocate(size)
        if taken is None:
            assert size > pool.num_free_blocks
            pool.release(holds.pop(0))
        else:
            holds.append(taken)
        held = [block for hold in holds for block in hold]
        assert len(set(held)) == len(held) == pool.num_blocks - pool.num_free_blocks
        assert pool.ref_counts == [held.count(block) for block in range(12)]


def test_too_large_a_request_takes_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free_blocks == 3
    assert pool.usage == 0.0


def test_releasing_a_free_block_is_an_error() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="free already"):
        pool.release([0])
