"""Axes of a mesh."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.config import (
    DistributedConfig,
    MeshConfig,
    MeshShape,
    Mode,
    PipelineConfig,
    parse_config,
)
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
        ({"pipeline": 4}, 8, (2, 1, 1, 4)),
        ({"data": 1, "tensor": 2, "pipeline": 3}, 6, (1, 1, 2, 3)),
    ],
)
def test_one_axis_takes_the_ranks_that_are_left(
    axes: dict[str, int], ranks: int, expected: tuple[int, ...]
) -> None:
    assert MeshConfig(**axes).shape(ranks) == MeshShape(*expected)


@pytest.mark.parametrize(
    ("axes", "ranks"),
    [({"shard": 3}, 4), ({"data": 2, "shard": 2}, 8), ({"shard": 8}, 4), ({"pipeline": 3}, 4)],
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
        ({"pipeline": 2, "shard": 2}, "pipeline and shard cannot be combined"),
        ({"pipeline": -1}, "greater than 0"),
        ({"shard": 0}, "an axis has at least one rank"),
        ({"shard": -2}, "-1"),
    ],
)
def test_impossible_axes_are_named(mesh: dict[str, Any], said: str) -> None:
    config = {"steps": 1, "distributed": {"mode": "hybrid", "mesh": mesh}}
    with pytest.raises(ConfigError) as raised:
        parse_config(config)
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipeline": {"schedule": "gpipe", "stages_per_rank": 2}}, "gpipe has one stage a rank"),
        (
            {"pipeline": {"schedule": "interleaved_1f1b", "stages_per_rank": 1}},
            "needs stages_per_rank of 2 or more",
        ),
        ({"pipeline": {"schedule": "zigzag"}}, "zigzag"),
        ({"sync_batchnorm": True}, "sync_batchnorm cannot be combined with mesh.pipeline"),
        ({"sharded": {"cpu_offload": True}}, "options of sharded do nothing with mesh.pipeline"),
    ],
)
def test_what_cannot_go_with_a_pipeline_is_named(options: dict[str, Any], said: str) -> None:
    spread = {"mode": "hybrid", "mesh": {"pipeline": 2}, **options}
    with pytest.raises(ConfigError) as raised:
        parse_config({"steps": 1, "distributed": spread})
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({}, 1),
        ({"schedule": "interleaved_1f1b"}, 2),
        ({"schedule": "interleaved_1f1b", "stages_per_rank": 3}, 3),
        ({"schedule": "zero_bubble"}, 1),
        ({"schedule": "zero_bubble", "stages_per_rank": 2}, 2),
    ],
)
def test_a_schedule_says_how_many_stages_a_rank_has(options: dict[str, Any], stages: int) -> None:
    assert PipelineConfig(**options).stages == stages


def test_only_hybrid_has_a_pipeline() -> None:
    sizes = {
        mode: DistributedConfig(mode=mode, mesh=MeshConfig(pipeline=4)).pipeline_size
        for mode in Mode
    }
    assert sizes.pop(Mode.HYBRID) == 4
    assert set(sizes.values()) == {1}


def test_who_needs_a_process_group() -> None:
    assert [mode for mode in Mode if mode.needs_group] == [
        Mode.DISTRIBUTED,
        Mode.SHARDED,
        Mode.HYBRID,
    ]
