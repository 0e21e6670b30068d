"""Weights and optimizer state of a model in stages, put together on rank 0 and cut again.

The ranks of the first pipeline send; replicas have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from drumline.distributed.strategies.optimizer_state import (
    load_state,
    same_parameters,
    state_by_name,
)
from drumline.distributed.strategies.pieces import Whole, whole

if TYPE_CHECKING:
    from drumline.distributed.strategies.pipeline.stages import Part
    from drumline.distributed.world import World


def weights(part: Part, world: World, ranks: int) -> Whole:
    """Whole weights by name on rank 0; empty elsewhere. All ranks call it together."""
    known: dict[int, Tensor] = {}
    named = part.model.state_dict(keep_vars=True) if world.data_rank == 0 else {}
    for name, tensor in named.items():
        if id(tensor) not in known:
            place = part.stage_of[name] % ranks
            known[id(tensor)] = _brought(tensor, place, world)
    tensors = {name: known[id(tensor)] for name, tensor in named.items()}
    return Whole(tensors if world.is_main else {})


def _brought(tensor: Tensor, place: int, world: World) -> Tensor:
    """A tensor of the rank at a place, on the CPU of rank 0; on others what there is."""
    here = tensor.detach()
    if world.pipeline_rank == place:
        here = whole(here, keep=world.is_first_of_stage)
    if place and world.is_first_of_stage:
        if world.pipeline_rank == place:
            _send(here, world)
        elif world.is_main:
            here = _received(tensor.shape, tensor.dtype, place, world)
    return here


def optimizer_state(optimizer: torch.optim.Optimizer, part: Part, world: World) -> dict[str, Any]:
    """The whole state, by parameter name, on rank 0; empty elsewhere. All ranks call it."""
    mine: dict[str, Any] = {}
    if world.data_rank == 0:
        mine = state_by_name(optimizer, part.model, keep=world.is_first_of_stage)
    told = {n: {k: _spec(v) for k, v in e.items()} for n, e in mine.get("state", {}).items()}
    groups = [group["params"] for group in mine.get("param_groups", ())]
    ranks = [each for each in world.control.gather((told, groups)) if any(each)]
    if not world.is_first_of_stage:
        return {}
    if not world.is_main:
        for entries in mine["state"].values():
            for value in entries.values():
                if isinstance(value, Tensor):
                    _send(value, world)
        return {}
    state = dict(mine["state"])
    for place, (specs, _) in list(enumerate(ranks))[1:]:
        for name, entries in specs.items():
            state[name] = {k: _taken(spec, place, world) for k, spec in entries.items()}
    order = [name for name, _ in part.model.named_parameters()]
    found = [
        {**group, "params": sorted((n for _, held in ranks for n in held[place]), key=order.index)}
        for place, group in enumerate(mine["param_groups"])
    ]
    return {"state": {name: state[name] for name in order if name in state}, "param_groups": found}


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, part: Part, state: dict[str, Any]
) -> None:
    """Take this rank's part of the whole state.

    Raises:
        CheckpointError: If it is of other parameters.
    """
    trained = {name: p for name, p in part.model.named_parameters() if p.requires_grad}
    same_parameters(state, list(trained))
    here = {name for name, parameter in trained.items() if not parameter.is_meta}
    groups = [
        {**group, "params": [name for name in group["params"] if name in here]}
        for group in state["param_groups"]
    ]
    entries = {name: entry for name, entry in state["state"].items() if name in here}
    load_state(optimizer, part.model, {"state": entries, "param_groups": groups})


def _spec(value: Any) -> Any:
    """What is told of a value before it is sent: a plain one itself."""
    return (value.shape, value.dtype) if isinstance(value, Tensor) else [value]


def _taken(spec: Any, place: int, world: World) -> Any:
    return spec[0] if isinstance(spec, list) else _received(spec[0], spec[1], place, world)


def _send(tensor: Tensor, world: World) -> None:
    dist.send(tensor.to(world.device).contiguous(), group=world.pipeline_group, group_dst=0)


def _received(shape: Sequence[int], dtype: torch.dtype, place: int, world: World) -> Tensor:
    there = torch.empty(tuple(shape), dtype=dtype, device=world.device)
    dist.recv(there, group=world.pipeline_group, group_src=place)
    return there.cpu()
