"""What cuDNN was measured to take for LSTMs, byte for byte."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from drumline.bench.allocation_recorder import AllocationRecorder
from drumline.bench.cuda_operators import cuda_operators

FLOAT = 4


@pytest.mark.parametrize(
    ("autocast", "workspace", "reserve"),
    [(False, 858_786_048, 671_088_896), (True, 433_588_480, 335_544_576)],
)
def test_an_lstm_takes_from_cudnn_what_an_h100_measured(
    autocast: bool, workspace: int, reserve: int
) -> None:
    with FakeTensorMode(), cuda_operators():
        layer = nn.LSTM(1024, 1024, batch_first=True)
        entered = torch.empty(256, 128, 1024, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), AllocationRecorder() as found:
            out = layer(entered)[0]
        assert out.dtype is (torch.float16 if autocast else torch.float32)  # also for bfloat16
        with found:
            out.sum().backward()
            found.stop()
    sizes = Counter(found.sizes)
    assert (sizes[workspace], sizes[reserve]) == (3, 1)


@pytest.mark.parametrize(("sequences", "workspace"), [(1024, 54_667_520), (16_384, 747_833_600)])
def test_a_narrow_lstm_takes_from_cudnn_what_an_h200_measured(
    sequences: int, workspace: int
) -> None:
    with FakeTensorMode(), cuda_operators():
        layer, entered = nn.LSTM(2, 64), torch.empty(8, sequences, 2)
        with AllocationRecorder() as found:
            layer(entered)
    sizes = Counter(found.sizes)
    assert (sizes[workspace], sizes[8 * sequences * 64 * 5 * FLOAT + 256]) == (1, 1)


@pytest.mark.parametrize(("pieces", "workspace"), [(3560, 154_071_296), (3598, 154_188_032)])
def test_a_packed_lstm_takes_from_cudnn_what_an_h200_measured(pieces: int, workspace: int) -> None:
    steps, units = 65_536, 256
    with FakeTensorMode(), cuda_operators():
        weights = list(nn.LSTM(2, units, dtype=torch.float16).parameters())
        entered = torch.empty(steps, 2, dtype=torch.float16)
        state = torch.empty(1, pieces, units, dtype=torch.float16)
        counts = torch.empty(64, dtype=torch.int64)
        with AllocationRecorder() as found:
            torch.lstm(entered, counts, (state, state), weights, True, 1, 0.0, True, False)
    sizes = Counter(found.sizes)
    assert (sizes[workspace], sizes[steps * units * 5 * 2 + 256]) == (1, 1)
