"""Cutting batches, and learning rates for other batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.errors import BadInput
from drumline.planning.batch import cut_batch, global_batch_of, learning_rates
from drumline.planning.shares import cut_shares


@given(
    total=st.integers(1, 5000),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    micro_batch=st.integers(1, 600),
    granularity=st.sampled_from([1, 2, 8]),
)
def test_micro_batches_sum_to_shares_and_shares_to_the_global_batch(
    total: int, weights: list[int], micro_batch: int, granularity: int
) -> None:
    batch = cut_batch(cut_shares(total, weights, granularity), micro_batch, granularity)
    assert batch.global_batch == sum(batch.shares) == total
    assert [sum(sizes) for sizes in batch.micro_batches] == list(batch.shares)
    assert max(map(max, filter(None, batch.micro_batches))) <= max(micro_batch, granularity)


def test_the_arithmetic_of_a_batch() -> None:
    batch = cut_batch((100, 100), 32)
    assert batch.accumulation == 4
    assert batch.lines == (
        "global batch 200 / 2 devices = 100 samples each",
        "largest share 100 = 3 micro-batches of 32 and one of 4",
    )


def test_the_global_batch_from_the_samples_of_a_device() -> None:
    assert global_batch_of(96, 8) == 768
    with pytest.raises(BadInput, match="100 samples a device are not whole groups of 64") as caught:
        global_batch_of(100, 8, granularity=64)
    assert "128" in caught.value.remedy


def test_learning_rates_for_four_times_the_batch() -> None:
    rates = {rate.rule: rate for rate in learning_rates(0.1, 256, 1024)}
    assert rates["none"].lr == 0.1
    assert rates["linear"].lr == pytest.approx(0.4)
    assert rates["sqrt"].lr == pytest.approx(0.2)
    assert rates["linear"].line == "0.1 × 1,024 / 256 = 0.4"
