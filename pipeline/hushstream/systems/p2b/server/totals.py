"""The running totals of crowds."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.fading import WeightedSums, Weights

Int64 = npt.NDArray[np.int64]

_LIMIT = 1 << 61
_ROUNDING = 1e-6
_HEADER = struct.Struct("<4sBxxxIIqqd")
_MAGIC = b"HTOT"
_VERSION = 1
_FADED_VERSION = 2
"""The version if windows fade: sums are float64, and weights stand behind them."""


class CrowdTotals:
    """The totals of all crowds so far, for every (code, arm)."""

    def __init__(self, codes: int, arms: int, fade: float = 1.0) -> None:
        """Begin without crowds; ``fade``, in (0, 1], is the factor of earlier crowds when a new one comes."""
        if codes < 1 or arms < 1:
            raise AggregationError(f"expected at least one code and arm, got {codes} and {arms}")
        dtype = np.int64 if fade == 1.0 else np.float64
        self.ones: npt.NDArray[Any] = np.zeros((codes, arms), dtype=dtype)
        """(k, K): sums of reward levels, with the noise of every crowd; int64, or float64 if crowds fade."""
        self.zeros: npt.NDArray[Any] = np.zeros((codes, arms), dtype=dtype)
        """(k, K): sums of M minus the level, likewise."""
        self.variance = 0.0
        """The variance of the noise in one sum: the sum of what crowds state."""
        self.crowds = 0
        """How many crowds were added."""
        self.slots = 0
        """The number of slots in their windows (public), nulls included."""
        self._weights = None if fade == 1.0 else Weights(fade, codes)

    def add(self, ones: Int64, zeros: Int64, variance: float, slots: int) -> None:
        """Add one crowd; if it is refused, nothing changes.

        Args:
            ones: (k, K) int64.
            zeros: (k, K) int64.
            variance: the variance of the noise in one of its sums. If sums run through a counter, it is how much the
                variance of the total changes beyond fading, which may be less than 0.
            slots: the number of slots in its window.

        Raises:
            AggregationError: another shape or type, a bad variance, or totals that could overflow.
        """
        if ones.shape != self.ones.shape or zeros.shape != self.ones.shape:
            raise AggregationError(f"expected sums of shape {self.ones.shape}, got {ones.shape} and {zeros.shape}")
        if ones.dtype != np.int64 or zeros.dtype != np.int64:
            raise AggregationError(f"expected int64 sums, got {ones.dtype} and {zeros.dtype}")
        weights = self._weights
        kept = self.variance if weights is None else self.variance * (weights.fade * weights.fade)
        together = kept + variance
        if not -_ROUNDING <= together < np.inf or slots < 0:
            raise AggregationError(f"expected a variance and slots of at least 0, got {together} and {slots}")
        for total, part in ((self.ones, ones), (self.zeros, zeros)):
            if max(_largest(total), _largest(part)) > _LIMIT:
                raise AggregationError(f"expected totals within {_LIMIT} of zero, got larger ones")
        if weights is not None:
            self.ones, self.zeros = self.ones * weights.fade, self.zeros * weights.fade
            weights.add(slots, np.ones(len(self.ones), dtype=np.bool_))
        self.ones = self.ones + ones
        self.zeros = self.zeros + zeros
        self.variance = max(0.0, together)
        self.crowds += 1
        self.slots += slots

    @property
    def effective_slots(self) -> float:
        """The effective number of slots of all crowds together."""
        return float(self.slots) if self._weights is None else float(self._weights.effective_slots[0])

    def weighted_sums(self) -> WeightedSums:
        """The sums from which a model is made."""
        if self._weights is None:
            return WeightedSums(self.ones, self.zeros, self.variance)
        return self._weights.scaled(self.ones, self.zeros, self.variance)

    def dump(self) -> bytes:
        """The totals as bytes: a header, then little-endian int64; if crowds fade, float64 and the weights."""
        codes, arms = self.ones.shape
        version, dtype = (_VERSION, "<i8") if self._weights is None else (_FADED_VERSION, "<f8")
        header = _HEADER.pack(_MAGIC, version, codes, arms, self.crowds, self.slots, self.variance)
        weights = b"" if self._weights is None else self._weights.dump()
        return header + self.ones.astype(dtype).tobytes() + self.zeros.astype(dtype).tobytes() + weights

    @classmethod
    def load(cls, dumped: bytes, fade: float = 1.0) -> CrowdTotals:
        """The totals that `dump` wrote with the same ``fade``.

        Raises:
            AggregationError: these are not such bytes, or of another version or length.
        """
        if len(dumped) < _HEADER.size:
            raise AggregationError(f"expected at least {_HEADER.size} bytes of totals, got {len(dumped)}")
        magic, version, codes, arms, crowds, slots, variance = _HEADER.unpack_from(dumped)
        expected, dtype = (_VERSION, "<i8") if fade == 1.0 else (_FADED_VERSION, "<f8")
        if magic != _MAGIC or version != expected:
            raise AggregationError(f"expected totals of version {expected}, got something else")
        end = _HEADER.size + 16 * codes * arms
        size = end + (0 if fade == 1.0 else 16 * codes)
        if len(dumped) != size:
            raise AggregationError(f"expected {size} bytes of totals, got {len(dumped)}")
        totals = cls(codes, arms, fade)
        sums = np.frombuffer(dumped, dtype, 2 * codes * arms, _HEADER.size).astype(totals.ones.dtype)
        totals.ones, totals.zeros = sums.reshape(2, codes, arms)
        totals.crowds, totals.slots, totals.variance = crowds, slots, variance
        if totals._weights is not None:
            totals._weights.load(dumped[end:])
        return totals


def _largest(sums: npt.NDArray[Any]) -> int:
    """The largest distance from zero, as a Python integer (the least int64 has no absolute value)."""
    return max(int(sums.max()), -int(sums.min()))
