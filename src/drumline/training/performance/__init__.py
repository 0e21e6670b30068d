"""Switches that make steps faster, kept only where measuring on this model says so.

`optimize` is for a user's own loop, `in_trainer` for runs of the Trainer. Both try the same
switches by the same rules: `switch` says what one is, `trial` how it is judged.
"""

from drumline.training.performance.optimize import optimize
from drumline.training.performance.report import Outcome, Report, Row
from drumline.training.performance.switch import Subject, Switch
from drumline.training.performance.timing import Rules

__all__ = ["Outcome", "Report", "Row", "Rules", "Subject", "Switch", "optimize"]
