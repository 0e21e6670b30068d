"""The rows an SAE is trained on, those held out, and those that statistics are taken from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from drumline.errors import DataError
from drumline.tasks.sae.config import SAETaskConfig
from drumline.training.order import SampleOrder

DEFAULT_HELD_OUT = 16_384


class ActivationSet(Protocol):
    """Activations read by row number; many at once, as a tensor [rows, width] as stored."""

    width: int

    def __len__(self) -> int: ...

    def __getitems__(self, numbers: Sequence[int], /) -> Tensor: ...


class Rows:
    """Rows of one set, or of an input and a target set side by side.

    Args:
        inputs: What the encoder reads.
        targets: What a transcoder predicts; None for an autoencoder.
        config: The task's config.

    Raises:
        DataError: If the sets differ in length, or nothing is left to train on.
    """

    def __init__(
        self, inputs: ActivationSet, targets: ActivationSet | None, config: SAETaskConfig
    ) -> None:
        self.inputs = inputs
        self.targets = targets
        self.held_out = _held_out(len(inputs), config)
        self.trained = len(inputs) - self.held_out
        if targets is not None and len(targets) != len(inputs):
            raise DataError(
                f"{config.activations} has {len(inputs)} rows, but {config.targets} has "
                f"{len(targets)}.",
                remedy="Extract both from the same texts, so that rows stand side by side.",
                inputs=len(inputs),
                targets=len(targets),
            )
        if targets is not None:
            _check_alignment(inputs, targets, config)
        if self.trained < 1:
            raise DataError(
                f"{config.activations} has {len(inputs)} rows, and task.evaluation.samples holds "
                f"out {self.held_out}: none is left to train on.",
                remedy="Lower task.evaluation.samples or extract more activations.",
                rows=len(inputs),
                held_out=self.held_out,
            )

    def __len__(self) -> int:
        return self.trained

    def __getitem__(self, number: int, /) -> Any:
        return self.__getitems__([number])

    def __getitems__(self, numbers: Sequence[int], /) -> Any:
        """Rows of the inputs, or a pair of rows of inputs and targets."""
        inputs, targets = self.pairs(numbers)
        return inputs if targets is None else (inputs, targets)

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Rows of the inputs and of the targets, or None for an autoencoder."""
        inputs = self.inputs.__getitems__(numbers)
        return inputs, None if self.targets is None else self.targets.__getitems__(numbers)

    def pin(self) -> None:
        """Read into page-locked memory from now on, where a set can."""
        for rows in (self.inputs, self.targets):
            if rows is not None and hasattr(rows, "pinned"):
                rows.pinned = True

    def first(self, count: int, seed: int) -> list[int]:
        """Numbers of the first `count` samples of the data order, fewer if there are fewer."""
        found: list[int] = (
            SampleOrder(self.trained, seed).samples(0, 0, min(count, self.trained)).tolist()
        )
        return found


def _check_alignment(inputs: Any, targets: Any, config: SAETaskConfig) -> None:
    """Refuse extractions that left out outliers, which are others at another layer."""
    for path, rows in ((config.activations, inputs), (config.targets, targets)):
        ratio = getattr(rows, "facts", {}).get("outlier_ratio")
        if ratio is not None:
            raise DataError(
                f"{path} leaves out positions above {ratio:g} times the median norm, so its rows "
                "do not stand beside those of another layer.",
                remedy="Extract both sets with --keep-outliers.",
                path=str(path),
                outlier_ratio=ratio,
            )


def open_rows(config: SAETaskConfig) -> Rows:
    """The rows a config names."""
    from drumline.tasks.sae.activations import open_activations

    targets = None if config.targets is None else open_activations(config.targets)
    return Rows(open_activations(config.activations), targets, config)


def _held_out(rows: int, config: SAETaskConfig) -> int:
    if config.evaluation.samples is not None:
        return config.evaluation.samples
    return min(rows // 10, DEFAULT_HELD_OUT)
