"""Bringing up ranks, watching over them, and deciding what follows when an attempt ends."""

from drumline.launch.launcher import LaunchRequest, Outcome, launch
from drumline.launch.policy import Action, AttemptEnd, RankEnd, decide

__all__ = ["Action", "AttemptEnd", "LaunchRequest", "Outcome", "RankEnd", "decide", "launch"]
