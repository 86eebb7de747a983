"""The running totals of released windows if items have names: the total of a row begins when its item is added.

A window says which item each of its rows held. If a row's item was added later than the item of the total so far, the
row's total begins anew with that window: data of an earlier item never counts for the current one. A window of a
shuffler that did not know the item yet counts only for the other rows.

*The variance of a row.* With fresh noise it is the sum over its windows. With a counter, each window publishes its
addition to the counter's total. So the sum from some window on is the difference of two totals, and the sum of both
variances is used as its variance. A window that is left out is a difference of the totals around it, in the same way.

The same holds if windows fade (`hushstream.systems.p2b.server.forgetting`): a row whose item was added after window s
has the weighted total minus fade^(t - s) times that of window s, and the part that is left out fades, too.

A deployment that begins with a model combines the model with its own windows for each item. So it keeps the number of
slots of each row, even if windows do not fade.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.fading import WeightedSums, Weights
from hushstream.systems.p2b.server.totals import CrowdTotals

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]


class ItemTotals:
    """The totals of all windows so far, for the items that rows stand for.

    Attributes:
        catalogue: the newest version of the catalogue that a window named.
        entries: (K,) int32, the version at which each row's item entered; 0 for a row that never had one.
        ones, zeros: (K, P), the sums of each row since then: int64, or float64 if windows fade.
        variances: (K,) float64, the variance of the noise in one sum of each row.
        slots: the number of slots in all windows (public), nulls included.
    """

    def __init__(self, rows: int, cells: int, carried: bool, fade: float = 1.0, started: bool = False) -> None:
        """Begin without windows.

        Args:
            rows, cells: K and P.
            carried: whether windows run through a counter.
            fade: the factor of earlier windows with each later one, in (0, 1].
            started: whether the deployment begins with a model; then `behind` can be called.
        """
        # The totals of all windows: for their checks, and for the variance of what a row leaves out.
        self._all = CrowdTotals(rows, cells, fade)
        self._carried = carried
        self._fade = fade
        self._weights = Weights(fade, rows) if started or fade < 1.0 else None
        self.catalogue = 0
        self.entries: Int32 = np.zeros(rows, dtype=np.int32)
        self.ones: npt.NDArray[Any] = np.zeros_like(self._all.ones)
        self.zeros: npt.NDArray[Any] = np.zeros_like(self._all.zeros)
        self.variances: Float64 = np.zeros(rows)

    @property
    def slots(self) -> int:
        """The number of slots in all windows (public), nulls included."""
        return self._all.slots

    @property
    def crowds(self) -> int:
        """How many windows were added."""
        return self._all.crowds

    def add(self, ones: Int64, zeros: Int64, variance: float, slots: int, catalogue: int, entries: Int32) -> None:
        """Add one window; if it is refused, nothing changes.

        Args:
            ones, zeros, variance, slots: see `CrowdTotals.add`.
            catalogue: the version of the catalogue that the window closed under.
            entries: (K,) the versions at which the items of its rows entered.

        Raises:
            AggregationError: see `CrowdTotals.add`; or entries have another shape.
        """
        if entries.shape != self.entries.shape:
            raise AggregationError(f"expected entries of {self.entries.shape} rows, got {entries.shape}")
        before = self._all.variance
        self._all.add(ones, zeros, variance, slots)
        twice = 2.0 if self._carried else 0.0
        newer, older = entries > self.entries, entries < self.entries
        self.ones[newer], self.zeros[newer] = 0, 0
        self.variances[newer] = twice * before
        if self._weights is not None:
            self._weights.restart(newer)
            self._weights.add(slots, ~older)
        if self._fade < 1.0:
            self.ones, self.zeros = self.ones * self._fade, self.zeros * self._fade
            self.variances = self.variances * (self._fade * self._fade)
        self.ones[~older] += ones[~older]
        self.zeros[~older] += zeros[~older]
        self.variances += np.where(older, twice * self._all.variance, variance)
        self.entries = np.maximum(self.entries, entries)
        self.catalogue = max(self.catalogue, catalogue)

    def behind(self, rows: Int64) -> Float64:
        """The share (n,) of all slots that some rows have, weighted as the windows are; only if ``started``."""
        assert self._weights is not None, "expected totals of a deployment that begins with a model"
        together = self._all.effective_slots
        return np.asarray(self._weights.effective_slots[rows] / together if together > 0.0 else np.zeros(len(rows)))

    def weighted_sums(self, rows: Int64) -> WeightedSums:
        """The sums of some rows from which a model is made."""
        if self._weights is None or self._fade == 1.0:
            return WeightedSums(self.ones[rows], self.zeros[rows], self.variances[rows])
        ones, zeros, variances = self._weights.scaled(self.ones, self.zeros, self.variances)
        return WeightedSums(ones[rows], zeros[rows], np.asarray(variances)[rows])

    def dump(self) -> bytes:
        """The totals as bytes."""
        arrays = (
            self.entries.astype("<i4"),
            self.variances.astype("<f8"),
            self.ones.astype(self._sums),
            self.zeros.astype(self._sums),
        )
        every = self._all.dump()
        head = json.dumps([self.catalogue, len(every)]).encode()
        weights = b"" if self._weights is None else self._weights.dump()
        return len(head).to_bytes(4, "little") + head + every + b"".join(array.tobytes() for array in arrays) + weights

    def load(self, dumped: bytes) -> None:
        """Return to what `dump` wrote of totals of this shape.

        Raises:
            AggregationError: these are not such bytes.
        """
        start = 4 + int.from_bytes(dumped[:4], "little")
        try:
            catalogue, length = json.loads(dumped[4:start])
            every = CrowdTotals.load(dumped[start : start + length], self._fade)
        except (ValueError, TypeError):
            raise AggregationError("expected totals of items, got other bytes") from None
        rows, cells = self.ones.shape
        place = start + length
        end = place + rows * (12 + 16 * cells)
        weights = 0 if self._weights is None else 16 * rows
        if every.ones.shape != (rows, cells) or len(dumped) != end + weights:
            raise AggregationError(f"expected totals of shape {(rows, cells)}, got others")
        self._all, self.catalogue = every, catalogue
        self.entries = np.frombuffer(dumped, "<i4", rows, place).astype(np.int32)
        self.variances = np.frombuffer(dumped, "<f8", rows, place + 4 * rows).astype(np.float64)
        sums = np.frombuffer(dumped, self._sums, 2 * rows * cells, place + 12 * rows).astype(self.ones.dtype)
        self.ones, self.zeros = sums.reshape(2, rows, cells)
        if self._weights is not None:
            self._weights.load(dumped[end:])

    @property
    def _sums(self) -> str:
        """The type in which sums are written."""
        return "<i8" if self._fade == 1.0 else "<f8"
