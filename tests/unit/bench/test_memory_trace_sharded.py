"""Traces of modes sharded and hybrid: FSDP2 itself runs, in a group that sends nothing."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from drumline.bench.memory_trace import trace_own_model
from drumline.config import RunConfig
from drumline.planning.memory_trace import MemoryTrace, replay

FLOAT, WIDTH, BLOCKS, RANKS = 4, 128, 6, 4
UNIT = WIDTH * WIDTH * FLOAT
WEIGHTS = BLOCKS * UNIT


class Vectors:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((WIDTH,), float(index))


def blocks() -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)) for _ in range(BLOCKS))
    )


def squares(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().sum(dim=1)


@functools.cache
def traced(ranks: int = RANKS, **sharded: Any) -> MemoryTrace:
    config = RunConfig.model_validate(
        {
            "steps": 9,
            "global_batch": ranks,
            "distributed": {"mode": "sharded", "sharded": sharded},
        }
    )
    return trace_own_model(blocks, Vectors(), squares, config, world_size=ranks)


class SplitBlocks(nn.Sequential):
    """The blocks, every other one split by columns and the next by rows."""

    def tensor_plan(self) -> dict[str, Any]:
        styles = (ColwiseParallel, RowwiseParallel)
        return {f"{block}.0": styles[block % 2]() for block in range(BLOCKS)}


@functools.cache
def traced_on(ranks: int = RANKS, **mesh: int) -> MemoryTrace:
    config = RunConfig.model_validate(
        {
            "steps": 9,
            "global_batch": 2 * ranks,
            "distributed": {"mode": "hybrid", "mesh": mesh},
        }
    )
    model = (lambda: SplitBlocks(*blocks())) if "tensor" in mesh else blocks
    return trace_own_model(model, Vectors(), squares, config, world_size=ranks)


def most(trace: MemoryTrace) -> dict[str, int]:
    """The most bytes of each category at any moment."""
    now, found = Counter[str](), Counter[str]()
    for event in trace.events:
        number = abs(event) - 1
        kind = trace.categories[number]
        now[kind] += trace.sizes[number] * (1 if event > 0 else -1)
        found[kind] = max(found[kind], now[kind])
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_holds_its_part_of_weights_gradients_and_moments(ranks: int) -> None:
    found = most(traced(ranks))
    assert found["parameters"] == WEIGHTS // ranks
    assert found["gradients"] == WEIGHTS // ranks
    assert found["optimizer"] == 2 * WEIGHTS // ranks + BLOCKS * FLOAT  # and a step count a weight
    assert found["temporaries"] < WEIGHTS  # no whole weight is made where pieces are updated


def test_weights_that_are_put_together_come_and_go_unit_by_unit() -> None:
    # One unit computes while the next is fetched: each is a buffer of what came, and the weights.
    assert 2 * UNIT <= most(traced())["buckets"] <= 4 * UNIT + UNIT // RANKS


def test_weights_that_stay_are_all_there_at_the_end_of_the_forward() -> None:
    kept = most(traced(reshard_after_forward=False))["buckets"]
    assert WEIGHTS + UNIT <= kept <= WEIGHTS + 3 * UNIT


def test_what_other_streams_asked_for_is_theirs() -> None:
    trace = traced()
    gathered = [trace.sizes[number] for number in trace.streams]
    assert gathered.count(UNIT) >= BLOCKS  # whole units come in on one stream
    assert gathered.count(UNIT // RANKS) >= BLOCKS  # parts of gradients go out on another
    batches = {trace.streams[n] for n, what in enumerate(trace.categories) if what == "batch"}
    assert len(batches) == 1  # samples come in on a third
    assert len(set(trace.streams.values()) - batches) == 2


@pytest.mark.parametrize(
    ("mesh", "parts", "samples"),
    [
        ({"data": 4}, 1, 2),
        ({"data": 2, "shard": 2}, 2, 2),
        ({"data": 1, "shard": 4}, 4, 2),
        ({"tensor": 2}, 2, 4),
        ({"data": 1, "shard": 2, "tensor": 2}, 4, 4),
    ],
)
def test_a_rank_of_a_mesh_holds_its_part(mesh: dict[str, int], parts: int, samples: int) -> None:
    trace = traced_on(**mesh)
    found = most(trace)
    assert found["parameters"] == WEIGHTS // parts
    assert found["gradients"] == WEIGHTS // parts
    assert found["optimizer"] == 2 * WEIGHTS // parts + BLOCKS * FLOAT
    assert trace.share == samples  # ranks along the tensor axis work on the same ones


def test_one_axis_of_shards_is_mode_sharded() -> None:
    config = {"steps": 9, "global_batch": 8, "distributed": {"mode": "sharded"}}
    cut = trace_own_model(
        blocks, Vectors(), squares, RunConfig.model_validate(config), world_size=RANKS
    )
    assert most(traced_on(data=1, shard=4)) == most(cut)


def test_a_trace_comes_back_from_plain_data_and_replays_the_same() -> None:
    trace = traced()
    again = MemoryTrace.from_dict(trace.as_dict())
    assert again == trace
    assert replay(again, lambda _: 0).reserved_peak >= replay(trace, lambda _: 0).allocated_peak
