"""The running totals of what crowds release."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.server.errors import AggregationError

Int64 = npt.NDArray[np.int64]

_LIMIT = 1 << 61
_ROUNDING = 1e-6
_HEADER = struct.Struct("<4sBxxxIIqqd")
_MAGIC = b"HTOT"
_VERSION = 1


class CrowdTotals:
    """What all crowds so far say about every (code, arm)."""

    def __init__(self, codes: int, arms: int) -> None:
        if codes < 1 or arms < 1:
            raise AggregationError(f"expected at least one code and arm, got {codes} and {arms}")
        self.ones: Int64 = np.zeros((codes, arms), dtype=np.int64)
        """(k, K): sums of reward levels, with the noise of every crowd."""
        self.zeros: Int64 = np.zeros((codes, arms), dtype=np.int64)
        """(k, K): sums of M minus the level, likewise."""
        self.variance = 0.0
        """Of the noise in one sum; what crowds say of it adds up."""
        self.crowds = 0
        """How many crowds were added."""
        self.slots = 0
        """Slots in their windows (public), nulls included."""

    def add(self, ones: Int64, zeros: Int64, variance: float, slots: int) -> None:
        """Add one crowd; nothing changes when it is refused.

        Args:
            ones: (k, K) int64.
            zeros: (k, K) int64.
            variance: of the noise in one of its sums. Where sums run through a counter, it is how much the variance
                of the total changes, which may be less than 0.
            slots: in its window.

        Raises:
            AggregationError: another shape or type, a bad variance, or totals that could overflow.
        """
        if ones.shape != self.ones.shape or zeros.shape != self.ones.shape:
            raise AggregationError(f"expected sums of shape {self.ones.shape}, got {ones.shape} and {zeros.shape}")
        if ones.dtype != np.int64 or zeros.dtype != np.int64:
            raise AggregationError(f"expected int64 sums, got {ones.dtype} and {zeros.dtype}")
        together = self.variance + variance
        if not -_ROUNDING <= together < np.inf or slots < 0:
            raise AggregationError(f"expected a variance and slots of at least 0, got {together} and {slots}")
        for total, part in ((self.ones, ones), (self.zeros, zeros)):
            if max(_largest(total), _largest(part)) > _LIMIT:
                raise AggregationError(f"expected totals within {_LIMIT} of zero, got larger ones")
        self.ones = self.ones + ones
        self.zeros = self.zeros + zeros
        self.variance = max(0.0, together)
        self.crowds += 1
        self.slots += slots

    def dump(self) -> bytes:
        """The totals as bytes: a header, then little-endian int64."""
        codes, arms = self.ones.shape
        header = _HEADER.pack(_MAGIC, _VERSION, codes, arms, self.crowds, self.slots, self.variance)
        return header + self.ones.astype("<i8").tobytes() + self.zeros.astype("<i8").tobytes()

    @classmethod
    def load(cls, dumped: bytes) -> CrowdTotals:
        """The totals that `dump` wrote.

        Raises:
            AggregationError: not such bytes, or of another version or length.
        """
        if len(dumped) < _HEADER.size:
            raise AggregationError(f"expected at least {_HEADER.size} bytes of totals, got {len(dumped)}")
        magic, version, codes, arms, crowds, slots, variance = _HEADER.unpack_from(dumped)
        if magic != _MAGIC or version != _VERSION:
            raise AggregationError(f"expected totals of version {_VERSION}, got something else")
        if len(dumped) != _HEADER.size + 16 * codes * arms:
            raise AggregationError(f"expected {_HEADER.size + 16 * codes * arms} bytes of totals, got {len(dumped)}")
        totals = cls(codes, arms)
        sums = np.frombuffer(dumped, dtype="<i8", offset=_HEADER.size).astype(np.int64)
        totals.ones, totals.zeros = sums.reshape(2, codes, arms)
        totals.crowds, totals.slots, totals.variance = crowds, slots, variance
        return totals


def _largest(sums: Int64) -> int:
    """The largest distance from zero, as a Python integer (the least int64 has no absolute value)."""
    return max(int(sums.max()), -int(sums.min()))
