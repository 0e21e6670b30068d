"""Distributions over actions: from a network's outputs to samples, log-probabilities, entropy.

Everything has the batch in its leading dims, and log-probabilities and entropies have just those:
components of an action are summed here, so nothing is left to broadcast by accident. Samples are
made from given uniform numbers and not from a generator; see `drumline.training.noise`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from drumline.errors import BadInput
from drumline.tasks.clstm_ppo.config import PolicyConfig
from drumline.tasks.clstm_ppo.environments.spaces import ActionSpace, Box, Discrete, MultiDiscrete

_LOG_2PI = math.log(2 * math.pi)
_LEAST_LOG_DEVIATION, _LARGEST_LOG_DEVIATION = -20.0, 2.0
_NODES = 16
"""Nodes of the Gauss-Hermite rule for the entropy of a squashed Gaussian."""


class Actions(nn.Module, ABC):
    """A family of distributions over one action space.

    Attributes:
        outputs: Numbers the network gives for each distribution.
        draws: Uniform numbers that a sample is made from.
        shape: Of one action, without the batch.
        dtype: Of actions; None: that of the network.
    """

    outputs: int
    draws: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None

    @abstractmethod
    def sample(self, outputs: Tensor, uniforms: Tensor) -> Tensor:
        """Actions [..., *shape] from outputs [..., outputs] and numbers in (0, 1) [..., draws]."""

    @abstractmethod
    def likeliest(self, outputs: Tensor) -> Tensor:
        """The mode (for squashed Gaussians, the mode before squashing)."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Log-probability (density) of whole actions, [...]."""

    @abstractmethod
    def entropy(self, outputs: Tensor) -> Tensor:
        """Entropy, [...]."""

    def for_environment(self, actions: Tensor) -> Tensor:
        """Actions as an environment takes them."""
        return actions


class Categorical(Actions):
    """One choice, or several made independently; outputs are logits side by side."""

    dtype = torch.int64

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        self.single = isinstance(space, Discrete)
        self.options = (space.options,) if isinstance(space, Discrete) else space.options
        self.outputs, self.draws = sum(self.options), len(self.options)
        self.shape = () if self.single else (self.draws,)

    def sample(self, outputs: Tensor, uniforms: Tensor) -> Tensor:
        """By inverting the cumulative distribution of each choice."""
        found = []
        for choice, log_probs in enumerate(self._log_probs(outputs)):
            below = log_probs.exp().cumsum(dim=-1)[..., :-1]  # the last reaches 1
            found.append((uniforms[..., choice, None] >= below).sum(dim=-1))
        return self._joined(found)

    def likeliest(self, outputs: Tensor) -> Tensor:
        """The option with the largest logit, the first of equal ones."""
        return self._joined([part.argmax(dim=-1) for part in self._log_probs(outputs)])

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The sum over choices."""
        chosen = actions.unsqueeze(-1) if self.single else actions
        parts = [
            log_probs.gather(-1, chosen[..., choice, None]).squeeze(-1)
            for choice, log_probs in enumerate(self._log_probs(outputs))
        ]
        return torch.stack(parts).sum(dim=0)

    def entropy(self, outputs: Tensor) -> Tensor:
        """The sum over choices."""
        parts = [-(part.exp() * part).sum(dim=-1) for part in self._log_probs(outputs)]
        return torch.stack(parts).sum(dim=0)

    def _log_probs(self, outputs: Tensor) -> list[Tensor]:
        parts = torch.split(outputs, list(self.options), dim=-1)
        return [torch.log_softmax(part, dim=-1) for part in parts]

    def _joined(self, choices: list[Tensor]) -> Tensor:
        return choices[0] if self.single else torch.stack(choices, dim=-1)


class Gaussian(Actions):
    """Independent Gaussians whose deviations are parameters of their own; environments get actions
    cut at the bounds, and probabilities are of the actions before.
    """

    dtype = None

    def __init__(self, space: Box, deviation: float) -> None:
        super().__init__()
        size = space.size
        self.outputs, self.draws, self.shape = size, size, (size,)
        self.log_deviation = nn.Parameter(torch.full((size,), math.log(deviation)))
        self.register_buffer("low", torch.tensor(space.low), persistent=False)
        self.register_buffer("high", torch.tensor(space.high), persistent=False)
        self.low: Tensor
        self.high: Tensor

    def sample(self, outputs: Tensor, uniforms: Tensor) -> Tensor:
        """By inverting the normal distribution's cumulative function."""
        return outputs + self._deviation() * _normal(uniforms).to(outputs.dtype)

    def likeliest(self, outputs: Tensor) -> Tensor:
        """The mean."""
        return outputs

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The sum over components."""
        log_deviation = self._log_deviation()
        away = (actions - outputs) * torch.exp(-log_deviation)
        return -(0.5 * away.square() + log_deviation + 0.5 * _LOG_2PI).sum(dim=-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """The same for all: it depends on the deviations only."""
        whole = (self._log_deviation() + 0.5 * (1 + _LOG_2PI)).sum()
        return whole.expand(outputs.shape[:-1])

    def for_environment(self, actions: Tensor) -> Tensor:
        """Cut at the bounds."""
        return actions.clamp(self.low, self.high)

    def _log_deviation(self) -> Tensor:
        return self.log_deviation.clamp(_LEAST_LOG_DEVIATION, _LARGEST_LOG_DEVIATION)

    def _deviation(self) -> Tensor:
        return self._log_deviation().exp()


class SquashedGaussian(Gaussian):
    """Gaussians through tanh, stretched to the bounds (Haarnoja et al. 2018, appendix C).

    An action is kept as it was before squashing, so its probability needs no inverse of tanh,
    which loses all digits near the bounds. Log-probabilities are of the stretched action.
    """

    def __init__(self, space: Box, deviation: float) -> None:
        super().__init__(space, deviation)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        self.register_buffer("_nodes", torch.tensor(nodes), persistent=False)
        self.register_buffer("_weights", torch.tensor(weights / weights.sum()), persistent=False)
        self._nodes: Tensor
        self._weights: Tensor

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Of the Gaussian, less the logarithm of how far squashing and stretching stretch."""
        return super().log_prob(outputs, actions) - self._log_stretch(actions).sum(dim=-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """The Gaussian's and the mean stretch, by a quadrature that draws nothing at random."""
        there = outputs.unsqueeze(-1) + self._deviation().unsqueeze(-1) * self._nodes
        stretch = self._log_stretch(there.transpose(-1, -2)).transpose(-1, -2)
        return super().entropy(outputs) + (stretch * self._weights).sum(dim=(-1, -2))

    def for_environment(self, actions: Tensor) -> Tensor:
        """Squashed and stretched."""
        half = 0.5 * (self.high - self.low)
        return self.low + half * (1 + torch.tanh(actions))

    def _log_stretch(self, before: Tensor) -> Tensor:
        """Log of d action / d before, for [..., size]: log(1 - tanh^2) without cancellation."""
        squash = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
        return squash + torch.log(0.5 * (self.high - self.low))


def build_actions(space: ActionSpace, config: PolicyConfig) -> Actions:
    """The distributions that fit an action space.

    Raises:
        BadInput: If actions without bounds are to be squashed.
    """
    if not isinstance(space, Box):
        return Categorical(space)
    if config.continuous == "clipped":
        return Gaussian(space, config.initial_deviation)
    if not all(map(math.isfinite, (*space.low, *space.high))):
        raise BadInput(
            "task.policy.continuous=squashed needs bounds, and the actions here have none.",
            remedy="Use task.policy.continuous=clipped.",
        )
    return SquashedGaussian(space, config.initial_deviation)


def _normal(uniforms: Tensor) -> Tensor:
    """Standard normal numbers from uniform ones, in their dtype (float64 keeps the tails)."""
    normal: Tensor = torch.special.ndtri(uniforms)
    return normal
