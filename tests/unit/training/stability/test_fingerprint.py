"""Fingerprints: equal for equal bits, different after any flip; and who is named by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from drumline.training.stability import fingerprint as module
from drumline.training.stability.fingerprint import combine, fingerprint, fingerprints, replicated
from drumline.training.stability.replicas import Mismatch, compare

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def sample(dtype: torch.dtype, count: int = 24) -> Tensor:
    values = torch.randn(count, generator=torch.Generator().manual_seed(7)) * 3
    if dtype is torch.bool:
        return values > 0
    return torch.complex(values, -values) if dtype.is_complex else values.to(dtype)


def flipped(tensor: Tensor, bit: int) -> Tensor:
    """A copy with one bit of its memory flipped."""
    raw = tensor.clone().view(torch.uint8).numpy().copy()
    raw[bit // 8] ^= np.uint8(1 << (bit % 8))
    return torch.from_numpy(raw).view(tensor.dtype)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool], ids=str)
def test_every_single_bit_flip_changes_it(dtype: torch.dtype) -> None:
    tensor = sample(dtype)
    right = fingerprint(tensor).item()
    for bit in range(8 * tensor.numel() * tensor.element_size()):
        assert fingerprint(flipped(tensor, bit)).item() != right, bit


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**40), st.sampled_from([64, 1 << 20]))
def test_a_flip_at_any_place_of_any_size_changes_it(size: int, where: int, chunk: int) -> None:
    before, module.CHUNK = module.CHUNK, chunk
    try:
        tensor = torch.randn(size, generator=torch.Generator().manual_seed(size))
        other = flipped(tensor, where % (32 * size))
        assert fingerprint(other).item() != fingerprint(tensor).item()
    finally:
        module.CHUNK = before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_tensors_have_equal_numbers_in_any_layout(dtype: torch.dtype) -> None:
    tensor = sample(dtype).reshape(4, 6)
    spread = torch.zeros(6, 4, dtype=dtype).t()
    spread.copy_(tensor)
    assert not spread.is_contiguous()
    assert fingerprint(spread).item() == fingerprint(tensor.clone()).item()


def test_it_is_the_sum_of_bits_by_odd_weights_modulo_two_to_the_64() -> None:
    tensor = sample(torch.float32, 10)
    golden, size = 0x9E3779B97F4A7C15, 1 << 64
    bits = [int(b) for b in tensor.view(torch.int32)]
    total = sum(b * ((i * 2 * golden) % size | 1) for i, b in enumerate(bits)) * golden % size
    assert fingerprint(tensor).item() % size == total


def test_values_that_only_compare_equal_are_told_apart() -> None:
    assert fingerprint(torch.tensor([0.0])).item() != fingerprint(torch.tensor([-0.0])).item()
    nan = torch.tensor([float("nan")])
    assert fingerprint(nan).item() == fingerprint(nan.clone()).item()


def test_exchanged_elements_and_parameters_are_seen() -> None:
    assert fingerprint(torch.tensor([1.0, 2.0])).item() != fingerprint(torch.tensor([2.0, 1.0]))
    assert combine([5, 9]) != combine([9, 5])
    assert fingerprint(torch.zeros(0)).item() == 0
    assert fingerprints({}).tolist() == []


def test_a_model_has_one_number_for_each_parameter() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    numbers = fingerprints(replicated(net))
    assert numbers.dtype == torch.int64
    assert numbers.tolist() == [fingerprint(p).item() for p in net.parameters()]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9), st.data())
def test_one_number_for_all_changes_with_each(numbers: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(numbers) - 1))
    bit = data.draw(st.integers(0, 62))
    changed = [*numbers[:place], numbers[place] ^ (1 << bit), *numbers[place + 1 :]]
    assert combine(changed) != combine(numbers)
    assert -(2**63) <= combine(numbers) < 2**63


@pytest.mark.parametrize(
    ("ranks", "mismatch"),
    [
        ([[1, 2], [1, 2], [1, 2]], None),
        ([[1, 2]], None),
        ([[1, 2], [1, 9], [1, 2]], Mismatch({"b": [1]}, True, 0)),
        ([[7, 2], [1, 2], [1, 2]], Mismatch({"a": [0]}, True, 1)),
        ([[7, 2], [1, 9], [1, 2], [1, 2]], Mismatch({"a": [0], "b": [1]}, True, 2)),
        ([[1, 2], [1, 9]], Mismatch({"b": [0, 1]}, False, 0)),
        ([[1, 2], [1, 3], [1, 4]], Mismatch({"b": [0, 1, 2]}, False, 0)),
    ],
)
def test_the_majority_decides_who_is_out_of_step(
    ranks: list[list[int]], mismatch: Mismatch | None
) -> None:
    assert compare([dict(zip("ab", values, strict=True)) for values in ranks]) == mismatch


def test_only_ranks_that_hold_a_parameter_are_compared() -> None:
    ranks = [{"a": 1}, {"a": 1}, {"a": 3}, {"b": 2}, {"b": 4}, {"b": 4}]
    assert compare(ranks) == Mismatch({"a": [2], "b": [3]}, True, 0)
    assert compare(ranks[:2] + ranks[4:]) is None


def test_a_mismatch_names_rank_and_parameter() -> None:
    assert "Rank 2 is out of step: its b" in str(Mismatch({"b": [2]}, True, 0))
    assert "Ranks 0, 1 differ in b" in str(Mismatch({"b": [0, 1]}, False, 0))
