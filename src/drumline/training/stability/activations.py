"""What named modules put out: largest magnitude, fraction of zeros, values that are not finite."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from drumline.config import StabilityConfig
from drumline.errors import BadInput
from drumline.training.stability.tensors import tensors_in
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session
    from drumline.training.source import StepBatch
    from drumline.training.step import StepOutcome


class ActivationWatcher(Watcher):
    """Forward hooks on the modules that the config names. They do nothing except on the steps that
    are measured; the numbers are over all samples of the global batch.
    """

    def __init__(self, config: StabilityConfig) -> None:
        self.config = config
        self._handles: list[RemovableHandle] = []
        self._measures = False
        self._sums: dict[str, Tensor] = {}

    def attach(self, model: nn.Module) -> None:
        """Put the hooks on.

        Raises:
            BadInput: If a pattern fits no module.
        """
        names = [name for name, _ in model.named_modules() if name]
        for pattern in self.config.activations:
            fitting = [name for name in names if fnmatchcase(name, pattern)]
            if not fitting:
                raise BadInput(
                    f"stability.activations names {pattern}, and no module is called so.",
                    remedy=f"There are: {', '.join(names[:20]) or 'none'}.",
                )
            for name in fitting:
                hook = self._hook(name)
                self._handles.append(model.get_submodule(name).register_forward_hook(hook))

    def before_step(self, session: Session, batch: StepBatch) -> None:
        """Measure this step, if it is time."""
        del batch
        self._measures = (session.progress.step + 1) % self.config.activations_every == 0
        self._sums = {}

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Report what all ranks measured."""
        del batch, outcome
        if not self._measures or not self._handles:
            return
        self._measures = False
        ranks = session.world.control.gather({n: s.tolist() for n, s in self._sums.items()})
        if session.world.is_main:
            session.events.emit("activations", step=session.progress.step, modules=_total(ranks))

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            if not self._measures:
                return
            for value in tensors_in(output):
                if value.is_floating_point() and value.numel():
                    facts = _measure(value.detach())
                    known = self._sums.get(name)
                    self._sums[name] = facts if known is None else _add(known, facts)

        return hook


def _measure(value: Tensor) -> Tensor:
    """[largest finite magnitude, zeros, non-finite, elements], float64."""
    finite = torch.isfinite(value)
    largest = torch.where(finite, value, 0).abs().amax()
    facts = [largest, (value == 0).sum(), (~finite).sum()]
    elements = torch.tensor(value.numel(), dtype=torch.float64, device=value.device)
    return torch.stack([*(fact.double() for fact in facts), elements])


def _add(one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([torch.maximum(one[:1], other[:1]), one[1:] + other[1:]])


def _total(ranks: list[dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    found = {}
    for name in sorted({name for facts in ranks for name in facts}):
        rows = [facts[name] for facts in ranks if name in facts]
        _, zeros, bad, elements = (sum(column) for column in zip(*rows, strict=True))
        found[name] = {
            "max_abs": max(row[0] for row in rows),
            "zero_fraction": zeros / elements,
            "non_finite": bad,
        }
    return found
