"""The block pool: no block is held twice unless it is shared, none is lost, and the right ones are evicted."""

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


def taken(pool: BlockPool, n_blocks: int) -> list[int]:
    blocks = pool.allocate(n_blocks)
    assert blocks is not None
    return blocks


def sequence(pool: BlockPool, name: bytes, n_blocks: int, n_hashed: int) -> list[int]:
    """A held sequence whose first blocks are registered as name0, name1 and so on."""
    blocks = taken(pool, n_blocks)
    for index, block in enumerate(blocks[:n_hashed]):
        pool.register(block, name + b"%d" % index)
    return blocks


def test_of_free_blocks_those_without_content_leave_first_then_the_tails_of_the_least_recently_used() -> None:
    pool = BlockPool(6)
    old, young = sequence(pool, b"old", 2, 2), sequence(pool, b"young", 4, 3)
    pool.release(old)
    pool.release(young)
    assert taken(pool, 1) == [young[3]], "it holds nothing that could be found"
    assert taken(pool, 2) == [old[1], old[0]], "the tail of the older one before its head"
    assert [pool.find(b"old0"), pool.find(b"old1")] == [None, None]
    assert [pool.find(b"young%d" % i) for i in range(3)] == young[:3]
    assert taken(pool, 2) == [young[2], young[1]]
    assert pool.find(b"young0") == young[0], "the head of the younger one stays longest"
    assert pool.num_evictions == 4


def test_a_found_block_is_shared_and_free_only_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    (block,) = sequence(pool, b"a", 1, 1)
    pool.hold([block])
    pool.release([block])
    assert pool.ref_counts[block] == 1
    assert pool.num_free_blocks == 1
    pool.release([block])
    pool.hold([block])
    assert pool.allocate(2) is None, "a free block that was found again is not given away"
    assert pool.find(b"a0") == block


def test_the_second_block_of_the_same_content_is_not_found() -> None:
    pool = BlockPool(2)
    first, second = sequence(pool, b"a", 1, 1), sequence(pool, b"a", 1, 1)
    pool.release(second)
    pool.release(first)
    assert pool.find(b"a0") == first[0]
    assert taken(pool, 1) == second


def test_an_emptied_prefix_cache_finds_nothing_and_takes_nothing_from_holders() -> None:
    pool = BlockPool(3)
    held = sequence(pool, b"a", 2, 2)
    pool.forget_all()
    assert pool.find(b"a0") is None
    assert pool.num_cached_blocks == 0
    assert [pool.ref_counts[block] for block in held] == [1, 1]
    pool.release(held)
    assert pool.num_evictions == 0
