"""The tensor axis: single layers split over neighbouring ranks, as a plan says.

Megatron's way (Shoeybi et al. 2019, arXiv 1909.08053), through torch's DTensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module

from drumline.errors import BadInput

ONE_BY_ONE = {"fused": False, "foreach": False}
"""Options of an optimizer over split and whole parameters: torch cannot mix those in one call."""


def check_plan(size: int, plan: Mapping[str, Any] | None) -> None:
    """Refuse a tensor axis for a model that does not say how it splits.

    Raises:
        BadInput: If there is more than one rank and no plan.
    """
    if size > 1 and not plan:
        raise BadInput(
            f"distributed.mesh.tensor is {size}, and the model has no tensor_plan.",
            remedy="Set it to 1, or give the model or its task a tensor_plan.",
        )


def split_layers(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Any] | None) -> None:
    """Split layers in place over a mesh of one axis.

    Raises:
        BadInput: If a size is no multiple of the axis: between two split layers torch takes all
            parts to be of one size.
    """
    parallelize_module(model, mesh, dict(plan or {}))
    for name, parameter in model.named_parameters():
        for placement in parameter.placements if isinstance(parameter, DTensor) else ():
            if isinstance(placement, Shard) and parameter.shape[placement.dim] % mesh.size():
                raise BadInput(
                    f"{name} of shape {tuple(parameter.shape)} cannot be split into {mesh.size()} "
                    f"equal parts along dim {placement.dim}.",
                    remedy="Use a distributed.mesh.tensor that divides it.",
                )
