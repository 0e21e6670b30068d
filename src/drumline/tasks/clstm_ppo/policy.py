"""The cascaded LSTM policy (Zou et al., arXiv 2212.02721): a window of observations through a first
LSTM to features, features through a second LSTM to actor and critic.

It can go a step at a time, to act, and over whole sequences, to learn; both give the same numbers.
What it remembers is a state of tensors by name, environments in dim 0, which whoever calls keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drumline.tasks.clstm_ppo.config import PolicyConfig
from drumline.tasks.clstm_ppo.distributions import build_actions
from drumline.tasks.clstm_ppo.environments.spaces import ActionSpace
from drumline.tasks.clstm_ppo.features import WindowFeatures, windows_of
from drumline.tasks.clstm_ppo.recorded_loop import RecordedLoop
from drumline.tasks.clstm_ppo.sequences import Recurrent, loop_together, through_each

State = dict[str, Tensor]
ACTOR_GAIN = 0.01
"""Scale of the actor's last layer at the start: near it all actions are about as likely."""


class Acted(NamedTuple):
    """One step: [E, outputs] for the distribution of actions, values [E], and the next state."""

    outputs: Tensor
    values: Tensor
    state: State


class Judged(NamedTuple):
    """Sequences of L steps: what the policy thinks of actions that were taken, each [L, n]."""

    log_probs: Tensor
    entropies: Tensor
    values: Tensor


class Policy(nn.Module):
    """Actor and critic.

    Args:
        features: Numbers in an observation, F.
        space: The actions.
        config: Sizes and options.
        bound: Normalised observations are cut at this size.
        loops: For each layer of the second LSTM, what learns with `sequences: auto`; without it the
            fused way does.
    """

    def __init__(
        self,
        features: int,
        space: ActionSpace,
        config: PolicyConfig,
        bound: float = 10.0,
        loops: Sequence[RecordedLoop] = (),
    ) -> None:
        super().__init__()
        self.config, self.bound, self.loops = config, bound, tuple(loops)
        self.actions = build_actions(space, config)
        self.register_buffer("observation_mean", torch.zeros(features))
        self.register_buffer("observation_scale", torch.ones(features))
        self.observation_mean: Tensor
        self.observation_scale: Tensor
        self.window: WindowFeatures | None = None
        width = features
        if config.window is not None:
            self.window = WindowFeatures(
                features, config.window, config.features, config.attention_heads
            )
            width = config.features
        self.feature_norm = _norm(width, config.layer_norm and config.window is not None)
        self.recurrent = nn.ModuleDict(
            {name: Recurrent(width, config.hidden, config.layers) for name in self._stages()}
        )
        self.norms = nn.ModuleDict(
            {name: _norm(config.hidden, config.layer_norm) for name in self._stages()}
        )
        self.actor = _head(config.hidden, config.heads, self.actions.outputs, ACTOR_GAIN)
        self.critic = _head(config.hidden, config.heads, 1, 1.0)

    def _stages(self) -> tuple[str, ...]:
        return ("both",) if self.config.shared else ("actor", "critic")

    def initial_state(self, count: int) -> State:
        """The state of `count` environments before their first observation."""
        state = {name: self._stage(name).initial(count) for name in self._stages()}
        if self.window is not None:
            mean = self.observation_mean
            state["window"] = mean.new_zeros(count, self.window.length - 1, len(mean))
            state["seen"] = torch.zeros(count, dtype=torch.int64, device=mean.device)
        return state

    def act(self, observations: Tensor, starts: Tensor, state: State) -> Acted:
        """One step in every environment.

        Args:
            observations: [E, F], as the environments gave them.
            starts: bool [E], whether each is the first of an episode: what was before is forgotten.
            state: What the step before gave.
        """
        features, after = self._seen(observations, starts, state)
        hidden = {}
        for name in self._stages():
            hidden[name], after[name] = self._stage(name).step(
                features, state[name] * self._kept(starts).view(-1, 1, 1, 1)
            )
        return Acted(self._outputs(hidden), self._values(hidden), after)

    def value(self, observations: Tensor, state: State) -> Tensor:
        """Values [E] of observations that go on an episode; the state is not moved on."""
        starts = torch.zeros(len(observations), dtype=torch.bool, device=observations.device)
        features, _ = self._seen(observations, starts, state)
        name = self._stages()[-1]
        before = state[name] * self._kept(starts).view(-1, 1, 1, 1)
        return self._values({name: self._stage(name).step(features, before)[0]})

    def forward(
        self, observations: Tensor, starts: Tensor, actions: Tensor, state: State
    ) -> Judged:
        """Judge the actions of whole sequences.

        Args:
            observations: [L, n, F].
            starts: bool [L, n], whether a step is the first of an episode.
            actions: [L, n, *shape].
            state: The state before the first step, [n, ...]; no gradient flows into it.
        """
        features = self._features(observations, starts, state)
        hidden = self._over_sequences(features, starts, state)
        outputs = self._outputs(hidden)
        return Judged(
            self.actions.log_prob(outputs, actions),
            self.actions.entropy(outputs),
            self._values(hidden),
        )

    def normalise(self, observations: Tensor) -> Tensor:
        """Observations at unit scale."""
        scaled = (observations - self.observation_mean) * self.observation_scale
        return scaled.clamp(-self.bound, self.bound)

    def _features(self, observations: Tensor, starts: Tensor, state: State) -> Tensor:
        scaled = self.normalise(observations)
        if self.window is None:
            return scaled
        history = self.normalise(state["window"]).transpose(0, 1)
        windows, lengths = windows_of(scaled, starts, history, state["seen"])
        shape = scaled.shape[:2]
        found: Tensor = self.window(windows, lengths, self.config.sequences)
        normed: Tensor = self.feature_norm(found)
        return normed.view(*shape, -1)

    def _seen(self, observations: Tensor, starts: Tensor, state: State) -> tuple[Tensor, State]:
        """Features of a step, and the part of the next state that remembers observations."""
        features = self._features(observations.unsqueeze(0), starts.unsqueeze(0), state)
        after = {}
        if self.window is not None:
            window = torch.cat([state["window"], observations.unsqueeze(1)], dim=1)
            seen = torch.where(starts, 0, state["seen"]) + 1
            after = {"window": window[:, 1:], "seen": seen.clamp(max=self.window.length - 1)}
        return features[0], after

    def _over_sequences(self, features: Tensor, starts: Tensor, state: State) -> State:
        """Outputs of the second LSTM, [L, n, H] by stage."""
        length, count, width = features.shape
        if not self.config.carry_state:  # every step is a sequence of its own
            features = features.reshape(1, length * count, width)
            starts = torch.ones_like(starts).view(1, -1)
        stages = [self._stage(name) for name in self._stages()]
        before = [
            state[name] if self.config.carry_state else stage.initial(length * count)
            for name, stage in zip(self._stages(), stages, strict=True)
        ]
        if self._records(features):
            outputs = loop_together(stages, features, starts, before, self.loops)
        else:
            outputs = through_each(stages, features, starts, before, self.config.sequences)
        shape = (length, count, -1)
        return {
            name: each.reshape(shape) for name, each in zip(self._stages(), outputs, strict=True)
        }

    def _records(self, features: Tensor) -> bool:
        """Whether the recorded loops are to be used. In narrower arithmetic fused kernels are
        faster, and what is compiled is launched at once anyway.
        """
        learns = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        narrow = torch.is_autocast_enabled(features.device.type)
        return bool(self.loops) and self.config.sequences == "auto" and learns and not narrow

    def _kept(self, starts: Tensor) -> Tensor:
        """Where the second LSTM goes on from its state."""
        return ~starts if self.config.carry_state else torch.zeros_like(starts)

    def _stage(self, name: str) -> Recurrent:
        stage = self.recurrent[name]
        assert isinstance(stage, Recurrent)
        return stage

    def _outputs(self, hidden: State) -> Tensor:
        name = self._stages()[0]
        outputs: Tensor = self.actor(self.norms[name](hidden[name]))
        return outputs

    def _values(self, hidden: State) -> Tensor:
        name = self._stages()[-1]
        values: Tensor = self.critic(self.norms[name](hidden[name]))
        return values.squeeze(-1)


def _norm(size: int, wanted: bool) -> nn.Module:
    return nn.LayerNorm(size) if wanted else nn.Identity()


def _head(inputs: int, sizes: Sequence[int], outputs: int, gain: float) -> nn.Sequential:
    """Hidden layers with tanh, then a linear one, initialised orthogonally."""
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [_linear(inputs, size, math.sqrt(2)), nn.Tanh()]
        inputs = size
    return nn.Sequential(*layers, _linear(inputs, outputs, gain))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
