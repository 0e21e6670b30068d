"""What a switch is: something that can be put on and taken off again, and what it works on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from drumline.distributed.strategies.summation import Channel
from drumline.training.performance.results import ROUNDING


def _nothing() -> None:
    """For what needs no second wrapping."""


@dataclass(frozen=True)
class Subject:
    """What switches work on.

    Attributes:
        model: As it was built: what a mode wraps, not the wrapper.
        optimizer: Its optimizer.
        device: Where they are.
        rewrap: Wraps the model anew after its weights have changed their layout.
        fixed_layout: Why layouts cannot be changed; empty if they can.
        gradient_group: Where gradients are summed; None where that cannot be chosen.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    rewrap: Callable[[], None] = _nothing
    fixed_layout: str = ""
    gradient_group: Channel | None = None


class Switch(ABC):
    """Makes a step faster, perhaps. It keeps what it needs to undo itself.

    `apply` and `undo` come in turn, many times; of several switches that are on, the last to be
    put on is the first to be taken off. Neither may change a value that the training sees.

    Attributes:
        name: For the report.
        updates: Whether it changes how the optimizer computes, so that updates are compared, too.
    """

    name: str
    updates: ClassVar[bool] = False

    def why_not(self, subject: Subject) -> str | None:
        """Why it does not apply to this subject; None if it does."""
        del subject
        return None

    @abstractmethod
    def apply(self, subject: Subject) -> None:
        """Put it on. May raise; then `undo` is called."""

    @abstractmethod
    def undo(self, subject: Subject) -> None:
        """Take it off, also after an `apply` that came only half way."""

    def why_idle(self) -> str | None:
        """Why it does nothing although it is on; asked after a forward and backward."""
        return None

    def tolerance(self, arithmetic: str) -> float:
        """How far losses and gradients may be off, relatively.

        Args:
            arithmetic: What the forward computes in, a key of `results.ROUNDING`.
        """
        return ROUNDING[arithmetic]

    def details(self) -> Mapping[str, Any]:
        """What else the report should say."""
        return {}
