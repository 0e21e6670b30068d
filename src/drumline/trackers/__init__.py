"""Readers of a run's events that pass its numbers on to other programs.

A tracker is fed events and knows nothing of training; training knows nothing of trackers. Their
packages are optional and imported when one is opened.
"""

from drumline.trackers.tracker import Tracker, open_tracker, require_trackers

__all__ = ["Tracker", "open_tracker", "require_trackers"]
