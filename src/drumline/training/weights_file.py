"""A model's weights in one safetensors file, tied ones once.

safetensors writes no tensor that is part of a larger storage. On a GPU the weights of recurrent
layers are: cuDNN wants all of a layer in one. Those are written as tensors of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from drumline.distributed import HasState


class _Apart:
    """The weights of a model as safetensors takes them."""

    def __init__(self, model: HasState) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        """Each tensor with a storage of its own; those that are one stay so."""
        copies: dict[tuple[Any, ...], Tensor] = {}

        def apart(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().nbytes() == tensor.nbytes:
                return tensor
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if key not in copies:
                copies[key] = (
                    tensor.detach()
                    .to("cpu", copy=True)
                    .clone(memory_format=torch.contiguous_format)
                )
            return copies[key]

        return {name: apart(tensor) for name, tensor in self._model.state_dict().items()}

    def load_state_dict(self, weights: dict[str, Tensor], **options: Any) -> Any:
        """As the model's own."""
        assert isinstance(self._model, nn.Module)
        return self._model.load_state_dict(weights, **options)


def save_weights(model: HasState, path: Path) -> None:
    """Write all weights of a model.

    Raises:
        OSError: If the disk is full, or safetensors' own error.
    """
    apart: Any = _Apart(model)
    save_model(apart, str(path))


def load_weights(model: nn.Module, path: Path) -> None:
    """Read all weights of a model into it, wherever it is.

    Raises:
        RuntimeError: If names or shapes differ.
    """
    apart: Any = _Apart(model)
    load_model(apart, path, strict=True)
