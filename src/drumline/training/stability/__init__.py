"""Numerical stability: watchers that find what goes wrong in a run, name it, and act by policy."""

from drumline.training.stability.stability import Stability

__all__ = ["Stability"]
