"""CLSTM-PPO as a task of the one Trainer: each of its steps learns from one minibatch of whole
sequences of the present rollout.

Acting is the source's (`collector`), what is learned from a minibatch is the loss's (`loss`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from drumline.config import Mode
from drumline.distributed.kind import is_gpu
from drumline.errors import BadInput
from drumline.planning.shares import cut_shares
from drumline.tasks.clstm_ppo.collector import EVALUATION, Collector
from drumline.tasks.clstm_ppo.config import CLSTMPPOConfig
from drumline.tasks.clstm_ppo.environments.build import build_environments
from drumline.tasks.clstm_ppo.graphs import gpu_recorder
from drumline.tasks.clstm_ppo.loss import ppo_loss
from drumline.tasks.clstm_ppo.minibatches import Sequences
from drumline.tasks.clstm_ppo.play import play
from drumline.tasks.clstm_ppo.policy import Policy
from drumline.tasks.clstm_ppo.recorded_loop import RecordedLoop
from drumline.training.noise import mixed
from drumline.training.precision import Arithmetic
from drumline.training.source import Source
from drumline.training.task import Losses, Setup, Task


class CLSTMPPOTask(Task):
    """A recurrent policy that learns from what it does."""

    config: CLSTMPPOConfig
    collector: Collector
    policy: Policy

    def setup(self, setup: Setup) -> None:
        """Look at one environment for its spaces."""
        super().setup(setup)
        self.config = cast(CLSTMPPOConfig, setup.config.task)
        self.seed = setup.config.seed
        self.arithmetic = Arithmetic(setup.config.precision, self.world.device)
        one = build_environments(
            self.config.environment, 1, self.world.device, self.arithmetic.weights
        )
        self.features, self.actions = one.observation_space.size, one.action_space
        self.episode_limit = one.episode_limit
        one.close()

    def build_source(self) -> Source:
        """The collector, which asks for the policy when it acts."""
        self.collector = Collector(
            self.config,
            self.seed,
            self.world,
            lambda: self.policy,
            self.arithmetic,
            self.episode_limit,
        )
        return self.collector

    def build_model(self) -> Policy:
        """Actor and critic."""
        config, on_gpu = self.config.policy, is_gpu(self.world.device)
        loops = [RecordedLoop(gpu_recorder) for _ in range(config.layers)]
        self.policy = Policy(
            self.features,
            self.actions,
            config,
            self.config.normalise.bound,
            loops if on_gpu and self.config.graphs else (),
        )
        return self.policy

    def check_mode(self, mode: Mode) -> None:
        """The policy acts on every rank on its own, so every rank needs it whole."""
        if mode not in (Mode.NONE, Mode.DISTRIBUTED):
            raise BadInput(
                f"The clstm_ppo task cannot be trained in mode {mode.value}: every rank acts with "
                "the whole policy.",
                remedy="Use distributed.mode=distributed.",
            )

    def loss(self, model: nn.Module, batch: Any) -> Losses:
        """Judge the minibatch's actions in one forward, and sum PPO's loss over transitions."""
        sequences = cast(Sequences, batch)
        judged = model(
            sequences["observations"], sequences["starts"], sequences["actions"], sequences.states
        )
        return ppo_loss(judged, sequences, self.config.loss)

    def after_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sums: Mapping[str, Tensor],
        count: int,
    ) -> None:
        """Leave the rest of the rollout where the policy has moved too far, on all ranks alike."""
        del model, optimizer
        target = self.config.loss.target_kl
        if target is not None and float(sums["kl"]) / count > target:
            self.collector.abandon()

    def derive_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """The means over transitions, and how far the run is in its environments."""
        return means | self.collector.counts.shown()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Play whole episodes, shared by all ranks."""
        config, world = self.config.evaluation, self.world
        counts = cut_shares(config.episodes, (1,) * world.data_size)
        count, first = counts[world.data_rank], sum(counts[: world.data_rank])
        played: list[tuple[float, float, float]] = []
        if count:
            environments = build_environments(
                self.config.environment.for_evaluation(),
                count,
                world.device,
                self.arithmetic.weights,
            )
            numbers = torch.arange(first, first + count, device=world.device)
            seeds = mixed(config.seed, EVALUATION, numbers)
            found = play(cast(Policy, model), environments, seeds, config, self.arithmetic.autocast)
            environments.close()
            played = list(zip(*(part.tolist() for part in found), strict=True))
        by_rank = world.control.gather(played if world.speaks else [])
        return _summary([episode for rank in by_rank for episode in rank])


def _summary(played: list[tuple[float, float, float]]) -> dict[str, float]:
    """Of (return, length, over): mean and deviation of the returns, mean length."""
    returns, lengths, over = (
        torch.tensor(part, dtype=torch.float64) for part in zip(*played, strict=True)
    )
    return {
        "episode_return": float(returns.mean()),
        "episode_return_std": float(returns.std(correction=0)),
        "episode_return_min": float(returns.min()),
        "episode_length": float(lengths.mean()),
        "episodes": float(len(returns)),
        "unfinished": float(len(over) - over.sum()),
    }
