"""Everything that watches a run's numbers, put together from its config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drumline.config import RunConfig
from drumline.errors import BadInput
from drumline.training.stability.activations import ActivationWatcher
from drumline.training.stability.non_finite import NonFiniteWatcher
from drumline.training.stability.policies import Policies
from drumline.training.stability.replicas import ReplicaWatcher
from drumline.training.stability.spikes import SpikeGuard
from drumline.training.stability.updates import UpdateWatcher
from drumline.training.state import Stateful

if TYPE_CHECKING:
    from drumline.training.session import Session

_BEFORE_THE_UPDATE = ("skip", "clip")


class Stability:
    """The watchers of one run and what they remember. Disabled, it attaches and saves nothing."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config.stability
        self.policies = Policies(self.config, config.precision)
        self._activations = ActivationWatcher(self.config)
        self._spikes = SpikeGuard(self.config, self.policies)
        self._non_finite = NonFiniteWatcher(self.config, self.policies)
        self._parts: dict[str, Stateful] = {
            "policies": self.policies,
            "statistics": self._spikes,
            "non_finite": self._non_finite,
        }

    def attach(self, session: Session) -> None:
        """Hang the watchers on a session, before its own, and judge its updates.

        Raises:
            BadInput: If a policy asks for what the session's step cannot do.
        """
        if not self.config.enabled:
            return
        self._check(session)
        self._activations.attach(session.model)
        self.policies.widened.attach(session.model)
        session.step.gate = self._spikes
        session.watchers[:0] = [
            self.policies.lowered,
            self.policies.widened,
            self._activations,
            ReplicaWatcher(self.config),
            UpdateWatcher(self.config, self.policies),
            self._spikes,
            self._non_finite,
        ]

    def state_dict(self) -> dict[str, Any]:
        """The states of all parts."""
        if not self.config.enabled:
            return {}
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, of this version or with parts missing."""
        for name, part in self._parts.items():
            if name in state and self.config.enabled:
                part.load_state_dict(state[name])

    def _check(self, session: Session) -> None:
        if self.config.replica == "repair" and session.world.pipeline_size > 1:
            raise BadInput(
                "stability.replica=repair cannot be combined with distributed.mesh.pipeline.",
                remedy="Set stability.replica=stop: the run then restarts from a checkpoint.",
            )
        for name in ("loss_spike", "gradient_growth"):
            policy = self.config.policies[name]
            if policy in _BEFORE_THE_UPDATE and not session.step.gated:
                raise BadInput(
                    f"stability.{name}={policy}: this task's own step cannot judge an update "
                    "before it makes it.",
                    remedy=f"Set stability.{name} to warn.",
                )
