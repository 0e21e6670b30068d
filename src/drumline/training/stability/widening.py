"""Modules that compute in a wider precision than the run: fp16, then bf16, then fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drumline.config import Precision
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session
    from drumline.training.source import StepBatch
    from drumline.training.step import StepOutcome

_WIDER = {Precision.FP16: Precision.BF16, Precision.BF16: Precision.FP32}
_DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP32: torch.float32}


class WidenedModules(Watcher):
    """Which modules were widened, and how far. The weights are float32 all along; what changes is
    the arithmetic of a module's forward, and with it of its backward.

    Args:
        precision: The run's.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self.levels: dict[str, Precision] = {}
        self._model: nn.Module | None = None
        self._replaced: list[tuple[nn.Module, Callable[..., Any] | None]] = []

    def attach(self, model: nn.Module) -> None:
        """Work on this model from now on; what a checkpoint said of its modules is applied."""
        self._model = model
        self._apply()

    def widen(self, name: str) -> Precision | None:
        """Raise a module's precision by one level: the new one, or None if it is the widest."""
        wider = _WIDER.get(self.levels.get(name, self._precision))
        if wider is not None:
            self.levels[name] = wider
            self._apply()
        return wider

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Nothing: a policy says when a module is widened."""

    def close(self) -> None:
        """Give all modules their own forward back."""
        for module, own in self._replaced:
            del module.forward
            if own is not None:
                module.forward = own
        self._replaced.clear()

    def state_dict(self) -> dict[str, Any]:
        """The precision of each widened module."""
        return {name: level.value for name, level in self.levels.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.levels = {name: Precision(level) for name, level in state.items()}
        self._apply()

    def _apply(self) -> None:
        if self._model is None:
            return
        self.close()
        for name, level in self.levels.items():
            module = self._model.get_submodule(name)
            self._replaced.append((module, vars(module).get("forward")))
            module.forward = _in_precision(module.forward, _DTYPES[level])


def _in_precision(forward: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """A forward under autocast to `dtype`, or under none for float32."""

    def widened(*inputs: Any, **options: Any) -> Any:
        kind = next((t.device.type for t in [*inputs, *options.values()] if _is_tensor(t)), "cpu")
        with torch.autocast(kind, dtype, enabled=dtype is not torch.float32):
            inputs = tuple(_cast(item, dtype) for item in inputs)
            return forward(*inputs, **{key: _cast(item, dtype) for key, item in options.items()})

    return widened


def _cast(value: Any, dtype: torch.dtype) -> Any:
    narrow = (torch.float16, torch.bfloat16)
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype in narrow else value
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_cast(item, dtype) for item in value)
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
