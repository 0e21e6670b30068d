"""Who is missing when a collective breaks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from drumline.distributed import StoreControl, control


def control_of(rank: int, size: int, store: dist.Store, calls: int) -> StoreControl:
    """A rank's control plane after some calls, without the group that has broken."""
    found = StoreControl.__new__(StoreControl)
    found.rank, found.size, found.timeout_s = rank, size, 1.0
    found._store, found._calls = store, calls
    return found


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_ranks_that_are_some_calls_apart_find_each_other(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ROLL_CALL_S", 1.0)
    store = dist.HashStore()
    error = RuntimeError("timed out")
    ranks = [control_of(0, 3, store, 7), control_of(2, 3, store, 7 + ahead)]
    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(rank.missing, "collective", error) for rank in ranks]
    for failure in told:
        assert failure.result().values["missing"] == [1]


def test_who_signed_in_at_an_earlier_failure_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ROLL_CALL_S", 0.2)
    store = dist.HashStore()
    control_of(1, 2, store, 7).missing("vote", RuntimeError("timed out"))
    later = control_of(0, 2, store, 12).missing("vote", RuntimeError("timed out"))
    assert later.values["missing"] == [1]
