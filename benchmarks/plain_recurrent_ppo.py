"""Recurrent PPO as single-file implementations write it: Gymnasium's vector environments, and an
LSTM called once for each step, while acting and while learning, with its state masked where an
episode begins. What `reinforcement_peers.py` compares with; nothing else uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class Memory(nn.Module):
    """An LSTM and a head."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden)
        self.head = nn.Sequential(
            *(nn.Linear(hidden, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()),
            nn.Linear(64, outputs),
        )

    def initial(self, count: int) -> State:
        zeros = torch.zeros(1, count, self.lstm.hidden_size)
        return zeros, zeros

    def forward(self, inputs: Tensor, starts: Tensor, state: State) -> tuple[Tensor, State]:
        """Over [L, n, F], step by step."""
        found = []
        for step, begins in zip(inputs, starts, strict=True):
            keep = (1.0 - begins).view(1, -1, 1)
            out, state = self.lstm(step.unsqueeze(0), (keep * state[0], keep * state[1]))
            found.append(out)
        return self.head(torch.cat(found)), state


class PlainPPO:
    """Actor and critic with an LSTM each; a Gaussian whose deviations are parameters.

    Args:
        make: Makes one environment.
        environments: How many.
        steps: Of a rollout.
        epochs: Passes over it.
        minibatches: Of a pass, by environments.
        hidden: Size of each LSTM.
    """

    gamma, decay, clip, rate = 0.99, 0.95, 0.2, 3e-4

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        environments: int,
        steps: int,
        epochs: int,
        minibatches: int,
        hidden: int,
    ) -> None:
        same_step = gymnasium.vector.AutoresetMode.SAME_STEP
        self.envs = gymnasium.vector.SyncVectorEnv([make] * environments, autoreset_mode=same_step)
        self.count, self.steps = environments, steps
        self.epochs, self.minibatches = epochs, minibatches
        features = int(np.prod(self.envs.single_observation_space.shape or ()))
        actions = int(np.prod(self.envs.single_action_space.shape or ()))
        self.actor, self.critic = Memory(features, hidden, actions), Memory(features, hidden, 1)
        self.log_deviation = nn.Parameter(torch.zeros(actions))
        self.parameters = [*self.actor.parameters(), *self.critic.parameters(), self.log_deviation]
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.rate, eps=1e-5)
        self.seen = self._tensor(self.envs.reset(seed=0)[0])
        self.starts = torch.ones(environments)
        self.states = self.actor.initial(environments), self.critic.initial(environments)

    def rollout(self) -> None:
        """Act, then learn from it."""
        first = self.states
        batch = self._act()
        for _ in range(self.epochs):
            for chosen in torch.randperm(self.count).chunk(self.minibatches):
                part = {name: tensor[:, chosen] for name, tensor in batch.items()}
                self._learn(part, [(h[:, chosen], c[:, chosen]) for h, c in first])

    def _act(self) -> dict[str, Tensor]:
        names = ("seen", "starts", "actions", "log_probs", "values", "rewards")
        kept: dict[str, list[Tensor]] = {name: [] for name in names}
        for _ in range(self.steps):
            with torch.no_grad():
                actions, log_probs, values = self._decide()
            row = (self.seen, self.starts, actions, log_probs, values)
            low, high = self.envs.single_action_space.low, self.envs.single_action_space.high  # type: ignore[attr-defined]
            seen, rewards, ended, cut, _ = self.envs.step(np.clip(actions.numpy(), low, high))
            for name, value in zip(names, (*row, self._tensor(rewards)), strict=True):
                kept[name].append(value)
            self.seen, self.starts = self._tensor(seen), self._tensor(ended | cut)
        with torch.no_grad():
            following = self._decide(move=False)[2]
        batch = {name: torch.stack(rows) for name, rows in kept.items()}
        batch["advantages"] = self._advantages(batch, following)
        return batch

    def _decide(self, *, move: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        seen, starts = self.seen.unsqueeze(0), self.starts.unsqueeze(0)
        means, acted = self.actor(seen, starts, self.states[0])
        values, judged = self.critic(seen, starts, self.states[1])
        if move:
            self.states = acted, judged
        chances = torch.distributions.Normal(means[0], self.log_deviation.exp())
        actions = chances.sample()
        return actions, chances.log_prob(actions).sum(-1), values[0, :, 0]

    def _advantages(self, batch: dict[str, Tensor], following: Tensor) -> Tensor:
        found = torch.zeros_like(batch["rewards"])
        later, goes_on = torch.zeros(self.count), 1.0 - self.starts
        for step in reversed(range(self.steps)):
            error = batch["rewards"][step] + self.gamma * following * goes_on
            later = error - batch["values"][step] + self.gamma * self.decay * goes_on * later
            found[step] = later
            following, goes_on = batch["values"][step], 1.0 - batch["starts"][step]
        return found

    def _learn(self, batch: dict[str, Tensor], states: list[State]) -> None:
        means, _ = self.actor(batch["seen"], batch["starts"], states[0])
        values, _ = self.critic(batch["seen"], batch["starts"], states[1])
        chances = torch.distributions.Normal(means, self.log_deviation.exp())
        log_probs = chances.log_prob(batch["actions"]).sum(-1)
        ratio = (log_probs - batch["log_probs"]).exp()
        gains = batch["advantages"]
        wanted = gains + batch["values"]
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        bounded = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.minimum(ratio * gains, bounded * gains).mean()
        value_loss = 0.5 * (values.squeeze(-1) - wanted).square().mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(policy_loss + 0.5 * value_loss)
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()

    @staticmethod
    def _tensor(values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=torch.float32)
