"""The batch: from samples a device to the global batch and back, and what a change may mean for
the learning rate. Advice is shown and never applied: the config's learning rate is what is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drumline.errors import BadInput
from drumline.planning.shares import cut_micro_batches


@dataclass(frozen=True)
class Batch:
    """How a step's samples are cut.

    Attributes:
        global_batch: Samples of a step over all devices.
        shares: Samples of each device; they sum to `global_batch`.
        micro_batches: For each device the sizes of its micro-batches; they sum to its share.
        lines: The arithmetic.
    """

    global_batch: int
    shares: tuple[int, ...]
    micro_batches: tuple[tuple[int, ...], ...]
    lines: tuple[str, ...]

    @property
    def accumulation(self) -> int:
        """The most micro-batches of any device."""
        return max(len(sizes) for sizes in self.micro_batches)

    def as_dict(self) -> dict[str, Any]:
        """The batch as plain data."""
        return {**asdict(self), "accumulation": self.accumulation}


@dataclass(frozen=True)
class LearningRate:
    """A learning rate for another global batch, by one rule."""

    rule: str
    lr: float
    line: str


def global_batch_of(per_device: int, devices: int, granularity: int = 1) -> int:
    """The global batch with so many samples on each device.

    Raises:
        BadInput: If a device's samples are not whole groups of `granularity`.
    """
    if per_device < 1 or per_device % granularity:
        nearest = max(granularity, round(per_device / granularity) * granularity)
        raise BadInput(
            f"{per_device} samples a device are not whole groups of {granularity}.",
            remedy=f"The nearest that work are {nearest}.",
            per_device=per_device,
        )
    return per_device * devices


def cut_batch(shares: Sequence[int], micro_batch: int, granularity: int = 1) -> Batch:
    """How shares are cut into micro-batches, with the arithmetic."""
    total = sum(shares)
    cut = tuple(tuple(cut_micro_batches(share, micro_batch, granularity)) for share in shares)
    return Batch(total, tuple(shares), cut, tuple(_lines(total, shares, cut)))


def learning_rates(lr: float, before: int, after: int) -> tuple[LearningRate, ...]:
    """What a learning rate that was right for one global batch may be for another.

    `none` keeps it. `linear` multiplies it by the ratio of the batches, which holds for SGD with a
    warm-up (Goyal et al. 2017, arXiv 1706.02677). `sqrt` multiplies it by the root of the ratio,
    which is used for Adam (Krizhevsky 2014, arXiv 1404.5997; Malladi et al. 2022, arXiv
    2205.10287).
    """
    ratio = after / before
    linear, root = lr * ratio, lr * math.sqrt(ratio)
    return (
        LearningRate("none", lr, f"{lr:g}, as the config says"),
        LearningRate("linear", linear, f"{lr:g} × {after:,} / {before:,} = {linear:.3g}"),
        LearningRate("sqrt", root, f"{lr:g} × √({after:,} / {before:,}) = {root:.3g}"),
    )


def _lines(total: int, shares: Sequence[int], cut: Sequence[tuple[int, ...]]) -> list[str]:
    if len(set(shares)) == 1:
        first = f"global batch {total:,} / {len(shares)} devices = {shares[0]:,} samples each"
    else:
        first = f"global batch {total:,} = {' + '.join(f'{share:,}' for share in shares)}"
    return [first, f"largest share {max(shares):,} = {_cut(max(cut, key=sum))}"]


def _cut(sizes: tuple[int, ...]) -> str:
    """Micro-batches in words: "3 micro-batches of 32, and one of 4"."""
    if not sizes:
        return "no micro-batch"
    same = [size for size in sizes if size == sizes[0]]
    noun = "micro-batch" if len(same) == 1 else "micro-batches"
    said = f"{len(same)} {noun} of {sizes[0]:,}"
    return said if len(same) == len(sizes) else f"{said} and one of {sizes[-1]:,}"
