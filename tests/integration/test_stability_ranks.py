"""Stability with three real processes over gloo: one decision, and whoever is out of step named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_commands import ROOT, python

from drumline.run_directory import RunDirectory
from drumline.training import SampleOrder

RANKS, SAMPLES, BATCH = 3, 96, 6
ORDER = SampleOrder(SAMPLES, 0).samples(0, 0, SAMPLES).tolist()
BAD_STEP, BAD_RANK = 5, 2
POISON = ORDER[(BAD_STEP - 1) * BATCH + 2 * BAD_RANK]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stability")
    script = ROOT / "tests/integration/stability_ranks.py"
    python(folder, script, folder, str(POISON))
    return folder


def seen(folder: Path, run: str) -> list[dict[str, Any]]:
    """What each rank saw of a run."""
    files = [folder / f"{run}-rank-{rank}.json" for rank in range(RANKS)]
    return [json.loads(file.read_text()) for file in files]


def events(folder: Path, run: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in RunDirectory(folder / run).events() if event["kind"] == kind]


def own(step: int, rank: int) -> list[int]:
    """The samples of a rank at a step, from 1: two of six."""
    start = (step - 1) * BATCH + 2 * rank
    return ORDER[start : start + 2]


def test_one_flipped_bit_names_rank_and_parameter_within_the_interval(folder: Path) -> None:
    for rank in seen(folder, "flip"):
        assert rank["error"]["code"] == "rank_failed"
        assert rank["error"]["values"] == {"ranks": [1], "parameters": ["2.weight"]}
        assert len(rank["numbers"]) == 6  # flipped in step 4, compared after steps 3 and 6
    (told,) = events(folder, "flip", "replica_mismatch")
    assert (told["step"], told["ranks"], told["parameters"]) == (6, [1], ["2.weight"])


def test_a_repaired_rank_is_in_step_again_and_the_run_goes_on(folder: Path) -> None:
    ranks = seen(folder, "repair")
    assert [rank["error"] for rank in ranks] == [None] * RANKS
    assert ranks[0]["last"] == ranks[1]["last"] == ranks[2]["last"]
    (told,) = events(folder, "repair", "replica_mismatch")
    assert (told["step"], told["ranks"]) == (6, [1])


def test_rollback_passes_over_the_poisoned_samples_on_all_ranks(folder: Path) -> None:
    ranks = seen(folder, "rollback")
    for rank, facts in enumerate(ranks):
        assert facts["error"] is None
        assert facts["numbers"] == [own(step, rank) for step in range(1, 13)]
    assert ranks[0]["last"] == ranks[1]["last"] == ranks[2]["last"]
    (told,) = events(folder, "rollback", "warning")
    assert (told["code"], told["step"], told["went_back_to"]) == ("non_finite", BAD_STEP, 3)
    assert [e["skipped"] for e in events(folder, "rollback", "step")][-1] == 2  # steps 4 and 5


def test_the_rank_that_saw_it_is_named(folder: Path) -> None:
    (told,) = events(folder, "rollback", "non_finite")
    assert (told["step"], told["rank"]) == (BAD_STEP, BAD_RANK)
    assert (told["module"], told["tensor"]) == ("loss", "output")


def test_all_ranks_lower_the_learning_rate(folder: Path) -> None:
    ranks = seen(folder, "lower")
    assert ranks[0]["last"] == ranks[1]["last"] == ranks[2]["last"]
    rates = {event["step"]: event["lr"] for event in events(folder, "lower", "step")}
    lowered = {step for step, rate in rates.items() if rate == pytest.approx(5e-4)}
    assert lowered == {6, 7}
    assert all(rates[step] == pytest.approx(1e-3) for step in set(rates) - lowered)


def test_widening_makes_an_overflowing_fp16_network_train(folder: Path) -> None:
    ranks = seen(folder, "widen")
    assert ranks[0]["last"] == ranks[1]["last"] == ranks[2]["last"]
    found = [e for e in events(folder, "widen", "warning") if e["code"] == "non_finite"]
    assert len(found) == 1
    assert "grow computes in bf16" in found[0]["message"]
    losses = [event["loss"] for event in events(folder, "widen", "step") if event["loss"]]
    assert sum(losses[-5:]) < 0.1 * sum(losses[:5])
