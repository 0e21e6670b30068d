"""Every mode trains every model as one process does; real processes over gloo, and over NCCL.

Tolerances are for float64: sums over ranks are rounded in another order, and nothing else differs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mode_cases import (
    EXACT,
    EXACT_OPTIONS,
    FEW,
    MODELS,
    MODES,
    OVERFLOWING,
    PAIRS,
    ROUNDING_OPTIONS,
    SPLIT,
    WRITERS,
    ZERO,
    case_of,
    fallbacks,
    faults,
    halves,
    rollbacks,
    second_halves,
)
from spread_worlds import STEPS, Case, Trained, largest_difference, launch_together, same_bits

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all worlds


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest) -> str:
    """Over what the ranks of all worlds exchange tensors."""
    if request.param == "nccl" and (there := torch.cuda.device_count()) < 2:
        pytest.skip(f"modes are compared on two GPUs or more, and there are {there}")
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Path:
    """Where all cases are, with the SAE's rows."""
    path = tmp_path_factory.mktemp(f"modes-{backend}")
    random = np.random.default_rng(0)
    directions = random.standard_normal((24, 16))
    active = (random.random((402, 24)) < 0.2) * random.exponential(1.0, (402, 24))
    np.save(path / "rows.npy", active @ directions + random.standard_normal(16))
    return path


class Trainings(dict[str, Trained]):
    """Cases by name. Those of worlds with more ranks than there are GPUs are left out."""

    def __init__(self, found: dict[str, Trained], most: int) -> None:
        super().__init__(found)
        self.most = most

    def __missing__(self, name: str) -> Trained:
        if self.most == max(MODES):
            raise KeyError(name)
        pytest.skip(f"{name} needs more than {self.most} GPUs")


@pytest.fixture(scope="module")
def trained(folder: Path, backend: str) -> dict[str, Trained]:
    """All cases, by name."""
    most = min(max(MODES), torch.cuda.device_count()) if backend == "nccl" else max(MODES)
    worlds: dict[int, list[Case]] = {}
    for size, modes in MODES.items():
        if size > most:
            continue
        cases = [
            case_of(folder, f"{mode}-{model}", model, spread)
            for mode, spread in modes.items()
            for model in MODELS
            if (mode, model) != ("dataparallel", "sae")
        ]
        split = {"split-none": {"mode": "none"}} if size == 1 else SPLIT[size]
        cases += [case_of(folder, n, "perceptron", s, steps=FEW) for n, s in split.items()]
        if size == 1:
            cases += [case_of(folder, f"none-{model}", model, {"mode": "none"}) for model in MODELS]
            refused = {"mode": "dataparallel"}
            cases.append(case_of(folder, "refused", "sae", refused, case_refused=True))
        if size == 2:
            options = {**EXACT_OPTIONS, **ROUNDING_OPTIONS}
            cases += [
                case_of(folder, f"{n}-transformer", "transformer", s, steps=FEW)
                for n, s in options.items()
            ]
            narrow = {"mode": "sharded", "sharded": {"reduce_dtype": "bf16"}}
            cases.append(case_of(folder, "sums-in-bf16", "lstm", narrow, steps=FEW))
            narrow = {"mode": "sharded", "sharded": {"gather_dtype": "precision"}}
            for name, spread in (("gathered-in-bf16", narrow), ("bf16", {"mode": "sharded"})):
                keys = {"steps": FEW, "precision": "bf16"}
                cases.append(case_of(folder, name, "perceptron_half", spread, **keys))
            static = {"mode": "distributed", "ddp": {"static_graph": True}}
            cases.append(case_of(folder, "static-lstm", "lstm", static, steps=FEW))
            cases.append(case_of(folder, "zero-sae", "sae", ZERO))
            cases += [*rollbacks(folder), *fallbacks(folder)]
            split = {"mode": "hybrid", "mesh": {"tensor": 2}}
            cases.append(case_of(folder, "no-plan", "lstm", split, case_refused=True))
        # What other worlds wait for comes first, and what waits for them last.
        first, last = halves(folder, size), second_halves(folder, size, most)
        worlds[size] = [*first, *cases, *faults(folder, size), *last]
    return Trainings(launch_together(worlds, folder, backend), most)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", [mode for modes in MODES.values() for mode in modes])
def test_losses_and_weights_are_those_of_one_process(
    trained: dict[str, Trained], backend: str, mode: str, model: str
) -> None:
    if (mode, model) == ("dataparallel", "sae"):
        (refusal,) = trained["refused"].refusals
        assert refusal["kind"] == "BadInput"
        assert "dataparallel" in refusal["message"]
        return
    ours, alone = trained[f"{mode}-{model}"], trained[f"none-{model}"]
    if (backend, mode, model) == ("nccl", "dataparallel", "cnn"):  # each GPU has its own statistics
        assert 1e-6 < largest_difference(ours.losses, alone.losses) < 1
        return
    assert len(alone.losses) == STEPS
    assert largest_difference(ours.losses, alone.losses) < EXACT
    assert largest_difference(ours.weights, alone.weights) < EXACT
    assert largest_difference(ours.found["norms"], alone.found["norms"]) < EXACT
    for metrics, expected in zip(ours.found["metrics"], alone.found["metrics"], strict=True):
        assert metrics == pytest.approx(expected, abs=EXACT)
    assert ours.found["mode"] == [mode.partition("_")[0]]


@pytest.mark.parametrize("mesh", ["split_1x1x2", "split_2x1x2", "split_1x2x2"])
def test_layers_split_over_ranks_train_as_whole_ones(
    trained: dict[str, Trained], mesh: str
) -> None:
    ours, alone = trained[mesh], trained["split-none"]
    assert largest_difference(ours.losses, alone.losses) < EXACT
    assert largest_difference(ours.weights, alone.weights) < EXACT
    assert largest_difference(ours.found["norms"], alone.found["norms"]) < EXACT


def test_a_checkpoint_of_whole_layers_goes_on_in_split_ones(trained: dict[str, Trained]) -> None:
    ours, straight = trained["split-on"], trained["split-none"]
    assert min(ours.losses) == FEW // 2 + 1
    assert largest_difference(ours.weights, straight.weights) < EXACT
    for name, entries in straight.optimizer["state"].items():
        assert largest_difference(ours.optimizer["state"][name], entries) < EXACT


def test_a_tensor_axis_needs_a_plan(trained: dict[str, Trained]) -> None:
    for said in trained["no-plan"].refusals:
        assert "the model has no tensor_plan" in said["message"]


@pytest.mark.parametrize("option", [f"{o}-transformer" for o in EXACT_OPTIONS])
def test_options_that_claim_to_be_exact_are(trained: dict[str, Trained], option: str) -> None:
    alone = trained["straight-none"]
    assert largest_difference(trained[option].losses, alone.losses) < EXACT
    assert largest_difference(trained[option].weights, alone.weights) < EXACT


def test_static_graph_and_a_sharded_optimizer_change_no_bit(trained: dict[str, Trained]) -> None:
    static, plain = trained["static-lstm"].losses, trained["distributed_2-lstm"].losses
    assert static == {step: plain[step] for step in static}
    assert same_bits(trained["zero-sae"].weights, trained["distributed_2-sae"].weights)


@pytest.mark.parametrize("option", ROUNDING_OPTIONS)
def test_options_that_round_train_nearly_as_well(trained: dict[str, Trained], option: str) -> None:
    ours, alone = trained[f"{option}-transformer"].losses, trained["straight-none"].losses
    assert 1e-12 < largest_difference(ours, alone) < 0.2
    assert ours[FEW - 1] < ours[1]


@pytest.mark.parametrize(
    ("narrow", "wide"), [("sums-in-bf16", "none-lstm"), ("gathered-in-bf16", "bf16")]
)
def test_narrow_dtypes_of_sharded_modes_train_nearly_as_well(
    trained: dict[str, Trained], narrow: str, wide: str
) -> None:
    ours, theirs = trained[narrow].losses, trained[wide].losses
    assert 1e-12 < largest_difference(ours, {step: theirs[step] for step in ours}) < 0.05
    assert {str(t.dtype) for t in trained["gathered-in-bf16"].weights.values()} == {"torch.float32"}


@pytest.mark.parametrize("mode", OVERFLOWING)
def test_an_overflow_on_one_rank_skips_the_step_on_all(
    trained: dict[str, Trained], mode: str
) -> None:
    found = trained[f"overflow-{mode}"].found
    assert found["skipped"] == len(found["skips"]) == 1
    assert "finite" in found["skips"][0]
    ranks = OVERFLOWING[mode][0]
    left = 2 if ranks == 1 or mode == "split_1x1x2" else 1  # with both shares, two passes a step
    assert found["scales"] == [{"scale": 2.0**15, "good_steps": left}] * ranks
    if mode.startswith("distributed"):
        assert len(set(found["digests"])) == 1


def test_a_sharded_run_goes_back_to_a_checkpoint_as_replicas_do(
    trained: dict[str, Trained],
) -> None:
    ours, theirs = trained["rollback-sharded_2"], trained["rollback-distributed_2"]
    assert ours.found["skipped"] == theirs.found["skipped"] == 2  # steps 3 and 4
    assert largest_difference(ours.losses, theirs.losses) < EXACT
    assert largest_difference(ours.weights, theirs.weights) < EXACT


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_a_checkpoint_of_any_mode_goes_on_in_any_other(
    trained: dict[str, Trained], writer: str, reader: str
) -> None:
    ours, straight = trained[f"{writer}-then-{reader}"], trained["straight-none"]
    assert min(ours.losses) == FEW // 2 + 1
    rest = {step: loss for step, loss in straight.losses.items() if step > FEW // 2}
    assert largest_difference(ours.losses, rest) < EXACT
    assert largest_difference(ours.weights, straight.weights) < EXACT
    moments, expected = ours.optimizer["state"], straight.optimizer["state"]
    assert moments.keys() == expected.keys()  # nothing for frozen and unused parameters
    assert not [name for name in moments if "unused" in name or "position" in name]
    for name, entries in moments.items():
        assert largest_difference(entries, expected[name]) < EXACT


@pytest.mark.parametrize("mode", WRITERS)
def test_a_run_that_was_interrupted_is_equal_bit_for_bit(
    trained: dict[str, Trained], mode: str
) -> None:
    assert same_bits(trained[f"{mode}-then-{mode}"].weights, trained[f"straight-{mode}"].weights)


@pytest.mark.parametrize(
    ("name", "became", "told"),
    [
        ("falls-on-all", ["sharded"], "rank 0: distributed is broken for a test; rank 1"),
        ("falls-on-one", ["sharded"], "(rank 1: distributed is broken for a test)"),
        ("falls-to-single", ["none"], "mode none is tried"),
    ],
)
def test_auto_takes_the_next_mode_and_says_why(
    trained: dict[str, Trained], name: str, became: list[str], told: str
) -> None:
    ours = trained[name]
    assert ours.found["mode"] == became
    assert told in ours.found["warnings"][-1]
    alone = trained["none-lstm"].losses
    assert largest_difference(ours.losses, {step: alone[step] for step in ours.losses}) < EXACT


def test_auto_never_comes_down_to_one_device_unasked(trained: dict[str, Trained]) -> None:
    refusals = trained["falls-too-deep"].refusals
    assert [said["message"] for said in refusals] == ["sharded is broken for a test"] * 2


def test_a_mode_that_was_named_is_not_replaced(trained: dict[str, Trained]) -> None:
    first, second = trained["named-mode-fails"].refusals
    assert first["kind"] == "RankFailure"
    assert "rank 1: distributed is broken for a test" in first["message"]
    assert second["kind"] == "RuntimeError"


def test_several_processes_are_not_one_device(trained: dict[str, Trained]) -> None:
    for said in trained["none-on-two"].refusals:
        assert "mode none is for one process, and 2 were started" in said["message"]
