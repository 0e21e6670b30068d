"""Bringing up ranks, watching over them, and deciding what follows when an attempt ends.

The names below are imported when first used: a rank imports its own part only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.launch.launcher import LaunchRequest, Outcome, launch
    from drumline.launch.policy import Action, AttemptEnd, RankEnd, decide

_HOMES = {
    "LaunchRequest": "drumline.launch.launcher",
    "Outcome": "drumline.launch.launcher",
    "launch": "drumline.launch.launcher",
    "Action": "drumline.launch.policy",
    "AttemptEnd": "drumline.launch.policy",
    "RankEnd": "drumline.launch.policy",
    "decide": "drumline.launch.policy",
}
__all__ = ["Action", "AttemptEnd", "LaunchRequest", "Outcome", "RankEnd", "decide", "launch"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'drumline.launch' has no attribute {name!r}")
