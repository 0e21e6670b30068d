"""What is made of a rollout before it is learned from: scaled rewards, advantages, counts.

Everything here is over the environments of all ranks, so all ranks call it together and hold the
same. Within a rollout no scale moves: what was acted on is what is learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from drumline.distributed import World
from drumline.tasks.clstm_ppo.advantages import advantages, discounted_returns
from drumline.tasks.clstm_ppo.config import CLSTMPPOConfig
from drumline.tasks.clstm_ppo.episodes import ended_episodes
from drumline.tasks.clstm_ppo.minibatches import Sequences, sequences_of
from drumline.tasks.clstm_ppo.normalisers import RunningMoments, global_moments
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.progress import Counts
from drumline.tasks.clstm_ppo.rollout import Rollout

SUMS = ("discounted", "return", "length")
"""What runs on in each environment from one rollout to the next."""


class Experience:
    """Scales and counts of a run, over all ranks.

    Args:
        config: The task's keys.
        world: This rank's world.

    Attributes:
        sums: Of each of this rank's environments, float64 [E] by the names in `SUMS`.
    """

    def __init__(self, config: CLSTMPPOConfig, world: World) -> None:
        self.config, self.world = config, world
        self.counts = Counts()
        self.observed: RunningMoments | None = None
        self.rewarded = RunningMoments(1, world.device)
        self.sums: dict[str, Tensor] = {}

    def begin(self, environments: int) -> None:
        """So many environments at the start of their first episodes."""
        nothing = torch.zeros(environments, dtype=torch.float64, device=self.world.device)
        self.sums = {name: nothing.clone() for name in SUMS}

    def scale_observations(self, policy: Policy) -> None:
        """Let a policy see observations at the scale known by now."""
        if self.observed is not None:
            policy.observation_mean.copy_(self.observed.mean)
            policy.observation_scale.copy_(1 / self.observed.deviation())

    def of(self, rollout: Rollout) -> Sequences:
        """Sequences to learn from. Collective."""
        config = self.config
        rewards = self._scaled_rewards(rollout)
        if config.normalise.observations:
            if self.observed is None:
                self.observed = RunningMoments(rollout.observations.size(-1), self.world.device)
            self.observed.update(rollout.observations, self.world)
        found = advantages(
            rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            config.gamma,
            config.gae_lambda,
        )
        returns = found + rollout.values
        self._count(rollout, found, returns)
        if config.normalise.advantages:
            _, mean, variance = global_moments(found.reshape(-1, 1).double(), self.world)
            found = ((found - mean) / (variance.sqrt() + 1e-8)).to(found.dtype)
        return sequences_of(rollout, config.granularity, found, returns)

    def _scaled_rewards(self, rollout: Rollout) -> Tensor:
        if not self.config.normalise.rewards:
            return rollout.rewards
        sums, self.sums["discounted"] = discounted_returns(
            rollout.rewards.double(), rollout.ended, self.sums["discounted"], self.config.gamma
        )
        self.rewarded.update(sums.unsqueeze(-1), self.world)
        bound = self.config.normalise.bound
        scaled = rollout.rewards.double() / self.rewarded.deviation()
        return scaled.clamp(-bound, bound).to(rollout.rewards.dtype)

    def _count(self, rollout: Rollout, found: Tensor, returns: Tensor) -> None:
        """Count steps and episodes of all ranks, and how well values foretold returns."""
        ended = ended_episodes(
            rollout.rewards, rollout.ended, self.sums["return"], self.sums["length"]
        )
        self.sums["return"], self.sums["length"] = ended.running_returns, ended.running_lengths
        errors, wanted = found.double(), returns.double()
        facts = [
            *(ended.number, ended.return_sum, ended.length_sum),
            *(errors.sum(), errors.square().sum(), wanted.sum(), wanted.square().sum()),
        ]
        summed = self.world.all_reduce(torch.stack(facts))
        self.counts.add(summed.tolist(), self.config.rollout_size)

    def state_dict(self) -> dict[str, Any]:
        """Counts and scales, equal on all ranks. `sums` belong to the environments' state."""
        return {
            "counts": self.counts.state_dict(),
            "observed": None if self.observed is None else self.observed.state_dict(),
            "rewarded": self.rewarded.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.counts.load_state_dict(state["counts"])
        self.rewarded.load_state_dict(state["rewarded"])
        self.observed = None
        if state["observed"] is not None:
            self.observed = RunningMoments(len(state["observed"]["mean"]), self.world.device)
            self.observed.load_state_dict(state["observed"])
