"""How many threads a rank has on the host, and what they do between two pieces of work."""

from __future__ import annotations

import os

import pytest

from drumline.launch.launcher import MOST_HOST_THREADS, host_threads


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)


def test_ranks_on_the_cpu_share_its_cores() -> None:
    assert host_threads(4, on_gpu=False) == {"OMP_NUM_THREADS": "16"}
    assert host_threads(100, on_gpu=False) == {"OMP_NUM_THREADS": "1"}


def test_ranks_on_gpus_have_few_that_sleep() -> None:
    few = {"OMP_NUM_THREADS": str(MOST_HOST_THREADS), "OMP_WAIT_POLICY": "passive"}
    assert host_threads(4, on_gpu=True) == few
    assert host_threads(16, on_gpu=True) == {**few, "OMP_NUM_THREADS": "4"}


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "active"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert host_threads(4, on_gpu=True) == own
