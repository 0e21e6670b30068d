"""What the devices did over time, in the database: single readings and three rollups of them.

`history` is the one class to use; `write`, `ranges`, `rolling` and `cleaning` do its work, `series`
is what a range query gives, and `recorder` writes from a thread of its own.
"""

from drumline.monitoring.history.history import History
from drumline.monitoring.history.series import (
    AggregatePoints,
    Band,
    DeviceSeries,
    Series,
    aggregate_series,
)

__all__ = ["AggregatePoints", "Band", "DeviceSeries", "History", "Series", "aggregate_series"]
