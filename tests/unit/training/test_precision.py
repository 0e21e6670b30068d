"""Precision: dtypes, autocast, TF32, and the loss scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drumline.config import Precision
from drumline.training.precision import Arithmetic, LossScaler

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", list(Precision))
def test_weights_are_float32_but_for_fp64(precision: Precision) -> None:
    expected = torch.float64 if precision is Precision.FP64 else torch.float32
    assert Arithmetic(precision, CPU).weights == expected


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        (Precision.FP64, torch.float64),
        (Precision.FP32, torch.float32),
        (Precision.TF32, torch.float32),
        (Precision.BF16, torch.bfloat16),
        (Precision.FP16, torch.float16),
    ],
)
def test_a_matmul_runs_in_the_precision_asked_for(precision: Precision, dtype: torch.dtype) -> None:
    arithmetic = Arithmetic(precision, CPU)
    weight = torch.ones(2, 2, dtype=arithmetic.weights)
    with arithmetic.autocast():
        assert (weight @ weight).dtype == dtype


def test_tf32_is_allowed_only_where_it_was_asked_for() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        Arithmetic(Precision.TF32, CPU).apply()
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
        Arithmetic(Precision.FP32, CPU).apply()
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_only_fp16_scales_the_loss() -> None:
    for precision in Precision:
        scaler = Arithmetic(precision, CPU).scaler()
        assert scaler.enabled is (precision is Precision.FP16)
        assert scaler.scale == (65536.0 if precision is Precision.FP16 else 1.0)
        scaler.update(False)
        assert scaler.scale == (32768.0 if precision is Precision.FP16 else 1.0)


def test_the_scale_halves_on_overflow_and_doubles_after_the_interval() -> None:
    scaler = LossScaler(enabled=True, initial=1024.0, growth_interval=3)
    scales = []
    for finite in [True, True, True, True, True, False, True, True, True, False, False]:
        scaler.update(finite)
        scales.append(scaler.scale)
    assert scales == [1024, 1024, 2048, 2048, 2048, 1024, 1024, 1024, 2048, 1024, 512]


@given(finite=st.lists(st.booleans(), max_size=60), interval=st.integers(1, 5))
def test_the_scale_is_that_of_torchs_grad_scaler(finite: list[bool], interval: int) -> None:
    """Held against the peer: GradScaler's own update rule, fed the same decisions."""
    ours = LossScaler(enabled=True, initial=256.0, growth_interval=interval)
    scale, tracker = torch.full((1,), 256.0), torch.zeros(1, dtype=torch.int32)
    for good in finite:
        ours.update(good)
        torch._amp_update_scale_(
            scale, tracker, torch.tensor([float(not good)]), 2.0, 0.5, interval
        )
        assert ours.scale == scale.item()


def test_the_state_makes_the_round_trip() -> None:
    scaler = LossScaler(enabled=True, initial=64.0, growth_interval=2)
    scaler.update(False)
    scaler.update(True)
    other = LossScaler(enabled=True, growth_interval=2)
    other.load_state_dict(scaler.state_dict())
    scaler.update(True)
    other.update(True)
    assert other.scale == scaler.scale == 64.0
    off = LossScaler(enabled=False)
    off.load_state_dict(scaler.state_dict())
    assert off.scale == 1.0
