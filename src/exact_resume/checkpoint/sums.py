"""Sums of numbers that come in pieces, with the very bits of the sum of all of them in one array."""

from collections.abc import Generator

import numpy as np

# numpy adds the halves of what is longer than this, each with a sum of its own, and begins a half at a multiple of 8.
BLOCK, UNROLLED = 128, 8


class PiecewiseSum:
    """np.sum of `count` float64 numbers, of which `add` is given a contiguous array after another."""

    def __init__(self, count: int):
        self.total = None
        self._missing, self._pending = count, np.zeros(0)
        self._adding = self._sum(count)
        self._advance(None)

    def add(self, numbers: np.ndarray) -> None:
        """Take the next numbers; with the last of them `total` is the sum."""
        self._missing -= len(numbers)
        if self._missing < 0:
            raise ValueError(f"found {-self._missing} numbers more than there were to be")
        self._advance(numbers)

    def _advance(self, numbers):
        try:
            self._adding.send(numbers)
        except StopIteration as ended:
            self.total = float(ended.value)

    def _sum(self, count: int) -> Generator[None, np.ndarray, float]:
        """Sum the next `count` numbers; yields when it needs more of them."""
        while len(self._pending) < count <= BLOCK:
            numbers = yield
            self._pending = np.concatenate([self._pending, numbers]) if len(self._pending) else numbers
        if len(self._pending) >= count:
            numbers, self._pending = self._pending[:count], self._pending[count:]
            return np.sum(numbers)
        half = count // 2
        half -= half % UNROLLED
        first = yield from self._sum(half)
        return first + (yield from self._sum(count - half))
