"""Weights come back, however they lie in memory."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from drumline.training.weights_file import load_weights, save_weights


def flattened(seed: int) -> nn.Module:
    """An LSTM whose weights are parts of one storage, as on a GPU, with two of them tied."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({"lstm": nn.LSTM(3, 4), "head": nn.Linear(4, 2)})
    lstm = model["lstm"]
    weights = list(lstm.named_parameters())
    flat = torch.cat([weight.detach().flatten() for _, weight in weights])
    parts = torch.split(flat, [weight.numel() for _, weight in weights])
    for (name, weight), part in zip(weights, parts, strict=True):
        setattr(lstm, name, nn.Parameter(part.view(weight.shape)))
    lstm.again = lstm.weight_hh_l0
    return model


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_weights_that_are_parts_of_one_storage_come_back(tmp_path: Path) -> None:
    saved, other = flattened(1), flattened(2)
    save_weights(saved, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    for name, tensor in values(saved).items():
        assert torch.equal(values(other)[name], tensor), name
    assert other["lstm"].again is other["lstm"].weight_hh_l0
    flat = {p.untyped_storage().data_ptr() for p in other["lstm"].parameters()}
    assert len(flat) == 1  # filled where they lay


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = flattened(1)
    save_weights(model, tmp_path / "model.safetensors")
    written = load_file(tmp_path / "model.safetensors")
    assert len(written) == len(dict(model.named_parameters()))
    assert sum(tensor.numel() for tensor in written.values()) == sum(
        weight.numel() for weight in model.parameters()
    )


def test_weights_of_other_names_are_refused(tmp_path: Path) -> None:
    save_weights(flattened(1), tmp_path / "model.safetensors")
    with pytest.raises(RuntimeError, match="bias_ih_l1"):
        load_weights(nn.ModuleDict({"lstm": nn.LSTM(3, 4, 2)}), tmp_path / "model.safetensors")


@pytest.mark.gpu
def test_weights_of_a_layer_on_a_gpu_come_back(tmp_path: Path) -> None:
    saved, other = nn.LSTM(3, 4).cuda(), nn.LSTM(3, 4).cuda()
    save_weights(saved, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    for name, tensor in values(saved).items():
        assert torch.equal(values(other)[name], tensor), name
