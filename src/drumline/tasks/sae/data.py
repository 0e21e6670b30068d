"""The rows an SAE is trained on, those held out, and those that statistics are taken from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from drumline.tasks.sae.before_start import refuse_misaligned, split_rows
from drumline.tasks.sae.config import SAETaskConfig
from drumline.training.order import SampleOrder


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
        DataError: If the sets do not stand side by side, or nothing is left to train on.
    """

    def __init__(
        self, inputs: ActivationSet, targets: ActivationSet | None, config: SAETaskConfig
    ) -> None:
        self.inputs = inputs
        self.targets = targets
        target_rows = None if targets is None else len(targets)
        self.trained, self.held_out = split_rows(config, len(inputs), target_rows)
        if targets is not None:
            refuse_misaligned(config, _facts(inputs), _facts(targets))

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


def open_rows(config: SAETaskConfig) -> Rows:
    """The rows a config names."""
    from drumline.tasks.sae.activations import open_activations

    targets = None if config.targets is None else open_activations(config.targets)
    return Rows(open_activations(config.activations), targets, config)


def _facts(rows: ActivationSet) -> Mapping[str, object]:
    """What a set says of where it comes from; one in memory says nothing."""
    facts: Mapping[str, object] = getattr(rows, "facts", {})
    return facts
