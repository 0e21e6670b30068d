"""How much one step changes the weights of each module, relative to their size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline.config import StabilityConfig
from drumline.training.stability.finding import Finding
from drumline.training.stability.policies import Policies
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session
    from drumline.training.source import StepBatch
    from drumline.training.step import StepOutcome

SAMPLED = 1 << 16


class UpdateWatcher(Watcher):
    """Every so many steps: the norm of each module's change over the norm of its weights.

    Of a tensor of more than `SAMPLED` elements, evenly spaced ones stand for all, so that the
    copy taken before the step stays small. Of ranks with the same parameters one counts.
    """

    def __init__(self, config: StabilityConfig, policies: Policies) -> None:
        self.config, self.policies = config, policies
        self._before: dict[str, Tensor] | None = None

    def before_step(self, session: Session, batch: StepBatch) -> None:
        """Copy the weights, if this step is to be measured."""
        del batch
        every = self.config.update_ratio_every
        if every and (session.progress.step + 1) % every == 0:
            self._before = {n: s.clone() for n, s in sampled(session.model).items()}

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Compare with the copy."""
        del batch
        before, self._before = self._before, None
        if before is None or not outcome.taken:
            return
        counts = session.world.is_first_of_stage
        found = update_ratios(before, sampled(session.model)) if counts else {}
        gathered = session.world.control.gather(found)
        ratios = {name: ratio for part in gathered for name, ratio in part.items()}
        if session.world.is_main:
            session.events.emit("update_ratios", step=session.progress.step, ratios=ratios)
        module = max(ratios, key=lambda name: ratios[name], default=None)
        if module is not None and ratios[module] > self.config.max_update_ratio:
            message = (
                f"One step changed the weights of {module or 'the model'} by "
                f"{ratios[module]:.3g} of their norm"
            )
            values = {"ratio": ratios[module]}
            self.policies.apply(session, Finding("update_ratio", message, values, module))


@torch.no_grad()
def sampled(model: nn.Module) -> dict[str, Tensor]:
    """At most `SAMPLED` evenly spaced elements of each trained parameter of this rank."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.numel() and not parameter.is_meta:
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            found[name] = local.detach().flatten()[:: -(-local.numel() // SAMPLED) or 1]
    return found


@torch.no_grad()
def update_ratios(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, float]:
    """|after - before| / |before| for each module, over its own parameters together.

    A module whose weights were all zero has no ratio.
    """
    old, new = list(before.values()), [after[name] for name in before]
    if not old:
        return {}
    changes = torch.stack(torch._foreach_norm(torch._foreach_sub(new, old))).square().tolist()
    sizes = torch.stack(torch._foreach_norm(old)).square().tolist()
    sums: dict[str, list[float]] = {}
    for name, change, size in zip(before, changes, sizes, strict=True):
        entry = sums.setdefault(name.rpartition(".")[0], [0.0, 0.0])
        entry[0] += change
        entry[1] += size
    return {name: float((c / s) ** 0.5) for name, (c, s) in sums.items() if s > 0}
