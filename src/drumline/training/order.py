"""The order of samples: a function of (seed, epoch, position), and of nothing else.

Each epoch's order is a pseudo-random permutation of 0..size-1 computed position by position: a
Feistel network over the smallest even number of bits that holds `size`, walked along its cycle
until it falls inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). So any
rank can ask for any slice of any epoch at once, and a set of a billion rows needs no array of a
billion numbers. It is a shuffle, not a cipher.

A round mixes half of a number's bits, which take few values: where many positions are asked for,
each round is a table, made once an epoch. That takes a third of the time and a quarter of the
calls, after each of which a thread that reads ahead waits for the interpreter, and a step for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_MOST_TABLE_BITS, _WORTH = 16, 16
"""Tables are made up to so many bits, for orders of 4.3 billion samples, and where so many times
the positions asked for are as many as they have entries."""
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
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1
        self._tables: dict[int, list[NDArray[np.int64]]] = {}

    def samples(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Sample numbers at positions start..stop-1 of an epoch, int64 of shape [stop - start].

        Raises:
            IndexError: If the positions are not within the epoch.
        """
        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"positions {start}..{stop} are not within 0..{self.size}")
        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample numbers at some positions of an epoch, int64, all of them within it."""
        return self._permute(positions, epoch) if self.shuffle else positions.copy()

    def _permute(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        tables = self._tables_of(epoch, positions.size)
        keys = [] if tables else self._keys(epoch)
        values = self._feistel(positions, tables, keys)
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            again = self._feistel(values[outside], tables, keys)
            values[outside] = again
            outside = outside[again >= self.size]
        return values

    def _feistel(
        self, values: NDArray[np.int64], tables: list[NDArray[np.int64]], keys: list[int]
    ) -> NDArray[np.int64]:
        left, right = values >> self._half_bits, values & self._half_mask
        for table in tables:
            left, right = right, left ^ table[right]
        for key in keys:
            left, right = right, left ^ self._mixed(right, key)
        return (left << self._half_bits) | right

    def _mixed(self, half: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        return _splitmix(half.view(np.uint64) ^ np.uint64(key)).view(np.int64) & self._half_mask

    def _keys(self, epoch: int) -> list[int]:
        return [mix(self.seed, epoch, round_) for round_ in range(_ROUNDS)]

    def _tables_of(self, epoch: int, positions: int) -> list[NDArray[np.int64]]:
        """What each round makes of every half; none where it takes longer than it saves."""
        if epoch in self._tables:
            return self._tables[epoch]
        if self._half_bits > _MOST_TABLE_BITS or positions * _WORTH <= self._half_mask:
            return []
        halves = np.arange(self._half_mask + 1, dtype=np.int64)
        made = [self._mixed(halves, key) for key in self._keys(epoch)]
        before = dict(list(self._tables.items())[-1:])  # a step may lie in two epochs
        self._tables = {**before, epoch: made}
        return made


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
