"""The end of the data, where some ranks have no sample: nothing is dropped, repeated or hung."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

from support import run_to_end, script


def test_ten_samples_over_four_ranks_are_exactly_ten(tmp_path: Path) -> None:
    """The last step has two samples; two ranks have none, and take part in it all the same. A
    second fit in the same processes goes on with the second epoch, in another order.
    """
    options = {"config": {"epochs": 1, "global_batch": 4}, "again": {"epochs": 2}, "samples": 10}
    ended = run_to_end(script("regression.py", "cpu:4", options), tmp_path).succeeded()
    first, second = ended.events("run_ended")
    assert (first["step"], first["samples"]) == (3, 10)
    assert (second["step"], second["samples"]) == (6, 20)
    ranks = [seen(tmp_path, rank) for rank in range(4)]
    assert [len(steps) for steps in ranks] == [6, 6, 4, 4]
    halves = [[steps[: len(steps) // 2] for steps in ranks]]
    halves += [[steps[len(steps) // 2 :] for steps in ranks]]
    for epoch in halves:
        assert sorted(chain.from_iterable(chain(*epoch))) == list(range(10))
    assert halves[0] != halves[1]


def test_an_empty_share_right_after_the_first_overlapped_step(tmp_path: Path) -> None:
    """In the forward after its first reducing backward DDP agrees on its buckets, a collective: a
    rank without samples then must take part in it, too. The third step is the first to overlap.
    """
    options = {"config": {"epochs": 1, "global_batch": 3}, "samples": 10}
    ended = run_to_end(script("regression.py", "cpu:3", options), tmp_path).succeeded()
    assert ended.event("run_ended")["samples"] == 10


def seen(folder: Path, rank: int) -> list[list[int]]:
    """Sample ids of a rank, step by step."""
    text = (folder / "ids" / f"4-0-{rank}.txt").read_text()
    return [json.loads(line) for line in text.splitlines()]
