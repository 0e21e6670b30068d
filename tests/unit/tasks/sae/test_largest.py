from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.tasks.sae.largest import LEAST, bin_size, largest


@pytest.mark.parametrize(
    ("width", "count", "size"),
    [
        (65_536, 64, 32),  # 2,048 bins, and as many numbers in the 64 chosen ones
        (16_384, 32, 16),  # the root of 512 is 22.6
        (24_576, 32, 16),  # 3 * 2^13
        (4096, 256, 4),
        (65_536 + 16, 64, 16),  # no more divides it
        (1001, 1, 1),
        (32, 32, 1),
    ],
)
def test_bins_are_as_many_as_the_numbers_in_those_chosen(width: int, count: int, size: int) -> None:
    assert bin_size(width, count) == size
    assert width % size == 0
    assert width // size >= count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("width", "count"), [(4096, 8), (4096, 64), (512, 8), (100, 7), (96, 96)])
def test_the_largest_of_each_row_are_those_of_a_sort(
    width: int, count: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(width + count)
    rows = torch.randn(9, width).to(dtype)
    found = largest(rows, count)
    assert found.shape == (9, count)
    expected = rows.double().sort(dim=1, descending=True).values[:, :count]
    got = rows.double().gather(1, found).sort(dim=1, descending=True).values
    assert torch.equal(got, expected)
    assert all(len(set(row)) == count for row in found.tolist())  # no place twice


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(0, 4))
def test_equal_numbers_are_counted_as_often_as_they_are_there(
    seed: int, count: int, kinds: int
) -> None:
    width = 1024
    assert bin_size(width, count) >= LEAST
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, kinds + 1, (3, width), generator=generator).float()
    found = largest(rows, count)
    expected = rows.sort(dim=1, descending=True).values[:, :count]
    assert torch.equal(rows.gather(1, found).sort(dim=1, descending=True).values, expected)
    assert all(len(set(row)) == count for row in found.tolist())


@pytest.mark.parametrize("crowded", [0, 1])
def test_all_of_the_largest_may_lie_in_one_bin(crowded: int) -> None:
    rows = torch.zeros(2, 4096)
    bins = 4096 // bin_size(4096, 16)
    places = torch.arange(16) * bins + 5 if crowded else torch.arange(16) + 100
    rows[:, places] = torch.arange(1.0, 17.0)
    assert torch.equal(largest(rows, 16).sort(dim=1).values, places.expand(2, -1))


def test_a_number_that_is_none_is_the_largest_as_torch_has_it() -> None:
    rows = torch.randn(1, 4096)
    rows[0, 1234] = math.nan
    assert 1234 in largest(rows, 4)[0].tolist()
    assert 1234 in rows.topk(4).indices[0].tolist()


def test_no_rows_have_no_largest() -> None:
    assert largest(torch.empty(0, 4096), 8).shape == (0, 8)
