"""Switches for the arithmetic of CUDA's libraries: TF32 products, and cuDNN's choice by timing."""

from __future__ import annotations

import torch
from torch import nn

from drumline.training.performance.switch import Subject, Switch

TF32_TOLERANCE = 1e-2
"""TF32 keeps 10 bits of each factor, so it is off by 2^-11; after many layers by more."""


class TF32(Switch):
    """Products of float32 matrices in TF32. A change of precision, so only with permission.

    Args:
        allowed: Whether the user permits it.
    """

    name = "tf32"

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._before: tuple[str, bool] | None = None

    def why_not(self, subject: Subject) -> str | None:
        """Needs permission, and an Ampere GPU or later."""
        if not _is_cuda_from(subject, 8):
            return "only for NVIDIA GPUs from compute capability 8.0"
        if all(p.dtype is not torch.float32 for p in subject.model.parameters()):
            return "no parameter is float32"
        if torch.get_float32_matmul_precision() != "highest" and torch.backends.cudnn.allow_tf32:
            return "it is on already"
        return None if self._allowed else "it narrows the arithmetic, and was not permitted"

    def apply(self, subject: Subject) -> None:
        """For matrix products and convolutions."""
        del subject
        self._before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True

    def undo(self, subject: Subject) -> None:
        """As it was."""
        del subject
        if self._before is not None:
            precision, allowed = self._before
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = allowed
            self._before = None

    def tolerance(self, arithmetic: str) -> float:
        """What ten bits of mantissa explain."""
        return max(TF32_TOLERANCE, super().tolerance(arithmetic))


class CudnnAutotune(Switch):
    """cuDNN times its algorithms for each new shape of a convolution and takes the fastest.

    Timing decides anew in every process, so a run that goes on in another is not equal bit for bit.
    """

    name = "cudnn_autotune"

    def __init__(self) -> None:
        self._before: bool | None = None

    def why_not(self, subject: Subject) -> str | None:
        """Convolutions on a GPU, where cuDNN may choose."""
        if subject.device.type != "cuda" or not torch.backends.cudnn.enabled:
            return "there is no cuDNN"
        if not any(isinstance(m, nn.modules.conv._ConvNd) for m in subject.model.modules()):
            return "the model has no convolution"
        if torch.backends.cudnn.deterministic:
            return "cuDNN is set to deterministic algorithms"
        return "it is on already" if torch.backends.cudnn.benchmark else None

    def apply(self, subject: Subject) -> None:
        """Let it choose."""
        del subject
        self._before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True

    def undo(self, subject: Subject) -> None:
        """As it was."""
        del subject
        if self._before is not None:
            torch.backends.cudnn.benchmark = self._before
            self._before = None


def uses_tf32(device: torch.device) -> bool:
    """Whether float32 matrix products or convolutions may run in TF32 there now."""
    if (
        device.type != "cuda"
        or torch.version.hip
        or torch.cuda.get_device_capability(device) < (8,)
    ):
        return False
    return torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32


def _is_cuda_from(subject: Subject, major: int) -> bool:
    if subject.device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(subject.device)[0] >= major
