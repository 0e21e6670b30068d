"""PPO's loss (Schulman et al. 2017, arXiv 1707.06347), as sums over transitions."""

from __future__ import annotations

import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.config import LossConfig
from drumline.tasks.clstm_ppo.minibatches import Sequences
from drumline.tasks.clstm_ppo.policy import Judged
from drumline.training.task import Losses


def ppo_loss(judged: Judged, batch: Sequences, config: LossConfig) -> Losses:
    """The clipped objective, the values' error and the entropy.

    Args:
        judged: What the policy thinks of the batch now, [L, n].
        batch: The transitions, with what was thought of them when they were made.
        config: Bounds and weights.

    Raises:
        ValueError: If what is compared has not one shape: it would be broadcast, and learn wrong.
    """
    _refuse_other_shapes(judged, batch["log_probs"].shape)
    log_ratio = judged.log_probs - batch["log_probs"]
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    gains = torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"])
    value_errors = _value_errors(judged.values, batch, config.value_clip)
    losses = -gains + config.value * value_errors - config.entropy * judged.entropies
    kl = (ratio - 1 - log_ratio).detach().sum(dtype=torch.float64)
    metrics = {
        "policy_loss": -gains,
        "value_loss": value_errors,
        "entropy": judged.entropies,
        "clipped": ((ratio - 1).abs() > config.clip).to(ratio.dtype),
    }
    sums = {name: each.detach().sum(dtype=torch.float64) for name, each in metrics.items()}
    steps = {} if config.target_kl is None else {"kl": kl}
    return Losses(losses.sum(), {**sums, "kl": kl}, steps)


def _value_errors(values: Tensor, batch: Sequences, bound: float | None) -> Tensor:
    """Half the squared error; with a bound the larger one of the value and the bounded value."""
    errors = (values - batch["returns"]).square()
    if bound is not None:
        before = batch["values"]
        near = before + (values - before).clamp(-bound, bound)
        errors = torch.maximum(errors, (near - batch["returns"]).square())
    return 0.5 * errors


def _refuse_other_shapes(judged: Judged, shape: torch.Size) -> None:
    for name, tensor in judged._asdict().items():
        if tensor.shape != shape:
            raise ValueError(f"{name} have shape {tuple(tensor.shape)}, not {tuple(shape)}")
