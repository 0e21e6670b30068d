"""A model with weights that have shapes and no values, and its memory as moving it makes it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode

from drumline.bench.allocation_recorder import AllocationRecorder
from drumline.distributed import local
from drumline.training.task import Task


def give_fake_weights(model: nn.Module, dtype: torch.dtype, fake: FakeTensorMode) -> None:
    """Give a model fake weights of the run's dtype, in place; weights that are shared stay so."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    if id(tensor) not in made:
                        made[id(tensor)] = _prepared(tensor, dtype, fake)
                    table[name] = made[id(tensor)]  # type: ignore[assignment]
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            _flatten(module)


def _flatten(layer: nn.RNNBase) -> None:
    """Make the weights of a recurrent layer views of one tensor, as cuDNN wants them."""
    weights = dict(layer.named_parameters(recurse=False))
    counts = [weight.numel() for weight in weights.values()]
    flat = next(iter(weights.values())).detach().new_empty(sum(counts))
    for (name, weight), part in zip(weights.items(), torch.split(flat, counts), strict=True):
        layer._parameters[name] = nn.Parameter(part.view(weight.shape), weight.requires_grad)
    layer._init_flat_weights()


def _prepared(tensor: Tensor, dtype: torch.dtype, fake: FakeTensorMode) -> Tensor:
    faked = tensor if isinstance(tensor, FakeTensor) else fake.from_tensor(tensor)
    if not faked.is_floating_point() or faked.dtype is dtype:
        return faked
    cast = faked.detach().to(dtype)
    return nn.Parameter(cast, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else cast


def see_model(recorder: AllocationRecorder, model: nn.Module, task: Task) -> None:
    """Weights and buffers in the order in which `to` moves them, then the task's own tensors."""
    for module in _inner_first(model):
        own = list(module.parameters(recurse=False))
        flattened = own if isinstance(module, nn.RNNBase) else []  # moved one by one before that
        moved = [torch.empty(each.shape, dtype=each.dtype) for each in flattened]
        for parameter in own:
            piece = local(parameter)
            recorder.see(piece, "parameters")
            recorder.label([piece], "parameters")  # a piece may have been seen on the way to it
        del moved
        for buffer in module.buffers(recurse=False):
            recorder.see(buffer, "buffers")
    for tensor in _tensors_of(task):
        recorder.see(tensor, "buffers")


def _inner_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _inner_first(child)
    yield module


def _tensors_of(owner: object, depth: int = 2) -> Iterator[Tensor]:
    for value in vars(owner).values() if hasattr(owner, "__dict__") else ():
        if isinstance(value, FakeTensor):  # what is not fake is data, and stays on the host
            yield value
        elif depth and not isinstance(value, nn.Module | type):
            yield from _tensors_of(value, depth - 1)
