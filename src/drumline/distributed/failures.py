"""Telling a broken collective from other errors of torch, which raises RuntimeError for both."""

from __future__ import annotations

import torch.distributed as dist

_MARKS = (
    "gloo",
    "NCCL",
    "Connection closed by peer",
    "Connection reset by peer",
    "Application timeout caused pair closure",  # gloo, for a collective begun after a timeout
)


def is_communication_failure(error: BaseException) -> bool:
    """Whether ranks lost contact: a peer is gone, hangs, or the network broke."""
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
