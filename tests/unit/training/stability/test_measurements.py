"""Update ratios and activation statistics against arithmetic, and that nothing stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from watched_run import build, numbers_of_step, watched

from drumline.config import Precision
from drumline.errors import BadInput
from drumline.training.stability import updates
from drumline.training.stability.updates import sampled, update_ratios
from drumline.training.stability.widening import WidenedModules


def test_the_update_ratio_is_the_norm_of_the_change_over_that_of_the_weights(
    tmp_path: Path,
) -> None:
    seen = watched(tmp_path, stability={"update_ratio_every": 7})
    told = seen.of("update_ratios")
    assert [event["step"] for event in told] == [7, 14]
    for event in told:
        before, after = seen.weights[event["step"] - 1], seen.weights[event["step"]]
        for module, part in (("0", slice(0, 16)), ("2", slice(16, 21))):
            ratio = (after[part] - before[part]).norm() / before[part].norm()
            assert event["ratios"][module] == pytest.approx(ratio.item(), rel=1e-9)


def test_a_large_update_is_found_and_named(tmp_path: Path) -> None:
    stability = {"update_ratio_every": 5, "max_update_ratio": 0.5, "update_ratio": "lower_lr"}
    poison = dict.fromkeys(numbers_of_step(5), 1000.0)
    seen = watched(tmp_path, poison, stability=stability, optimizer={"name": "sgd", "lr": 1e-3})
    (told,) = seen.of("warning", code="update_ratio")
    (ratios,) = seen.of("update_ratios", step=5)
    module = max(ratios["ratios"], key=lambda name: ratios["ratios"][name])
    assert told["ratio"] == ratios["ratios"][module] > 0.5
    assert f"the weights of {module} by" in told["message"]
    assert seen.of("step")[5]["lr"] == pytest.approx(5e-4)


def test_weights_that_were_zero_have_no_ratio() -> None:
    before = {"a.weight": torch.zeros(3), "b.weight": torch.tensor([3.0, 4.0])}
    after = {"a.weight": torch.ones(3), "b.weight": torch.tensor([3.0, 4.5])}
    assert update_ratios(before, after) == {"b": pytest.approx(0.1)}
    assert update_ratios({}, {}) == {}


def test_large_tensors_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "SAMPLED", 10)
    net = nn.Linear(7, 5, bias=False)
    assert torch.equal(sampled(net)["weight"], net.weight.detach().flatten()[::4])


def test_activations_are_measured_over_the_global_batch(tmp_path: Path) -> None:
    def model() -> nn.Module:
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

    from watched_run import INPUTS

    seen = watched(
        tmp_path,
        model=model,
        stability={"activations": ["[01]"], "activations_every": 1},
        steps=1,
        micro_batch=3,
    )
    (told,) = seen.of("activations")
    inside = model().double()[0](INPUTS[numbers_of_step(1)])  # type: ignore[index,operator]
    assert set(told["modules"]) == {"0", "1"}
    assert told["modules"]["0"]["max_abs"] == pytest.approx(inside.abs().max().item())
    zeros = (inside <= 0).double().mean().item()
    assert told["modules"]["1"]["zero_fraction"] == pytest.approx(zeros)
    assert 0 < zeros < 1
    assert told["modules"]["1"]["non_finite"] == 0


def test_a_pattern_that_fits_no_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"layers\.\*"):
        watched(tmp_path, stability={"activations": ["layers.*"]})


def test_no_hook_stays_on_a_model(tmp_path: Path) -> None:
    net = build().double()
    watched(tmp_path, model=lambda: net, stability={"activations": ["0"]}, steps=2)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert not any("forward" in vars(m) for m in net.modules())


def test_a_module_is_widened_level_by_level_and_given_back() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    widened = WidenedModules(Precision.FP16)
    widened.attach(net)
    dtypes = []
    for _ in range(3):
        with torch.autocast("cpu", torch.float16):
            dtypes.append((net[0](torch.ones(1, 3)).dtype, net[1](torch.ones(1, 3)).dtype))
        widened.widen("1")
    half = torch.float16
    assert dtypes == [(half, half), (half, torch.bfloat16), (half, torch.float32)]
    assert widened.widen("1") is None
    again = WidenedModules(Precision.FP16)
    again.load_state_dict(widened.state_dict())
    assert again.levels == {"1": Precision.FP32}
    widened.close()
    assert "forward" not in vars(net[1])
    with torch.autocast("cpu", half):
        assert net[1](torch.ones(1, 3)).dtype is half
