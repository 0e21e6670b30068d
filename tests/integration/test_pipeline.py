"""Models in pipeline stages train as whole ones do; real processes, over gloo or NCCL.

Tolerances are for float64: sums over ranks are rounded in another order, and nothing else differs.
The fifth and the tenth step have two samples, so that most of their micro-batches are empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from spread_worlds import (
    Case,
    Trained,
    case,
    largest_difference,
    launch,
    launch_together,
    same_bits,
)

pytestmark = pytest.mark.timeout(600)  # the first test waits for all worlds
EXACT = 1e-9
STEPS = 12
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble")
Spread = dict[str, Any]


def pipeline(
    schedule: str = "1f1b", ranks: int = 2, stages: int | None = None, **keys: Any
) -> Spread:
    """A pipeline of some ranks, replicated over the others."""
    mesh = {"pipeline": ranks, **keys.pop("mesh", {})}
    options = {"schedule": schedule, "stages_per_rank": stages}
    return {"mode": "hybrid", "mesh": mesh, "pipeline": options, **keys}


NONE: Spread = {"mode": "none"}
SHARDED: Spread = {"mode": "sharded"}
MESHES: dict[int, list[tuple[str, str, Spread]]] = {
    2: [
        *((f"1x2-{schedule}", "staged", pipeline(schedule)) for schedule in SCHEDULES),
        ("1x2-interleaved_1f1b", "perceptron", pipeline("interleaved_1f1b")),
        ("1x2-zero_bubble", "lstm", pipeline("zero_bubble")),
        ("1x2", "cnn", pipeline()),
        ("2x1", "staged", pipeline(ranks=1)),
    ],
    4: [
        ("2x2", "staged", pipeline()),
        ("2x2", "lstm", pipeline("gpipe")),
        ("2x2-unequal", "staged", pipeline(shares=[13, 3])),
        ("2x2-idle", "staged", pipeline("interleaved_1f1b", shares=[16, 0])),
        ("1x4", "staged", pipeline(ranks=4)),
        ("1x4", "cnn", pipeline(ranks=4)),
        ("1x4-zero_bubble", "perceptron", pipeline("zero_bubble", ranks=4)),
        ("1x2x2", "perceptron", pipeline(mesh={"tensor": 2})),
    ],
}
"""Meshes data x pipeline, or data x tensor x pipeline: name, model and config."""
OVERFLOWS: dict[str, dict[str, Any]] = {
    "loss": {"rank": 1, "call": 2},
    "gradient": {"rank": 0, "call": 2, "parameter": "blocks.0.up.weight"},
}
"""In the second step an infinite loss, on the last stage, or an infinite gradient on the first."""
REFUSALS: dict[str, tuple[str, Spread, dict[str, Any], str]] = {
    "tied": ("tied", pipeline(), {}, "embedding.tokens.weight is in pipeline stages 0 and 1"),
    "undeclared": ("transformer", pipeline(), {}, "2 stages, and this one has no pipeline_stages"),
    "too-many": ("perceptron", pipeline("zero_bubble", stages=3), {}, "4 blocks, which cannot"),
    "repair": ("perceptron", pipeline(), {"stability": {"replica": "repair"}}, "replica=repair"),
}
ROLLBACK: dict[str, Any] = {
    "steps": 6,
    "micro_batch": 4,
    "checkpoint": {"every_steps": 2},
    "stability": {"non_finite": "rollback"},
}
RESUMED: dict[str, tuple[int, str, Spread]] = {
    "none-then-1x4": (4, "half-none", pipeline(ranks=4)),
    "none-then-2x2": (4, "half-none", pipeline("interleaved_1f1b")),
    "1x2-then-none": (1, "half-1x2", NONE),
    "1x2-then-1x2": (2, "half-1x2", pipeline()),
    "1x2-then-sharded": (2, "half-1x2", SHARDED),
    "1x2-then-2x2": (4, "half-1x2", pipeline("zero_bubble")),
}
"""Second halves of the transformer's run: ranks, whose first half, and how it goes on."""


def run(folder: Path, name: str, model: str, spread: Spread, **keys: Any) -> Case:
    """A case. Batch normalisation is over micro-batches, so these are the same in all modes."""
    keys = {"steps": STEPS, "micro_batch": 4 if model == "cnn" else 3, **keys}
    return case(folder, name, model, {"sync_batchnorm": False, **spread}, **keys)


def alone(folder: Path) -> list[Case]:
    """What one process does."""
    models = ("staged", "perceptron", "lstm", "cnn")
    fault = {"rank": 0, "call": 13}
    return [
        run(folder, "half-none", "staged", NONE, steps=STEPS // 2),
        *(run(folder, f"none-{model}", model, NONE) for model in models),
        run(folder, "none-of-13", "staged", NONE, global_batch=13),
        run(folder, "none-bf16", "perceptron_half", NONE, precision="bf16"),
        run(folder, "rollback-none", "lstm", NONE, case_fault=fault, **ROLLBACK),
    ]


def on_two(folder: Path) -> list[Case]:
    """What else two ranks do."""
    narrow = {"steps": 4, "precision": "fp16", "micro_batch": 8}
    fault = {"rank": 1, "call": 13}
    return [
        run(folder, "half-1x2", "staged", pipeline(), steps=STEPS // 2),
        *(
            run(folder, f"overflow-{what}", "perceptron_half", pipeline(), case_fault=at, **narrow)
            for what, at in OVERFLOWS.items()
        ),
        *(
            run(folder, f"dropped-{schedule}", "dropped", pipeline(schedule))
            for schedule in ("gpipe", "1f1b", "zero_bubble")
        ),
        *(
            run(folder, f"refused-{name}", model, spread, case_refused=True, **keys)
            for name, (model, spread, keys, _) in REFUSALS.items()
        ),
        run(folder, "1x2-bf16", "perceptron_half", pipeline(), precision="bf16"),
        run(folder, "rollback-1x2", "lstm", pipeline(), case_fault=fault, **ROLLBACK),
        run(folder, "replicas-cnn", "cnn", {"mode": "distributed"}),
    ]


def on_four(folder: Path) -> list[Case]:
    """What else four ranks do."""
    return [
        run(folder, "2x2-of-13", "staged", pipeline(), global_batch=13),
        run(folder, "2x2-cnn", "cnn", pipeline()),
    ]


def resumed(folder: Path, size: int) -> list[Case]:
    """The second halves that so many ranks do."""
    return [
        run(folder, name, "staged", spread, case_from=str(folder / half))
        for name, (ranks, half, spread) in RESUMED.items()
        if ranks == size
    ]


def meshes(folder: Path, size: int) -> list[Case]:
    """The runs in stages that are to equal one process's."""
    return [
        run(folder, f"{name}-{model}", model, spread)
        for name, model, spread in MESHES.get(size, [])
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """All cases, by name."""
    folder = tmp_path_factory.mktemp("pipeline")
    more = {1: alone(folder), 2: on_two(folder), 4: on_four(folder)}
    # What other worlds wait for comes first, and what waits for them last.
    worlds = {n: [*more[n], *meshes(folder, n), *resumed(folder, n)] for n in more}
    return launch_together(worlds, folder)


def assert_equal(ours: Trained, theirs: Trained) -> None:
    """Losses, gradient norms, weights, moments and evaluations of whole runs."""
    assert len(theirs.losses) == STEPS
    assert largest_difference(ours.losses, theirs.losses) < EXACT
    assert largest_difference(ours.found["norms"], theirs.found["norms"]) < EXACT
    assert_equal_ends(ours, theirs)
    assert ours.found["metrics"][0].keys() == {"mean_loss"}


def assert_equal_ends(ours: Trained, theirs: Trained) -> None:
    """Weights, moments and the evaluation after the last step."""
    assert largest_difference(ours.weights, theirs.weights) < EXACT
    moments, expected = ours.optimizer["state"], theirs.optimizer["state"]
    assert list(moments) == list(expected)  # nothing for frozen and unused parameters
    for name, entries in moments.items():
        assert largest_difference(entries, expected[name]) < EXACT
    (group,), (other,) = ours.optimizer["param_groups"], theirs.optimizer["param_groups"]
    assert group["params"] == other["params"]
    (metrics,), (others,) = ours.found["metrics"], theirs.found["metrics"]
    assert metrics == pytest.approx(others, abs=EXACT)


@pytest.mark.parametrize(
    ("name", "model"), [(name, model) for of in MESHES.values() for name, model, _ in of]
)
def test_stages_train_as_the_whole_model_does(
    trained: dict[str, Trained], name: str, model: str
) -> None:
    assert_equal(trained[f"{name}-{model}"], trained[f"none-{model}"])


def test_a_replica_without_samples_at_the_end_of_an_epoch(trained: dict[str, Trained]) -> None:
    assert_equal(trained["2x2-of-13"], trained["none-of-13"])  # 66 samples: the last step has 1


def test_replicas_of_stages_normalise_as_replicas_of_models(trained: dict[str, Trained]) -> None:
    ours, theirs = trained["2x2-cnn"], trained["replicas-cnn"]
    assert_equal(ours, theirs)
    assert largest_difference(ours.losses, trained["none-cnn"].losses) > 1e-6  # other statistics


def test_dropout_does_not_depend_on_the_schedule(trained: dict[str, Trained]) -> None:
    first, *others = (trained[f"dropped-{name}"] for name in ("gpipe", "1f1b", "zero_bubble"))
    assert largest_difference(first.losses, trained["none-perceptron"].losses) > 1e-3
    for other in others:
        assert other.losses == first.losses
        assert same_bits(other.weights, first.weights)


def test_half_precision_goes_from_stage_to_stage(trained: dict[str, Trained]) -> None:
    ours, theirs = trained["1x2-bf16"], trained["none-bf16"]
    assert largest_difference(ours.losses, theirs.losses) < 1e-6
    assert {tensor.dtype for tensor in ours.weights.values()} == {torch.float32}


@pytest.mark.parametrize("what", OVERFLOWS)
def test_an_overflow_of_one_stage_skips_the_step_on_all(
    trained: dict[str, Trained], what: str
) -> None:
    found = trained[f"overflow-{what}"].found
    assert found["skipped"] == len(found["skips"]) == 1
    if what == "gradient":
        assert found["skips"] == ["the gradient of blocks.0.up.weight is not finite"]
    assert found["scales"] == [{"scale": 2.0**15, "good_steps": 2}] * 2


def test_a_pipeline_goes_back_to_a_checkpoint_as_one_process_does(
    trained: dict[str, Trained],
) -> None:
    ours, theirs = trained["rollback-1x2"], trained["rollback-none"]
    assert ours.found["skipped"] == theirs.found["skipped"] == 2  # steps 3 and 4
    assert largest_difference(ours.losses, theirs.losses) < EXACT
    assert_equal_ends(ours, theirs)


@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_of_stages_goes_on_whole_and_back(
    trained: dict[str, Trained], name: str
) -> None:
    ours = trained[name]
    assert min(ours.losses) == STEPS // 2 + 1
    assert_equal_ends(ours, trained["none-staged"])


def test_an_interrupted_pipeline_is_equal_bit_for_bit(trained: dict[str, Trained]) -> None:
    ours, straight = trained["1x2-then-1x2"], trained["1x2-1f1b-staged"]
    assert same_bits(ours.weights, straight.weights)


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_a_pipeline_is_refused(trained: dict[str, Trained], name: str) -> None:
    for said in trained[f"refused-{name}"].refusals:
        assert said["kind"] == "BadInput"
        assert REFUSALS[name][-1] in said["message"]


@pytest.mark.gpu
@pytest.mark.parametrize("size", MESHES)
def test_stages_on_gpus_train_as_the_whole_model_does(size: int, tmp_path: Path) -> None:
    if (there := torch.cuda.device_count()) < size:
        pytest.skip(f"a mesh of {size} ranks needs as many GPUs, and there are {there}")
    models = {model for _, model, _ in MESHES[size]}
    found = launch(1, [run(tmp_path, f"none-{m}", m, NONE) for m in models], tmp_path, "nccl")
    found |= launch(size, meshes(tmp_path, size), tmp_path, "nccl")
    for name, model, _ in MESHES[size]:
        assert_equal(found[f"{name}-{model}"], found[f"none-{model}"])
