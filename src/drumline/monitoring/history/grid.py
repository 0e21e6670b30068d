"""Rows of a range query, laid out by device and bucket, and turned into the units of users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.database.tables.history import ROLLED_UP
from drumline.monitoring.history.series import Band, DeviceSeries, Values
from drumline.monitoring.history.summary import SUMMARY
from drumline.monitoring.readings import throttle_words

MIB = 2**20
UNITS = {
    "memory_used_mib": ("memory_used_bytes", 1 / MIB),
    "power_dw": ("power_w", 10),
}
"""The user's name of a metric, and how many of the stored units are one of the user's; the others
are stored as they are shown."""

_NAMES = [UNITS.get(metric, (metric, 1))[0] for metric in ROLLED_UP]
_UNITS = np.array([UNITS.get(metric, (metric, 1))[1] for metric in ROLLED_UP])
_KEYS = 2  # device and bucket come before the columns of the summary
_READINGS = SUMMARY.index("readings")
_TOTAL = SUMMARY.index("memory_total_mib")
_BITS = SUMMARY.index("throttle_bits")
_MIN, _SUM, _MAX, _COUNT = (
    [SUMMARY.index(f"{metric}_{part}") for metric in ROLLED_UP]
    for part in ("min", "sum", "max", "count")
)


class Grid:
    """What is known of each device in each bucket; several rows of one bucket are summed up.

    Args:
        numbers: The devices' numbers in the database, in the order of the axis; None: not known.
        buckets: How many buckets there are.
    """

    def __init__(self, numbers: Sequence[int | None], buckets: int) -> None:
        self._place = {number: place for place, number in enumerate(numbers) if number is not None}
        self._cells = np.full((len(numbers), buckets, len(SUMMARY)), np.nan)

    def add(self, rows: Sequence[Any]) -> None:
        """Add rows of device, bucket and `SUMMARY`; no two of one device and bucket."""
        if not rows:
            return
        values = np.array([*map(tuple, rows)], dtype=np.float64)  # None becomes nan
        place = np.array([self._place[int(number)] for number in values[:, 0]])
        bucket = values[:, 1].astype(np.intp)
        new = values[:, _KEYS:]
        old = self._cells[place, bucket]
        both = np.where(np.isnan(old), new, old)
        for columns, combine in (([_TOTAL, *_MAX], np.fmax), (_MIN, np.fmin)):
            both[:, columns] = combine(old[:, columns], new[:, columns])
        sums = [_READINGS, *_SUM, *_COUNT]
        known = ~np.isnan(old[:, sums])
        both[:, sums] += np.where(known, np.nan_to_num(new[:, sums]), 0)
        seen = ~np.isnan(old[:, _BITS]) & ~np.isnan(new[:, _BITS])
        bits = old[seen, _BITS].astype(np.int64) | new[seen, _BITS].astype(np.int64)
        both[seen, _BITS] = bits
        self._cells[place, bucket] = both

    def series(self, uuids: Sequence[str]) -> tuple[DeviceSeries, ...]:
        """A series for each device, in the order of the axis."""
        return tuple(_series(uuid, cells) for uuid, cells in zip(uuids, self._cells, strict=True))


def _series(uuid: str, cells: NDArray[np.float64]) -> DeviceSeries:
    with np.errstate(divide="ignore", invalid="ignore"):
        means = cells[:, _SUM] / cells[:, _COUNT]
    low, mean, high = (_columns(part / _UNITS) for part in (cells[:, _MIN], means, cells[:, _MAX]))
    bands = (Band(*parts) for parts in zip(low, mean, high, strict=True))
    return DeviceSeries(
        uuid,
        tuple(np.nan_to_num(cells[:, _READINGS]).astype(np.int64).tolist()),
        _columns(cells[:, [_TOTAL]] * MIB)[0],
        tuple(throttle_words(bits) for (bits,) in zip(*_columns(cells[:, [_BITS]]), strict=True)),
        dict(zip(_NAMES, bands, strict=True)),
    )


def _columns(cells: NDArray[np.float64]) -> list[Values]:
    """Each column as plain numbers, with None in the place of nan."""
    plain = cells.T.astype(object)
    plain[np.isnan(cells.T)] = None
    return [tuple(column) for column in plain.tolist()]
