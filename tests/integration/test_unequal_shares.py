"""Shares of 9 and 3 of 12 samples give the gradient of one process, as plain DDP does not."""

from __future__ import annotations

import json
from pathlib import Path

from support import run_to_end, script


def test_the_gradient_of_unequal_shares_is_that_of_one_process(tmp_path: Path) -> None:
    """Both distances come from one program; DDP's mean of local means shows that it can tell."""
    run_to_end(script("unequal_shares.py", "cpu:2"), tmp_path).succeeded()
    off = json.loads((tmp_path / "gradients.json").read_text())
    assert off["drumline"] < 1e-6
    assert off["plain_ddp"] > 0.2
