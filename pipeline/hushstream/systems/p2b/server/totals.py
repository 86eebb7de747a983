"""The running totals of windows.

*Fading.* How the model forgets: the weight of each window, and the effective number of slots of the weighted sums.

With a half-life of h windows, P partitions of the shuffler and f = 2^(-1/(h P)), the newest window of all partitions
has the weight 1, the one before it f, then f^2. If windows of n_s slots have the weights w_s, a weighted sum of counts
has the mean of sum w n slots and the sampling variance of sum w^2 n slots. Multiplied by r = sum w n / sum w^2 n, it
has mean and variance of (sum w n)^2 / sum w^2 n slots. This is the *effective number of slots*, which the weighted sums
are worth. As sums of this many slots, with noise of variance r^2 V, they become a model like any other
sums. After many windows r = 1 + f, and the effective number is that of (1 + f)/(1 - f) windows, some 2.9
half-lives.

**The noise V.** Fresh windows have independent noise: V = sum w^2 v. With a counter, each window publishes its addition
to the counter's total. So the weighted sum is a weighted difference of prefixes, and its noise is that of the counter's
nodes with the weights that `NegativeDigitTree.faded_changes` derives. The shuffler knows its counter, and publishes
with each window how much V changes beyond fading. The aggregator multiplies V by f^2 and adds this change. A counter's
windows fade by 2^(-1/h) from one to the next, so with several partitions V is exact if they close windows in turn.

Everything is post-processing of releases: no weight is part of any sensitivity, and no price depends on one.

*Named items.* The running totals of released windows if items have names: the total of a row begins when its item is
added.

A window says which item each of its rows held. If a row's item was added later than the item of the total so far, the
row's total begins anew with that window: data of an earlier item never counts for the current one. A window of a
shuffler that did not know the item yet counts only for the other rows.

*The variance of a row.* With fresh noise it is the sum over its windows. With a counter, each window publishes its
addition to the counter's total. So the sum from some window on is the difference of two totals, and the sum of both
variances is used as its variance. A window that is left out is a difference of the totals around it, in the same way.

The same holds if windows fade: a row whose item was added after window s
has the weighted total minus fade^(t - s) times that of window s, and the part that is left out fades, too.

A deployment that begins with a model combines the model with its own windows for each item. So it keeps the number of
slots of each row, even if windows do not fade.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.server.estimate import AggregationError, halving

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


class Remembered(NamedTuple):
    """How much a model remembers of windows with equal numbers of slots.

    Attributes:
        share: the effective number of slots, as a share of all slots in these windows.
        ratio: r.
    """

    share: float
    ratio: float


def fade_of_windows(config: P2BConfig) -> float:
    """The factor of a window's weight with each later window of its partition; 1 if the model does not forget."""
    return 1.0 if config.half_life is None else halving(config.half_life)


def fade_of_sums(config: P2BConfig) -> float:
    """f, the factor of a window's weight with each later window of any partition; 1 if the model does not forget."""
    return 1.0 if config.half_life is None else halving(config.half_life * config.partitions.shuffler)


def remembered(config: P2BConfig, windows: int) -> Remembered:
    """How much the model remembers after ``windows`` windows of each partition; at least one."""
    fade, count = fade_of_sums(config), windows * config.partitions.shuffler
    if fade == 1.0:
        return Remembered(1.0, 1.0)
    weights, squares = (-math.expm1(power * count * math.log(fade)) / (1.0 - fade**power) for power in (1, 2))
    return Remembered(weights**2 / squares / count, weights / squares)


_LIMIT = 1 << 61
_ROUNDING = 1e-6
_HEADER = struct.Struct("<4sBxxxIIqqd")
_MAGIC = b"HTOT"
_VERSION = 1
_FADED_VERSION = 2
"""The version if windows fade: sums are float64, and weights stand behind them."""


class WindowTotals:
    """The totals of all windows so far, for every (code, arm)."""

    def __init__(self, codes: int, arms: int, fade: float = 1.0) -> None:
        """Begin without windows; ``fade``, in (0, 1], is the factor of earlier windows when a new one comes."""
        if codes < 1 or arms < 1:
            raise AggregationError(f"expected at least one code and arm, got {codes} and {arms}")
        dtype = np.int64 if fade == 1.0 else np.float64
        self.ones: npt.NDArray[Any] = np.zeros((codes, arms), dtype=dtype)
        """(k, K): sums of reward levels, with the noise of every window; int64, or float64 if windows fade."""
        self.zeros: npt.NDArray[Any] = np.zeros((codes, arms), dtype=dtype)
        """(k, K): sums of M minus the level, likewise."""
        self.variance = 0.0
        """The variance of the noise in one sum: the sum of what windows state."""
        self.windows = 0
        """How many windows were added."""
        self.slots = 0
        """The number of slots in their windows (public), nulls included."""
        self._weights = None if fade == 1.0 else Weights(fade, codes)

    def add(self, ones: Int64, zeros: Int64, variance: float, slots: int) -> None:
        """Add one window; if it is refused, nothing changes.

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
        self.windows += 1
        self.slots += slots

    @property
    def effective_slots(self) -> float:
        """The effective number of slots of all windows together."""
        return float(self.slots) if self._weights is None else float(self._weights.effective_slots[0])

    def weighted_sums(self) -> WeightedSums:
        """The sums from which a model is made."""
        if self._weights is None:
            return WeightedSums(self.ones, self.zeros, self.variance)
        return self._weights.scaled(self.ones, self.zeros, self.variance)

    def dump(self) -> bytes:
        """The totals as bytes: a header, then little-endian int64; if windows fade, float64 and the weights."""
        codes, arms = self.ones.shape
        version, dtype = (_VERSION, "<i8") if self._weights is None else (_FADED_VERSION, "<f8")
        header = _HEADER.pack(_MAGIC, version, codes, arms, self.windows, self.slots, self.variance)
        weights = b"" if self._weights is None else self._weights.dump()
        return header + self.ones.astype(dtype).tobytes() + self.zeros.astype(dtype).tobytes() + weights

    @classmethod
    def load(cls, dumped: bytes, fade: float = 1.0) -> WindowTotals:
        """The totals that `dump` wrote with the same ``fade``.

        Raises:
            AggregationError: these are not such bytes, or of another version or length.
        """
        if len(dumped) < _HEADER.size:
            raise AggregationError(f"expected at least {_HEADER.size} bytes of totals, got {len(dumped)}")
        magic, version, codes, arms, windows, slots, variance = _HEADER.unpack_from(dumped)
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
        totals.windows, totals.slots, totals.variance = windows, slots, variance
        if totals._weights is not None:
            totals._weights.load(dumped[end:])
        return totals


def _largest(sums: npt.NDArray[Any]) -> int:
    """The largest distance from zero, as a Python integer (the least int64 has no absolute value)."""
    return max(int(sums.max()), -int(sums.min()))


Int32 = npt.NDArray[np.int32]


class ItemTotals:
    """The totals of all windows so far, for the items that rows stand for.

    Attributes:
        catalogue: the newest version of the catalogue that a window named.
        entries: (K,) int32, the version at which each row's item entered; 0 for a row that never had one.
        features: the public features of the rows' items at that version of the catalogue, one row after the other.
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
        self._all = WindowTotals(rows, cells, fade)
        self._carried = carried
        self._fade = fade
        self._weights = Weights(fade, rows) if started or fade < 1.0 else None
        self.catalogue = 0
        self.entries: Int32 = np.zeros(rows, dtype=np.int32)
        self.features = b""
        self.ones: npt.NDArray[Any] = np.zeros_like(self._all.ones)
        self.zeros: npt.NDArray[Any] = np.zeros_like(self._all.zeros)
        self.variances: Float64 = np.zeros(rows)

    @property
    def slots(self) -> int:
        """The number of slots in all windows (public), nulls included."""
        return self._all.slots

    @property
    def windows(self) -> int:
        """How many windows were added."""
        return self._all.windows

    def add(
        self,
        ones: Int64,
        zeros: Int64,
        variance: float,
        slots: int,
        catalogue: int,
        entries: Int32,
        features: bytes = b"",
    ) -> None:
        """Add one window; if it is refused, nothing changes.

        Args:
            ones, zeros, variance, slots: see `WindowTotals.add`.
            catalogue: the version of the catalogue that the window closed under.
            entries: (K,) the versions at which the items of its rows entered.
            features: the public features of these items.

        Raises:
            AggregationError: see `WindowTotals.add`; or entries have another shape.
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
        if catalogue >= self.catalogue:
            self.catalogue, self.features = catalogue, features

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
        head = json.dumps([self.catalogue, len(every), len(self.features)]).encode()
        weights = b"" if self._weights is None else self._weights.dump()
        parts = (len(head).to_bytes(4, "little"), head, every, *(array.tobytes() for array in arrays), weights)
        return b"".join(parts) + self.features

    def load(self, dumped: bytes) -> None:
        """Return to what `dump` wrote of totals of this shape.

        Raises:
            AggregationError: these are not such bytes.
        """
        start = 4 + int.from_bytes(dumped[:4], "little")
        try:
            catalogue, length, described = json.loads(dumped[4:start])
            every = WindowTotals.load(dumped[start : start + length], self._fade)
        except (ValueError, TypeError):
            raise AggregationError("expected totals of items, got other bytes") from None
        rows, cells = self.ones.shape
        place = start + length
        end = place + rows * (12 + 16 * cells)
        last = end + (0 if self._weights is None else 16 * rows)
        if every.ones.shape != (rows, cells) or len(dumped) != last + described:
            raise AggregationError(f"expected totals of shape {(rows, cells)}, got others")
        self._all, self.catalogue = every, catalogue
        self.entries = np.frombuffer(dumped, "<i4", rows, place).astype(np.int32)
        self.variances = np.frombuffer(dumped, "<f8", rows, place + 4 * rows).astype(np.float64)
        sums = np.frombuffer(dumped, self._sums, 2 * rows * cells, place + 12 * rows).astype(self.ones.dtype)
        self.ones, self.zeros = sums.reshape(2, rows, cells)
        if self._weights is not None:
            self._weights.load(dumped[end:last])
        self.features = dumped[last:]

    @property
    def _sums(self) -> str:
        """The type in which sums are written."""
        return "<i8" if self._fade == 1.0 else "<f8"
