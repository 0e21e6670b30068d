"""Scratch of reductions against what an H100 allocated for them (torch 2.11, CUDA 13)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from drumline.bench.allocation_recorder import AllocationRecorder
from drumline.bench.cuda_operators import cuda_operators
from drumline.bench.reduction_memory import scratch_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("shape", "element", "taken"),
    [
        ((4096, 16384), 4, 136 * MIB),  # a bias gradient of an SAE's encoder
        ((4096, 16384), 8, 272 * MIB),  # samples on which each latent fired, counted in int64
        ((32768, 1024), 4, 132 * MIB),
        ((8192, 2048), 4, 128 * MIB),
        ((8192, 1536), 4, 96 * MIB),
        ((4096, 768), 4, 24 * MIB),
    ],
)
def test_sums_over_rows_leave_what_was_measured(
    shape: tuple[int, int], element: int, taken: int
) -> None:
    assert scratch_bytes(shape, (shape[1], 1), [0], element) == taken


def test_a_transposed_matrix_is_summed_like_its_rows() -> None:
    assert scratch_bytes((16384, 4096), (1, 16384), [1], 4) == 136 * MIB


@pytest.mark.parametrize("reduced", [[1], [0, 1]])
def test_what_needs_few_blocks_or_has_few_outputs_takes_next_to_nothing(reduced: list[int]) -> None:
    assert scratch_bytes((8192, 16384), (16384, 1), reduced, 8) < MIB


def test_short_sums_take_nothing() -> None:
    assert scratch_bytes((8, 16384), (16384, 1), [0], 4) == 0
    assert scratch_bytes((0, 16384), (16384, 1), [0], 4) == 0
    assert scratch_bytes((), (), [], 4) == 0


def sizes_of(entered: Tensor, dims: tuple[int, ...]) -> list[int]:
    with FakeTensorMode() as fake:
        source = fake.from_tensor(entered)
        with AllocationRecorder() as recorder:
            source.sum(dim=dims)
            recorder.stop()
    return recorder.sizes


def test_booleans_are_cast_and_then_summed_after_the_result_is_made() -> None:
    sizes = sizes_of(torch.zeros(4096, 512, dtype=torch.bool), (0,))
    assert sizes[:2] == [512 * 8, 4096 * 512 * 8]
    assert sizes[2] == scratch_bytes((4096, 512), (512, 1), [0], 8) > 0


def test_cross_entropy_keeps_log_probabilities_as_halves_under_autocast() -> None:
    with FakeTensorMode(), cuda_operators():
        logits = torch.empty(8, 16, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.empty(8, dtype=torch.int64)
        with torch.autocast("cpu", torch.bfloat16), AllocationRecorder() as recorder:
            torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            recorder.stop()
    assert recorder.sizes[:3] == [8 * 16 * 2, 8 * 16 * 4, 8 * 4]  # then cast for the loss alone
