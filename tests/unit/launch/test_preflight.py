"""What a training says of its own plan before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.config import RunConfig
from drumline.hardware import Device, Host, Machine
from drumline.launch import preflight

CARDS = tuple(Device(f"GPU-{n}", n, "cuda", "NVIDIA H100 80GB HBM3") for n in range(2))


@pytest.mark.parametrize(
    ("devices", "keys", "told"),
    [
        (CARDS, {}, True),
        (CARDS, {"devices": "2"}, True),  # the mode is left open
        (CARDS, {"devices": "2", "distributed": {"mode": "distributed"}}, False),
        ((), {}, False),
    ],
)
def test_what_was_not_predicted_is_said_where_the_choice_was_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[Device, ...],
    keys: dict[str, Any],
    told: bool,
) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((64, 4), np.float32))
    monkeypatch.setattr(preflight, "visible_machine", lambda: Machine(Host("here"), devices))
    task = {"name": "sae", "activations": str(tmp_path / "rows.npy"), "latents": 8, "k": 2}
    config = RunConfig.model_validate({"steps": 3, "global_batch": 8, "task": task, **keys})
    made = preflight.plan_here(config)
    assert (preflight.NOT_PREDICTED in made.reasons) == told
