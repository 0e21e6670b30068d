"""The history of all devices: write readings, ask for a range, roll up, clean up.

Runs nothing by itself. `Recorder` calls `write`, the service's periodic work calls the other two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from drumline.config.service import ServiceSettings
from drumline.database import Database
from drumline.monitoring.history.cleaning import clean_up
from drumline.monitoring.history.ranges import Wanted, read_range
from drumline.monitoring.history.rolling import roll_up
from drumline.monitoring.history.series import Series
from drumline.monitoring.history.write import ReadingsWriter
from drumline.monitoring.readings import Reading


class History:
    """What the devices did over time. Safe to share among threads.

    Args:
        database: Where it is kept.
        sample_every_s: The period of the readings; a range has no finer buckets.
    """

    def __init__(self, database: Database, *, sample_every_s: float = 1.0) -> None:
        self._database = database
        self._sample_every_s = sample_every_s
        self._writer = ReadingsWriter(database)

    def write(self, readings: Iterable[Reading]) -> int:
        """Keep readings; the number of new ones.

        Of one device one reading a second is kept, the first, so writing twice does no harm.
        A reading of nothing, or of a device that `Inventory` does not know, is left out. Late ones
        are rolled up again.

        Raises:
            DatabaseError: If the database cannot be reached; nothing is written then.
        """
        return self._writer.write(readings)

    def range(
        self,
        device_uuids: Sequence[str],
        from_ms: int,
        to_ms: int,
        points: int,
        job_id: str | None = None,
    ) -> Series:
        """What the devices did from `from_ms` until before `to_ms`, in at most `points` buckets.

        Buckets lie on whole multiples of their width, so the first may begin before `from_ms` and
        the last end after `to_ms`. A bucket without readings has None.

        Args:
            device_uuids: In the order wanted; one that was never seen has no readings.
            from_ms: Milliseconds since 1970.
            to_ms: Likewise.
            points: At least 2. The coarsest rollup that gives half of them or more is read.
            job_id: Only readings taken while this job held the device.

        Raises:
            RangeError: If the range is empty, or `points` is not from 2 to 10,000.
            DatabaseError: If the database cannot be reached.
        """
        wanted = Wanted(tuple(dict.fromkeys(device_uuids)), from_ms, to_ms, points, job_id)
        return read_range(self._database, wanted, math.ceil(self._sample_every_s))

    def roll_up(self, now_ms: int) -> int:
        """Bring the rollups up to date, from where they are; the number of rows made.

        Safe to call at any time and twice at once. Catches up after any pause, in transactions
        that are short.

        Raises:
            DatabaseError: If the database cannot be reached; what was done so far stays.
        """
        return roll_up(self._database, now_ms // 1000)

    def clean_up(
        self, now_ms: int, settings: ServiceSettings, *, batches: int | None = None
    ) -> int:
        """Delete what is older than `settings` keep it; the number of rows deleted.

        In small transactions with pauses, in which writers take their turn. Readings that are not
        rolled up yet stay.

        Args:
            now_ms: The present time.
            settings: How long what is kept.
            batches: Stop after so many transactions; None: when nothing is left to delete.

        Raises:
            DatabaseError: If the database cannot be reached; what was deleted stays so.
        """
        return clean_up(self._database, now_ms // 1000, settings, batches)
