"""A number that is not finite in one rank's gradient: all skip the step, and stay equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import Finished, run_to_end, script

RANK, CALL = 1, 7
INITIAL_SCALE = 2.0**16


def spoiled(folder: Path, precision: str, value: str) -> tuple[Finished, list[dict[str, Any]]]:
    """A run on three processes in which the gradient of one is spoiled in step CALL + 1, and what
    each rank wrote at the end.
    """
    options = {
        "config": {"steps": 20, "global_batch": 24, "precision": precision},
        **{"value": value, "rank": RANK, "call": CALL},
    }
    ended = run_to_end(script("bad_gradient.py", "cpu:3", options), folder).succeeded()
    return ended, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(3)]


@pytest.mark.parametrize(
    ("precision", "value", "scaler"),
    [
        ("fp16", "inf", {"scale": INITIAL_SCALE / 2, "good_steps": 20 - CALL - 1}),
        ("fp32", "nan", {"scale": 1.0, "good_steps": 0}),
    ],
)
def test_all_ranks_skip_and_scale_alike(
    tmp_path: Path, precision: str, value: str, scaler: dict[str, Any]
) -> None:
    ended, ranks = spoiled(tmp_path, precision, value)
    skipped = ended.event("step_skipped")
    assert skipped["step"] == CALL + 1
    assert "2.weight" in skipped["reason"]
    assert skipped["loss_scale"] == scaler["scale"]
    assert ended.events("step")[-1]["skipped"] == 1
    for rank in ranks:
        assert rank["scaler"] == scaler
        assert rank["weights"] == ranks[0]["weights"]
