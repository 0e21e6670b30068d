"""Splits in prices that were not adjusted: finding them, and bringing prices to today's shares."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from drumline.tasks.clstm_ppo.trading.prices import Array, Days

RATIOS = tuple(Fraction(k) for k in (2, 3, 4, 5, 10, 20))
"""New shares for an old one that are looked for; and the inverse, for reverse splits."""
CLOSE_TOLERANCE, OPEN_TOLERANCE = 0.10, 0.04
"""How far the jump of a close, and from a close to the next open, may be from the ratio: the close
of a split's day has moved for a whole day on top.
"""


@dataclass(frozen=True)
class Split:
    """From this day on, `ratio` new shares stand for one old."""

    day: int
    stock: int
    ratio: Fraction
    jump: float
    """The close over the close before."""

    def sentence(self, names: tuple[str, ...], days: Days) -> str:
        """For messages."""
        ratio = f"{self.ratio.numerator}:{self.ratio.denominator}"
        return f"{names[self.stock]} on {days[self.day]} (close x {self.jump:.4g}, near {ratio})"


def find_splits(close: Array, opens: Array | None = None) -> list[Split]:
    """Days on which a price jumps by about a usual ratio.

    Args:
        close: [D, S].
        opens: [D, S], where they are known; then the open must have jumped, too.
    """
    jumps = close[1:] / close[:-1]
    found: list[Split] = []
    for ratio in (*RATIOS, *(1 / ratio for ratio in RATIOS)):
        like = np.abs(jumps * float(ratio) - 1) < CLOSE_TOLERANCE
        if opens is not None:
            like &= np.abs(opens[1:] / close[:-1] * float(ratio) - 1) < OPEN_TOLERANCE
        found += [
            Split(int(day) + 1, int(stock), ratio, float(jumps[day, stock]))
            for day, stock in zip(*np.nonzero(like), strict=True)
        ]
    return sorted(found, key=lambda split: (split.day, split.stock))


def undo_splits(values: Array, splits: list[Split], *, shares: bool = False) -> Array:
    """Prices before each split divided by its ratio; numbers of shares multiplied."""
    whole = values.copy()
    for split in splits:
        factor = float(split.ratio) if shares else 1 / float(split.ratio)
        whole[: split.day, split.stock] *= factor
    return whole
