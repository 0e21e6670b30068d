"""The whole task learns, in one process, what only memory can do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline.config import RunConfig, parse_config
from drumline.training import Trainer


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """How well it has learned by then depends on how sums are rounded, and so on the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_of(folder: Path, **policy: Any) -> RunConfig:
    return parse_config(
        {
            "task": {
                "name": "clstm_ppo",
                "environment": {"name": "recall:RecallConfig", "delay": 3},
                "environments": 64,
                "rollout_steps": 16,
                "rollout_epochs": 4,
                "total_steps": 64 * 16 * 14,
                "policy": {"hidden": 16, "heads": [16], **policy},
            },
            "global_batch": 256,
            "clip_norm": 0.5,
            "optimizer": {"lr": 0.01},
            "run_dir": str(folder),
        }
    )


@pytest.mark.parametrize(
    ("policy", "least", "most"),
    [
        ({}, 0.99, 1.0),
        ({"window": 4, "features": 8, "carry_state": False}, 0.99, 1.0),
        (
            {"window": 2, "features": 8, "attention_heads": 2, "shared": True, "layer_norm": True},
            0.99,
            1.0,
        ),
        ({"carry_state": False}, 0.3, 0.7),
    ],
    ids=["remembers", "sees all in a window", "remembers features", "cannot remember"],
)
def test_memory_is_what_it_takes(
    policy: dict[str, Any], least: float, most: float, tmp_path: Path
) -> None:
    """Guessing is right half the time; of 100 guesses less than 30 or more than 70 are right once
    in 30,000 times.
    """
    result = Trainer(run_of(tmp_path, **policy)).fit()
    assert least <= result.metrics["episode_return"] <= most
    assert result.metrics["unfinished"] == 0
