"""Gradients summed over three real ranks in parcels, against sums in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from real_commands import ROOT, python
from summation_ranks import LARGE_BYTES, PARCEL_BYTES, RANKS, SIZES, Numbers, numbers_of
from torch import Tensor

from drumline.distributed.strategies import summation
from drumline.distributed.strategies.summation import parcels_of

PARCELS = [["image", "last", "rare"], ["third", "second", "first"], ["wide"], ["large"]]
"""By arithmetic: 48 + 50 + 7 numbers of 4 bytes are 420, and 90 more would be over 700; 90, 33 and
40 are 652; those of 8 bytes travel apart; 700 numbers are over 1,000 bytes."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    folder = tmp_path_factory.mktemp("summation")
    python(folder, ROOT / "tests/integration/summation_ranks.py", folder)
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(RANKS)]


def expected(without: dict[int, tuple[str, ...]] | None = None) -> dict[str, Tensor]:
    left_out = without or {}
    given = {rank: numbers_of(rank) for rank in range(RANKS)}
    return {
        name: sum(
            given[rank][name].double() for rank in given if name not in left_out.get(rank, ())
        )
        for name in SIZES
    }


def test_what_travels_together_depends_on_sizes_and_dtypes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summation, "LARGE_BYTES", LARGE_BYTES)
    monkeypatch.setattr(summation, "PARCEL_BYTES", PARCEL_BYTES)
    model = Numbers()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parcels = parcels_of(list(model.parameters()))
    found = sorted([names[id(p)] for p in parcel] for parcel in parcels)
    assert found == sorted(PARCELS)


def test_each_gradient_is_its_sum_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for found in (*rank["ddp"], rank["at_once"]):
            for name, wanted in expected().items():
                assert torch.equal(found[name], ranks[0]["ddp"][0][name])
                # Of three numbers at most two additions are rounded, at the size of the largest.
                tolerance = 2 * torch.finfo(found[name].dtype).eps
                largest = torch.stack([numbers_of(r)[name].abs() for r in range(RANKS)]).amax(0)
                assert ((found[name] - wanted).abs() <= tolerance * 2 * largest).all()


def test_the_order_of_additions_is_that_of_the_parcels_and_would_show(
    ranks: list[dict[str, Any]],
) -> None:
    """DDP's buckets change after the first backward, and nothing changes with them."""
    found, apart = ranks[0]["ddp"][0], ranks[0]["one_by_one"]
    assert any(not torch.equal(found[name], apart[name]) for name in SIZES)


def test_a_step_starts_a_collective_for_each_parcel(ranks: list[dict[str, Any]]) -> None:
    assert [rank["calls"] for rank in ranks] == [3 * len(PARCELS)] * RANKS


def test_what_some_ranks_lack_is_zero_there_and_what_none_has_stays_none(
    ranks: list[dict[str, Any]],
) -> None:
    wanted = expected({1: ("second",)})
    for rank in ranks:
        assert rank["partly"]["rare"] is None
        torch.testing.assert_close(rank["partly"]["second"].double(), wanted["second"])
        assert torch.equal(rank["partly"]["large"], ranks[0]["at_once"]["large"])


@pytest.mark.parametrize(("packing", "eps"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_fewer_bits_are_widened_again(
    ranks: list[dict[str, Any]], packing: str, eps: float
) -> None:
    """Each number is rounded once, and each of two sums."""
    largest = {
        name: torch.stack([numbers_of(rank)[name].abs() for rank in range(RANKS)]).amax(0).double()
        for name in SIZES
    }
    for rank in ranks:
        for found in rank[packing]:
            for name, wanted in expected().items():
                assert found[name].dtype == numbers_of(0)[name].dtype
                bound = eps * 9 * largest[name] + 1e-6
                assert ((found[name].double() - wanted).abs() <= bound).all()
