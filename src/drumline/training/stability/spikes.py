"""Loss spikes and gradient growth, found before the update is made."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from drumline.config import StabilityConfig
from drumline.training.stability.finding import Finding
from drumline.training.stability.policies import Policies
from drumline.training.stability.statistics import SpikeFinder
from drumline.training.step import Gate, Verdict
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session
    from drumline.training.source import StepBatch
    from drumline.training.step import StepOutcome

_NOT_TAKEN = ("skip", "rollback", "stop")


class SpikeGuard(Watcher, Gate):
    """Judges loss and gradient norm against their running statistics.

    Both are global values, so all ranks judge alike. The norm is judged by its logarithm, whose
    noise is about the same at every scale (as in Kumar et al., "ZClip" (2025)).
    """

    def __init__(self, config: StabilityConfig, policies: Policies) -> None:
        self.config, self.policies = config, policies
        self._loss = SpikeFinder(config.window, config.warmup_steps, config.spike_deviations)
        self._norm = SpikeFinder(config.window, config.warmup_steps, config.growth_deviations)
        self._found: list[Finding] = []

    def judge(self, loss: float, norm: float) -> Verdict:
        """Take both values in; skip or bound the update where the policy of a finding says so."""
        usual = math.exp(self._norm.statistics.mean)
        self._found = [*self._judge_loss(loss), *self._judge_norm(norm, usual)]
        policies = {self.config.policies[finding.name] for finding in self._found}
        refused = [f for f in self._found if self.config.policies[f.name] in _NOT_TAKEN]
        return Verdict(
            take=not refused,
            max_norm=self.config.clip_factor * usual if "clip" in policies else math.inf,
            reason="; ".join(finding.message for finding in refused),
        )

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Hand what was found to the policies."""
        del batch, outcome
        found, self._found = self._found, []
        for finding in found:
            self.policies.apply(session, finding)

    def state_dict(self) -> dict[str, Any]:
        """Both running statistics."""
        return {
            "loss": self._loss.statistics.state_dict(),
            "norm": self._norm.statistics.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._loss.statistics.load_state_dict(state["loss"])
        self._norm.statistics.load_state_dict(state["norm"])

    def _judge_loss(self, loss: float) -> list[Finding]:
        usual = self._loss.statistics.mean
        if not self._loss.is_spike(loss):
            return []
        message = f"The loss {loss:.4g} is far above its running mean {usual:.4g}"
        return [Finding("loss_spike", message, {"loss": loss, "usual": usual})]

    def _judge_norm(self, norm: float, usual: float) -> list[Finding]:
        if norm <= 0:
            return []
        if not self._norm.is_spike(math.log(norm)) or norm < self.config.growth_factor * usual:
            return []
        message = f"The gradient norm {norm:.4g} has grown far above the usual {usual:.4g}"
        return [Finding("gradient_growth", message, {"grad_norm": norm, "usual": usual})]
