"""Axes of a mesh."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.config import MeshConfig, MeshShape, Mode, parse_config
from drumline.errors import BadInput, ConfigError


@pytest.mark.parametrize(
    ("axes", "ranks", "expected"),
    [
        ({}, 1, (1, 1, 1)),
        ({}, 6, (6, 1, 1)),
        ({"shard": 2}, 6, (3, 2, 1)),
        ({"data": 2, "shard": -1}, 8, (2, 4, 1)),
        ({"data": 1, "shard": 4, "tensor": 2}, 8, (1, 4, 2)),
        ({"shard": 2, "tensor": 2}, 8, (2, 2, 2)),
    ],
)
def test_one_axis_takes_the_ranks_that_are_left(
    axes: dict[str, int], ranks: int, expected: tuple[int, int, int]
) -> None:
    assert MeshConfig(**axes).shape(ranks) == MeshShape(*expected)


@pytest.mark.parametrize(
    ("axes", "ranks"), [({"shard": 3}, 4), ({"data": 2, "shard": 2}, 8), ({"shard": 8}, 4)]
)
def test_axes_that_do_not_multiply_to_the_ranks_are_refused(
    axes: dict[str, int], ranks: int
) -> None:
    with pytest.raises(BadInput, match=f"does not fit {ranks} ranks"):
        MeshConfig(**axes).shape(ranks)


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ({"shard": -1}, "only one axis can be -1"),
        ({"pipeline": 2}, "pipeline parallelism is not built yet"),
        ({"shard": 0}, "an axis has at least one rank"),
        ({"shard": -2}, "-1"),
    ],
)
def test_impossible_axes_are_named(mesh: dict[str, Any], said: str) -> None:
    config = {"steps": 1, "distributed": {"mode": "hybrid", "mesh": mesh}}
    with pytest.raises(ConfigError) as raised:
        parse_config(config)
    assert said in raised.value.message


def test_who_needs_a_process_group() -> None:
    assert [mode for mode in Mode if mode.needs_group] == [
        Mode.DISTRIBUTED,
        Mode.SHARDED,
        Mode.HYBRID,
    ]
