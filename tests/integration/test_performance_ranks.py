"""Performance switches on two real ranks over gloo: one decision for both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_commands import ROOT, python

from drumline.run_directory import RunDirectory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("performance")
    python(folder, ROOT / "tests/integration/performance_ranks.py", folder)
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """What each rank saw."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def rows(rank: dict[str, Any], when: str = "before") -> dict[str, dict[str, Any]]:
    return {row["switch"]: row for row in rank["together"][when]["rows"]}


def test_the_slowest_rank_decides(ranks: list[dict[str, Any]]) -> None:
    """8 units a step on both: 4 and 12 are no gain, 2 and 6 are a quarter."""
    for rank in ranks:
        lost, won = rows(rank)["one_gains"], rows(rank)["both_gain"]
        assert (lost["outcome"], lost["before_s"], lost["after_s"]) == ("undone", 8, 12)
        assert (won["outcome"], won["before_s"], won["after_s"]) == ("applied", 8, 6)
        assert won["gain"] == pytest.approx(0.25)
    assert [rank["together"]["cost"] for rank in ranks] == [2, 6]


def test_what_fails_or_changes_results_on_one_rank_is_undone_on_both(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        failed, cheated = rows(rank)["one_fails"], rows(rank)["one_cheats"]
        assert failed["outcome"] == cheated["outcome"] == "undone"
        assert failed["reason"] == "it failed: rank 1: RuntimeError: no compiler on this rank"
        assert cheated["deviation"] > cheated["tolerance"]
    assert rows(ranks[0])["one_cheats"] == rows(ranks[1])["one_cheats"]


def test_a_model_that_is_prepared_already_can_be_tried_on_given_batches(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        row = rows(rank, "after")["again"]
        assert (row["outcome"], row["before_s"], row["after_s"]) == ("applied", 6, 3)


@pytest.mark.parametrize("run", ["layout", "group"])
def test_a_run_with_switches_gives_what_one_without_gives(
    run: str, folder: Path, ranks: list[dict[str, Any]]
) -> None:
    """Convolutions in another layout under DDP, and sums of gradients in another group."""
    for rank in ranks:
        assert rank[run]["weights"] == pytest.approx(rank["plain"]["weights"], rel=1e-9, abs=1e-12)
        assert rank[run]["channels_last"] is (run == "layout")
    assert ranks[0][run]["weights"] == ranks[1][run]["weights"]
    events = RunDirectory(folder / run).events()
    (report,) = [event for event in events if event["kind"] == "performance_report"]
    assert [row["outcome"] for row in report["rows"]] == ["applied"]
    assert report["ranks"] == 2
