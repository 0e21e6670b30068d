"""Prices of several stocks over common days, as plain arrays. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Days = NDArray[np.datetime64]

PRICES = ("open", "high", "low", "close")


@dataclass(frozen=True)
class Prices:
    """D days of S stocks, whole: sorted days without repeats, no missing number.

    Attributes:
        days: datetime64[D].
        symbols: Names of the S stocks, sorted.
        open, high, low, close: [D, S]. Where only closes are known, all four are equal.
        volume: [D, S], shares; 0 where it is not known.
        notes: What was repaired or looks odd, one sentence each.
    """

    days: Days
    symbols: tuple[str, ...]
    open: Array
    high: Array
    low: Array
    close: Array
    volume: Array
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows as they were read, in the file's order; a row is one stock on one day.

    Attributes:
        source: Where they are from, for messages.
        days: datetime64[N].
        symbols: Names, [N].
        columns: Some of open, high, low, close, adjusted, volume; [N] each, NaN where missing.
        lines: The line of each row in the file, from 1.
    """

    source: Path
    days: Days
    symbols: NDArray[np.str_]
    columns: dict[str, Array]
    lines: NDArray[np.int64]

    def row(self, index: int) -> str:
        """Names a row in a message."""
        return f"line {self.lines[index]} ({self.symbols[index]}, {self.days[index]})"

    def chosen(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Table:
        """Some of the rows."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Table(self.source, self.days[rows], self.symbols[rows], columns, self.lines[rows])
