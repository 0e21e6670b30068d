"""The product's rule: losses and weights depend on the config, never on how many devices ran it.

The runs are those of an SAE with AuxK and resampling at work, through `drumline train`. In float64
the bound is rounding; there a wrong share, count or order shows at once. On a machine with GPUs the
same tests hold over NCCL (`-m gpu`).
"""

from __future__ import annotations

from typing import Any

import pytest
from shared_runs import GLOBAL_BATCH, SAERuns
from support import Finished, largest_difference

FP64, FP32 = 1e-9, 1e-4
ON_GPUS = pytest.param("1", "2", marks=pytest.mark.gpu)
ON_ANY = [("cpu:1", "cpu:2"), ("cpu:1", "cpu:3"), ("cpu:1", "cpu:4"), ON_GPUS]
ON_TWO = [("cpu:1", "cpu:2"), ON_GPUS]
BATCHTOPK = {"architecture": "batchtopk", "batchtopk_group": 12}
JUMPRELU = {"architecture": "jumprelu", "sparsity": {"l0": 0.1, "warmup_steps": 50}}


def assert_agree(one: Finished, many: Finished, bound: float, steps: int = 200) -> None:
    assert list(one.losses) == list(range(1, steps + 1))
    assert one.losses == pytest.approx(many.losses, rel=bound, abs=0)
    assert largest_difference(many.weights, one.weights) <= bound


def test_two_runs_at_the_same_time_do_not_meet(sae_runs: SAERuns) -> None:
    two, three = sae_runs.together("cpu:2", "cpu:3", steps=20)
    for own, other in ((two, three), (three, two)):
        assert own.event("attempt_started")["t"] < other.event("run_ended")["t"]
    assert_agree(two, three, FP64, steps=20)


@pytest.mark.parametrize(("one", "many"), ON_ANY)
def test_losses_and_weights_agree_in_float64(sae_runs: SAERuns, one: str, many: str) -> None:
    assert_agree(sae_runs.get(one), sae_runs.get(many), FP64)


def test_the_compared_runs_have_dead_latents_auxk_and_resampling(sae_runs: SAERuns) -> None:
    metrics = {e["step"]: e["metrics"] for e in sae_runs.get("cpu:1").events("step")}
    assert max(values["auxiliary"] for values in metrics.values()) > 0
    for resampled in (60, 120, 180):
        assert metrics[resampled]["dead_fraction"] > 0
        assert metrics[resampled + 1]["dead_fraction"] == 0


def test_the_ranks_of_a_run_did_share_the_batch(sae_runs: SAERuns) -> None:
    started = sae_runs.get("cpu:4").event("run_started")
    assert started["world_size"] == 4
    assert started["shares"] == [GLOBAL_BATCH // 4] * 4
    assert len(sae_runs.get("cpu:4").events("rank_started")) == 4


def test_evaluation_agrees(sae_runs: SAERuns) -> None:
    one, many = (sae_runs.get(d).result["metrics"] for d in ("cpu:1", "cpu:3"))
    assert many == pytest.approx(one, rel=FP64)


@pytest.mark.parametrize(
    ("one", "many", "shares"),
    [
        ("cpu:1", "cpu:3", [61, 30, 5]),
        pytest.param("1", "2", [61, 35], marks=pytest.mark.gpu),
    ],
)
def test_unequal_shares_and_other_micro_batches_agree(
    sae_runs: SAERuns, one: str, many: str, shares: list[int]
) -> None:
    cut = sae_runs.get(many, distributed={"shares": shares}, micro_batch=17)
    assert cut.event("run_started")["shares"] == shares
    assert_agree(sae_runs.get(one), cut, FP64)


@pytest.mark.parametrize(("one", "many"), ON_ANY)
def test_losses_and_weights_agree_in_float32(sae_runs: SAERuns, one: str, many: str) -> None:
    """In fp32 a k-th value near a tie may flip; on this set none does. Float64 is the proof."""
    fp32: dict[str, Any] = {"precision": "fp32"}
    assert_agree(sae_runs.get(one, **fp32), sae_runs.get(many, **fp32), FP32)


@pytest.mark.parametrize(("one", "many"), [("cpu:1", "cpu:3"), ON_GPUS])
def test_batchtopk_couples_positions_and_not_what_a_rank_holds(
    sae_runs: SAERuns, one: str, many: str
) -> None:
    """Eight groups of 12 on three ranks; of the two samples that end an epoch, one rank has all."""
    assert_agree(sae_runs.get(one, task=BATCHTOPK), sae_runs.get(many, task=BATCHTOPK), FP64)


@pytest.mark.parametrize(("one", "many"), ON_TWO)
def test_jumprelu_agrees(sae_runs: SAERuns, one: str, many: str) -> None:
    assert_agree(sae_runs.get(one, task=JUMPRELU), sae_runs.get(many, task=JUMPRELU), FP64)
