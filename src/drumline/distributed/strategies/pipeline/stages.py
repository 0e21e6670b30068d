"""A model cut into stages: what a rank keeps of it, and how it is made whole for a while.

The model keeps its form and all its names on every rank. Tensors of other ranks' stages are on the
meta device, where they take no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline.distributed.strategies.pieces import local
from drumline.errors import BadInput

Bring = Callable[[int, Tensor], None]
"""Fills a tensor with that of a stage's rank; the ranks of a pipeline call it together."""


def cut_stages(blocks: Sequence[nn.Module], count: int) -> list[nn.Module]:
    """Stages of consecutive blocks, each called with what the one before gave; a tuple that one
    gives is several arguments of the next.

    Their numbers of blocks differ by at most one, the first stages having more.

    Raises:
        BadInput: If there are fewer blocks than stages.
    """
    if len(blocks) < count:
        raise BadInput(
            f"The model has {len(blocks)} blocks, which cannot make {count} pipeline stages.",
            remedy="Use a smaller distributed.mesh.pipeline, or fewer stages_per_rank.",
        )
    size, more = divmod(len(blocks), count)
    ends = [size * (stage + 1) + min(stage + 1, more) for stage in range(count)]
    return [_Chain(*blocks[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


class _Chain(nn.Sequential):
    """Modules called one after the other, as stages are."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """What the last one gives; keywords are the first one's."""
        given: Any = arguments
        for number, block in enumerate(self):
            given = block(*given, **options) if number == 0 else block(*given)
            given = given if isinstance(given, tuple) else (given,)
        return given if len(given) != 1 else given[0]


def check_stages(model: nn.Module, stages: Sequence[nn.Module] | None, count: int) -> None:
    """Refuse what cannot be a pipeline.

    Raises:
        BadInput: If there is another number of stages, a parameter of two of them, or one that is
            not the model's.
    """
    if stages is None or len(stages) != count:
        has = "no pipeline_stages" if stages is None else f"{len(stages)} pipeline stages"
        raise BadInput(
            f"distributed.mesh.pipeline needs a model in {count} stages, and this one has {has}.",
            remedy="Give the model or its task a pipeline_stages(count), or set it to 1.",
        )
    names = {id(p): n for n, p in model.named_parameters()}
    seen: dict[int, int] = {}
    for place, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            if id(parameter) not in names:
                raise BadInput(
                    f"{name} of pipeline stage {place} is no parameter of the model.",
                    remedy="Build stages of the model's own modules and parameters.",
                )
            if seen.setdefault(id(parameter), place) != place:
                raise BadInput(
                    f"{names[id(parameter)]} is in pipeline stages {seen[id(parameter)]} and "
                    f"{place}: weights that are tied cannot be in two.",
                    remedy="Put the modules that share it into one stage, or do not tie them.",
                )


@dataclass(frozen=True)
class _Form:
    """A tensor without its values: shape and dtype on a rank, and how it is split over a tensor
    axis: mesh, placements, whole shape and stride.
    """

    shape: torch.Size
    dtype: torch.dtype
    split: tuple[Any, Any, torch.Size, tuple[int, ...]] | None

    @classmethod
    def of(cls, tensor: Tensor) -> _Form:
        """The form of a tensor."""
        piece, split = local(tensor.detach()), None
        if isinstance(tensor, DTensor):
            split = (tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride())
        return cls(piece.shape, piece.dtype, split)

    def fill(self, device: torch.device, bring: Callable[[Tensor], None]) -> Tensor:
        """The tensor on this rank, from where it is."""
        piece = torch.empty(self.shape, dtype=self.dtype, device=device)
        bring(piece)
        if self.split is None:
            return piece
        mesh, placements, shape, stride = self.split
        return DTensor.from_local(
            piece, mesh, placements, run_check=False, shape=shape, stride=stride
        )


class Part:
    """The part of a model that a rank keeps; made before anything is moved.

    Args:
        model: The whole model, equal on all ranks.
        stages: All its stages.
        mine: Those of this rank. Tensors of no stage belong to the first.

    Attributes:
        stage_of: Name of each parameter and buffer, to its stage.
        stages: This rank's, by number.
    """

    def __init__(self, model: nn.Module, stages: Sequence[nn.Module], mine: Sequence[int]) -> None:
        self.model = model
        self.stages = {number: stages[number] for number in mine}
        first: dict[int, int] = {}
        for number, stage in enumerate(stages):
            for tensor in chain(stage.parameters(), stage.buffers()):
                first.setdefault(id(tensor), number)
        self.stage_of = {n: first.get(id(t), 0) for n, t in _named(model)}
        kept = [
            t for stage in self.stages.values() for t in (*stage.parameters(), *stage.buffers())
        ]
        self._kept = {id(tensor) for tensor in kept}
        if 0 in mine:
            self._kept |= {id(t) for _, t in _named(model) if id(t) not in first}
        self._forms: dict[str, _Form] = {}

    @torch.no_grad()
    def keep(self, device: torch.device) -> None:
        """Bring this rank's part to its device, and let go of all else."""
        roots = (self.model, *self.stages.values())
        before = [(root, name, tensor) for root in roots for name, tensor in _named(root)]
        made: dict[int, Tensor] = {}
        for root, name, tensor in before:
            if id(tensor) not in made:
                kept = id(tensor) in self._kept
                made[id(tensor)] = _moved(tensor, device) if kept else _away(tensor)
            if made[id(tensor)].is_meta:
                self._forms[name] = _Form.of(tensor)
            _set(root, name, made[id(tensor)])
        for module in chain.from_iterable(stage.modules() for stage in self.stages.values()):
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()

    @contextmanager
    def whole(self, device: torch.device, bring: Bring) -> Iterator[None]:
        """Within it the model has all its tensors on this rank's device."""
        before = _named(self.model)
        filled: dict[int, Tensor] = {}
        for name, tensor in before:
            if id(tensor) not in filled:
                filled[id(tensor)] = self._filled(name, tensor, device, bring)
            _set(self.model, name, filled[id(tensor)])
        try:
            yield
        finally:
            for name, tensor in before:
                _set(self.model, name, tensor)

    def _filled(self, name: str, tensor: Tensor, device: torch.device, bring: Bring) -> Tensor:
        """The tensor itself if it is here, else a copy of it."""
        number = self.stage_of[name]
        if not tensor.is_meta:
            bring(number, local(tensor.detach()))
            return tensor
        made = self._forms[name].fill(device, lambda piece: bring(number, piece))
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made


def _named(root: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers under all their names, those that are in no state dict too."""
    parameters = root.named_parameters(remove_duplicate=False)
    return [*parameters, *root.named_buffers(remove_duplicate=False)]


def _set(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Exchange a tensor; through the attribute, as modules may keep it in other places too."""
    path, _, attribute = name.rpartition(".")
    setattr(root.get_submodule(path), attribute, tensor)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A parameter stays the same object, so that whoever has it, has it still."""
    if not isinstance(tensor, nn.Parameter):
        return tensor.to(device)
    if not isinstance(tensor, DTensor):
        tensor.data = tensor.data.to(device)
    return tensor


def _away(tensor: Tensor) -> Tensor:
    """A stand-in of a tensor that another rank holds."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
