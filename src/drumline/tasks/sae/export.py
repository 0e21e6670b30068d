"""Writing a trained SAE for others to load: as SAELens' folder, or as plain safetensors.

Ours computes z = W_enc (s x - b_dec) + b_enc and gives (W_dec' a(z) + b_dec) / t, with the scales s
of inputs and t of targets. Both scales go into the exported weights, so that readers apply none:
W_enc <- s W_enc, W_dec <- W_dec / t, b_dec <- b_dec / t. z is the same number before and after, and
so are thresholds and the choice of the k largest. A transcoder does not subtract b_dec.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from drumline.errors import BadInput, CheckpointError, DataError
from drumline.tasks.sae.activations import open_activations

ExportFormat = Literal["saelens", "safetensors"]
FORMATS = ("saelens", "safetensors")
# The layout of cfg.json, not a package that is needed: from this release on it is as written here.
_SAELENS_LAYOUT = "6.0.0"


class TrainedAs(Protocol):
    """What an SAE was trained as; the SAE task's config is one."""

    @property
    def architecture(self) -> str:
        """topk, batchtopk, jumprelu, gated or standard."""

    @property
    def k(self) -> int:
        """Latents kept for a sample, for topk."""

    @property
    def activations(self) -> Path:
        """The set it was trained on."""

    @property
    def targets(self) -> Path | None:
        """The set a transcoder predicts."""


def export_sae(weights: Path, task: TrainedAs, format: str, out: Path) -> Path:
    """Write a trained SAE into a new folder.

    Args:
        weights: A checkpoint's model.safetensors.
        task: The config it was trained with.
        format: "saelens" writes what `sae_lens.SAE.load_from_disk` loads; "safetensors" writes the
            same tensors as sae.safetensors, with config.json.
        out: The folder, which must be absent or empty.

    Returns:
        `out`.

    Raises:
        BadInput: If the format is unknown, `out` is in use, or SAELens has no such architecture.
        CheckpointError: If the weights cannot be read or lack a tensor.
        DataError: If `out` cannot be written.
    """
    if format not in FORMATS:
        raise BadInput(f"There is no format {format}.", remedy=f"Use one of: {', '.join(FORMATS)}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is in use.", remedy="Give a folder that does not exist yet.")
    tensors = _folded(_Weights(weights), task)
    config = _config(tensors, task, format)
    names = {
        "saelens": ("sae_weights.safetensors", "cfg.json"),
        "safetensors": ("sae.safetensors", "config.json"),
    }[format]
    _write(out, tensors, config, *names)
    return out


class _Weights:
    """The tensors of a checkpoint in float64, asked for by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.tensors: dict[str, Tensor] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"The weights {path} cannot be read: {error}.", remedy="Give another checkpoint."
            ) from None

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise CheckpointError(
                f"{self.path} has no tensor {name}; it has {', '.join(sorted(self.tensors))}.",
                remedy="It must be the model.safetensors of an SAE's checkpoint.",
            )
        return self.tensors[name].double()


def _folded(weights: _Weights, task: TrainedAs) -> dict[str, Tensor]:
    """The exported tensors, float32, in SAELens' names and layout: W_enc [d_in, latents]."""
    inputs, targets = weights["input_scale"], weights["target_scale"]
    if task.targets is None and inputs != targets:
        raise CheckpointError(
            f"{weights.path} scales inputs by {inputs:g} and their reconstruction by {targets:g}.",
            remedy="An autoencoder has one scale; the checkpoint is not of one.",
        )
    tensors = {
        "W_enc": weights["W_enc"].T * inputs,
        "W_dec": weights["W_dec"] / targets,
        "b_dec": weights["b_dec"] / targets,
    }
    names = ("r_mag", "b_gate", "b_mag") if task.architecture == "gated" else ("b_enc",)
    tensors |= {name: weights[name] for name in names}
    if task.architecture == "jumprelu":
        tensors["threshold"] = weights["log_threshold"].exp()
    elif task.architecture == "batchtopk":
        tensors["threshold"] = weights["threshold"].expand_as(tensors["b_enc"])
    return {name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()}


def _config(tensors: dict[str, Tensor], task: TrainedAs, format: str) -> dict[str, Any]:
    """What stands beside the tensors, in SAELens' words in both formats."""
    # BatchTopK keeps what is above its threshold at inference, which is what JumpReLU does.
    architecture = "jumprelu" if task.architecture == "batchtopk" else task.architecture
    d_in, latents = tensors["W_enc"].shape
    config: dict[str, Any] = {
        "architecture": architecture,
        "d_in": d_in,
        "d_sae": latents,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": task.targets is None,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": _metadata(task),
    }
    if architecture == "topk":
        config |= {"k": task.k, "rescale_acts_by_decoder_norm": False}
    if task.targets is not None:
        config["d_out"] = tensors["W_dec"].shape[1]
        if format == "saelens":
            config["architecture"] = _saelens_transcoder(architecture)
    return config


def _saelens_transcoder(architecture: str) -> str:
    known = {"standard": "transcoder", "jumprelu": "jumprelu_transcoder"}
    if architecture not in known:
        raise BadInput(
            f"SAELens has no {architecture} transcoder.",
            remedy="Export it with --format safetensors.",
            architecture=architecture,
        )
    return known[architecture]


def _metadata(task: TrainedAs) -> dict[str, Any]:
    """Where the activations came from, as far as their set says so."""
    metadata: dict[str, Any] = {"sae_lens_version": _SAELENS_LAYOUT, "training_library": "drumline"}
    for path, suffix in ((task.activations, ""), (task.targets, "_out")):
        facts = _facts(path)
        if "hook_point" in facts:
            metadata[f"hook_name{suffix}"] = facts["hook_point"]
        if not suffix and facts:
            metadata |= {"model_name": facts.get("model"), "context_size": facts.get("length")}
    return {**metadata, "prepend_bos": False}


def _facts(path: Path | None) -> dict[str, Any]:
    """What a set says of itself; nothing if it is gone since."""
    if path is None:
        return {}
    try:
        return open_activations(path).facts
    except DataError:
        return {}


def _write(
    out: Path, tensors: dict[str, Tensor], config: dict[str, Any], weights: str, settings: str
) -> None:
    """Write the folder whole or not at all."""
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        save_file(tensors, aside / weights)
        (aside / settings).write_text(json.dumps(config, indent=2) + "\n")
        aside.replace(out)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{out} cannot be written: {error}.", remedy="Choose another folder, or free space."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
