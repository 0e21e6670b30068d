"""Reading all weights of a sharded model on every rank, each rank at its own pace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule

RESHARDS = "drumline_reshards_after_forward"
"""Attribute of FSDP modules: whether a forward frees their gathered weights."""


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Within it all weights are whole, ordinary tensors, and a forward sends nothing.

    Does nothing to a model that is not sharded. What is changed inside is lost. Needs memory for
    the whole model; all ranks enter and leave together.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(getattr(part, RESHARDS, False), recurse=False)
