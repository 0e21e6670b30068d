"""PPO's loss against its formula, number by number."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from drumline.tasks.clstm_ppo.config import LossConfig
from drumline.tasks.clstm_ppo.loss import ppo_loss
from drumline.tasks.clstm_ppo.minibatches import Sequences
from drumline.tasks.clstm_ppo.policy import Judged

SHAPE = (4, 6)


def made() -> tuple[Judged, Sequences]:
    torch.manual_seed(0)

    def some() -> Tensor:
        return torch.randn(SHAPE, dtype=torch.float64)

    steps = {name: some() for name in ("log_probs", "advantages", "values", "returns")}
    judged = Judged(steps["log_probs"] + 0.3 * some(), some(), steps["values"] + 0.5 * some())
    return judged, Sequences({**steps, "starts": some() > 9}, {})


def by_hand(judged: Judged, batch: Sequences, config: LossConfig) -> float:
    total = 0.0
    for place in range(SHAPE[0] * SHAPE[1]):
        now = {k: v.flatten()[place].item() for k, v in judged._asdict().items()}
        then = {k: v.flatten()[place].item() for k, v in batch.steps.items()}
        ratio = math.exp(now["log_probs"] - then["log_probs"])
        near = min(max(ratio, 1 - config.clip), 1 + config.clip)
        gain = min(ratio * then["advantages"], near * then["advantages"])
        error = (now["values"] - then["returns"]) ** 2
        if config.value_clip is not None:
            move = min(max(now["values"] - then["values"], -config.value_clip), config.value_clip)
            error = max(error, (then["values"] + move - then["returns"]) ** 2)
        total += -gain + config.value * 0.5 * error - config.entropy * now["entropies"]
    return total


@pytest.mark.parametrize("keys", [{}, {"entropy": 0.01, "value": 1.5}, {"value_clip": 0.2}])
def test_the_loss_is_its_formula(keys: dict[str, Any]) -> None:
    judged, batch = made()
    config = LossConfig.model_validate(keys)
    assert float(ppo_loss(judged, batch, config).loss_sum) == pytest.approx(
        by_hand(judged, batch, config), abs=1e-12
    )


def test_what_is_shown_are_sums_over_transitions() -> None:
    judged, batch = made()
    losses = ppo_loss(judged, batch, LossConfig(target_kl=0.1))
    log_ratio = judged.log_probs - batch["log_probs"]
    clipped = ((log_ratio.exp() - 1).abs() > 0.2).sum()
    kl = (log_ratio.exp() - 1 - log_ratio).sum()
    assert float(losses.metric_sums["clipped"]) == float(clipped) > 0
    assert float(losses.metric_sums["kl"]) == pytest.approx(float(kl))
    assert float(losses.metric_sums["entropy"]) == pytest.approx(float(judged.entropies.sum()))
    assert set(losses.step_sums) == {"kl"}
    assert ppo_loss(judged, batch, LossConfig()).step_sums == {}


@pytest.mark.parametrize("name", Judged._fields)
def test_other_shapes_are_refused_and_never_broadcast(name: str) -> None:
    """[L, n, 1] beside [L, n] would silently become [L, L, n]."""
    judged, batch = made()
    wrong = judged._replace(**{name: getattr(judged, name).unsqueeze(-1)})
    with pytest.raises(ValueError, match=name):
        ppo_loss(wrong, batch, LossConfig())
