"""Precision: dtype of the weights, autocast around the forward, and the loss scale of fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from drumline.config import Precision

_AUTOCAST = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class Arithmetic:
    """What a precision means on a device."""

    precision: Precision
    device: torch.device

    @property
    def weights(self) -> torch.dtype:
        """The dtype of weights, gradients and optimizer state."""
        return torch.float64 if self.precision is Precision.FP64 else torch.float32

    def apply(self) -> None:
        """Set torch's float32 matmul mode for this process: TF32 only where it was asked for."""
        allowed = "high" if self.precision is Precision.TF32 else "highest"
        torch.set_float32_matmul_precision(allowed)
        torch.backends.cudnn.allow_tf32 = self.precision is Precision.TF32

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """What matrix products run in where that is not the weights' dtype."""
        return _AUTOCAST.get(self.precision)

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for a forward."""
        dtype = self.autocast_dtype
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def scaler(self) -> LossScaler:
        """The loss scale: dynamic for fp16, always 1 otherwise."""
        return LossScaler(enabled=self.precision is Precision.FP16)


class LossScaler:
    """Dynamic loss scale, as in Micikevicius et al., "Mixed Precision Training" (2018).

    Torch's GradScaler decides on each rank by what that rank saw. Here the caller passes one
    decision that all ranks share, so the scales cannot drift apart.
    """

    def __init__(
        self,
        *,
        enabled: bool,
        initial: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.enabled = enabled
        self.scale = initial if enabled else 1.0
        self._growth, self._backoff, self._growth_interval = growth, backoff, growth_interval
        self._good_steps = 0

    def update(self, finite: bool) -> None:
        """After a step: lower the scale if the gradient was not finite, raise it after a while."""
        if not self.enabled:
            return
        self._good_steps = self._good_steps + 1 if finite else 0
        if not finite:
            self.scale *= self._backoff
        elif self._good_steps >= self._growth_interval:
            self.scale *= self._growth
            self._good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The scale and the number of good steps since it changed."""
        return {"scale": self.scale, "good_steps": self._good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; a run without loss scale keeps 1."""
        if self.enabled:
            self.scale, self._good_steps = float(state["scale"]), int(state["good_steps"])
