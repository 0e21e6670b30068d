"""Curves as one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = " "


def resample(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: each the mean of its equal part of `values`.

    Values that are not finite are left out of the means; a part with no finite value is NaN.
    Fewer values than `width` come back as they are.

    Raises:
        ValueError: If `width` is not positive.
    """
    if width < 1:
        raise ValueError(f"a curve cannot be {width} wide")
    count = len(values)
    if count <= width:
        return list(values)
    edges = [index * count // width for index in range(width + 1)]
    return [_mean(values[start:end]) for start, end in pairwise(edges)]


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as blocks from the lowest to the highest finite one; gaps where none is finite.

    A constant curve is drawn in the middle.
    """
    points = resample(values, width)
    finite = [point for point in points if math.isfinite(point)]
    if not finite:
        return GAP * len(points)
    low, high = min(finite), max(finite)
    return "".join(_block(point, low, high) for point in points)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return GAP
    if low == high:
        return BLOCKS[3]
    # Halved first: the difference of two large floats of opposite sign may overflow.
    fraction = (value / 2 - low / 2) / (high / 2 - low / 2)
    return BLOCKS[min(len(BLOCKS) - 1, int(fraction * len(BLOCKS)))]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
