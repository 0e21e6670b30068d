"""The order of samples: a function of (seed, epoch, position), and of nothing else.

Each epoch's order is a pseudo-random permutation of 0..size-1 computed position by position: a
Feistel network over the smallest even number of bits that holds `size`, walked along its cycle
until it falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). So any
rank can ask for any slice of any epoch at once, and a set of a billion rows needs no array of a
billion numbers. It is a shuffle, not a cipher.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_MASK = 0xFFFFFFFFFFFFFFFF


class SampleOrder:
    """Which sample stands at which position of which epoch.

    Args:
        size: Number of samples, at least 1.
        seed: The run's seed.
        shuffle: Without it, position p is sample p in every epoch.
    """

    def __init__(self, size: int, seed: int, *, shuffle: bool = True) -> None:
        if size < 1:
            raise ValueError(f"an order needs at least one sample, not {size}")
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self._half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._half_mask = np.uint64((1 << int(self._half_bits)) - 1)

    def samples(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Sample numbers at positions start..stop-1 of an epoch, int64 of shape [stop - start].

        Raises:
            IndexError: If the positions are not within the epoch.
        """
        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"positions {start}..{stop} are not within 0..{self.size}")
        return self.at(epoch, np.arange(start, stop, dtype=np.uint64))

    def at(self, epoch: int, positions: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Sample numbers at some positions of an epoch, all of them within it."""
        found = self._permute(positions, epoch) if self.shuffle else positions
        return found.astype(np.int64)

    def _permute(self, positions: NDArray[np.uint64], epoch: int) -> NDArray[np.uint64]:
        keys = [mix(self.seed, epoch, round_) for round_ in range(_ROUNDS)]
        values = self._feistel(positions, keys)
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            values[outside] = self._feistel(values[outside], keys)
            outside = outside[values[outside] >= self.size]
        return values

    def _feistel(self, values: NDArray[np.uint64], keys: list[int]) -> NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._half_mask
        for key in keys:
            mixed = _splitmix(right ^ np.uint64(key)) & self._half_mask
            left, right = right, left ^ mixed
        return (left << self._half_bits) | right


def mix(*numbers: int) -> int:
    """One well-mixed 64-bit number from several, for seeding. Equal on every machine."""
    value = 0x9E3779B97F4A7C15
    for number in numbers:
        value = ((value ^ number) + 0x9E3779B97F4A7C15) & _MASK
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
        value ^= value >> 31
    return value


def signed(number: int) -> int:
    """A number modulo 2^64, as an int64 holds it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _splitmix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Overflow is intended."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
