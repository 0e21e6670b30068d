"""What an environment observes and accepts, as plain data. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """Real numbers within bounds, one pair of bounds a number; infinite bounds are allowed."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many numbers."""
        return len(self.low)


@dataclass(frozen=True)
class Discrete:
    """One choice among `options`, counted from 0."""

    options: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices made at once, the i-th among `options[i]`."""

    options: tuple[int, ...]


ActionSpace = Box | Discrete | MultiDiscrete
