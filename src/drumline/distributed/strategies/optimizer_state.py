"""An optimizer's state by the names of parameters: whole, and so equal in every mode.

Torch has the like in `torch.distributed.checkpoint.state_dict`. It is not used here because it
takes a step on zero gradients to make room for a state, which would count as a step for
parameters that had none, and a restart would not be equal bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from drumline.distributed.strategies.pieces import piece_like, whole
from drumline.errors import CheckpointError

_CHECKPOINTED = "_checkpoint_wrapped_module."


def plain_name(name: str) -> str:
    """A parameter's name in the model as it was built."""
    return name.replace(_CHECKPOINTED, "")


def state_by_name(
    optimizer: torch.optim.Optimizer, model: nn.Module, *, keep: bool = True
) -> dict[str, Any]:
    """The whole state. Collective where parameters are in pieces.

    Args:
        optimizer: Any of torch's.
        model: Whose parameters it has.
        keep: Whether this rank wants the result; if not it only takes part.
    """
    names = _names(optimizer, model)
    given = optimizer.state_dict()
    state = {
        names[place]: {key: whole(value, keep=keep) for key, value in given["state"][place].items()}
        for place in sorted(given["state"])
    }
    groups = [{**g, "params": [names[p] for p in g["params"]]} for g in given["param_groups"]]
    return {"state": state, "param_groups": groups} if keep else {}


def load_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Any]) -> None:
    """Take back what `state_by_name` gave, in any mode; each rank keeps copies of its pieces."""
    names = _names(optimizer, model)
    same_parameters(state, names)
    place = {name: number for number, name in enumerate(names)}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    pieces = {
        place[name]: {k: _piece(v, parameters[place[name]]) for k, v in entries.items()}
        for name, entries in state["state"].items()
    }
    groups, start = [], 0
    for theirs, mine in zip(state["param_groups"], optimizer.param_groups, strict=True):
        end = start + len(mine["params"])
        groups.append({**theirs, "params": list(range(start, end))})  # torch goes by position
        start = end
    optimizer.load_state_dict({"state": pieces, "param_groups": groups})


def same_parameters(state: dict[str, Any], names: list[str]) -> None:
    """Refuse a state that is of other parameters than these.

    Raises:
        CheckpointError: Naming some that differ.
    """
    saved = [name for group in state["param_groups"] for name in group["params"]]
    if sorted(map(str, saved)) != sorted(names):
        strange = sorted({*map(str, saved)} ^ {*names})
        raise CheckpointError(
            f"The checkpoint's optimizer is of other parameters: {', '.join(strange[:3])}.",
            remedy="Resume with the model the run was started with.",
        )


def _piece(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    return piece_like(value, parameter) if value.shape == parameter.shape else value.clone()


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Names of the optimizer's parameters, in its order."""
    by_id = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    return [by_id[id(p)] for group in optimizer.param_groups for p in group["params"]]
