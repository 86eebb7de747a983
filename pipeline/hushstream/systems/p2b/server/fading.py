"""Weights of windows that fade, and the scaling of weighted sums to sums of their effective number of slots.

`hushstream.systems.p2b.server.forgetting` defines the effective number of slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.server.errors import AggregationError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class WeightedSums(NamedTuple):
    """Sums from which `server.effects` computes effects.

    Attributes:
        ones, zeros: int64, the two sums.
        variance: variance of the noise in one of these sums; an array if it differs between rows.
    """

    ones: Int64
    zeros: Int64
    variance: float | Float64


class Weights:
    """The sums of weights of the windows behind each row of sums.

    Attributes:
        fade: f, the factor of all weights when a new window comes.
        slots: (rows,) float64, sum of w n over windows of n slots with the weight w.
        squares: (rows,) float64, sum of w^2 n.
    """

    def __init__(self, fade: float, rows: int) -> None:
        """Begin without windows; ``fade`` is in (0, 1], and 1 if windows do not fade."""
        self.fade = fade
        self.slots: Float64 = np.zeros(rows)
        self.squares: Float64 = np.zeros(rows)

    def restart(self, rows: Bools) -> None:
        """Set the slots of some rows to 0."""
        self.slots[rows], self.squares[rows] = 0.0, 0.0

    def add(self, slots: int, rows: Bools) -> None:
        """Let all windows fade, then add a window of ``slots`` slots to some rows."""
        self.slots = self.slots * self.fade + np.where(rows, float(slots), 0.0)
        self.squares = self.squares * (self.fade * self.fade) + np.where(rows, float(slots), 0.0)

    @property
    def effective_slots(self) -> Float64:
        """The effective number of slots of each row (rows,); 0 for a row without a window."""
        return self.slots * self.slots / np.where(self.squares > 0.0, self.squares, 1.0)

    def scaled(self, ones: Float64, zeros: Float64, variance: float | Float64) -> WeightedSums:
        """Scale weighted sums to sums of the effective number of slots.

        Args:
            ones, zeros: (rows, cells) float64, weighted.
            variance: the variance of the noise in one of them; (rows,) if it differs between rows.
        """
        # A row without slots contains only noise, and is not scaled.
        ratio = self.slots / np.where(self.squares > 0.0, self.squares, 1.0)
        ratio = np.where(self.squares > 0.0, ratio, 1.0)
        whole = [np.rint(ratio[:, None] * one).astype(np.int64) for one in (ones, zeros)]
        return WeightedSums(whole[0], whole[1], ratio * ratio * variance)

    def dump(self) -> bytes:
        """The weights as little-endian float64."""
        return self.slots.astype("<f8").tobytes() + self.squares.astype("<f8").tobytes()

    def load(self, dumped: bytes) -> None:
        """Return to what `dump` wrote of weights of as many rows.

        Raises:
            AggregationError: these are not such bytes.
        """
        rows = len(self.slots)
        if len(dumped) != 16 * rows:
            raise AggregationError(f"expected {16 * rows} bytes of weights, got {len(dumped)}")
        values = np.frombuffer(dumped, "<f8").astype(np.float64)
        self.slots, self.squares = values[:rows].copy(), values[rows:].copy()
