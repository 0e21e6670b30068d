"""What a device takes besides tensors, by its compute capability.

Workspaces lie inside torch's allocator and count as reserved; the context and NCCL's buffers lie
outside, and show only in nvidia-smi. Sizes of cuBLAS workspaces are torch's choice
(aten/src/ATen/cuda/CublasHandlePool.cpp); the others are measured, see benchmarks/memory_estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class DeviceConstants:
    """Bytes that depend on the kind of device.

    Attributes:
        cublas_workspace: For each thread that multiplies matrices.
        context: What a process holds once it has run kernels, outside torch's allocator.
        nccl: What NCCL holds in each rank of a group of two or more.
        source: Where the last two are from: "measured" and on what, or "guess".
        cublaslt_workspace: For each thread that multiplies and adds a bias.
    """

    cublas_workspace: int
    context: int
    nccl: int
    source: str = "guess"
    cublaslt_workspace: int = 0

    @property
    def is_measured(self) -> bool:
        """Whether context and NCCL buffers were measured on such a card."""
        return self.source.startswith("measured")

    @property
    def on_host(self) -> bool:
        """Whether these are the constants of no GPU at all."""
        return self.context == 0


_HOPPER = DeviceConstants(
    cublas_workspace=32 * MIB,
    context=767 * MIB,  # 687 for a sparse autoencoder, 767 where more libraries are loaded
    nccl=851 * MIB,  # 1,534 to 1,618 with two ranks, less the context
    source="measured H100 80GB, torch 2.11+cu130, 2026-11-28",
    cublaslt_workspace=MIB,
)
_OTHER = DeviceConstants(
    cublas_workspace=(2 * 4096 + 8 * 16) * 1024,
    context=480 * MIB,
    nccl=500 * MIB,
    source="guess: no such card was measured",
    cublaslt_workspace=MIB,
)
_NO_GPU = DeviceConstants(0, 0, 0, source="none: no GPU")


def device_constants(capability: tuple[int, int] | None) -> DeviceConstants:
    """The constants for a compute capability such as (9, 0); none for a device without one."""
    if capability is None:
        return _NO_GPU
    return _HOPPER if capability == (9, 0) else _OTHER
