"""Event files for TensorBoard, written with its own package; needs no torch.

After a restart the log says at which step training went on, so that TensorBoard drops the points
of the steps that were undone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from drumline.trackers.scalars import scalars


class TensorBoardTracker:
    """Writes scalars below `folder`. Values are stored as float32, as TensorBoard's scalars are."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = EventFileWriter(str(folder))
        self._last_step = -1

    def feed(self, events: list[dict[str, Any]]) -> None:
        """Write the numbers of more events, with the events' own times."""
        for event in events:
            step, values = event.get("step"), scalars(event)
            if values and isinstance(step, int):
                self._write(float(event["t"]), step, values)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _write(self, wall_time: float, step: int, values: dict[str, float]) -> None:
        if step < self._last_step:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=wall_time, step=step, session_log=start))
        self._last_step = step
        listed = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(Event(wall_time=wall_time, step=step, summary=Summary(value=listed)))
