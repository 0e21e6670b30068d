from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.planning.allocator import CachingAllocator, rounded, segment_size

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("asked", "taken"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_requests_are_rounded_to_512_bytes(asked: int, taken: int) -> None:
    assert rounded(asked) == taken


@pytest.mark.parametrize(
    ("asked", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segments_come_in_three_kinds(asked: int, segment: int) -> None:
    assert segment_size(asked) == segment


def test_each_stream_has_free_blocks_of_its_own() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(30 * MIB))
    other = allocator.allocate(30 * MIB, stream=1)
    assert allocator.segments == [30 * MIB, 30 * MIB]
    allocator.release(other)
    for stream in (0, 1):
        allocator.allocate(30 * MIB, stream)
    assert allocator.reserved == 60 * MIB


def test_emptying_gives_back_whole_free_segments_only() -> None:
    allocator = CachingAllocator()
    gone, cut, small = (allocator.allocate(size) for size in (30 * MIB, 5 * MIB, 512))
    allocator.release(gone)
    allocator.empty()
    assert allocator.segments == [20 * MIB, 2 * MIB]
    assert (allocator.reserved, allocator.reserved_peak) == (22 * MIB, 52 * MIB)
    allocator.release(cut)
    allocator.release(small)
    allocator.empty()
    assert (allocator.segments, allocator.reserved) == ([], 0)
    allocator.allocate(30 * MIB)  # nothing is left to take it from
    assert allocator.reserved == 30 * MIB


def test_emptying_leaves_a_pool_that_is_held() -> None:
    allocator = CachingAllocator()
    for stream in (0, 1, 2):
        allocator.release(allocator.allocate(30 * MIB, stream))
    allocator.empty(held=[1])
    assert allocator.reserved == 30 * MIB
    allocator.allocate(30 * MIB, 1)
    assert allocator.reserved == 30 * MIB


def test_small_requests_share_a_segment_until_it_is_full() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(512 * KIB)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(1)
    assert allocator.segments == [2 * MIB, 2 * MIB]
    assert allocator.allocated == 2 * MIB + 512


def test_a_large_block_keeps_a_rest_of_up_to_one_mebibyte() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(12 * MIB))
    whole = allocator.allocate(11 * MIB)  # 1 MiB would be left, which is not split off
    assert (whole.size, allocator.allocated) == (12 * MIB, 12 * MIB)
    allocator.release(whole)
    cut = allocator.allocate(11 * MIB - 512)  # 1 MiB + 512 B are left
    assert (cut.size, allocator.reserved) == (11 * MIB - 512, 12 * MIB)


def test_a_20_mebibyte_segment_is_shared_by_medium_requests() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(5 * MIB)
    assert allocator.segments == [20 * MIB]
    allocator.allocate(5 * MIB)
    assert allocator.segments == [20 * MIB, 20 * MIB]


def test_free_neighbours_merge_and_others_do_not() -> None:
    allocator = CachingAllocator()
    first, second, third, fourth = (allocator.allocate(5 * MIB) for _ in range(4))
    allocator.release(first)
    allocator.release(third)
    assert allocator.allocate(9 * MIB) and allocator.reserved == 40 * MIB  # two holes, none of 9
    allocator.release(second)
    allocator.allocate(14 * MIB)  # 15 MiB in one piece now
    assert allocator.reserved == 40 * MIB
    allocator.release(fourth)


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(64 * MIB), allocator.allocate(32 * MIB)
    allocator.release(large)
    allocator.release(small)
    taken = allocator.allocate(30 * MIB)
    assert taken.address == small.address
    assert allocator.allocate(64 * MIB).address == large.address


def test_small_and_large_pools_do_not_lend_to_each_other() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(20 * MIB))
    allocator.allocate(MIB)
    assert allocator.segments == [20 * MIB, 2 * MIB]


def test_peaks_outlive_the_blocks() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(40 * MIB))
    allocator.allocate(10 * MIB)
    assert (allocator.allocated, allocator.allocated_peak) == (10 * MIB, 40 * MIB)
    assert (allocator.reserved, allocator.reserved_peak) == (40 * MIB, 40 * MIB)


actions = st.lists(st.tuples(st.booleans(), st.integers(1, 48 * MIB)), max_size=60)


@given(actions)
def test_blocks_in_use_never_overlap_and_all_is_returned(steps: list[tuple[bool, int]]) -> None:
    allocator, held = CachingAllocator(), []
    for take, size in steps:
        if take or not held:
            held.append(allocator.allocate(size))
            assert held[-1].size >= size
        else:
            allocator.release(held.pop(size % len(held)))
        spans = sorted((block.address, block.address + block.size) for block in held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert allocator.allocated == sum(block.size for block in held) <= allocator.reserved
    for block in held:
        allocator.release(block)
    assert allocator.allocated == 0
    for segment in sorted(allocator.segments, reverse=True):  # all merged: each is whole again
        before = allocator.reserved
        allocator.allocate(segment if segment > 2 * MIB else MIB)
        assert allocator.reserved == before
