"""Which modules of a model are sharded and gathered together, if its task does not say."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from drumline.errors import BadInput


def find_units(model: nn.Module, declared: Sequence[nn.Module] | None = None) -> list[nn.Module]:
    """The declared units, or the entries of every list of equal blocks, outermost lists first.

    A block is left out if a parameter of it is also used elsewhere (tied weights): parameters are
    gathered with one unit only. What is in no unit is gathered with the whole model.

    Raises:
        BadInput: If a declared unit shares parameters with the rest, or is not in the model.
    """
    if declared is not None:
        _check(model, declared)
        return list(declared)
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():  # parents come before their children
        if id(module) in inside or not _is_list_of_blocks(module):
            continue
        blocks = [child for child in module.children() if _is_apart(model, child)]
        found += blocks
        inside.update(id(part) for block in blocks for part in block.modules())
    return found


def _is_list_of_blocks(module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    kinds = {type(child) for child in module.children()}
    weighed = all(any(True for _ in child.parameters()) for child in module.children())
    return len(module) > 1 and len(kinds) == 1 and weighed


def _is_apart(model: nn.Module, block: nn.Module) -> bool:
    """Whether no parameter of a block has another user outside of it."""
    own = {id(parameter) for parameter in block.parameters()}
    inner = {id(module) for module in block.modules()}
    return not any(
        id(parameter) in own
        for module in model.modules()
        if id(module) not in inner
        for parameter in module.parameters(recurse=False)
    )


def _check(model: nn.Module, declared: Sequence[nn.Module]) -> None:
    there = {id(module): name for name, module in model.named_modules()}
    for unit in declared:
        name = there.get(id(unit))
        if name is None or not _is_apart(model, unit):
            why = "is not in the model" if name is None else "shares parameters with other modules"
            raise BadInput(
                f"The unit {name or type(unit).__name__} that the task names {why}.",
                remedy="Name modules whose parameters nothing else uses.",
            )
