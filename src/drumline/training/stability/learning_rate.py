"""The learning rate, lowered for a while. The schedule itself stays a pure function of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drumline.training.optimizer import set_learning_rate
from drumline.training.watchers import Watcher

if TYPE_CHECKING:
    from drumline.training.session import Session
    from drumline.training.source import StepBatch
    from drumline.training.step import StepOutcome


class LoweredRate(Watcher):
    """Multiplies the schedule's learning rate by a factor until a step is reached.

    Args:
        factor: The factor.
        steps: For how many steps. Lowering again while it is low makes it last, not fall further.
    """

    def __init__(self, factor: float, steps: int) -> None:
        self.factor, self.steps = factor, steps
        self.until = 0

    def lower(self, step: int) -> None:
        """Lower the rate of the `steps` steps that follow the first `step` ones."""
        self.until = step + self.steps

    def before_step(self, session: Session, batch: StepBatch) -> None:
        """Apply the factor to the step to come."""
        del batch
        if session.progress.step < self.until:
            session.learning_rate *= self.factor
            set_learning_rate(session.optimizer, session.learning_rate)

    def after_step(self, session: Session, batch: StepBatch, outcome: StepOutcome) -> None:
        """Nothing: `before_step` does it all."""

    def state_dict(self) -> dict[str, Any]:
        """The step at which the rate is the schedule's again."""
        return {"until": self.until}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.until = int(state["until"])
