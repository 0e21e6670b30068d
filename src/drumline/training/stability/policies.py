"""What is done about a finding. Every rank has the same finding and does the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drumline.config import Precision, StabilityConfig
from drumline.errors import NumericsError
from drumline.training.stability.finding import Finding
from drumline.training.stability.learning_rate import LoweredRate
from drumline.training.stability.rollback import roll_back
from drumline.training.stability.widening import WidenedModules

if TYPE_CHECKING:
    from drumline.training.session import Session


class Policies:
    """Carries out the policy of each finding, within the config's bounds.

    Skipping and clipping are done where the update is judged; here they are only told.
    """

    def __init__(self, config: StabilityConfig, precision: Precision) -> None:
        self.config = config
        self.lowered = LoweredRate(config.lr_factor, config.lr_steps)
        self.widened = WidenedModules(precision)
        self.rollbacks = 0
        self._rolled_back_at = -1
        self._quiet_until: dict[str, int] = {}

    def apply(self, session: Session, finding: Finding) -> None:
        """Do what the config says about it.

        Raises:
            NumericsError: If that is to stop, or no rollback is left; on all ranks alike.
        """
        policy = self.config.policies[finding.name]
        if policy == "stop":
            raise self._stopped(session, finding, "the policy is to stop")
        if policy == "rollback":
            self._roll_back(session, finding)
        elif policy == "widen_precision":
            self._widen(session, finding)
        elif policy == "clip":
            self._tell(session, finding, "the gradient is clipped")
        elif policy in ("warn", "lower_lr") and self._is_due(session, finding):
            self._warn_or_lower(session, finding, policy)

    def state_dict(self) -> dict[str, Any]:
        """Counters, the lowered rate and the widened modules."""
        return {
            "rollbacks": self.rollbacks,
            "rolled_back_at": self._rolled_back_at,
            "quiet_until": dict(self._quiet_until),
            "lowered": self.lowered.state_dict(),
            "widened": self.widened.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.rollbacks, self._rolled_back_at = state["rollbacks"], state["rolled_back_at"]
        self._quiet_until = dict(state["quiet_until"])
        self.lowered.load_state_dict(state["lowered"])
        self.widened.load_state_dict(state["widened"])

    def _is_due(self, session: Session, finding: Finding) -> bool:
        step = session.progress.step
        if step < self._quiet_until.get(finding.name, 0):
            return False
        self._quiet_until[finding.name] = step + 1 + self.config.cooldown_steps
        return True

    def _warn_or_lower(self, session: Session, finding: Finding, policy: str) -> None:
        if policy == "warn":
            self._tell(session, finding, "training goes on")
            return
        self.lowered.lower(session.progress.step)
        done = f"the learning rate is {self.config.lr_factor:g} of the schedule's"
        self._tell(session, finding, f"{done} for {self.config.lr_steps} steps")

    def _widen(self, session: Session, finding: Finding) -> None:
        level = None if finding.module is None else self.widened.widen(finding.module)
        if level is None:
            self._tell(session, finding, "there is no module whose precision could be raised")
        else:
            name = finding.module or "the model"
            self._tell(session, finding, f"{name} computes in {level.value} from now on")

    def _roll_back(self, session: Session, finding: Finding) -> None:
        step = session.progress.step
        if self._rolled_back_at == step:  # another finding of this step has done it
            return
        if self.rollbacks >= self.config.max_rollbacks:
            raise self._stopped(session, finding, f"after {self.rollbacks} rollbacks")
        kept = self.state_dict()  # what was done about findings is not undone by going back
        went_to = roll_back(session)
        if went_to is None:
            self._tell(session, finding, "there is no checkpoint yet to go back to")
            return
        self.load_state_dict(kept)
        self.rollbacks += 1
        self._rolled_back_at = step
        self._tell(
            session,
            finding,
            f"all ranks went back to the state of step {went_to} and go on with the samples after "
            f"step {step}",
            went_back_to=went_to,
        )

    def _tell(self, session: Session, finding: Finding, done: str, **values: Any) -> None:
        if session.world.is_main:
            session.events.emit(
                "warning",
                code=finding.name,
                message=f"{finding.message}: {done}.",
                step=session.progress.step,
                policy=self.config.policies[finding.name],
                **finding.values,
                **values,
            )

    def _stopped(self, session: Session, finding: Finding, why: str) -> NumericsError:
        return NumericsError(
            f"{finding.message}: stopped at step {session.progress.step}, {why}.",
            remedy=f"Lower optimizer.lr, or choose another stability.{finding.name}.",
            step=session.progress.step,
            **finding.values,
        )
