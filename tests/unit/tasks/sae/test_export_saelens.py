"""What SAELens loads from an export reconstructs as our model does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drumline.errors import BadInput, CheckpointError
from drumline.tasks.sae.build import build_sae
from drumline.tasks.sae.config import SAETaskConfig
from drumline.tasks.sae.export import export_sae
from drumline.tasks.sae.model import SAE

D_IN, LATENTS = 12, 40
ARCHITECTURES = ["topk", "batchtopk", "jumprelu", "gated", "standard"]


def trained(
    folder: Path, architecture: str, targets: int | None = None
) -> tuple[SAE, SAETaskConfig, Path]:
    """A model with random weights everywhere, its config, and its weights on disk."""
    keys: dict[str, Any] = {"architecture": architecture, "latents": LATENTS, "k": 5}
    if targets is not None:
        keys["targets"] = folder / "targets"
    config = SAETaskConfig.model_validate({"activations": folder / "none", **keys})
    torch.manual_seed(ARCHITECTURES.index(architecture))
    sae = build_sae(config, D_IN, targets)
    with torch.no_grad():
        for name, parameter in sae.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if name != "W_enc" else 1.0))
        if architecture == "batchtopk":
            sae.threshold.fill_(0.7)
    sae.set_scales(0.037, 0.037 if targets is None else 2.5)
    path = folder / "model.safetensors"
    save_file(sae.state_dict(), path)
    return sae, config, path


def samples(width: int = D_IN) -> Tensor:
    """Rows in stored units, whose norms the scale of 0.037 brings near sqrt(width)."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(200, width, generator=generator) / 0.037 + 3.0


def assert_same(found: Tensor, wanted: Tensor) -> None:
    assert wanted.abs().mean() > 0.1
    assert (found - wanted).abs().max() / wanted.abs().mean() < 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saelens_reconstructs_as_ours(tmp_path: Path, architecture: str) -> None:
    import sae_lens

    sae, config, weights = trained(tmp_path, architecture)
    theirs = sae_lens.SAE.load_from_disk(export_sae(weights, config, "saelens", tmp_path / "out"))
    with torch.no_grad():
        latents = sae.encode(samples())
        assert_same(theirs.encode(samples()), latents)
        assert_same(theirs(samples()), sae.reconstruct(samples()))
    assert 0 < (latents > 0).sum() < latents.numel()


@pytest.mark.parametrize("architecture", ["batchtopk", "jumprelu", "standard"])
def test_saelens_transcoder_predicts_as_ours(tmp_path: Path, architecture: str) -> None:
    import sae_lens

    sae, config, weights = trained(tmp_path, architecture, targets=9)
    theirs = sae_lens.SAE.load_from_disk(export_sae(weights, config, "saelens", tmp_path / "out"))
    with torch.no_grad():
        assert_same(theirs(samples()), sae.reconstruct(samples()))


def test_plain_safetensors_need_no_scale(tmp_path: Path) -> None:
    sae, config, weights = trained(tmp_path, "topk", targets=9)
    out = export_sae(weights, config, "safetensors", tmp_path / "out")
    tensors = load_file(out / "sae.safetensors")
    settings = json.loads((out / "config.json").read_text())
    assert (settings["architecture"], settings["k"], settings["d_out"]) == ("topk", 5, 9)
    assert settings["apply_b_dec_to_input"] is False
    projected = samples() @ tensors["W_enc"] + tensors["b_enc"]
    kept = projected >= projected.topk(5, dim=1).values[:, -1:]
    found = (projected.relu() * kept) @ tensors["W_dec"] + tensors["b_dec"]
    with torch.no_grad():
        assert_same(found, sae.reconstruct(samples()))


def test_export_says_where_the_activations_came_from(tmp_path: Path) -> None:
    from tiny_language_model import Recorder, ThreadWorld, save_tiny_model, words

    from drumline.tasks.sae.extract import extract
    from drumline.tasks.sae.extract_options import ExtractOptions

    (tmp_path / "text.txt").write_text(words(40))
    options = ExtractOptions(
        model=str(save_tiny_model(tmp_path / "model")),
        layer=1,
        text=(str(tmp_path / "text.txt"),),
        out=tmp_path / "none",
        length=8,
        held_out=0,
    )
    extract(options, ThreadWorld(), Recorder())
    _, config, weights = trained(tmp_path, "standard")
    out = export_sae(weights, config, "saelens", tmp_path / "out")
    metadata = json.loads((out / "cfg.json").read_text())["metadata"]
    assert metadata["hook_name"] == "blocks.1.hook_resid_post"
    assert metadata["model_name"] == str(tmp_path / "model")
    assert metadata["context_size"] == 8


@pytest.mark.parametrize("architecture", ["topk", "gated"])
def test_transcoders_that_saelens_does_not_have(tmp_path: Path, architecture: str) -> None:
    _, config, weights = trained(tmp_path, architecture, targets=9)
    with pytest.raises(BadInput, match=f"no {architecture} transcoder.*--format safetensors"):
        export_sae(weights, config, "saelens", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refused_exports_write_nothing(tmp_path: Path) -> None:
    _, config, weights = trained(tmp_path, "topk")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    with pytest.raises(BadInput, match="in use"):
        export_sae(weights, config, "saelens", tmp_path / "used")
    with pytest.raises(BadInput, match="saelens, safetensors"):
        export_sae(weights, config, "pickle", tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"none\.safetensors"):
        export_sae(tmp_path / "none.safetensors", config, "saelens", tmp_path / "out")
    save_file({"W_enc": torch.ones(2, 2)}, tmp_path / "half.safetensors")
    with pytest.raises(CheckpointError, match="input_scale"):
        export_sae(tmp_path / "half.safetensors", config, "saelens", tmp_path / "out")
    assert not (tmp_path / "out").exists()
