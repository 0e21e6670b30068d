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
        measured_on: The card and versions, or "" where the numbers are taken from another's.
    """

    cublas_workspace: int
    context: int
    nccl: int
    measured_on: str = ""


_HOPPER = DeviceConstants(32 * MIB, 560 * MIB, 700 * MIB)
_OTHER = DeviceConstants((2 * 4096 + 8 * 16) * 1024, 480 * MIB, 500 * MIB)
_NO_GPU = DeviceConstants(0, 0, 0)


def device_constants(capability: tuple[int, int] | None) -> DeviceConstants:
    """The constants for a compute capability such as (9, 0); none for a device without one."""
    if capability is None:
        return _NO_GPU
    return _HOPPER if capability == (9, 0) else _OTHER
