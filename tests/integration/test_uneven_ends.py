"""The end of the data, where some ranks have no sample: nothing is dropped, repeated or hung."""

from __future__ import annotations

import json
from pathlib import Path

from support import run_to_end, script


def test_ten_samples_over_four_ranks_are_exactly_ten(tmp_path: Path) -> None:
    """The last step has two samples; two ranks have none, and take part in it all the same."""
    options = {"config": {"epochs": 1, "global_batch": 4}, "samples": 10}
    ended = run_to_end(script("regression.py", "cpu:4", options), tmp_path).succeeded()
    assert (ended.result["step"], ended.result["samples"]) == (3, 10)
    seen = [
        [json.loads(line) for line in (tmp_path / "ids" / f"4-0-{r}.txt").read_text().splitlines()]
        for r in range(4)
    ]
    assert sorted(number for rank in seen for step in rank for number in step) == list(range(10))
    assert [len(rank) for rank in seen] == [3, 3, 2, 2]
