"""Language models as a source of activations: loading, cutting, and reading the residual stream.

Nothing here reaches a network, and transformers is imported only when a model is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.errors import BadInput, DataError, MissingPackage
from drumline.tasks.sae.gguf import SMOLLM2, builtin_smollm2, convert_gguf, read_gguf


def default_cache() -> Path:
    """Where converted GGUF models are kept."""
    return Path.home() / ".cache" / "drumline" / "models"


@dataclass(frozen=True)
class LanguageModel:
    """A causal model that is only read.

    Attributes:
        model: The transformers model, without gradients.
        tokenizer: Its tokenizer.
        layers: Its decoder layers.
        width: Numbers in a row of the residual stream.
    """

    model: Any
    tokenizer: Any
    layers: nn.ModuleList
    width: int

    def check_layer(self, layer: int) -> None:
        """Refuse a layer that the model does not have.

        Raises:
            BadInput: With the number of layers there are.
        """
        if not 0 <= layer < len(self.layers):
            raise BadInput(
                f"The model has {len(self.layers)} layers, and layer {layer} was asked for.",
                remedy=f"Give a layer from 0 to {len(self.layers) - 1}.",
                layer=layer,
                layers=len(self.layers),
            )

    def cut_after(self, layer: int) -> None:
        """Drop all layers after this one, for good; reading up to it then costs no more than it."""
        self.check_layer(layer)
        del self.layers[layer + 1 :]

    def residual_stream(self, tokens: Tensor, layer: int) -> Tensor:
        """The residual stream after a layer, before the final norm.

        Args:
            tokens: int64 of shape [sequences, length], on the model's device.
            layer: The layer, from 0.

        Returns:
            Shape [sequences, length, width], in the model's type.
        """
        seen: list[Any] = []
        hook = self.layers[layer].register_forward_hook(lambda *call: seen.append(call[-1]))
        try:
            with torch.inference_mode():
                self.model.base_model(input_ids=tokens, use_cache=False)
        finally:
            hook.remove()
        return hidden_of(seen[0])


def hidden_of(output: Any) -> Tensor:
    """The hidden state in what a decoder layer returns: a tensor, or a tuple beginning with it."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def locate_model(source: str) -> Path:
    """The folder or GGUF file that a model's name stands for.

    Raises:
        DataError: If there is no model.
        MissingPackage: If it is the built-in one, and its package is not installed.
    """
    path = builtin_smollm2() if source == SMOLLM2 else Path(source)
    if path.is_file() and path.suffix == ".gguf":
        return path
    if (path / "config.json").is_file():
        return path
    neither = "it is neither a GGUF file nor a folder with config.json"
    raise DataError(
        f"There is no language model at {source}: {neither if path.exists() else 'no such path'}.",
        remedy=f"Give a Hugging Face model folder, a GGUF file, or {SMOLLM2}.",
        model=source,
    )


def model_fingerprint(path: Path) -> str:
    """A digest of the names and sizes of a model's files; the same on every machine."""
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    listing = "\n".join(f"{file.name} {file.stat().st_size}" for file in files)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def load_tokenizer(source: str, *, dtype: str = "bfloat16", cache: Path | None = None) -> Any:
    """The tokenizer alone; a GGUF file is converted on the way.

    Raises:
        DataError: If it cannot be read.
    """
    path = _folder(locate_model(source), dtype, cache)
    with _quiet() as transformers:
        if path.is_file():
            return read_gguf(path, dtype)[1]
        return _read(transformers.AutoTokenizer, path)


def load_language_model(
    source: str,
    *,
    dtype: str = "bfloat16",
    device: torch.device | None = None,
    cut_after: int | None = None,
    cache: Path | None = None,
) -> LanguageModel:
    """Load a model and its tokenizer.

    Args:
        source: A Hugging Face folder, a GGUF file, or `builtin:smollm2`.
        dtype: "bfloat16" or "float32".
        device: Where it computes; by default the CPU.
        cut_after: Drop the layers after this one before the model goes to the device.
        cache: Where converted GGUF models are kept; by default `default_cache()`.

    Raises:
        DataError: If there is none, or it cannot be read.
        BadInput: If it has no layer `cut_after`.
        MissingPackage: If transformers (or for GGUF files gguf and accelerate) is not installed.
    """
    path = _folder(locate_model(source), dtype, cache)
    with _quiet() as transformers:
        if path.is_file():
            model, tokenizer = read_gguf(path, dtype)
        else:
            model = _read(transformers.AutoModelForCausalLM, path, dtype=getattr(torch, dtype))
            tokenizer = _read(transformers.AutoTokenizer, path)
    config = model.config.get_text_config()
    layers = _decoder_layers(model, config.num_hidden_layers, source)
    loaded = LanguageModel(model, tokenizer, layers, config.hidden_size)
    if cut_after is not None:
        loaded.cut_after(cut_after)
    model.requires_grad_(False).eval().to(device or torch.device("cpu"))
    return loaded


def _folder(path: Path, dtype: str, cache: Path | None) -> Path:
    """The folder to read from: that of the converted model, if it is a GGUF file."""
    if path.is_dir():
        return path
    return convert_gguf(path, dtype, cache or default_cache()) or path


def _read(kind: Any, path: Path, **options: Any) -> Any:
    try:
        return kind.from_pretrained(path, local_files_only=True, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise DataError(
            f"{path} cannot be read as a language model with its tokenizer: {first_line}",
            remedy="It must be a folder that transformers' save_pretrained wrote for both.",
            model=str(path),
        ) from None


def _decoder_layers(model: nn.Module, count: int, source: str) -> nn.ModuleList:
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise DataError(
        f"The decoder layers of {source} were not found: no list of {count} modules in "
        f"{type(model).__name__}.",
        remedy="Only models with one list of decoder layers can be read.",
        model=source,
    )


@contextmanager
def _quiet() -> Iterator[Any]:
    """transformers, with its bars and warnings off for as long as this lasts."""
    try:
        import transformers
    except ImportError:
        raise MissingPackage("transformers", "sae", "Reading a language model") from None
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield transformers
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
