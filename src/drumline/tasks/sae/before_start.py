"""What can be told of a config and its activations before anything starts: from names, headers and
counts alone, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from drumline.errors import BadInput, ConfigError, ConfigProblem, DataError
from drumline.tasks.sae.activations.block import Found
from drumline.tasks.sae.activations.detect import find_activations
from drumline.tasks.sae.config import SAETaskConfig

DEFAULT_HELD_OUT = 16_384


def check_task(config: SAETaskConfig) -> None:
    """Look at what the config names.

    Raises:
        DataError: If activations are missing, damaged, or do not fit together.
        ConfigError: If the width of the activations contradicts a key.
        BadInput: If the language model or a text is missing.
    """
    inputs = find_activations(config.activations)
    targets = None if config.targets is None else find_activations(config.targets)
    split_rows(config, _rows(inputs), None if targets is None else _rows(targets))
    if targets is not None:
        refuse_misaligned(config, inputs.facts, targets.facts)
    refuse_size(config, config.latent_count(inputs.blocks[0].width))
    if config.explained_loss is not None:
        texts = config.explained_loss.text
        for path in (config.explained_loss.model, *(() if texts == "builtin" else texts)):
            _refuse_missing(Path(path))


def split_rows(config: SAETaskConfig, rows: int, target_rows: int | None) -> tuple[int, int]:
    """How many of the rows are trained on and how many are held out.

    Args:
        config: The task's config.
        rows: Rows of the inputs.
        target_rows: Rows of the targets; None for an autoencoder.

    Raises:
        DataError: If the sets differ in length, or nothing is left to train on.
    """
    if target_rows is not None and target_rows != rows:
        raise DataError(
            f"{config.activations} has {rows} rows, but {config.targets} has {target_rows}.",
            remedy="Extract both from the same texts, so that rows stand side by side.",
            inputs=rows,
            targets=target_rows,
        )
    held_out = config.evaluation.samples
    if held_out is None:
        held_out = min(rows // 10, DEFAULT_HELD_OUT)
    if rows - held_out < 1:
        raise DataError(
            f"{config.activations} has {rows} rows, and task.evaluation.samples holds "
            f"out {held_out}: none is left to train on.",
            remedy="Lower task.evaluation.samples or extract more activations.",
            rows=rows,
            held_out=held_out,
        )
    return rows - held_out, held_out


def refuse_misaligned(
    config: SAETaskConfig, inputs: Mapping[str, object], targets: Mapping[str, object]
) -> None:
    """Refuse extractions that left out outliers, which are others at another layer.

    Args:
        config: The task's config.
        inputs: What the set of inputs says of where it comes from.
        targets: The same of the targets.

    Raises:
        DataError: Naming the set.
    """
    for path, facts in ((config.activations, inputs), (config.targets, targets)):
        ratio = facts.get("outlier_ratio")
        if ratio is not None:
            raise DataError(
                f"{path} leaves out positions above {ratio:g} times the median norm, so its rows "
                "do not stand beside those of another layer.",
                remedy="Extract both sets with --keep-outliers.",
                path=str(path),
                outlier_ratio=ratio,
            )


def refuse_size(config: SAETaskConfig, latents: int) -> None:
    """Refuse a number of latents that contradicts a key.

    Raises:
        ConfigError: With what contradicts it, and a remedy.
    """
    problem = config.size_problem(latents)
    if problem:
        what, _, remedy = problem.partition(": ")
        raise ConfigError("The config", [ConfigProblem("task", None, what, f"Remedy: {remedy}.")])


def _rows(found: Found) -> int:
    return sum(block.rows for block in found.blocks)


def _refuse_missing(path: Path) -> None:
    if not str(path).startswith("builtin:") and not path.exists():
        raise BadInput(
            f"There is no file or folder {path}.",
            remedy="Check the paths in task.explained_loss.",
            path=str(path),
        )
