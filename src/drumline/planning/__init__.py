"""What is decided before a run: devices, mode, shares, micro-batch. Pure functions, no torch."""

from drumline.planning.devices import PlannedDevice
from drumline.planning.plan import Plan, plan
from drumline.planning.shares import cut_micro_batches, cut_shares

__all__ = ["Plan", "PlannedDevice", "cut_micro_batches", "cut_shares", "plan"]
