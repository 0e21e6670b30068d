"""How a rank tells the launcher what went wrong."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist

from drumline.errors import DataError, RankFailure
from drumline.launch.worker import describe


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (RuntimeError("Timed out waiting 1000ms for recv operation"), "timeout"),
        (dist.DistBackendError("NCCL error"), "communication"),
        (dist.DistNetworkError("Connection reset by peer"), "communication"),
        (ConnectionResetError("reset"), "communication"),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed"), "communication"),
        (RuntimeError("shapes do not fit"), "exception"),
        (KeyError("x"), "exception"),
        (RankFailure("Rank 1 did not come to a vote."), "rank_failed"),
        (DataError("NaN in shard 3"), "bad_data"),
    ],
)
def test_each_kind_of_failure_has_its_code(error: Exception, code: str) -> None:
    facts = describe(error)
    assert facts["code"] == code
    assert facts["exit_code"] == (2 if code == "bad_data" else 1)
    json.dumps(facts)


def test_message_remedy_and_trace_are_told() -> None:
    try:
        raise DataError("NaN in shard 3, row 5.", remedy="Drop the row.", shard="3", row=5)
    except DataError as error:
        facts = describe(error)
    assert facts["message"] == "NaN in shard 3, row 5."
    assert facts["remedy"] == "Drop the row."
    assert facts["values"] == {"shard": "3", "row": 5}
    assert "test_message_remedy_and_trace_are_told" in facts["traceback"]


def test_a_message_is_the_first_line_with_the_name_of_the_error() -> None:
    assert describe(ValueError("one\ntwo"))["message"] == "ValueError: one"
    assert describe(ValueError())["message"] == "ValueError"
