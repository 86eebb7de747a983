"""The number of thresholds at or below a uniform word, by the word's first bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FIRST_BITS = 14
"""2^14 entries of two bytes stay in a core's first cache; 255 thresholds leave 1.6 % of the words undecided."""

_SHIFT = np.uint64(64 - _FIRST_BITS)
_UNDECIDED = -1
_FEW = 256
"""For fewer words than this a binary search is faster."""


class ThresholdLookup:
    """`numpy.searchsorted(thresholds, words, side="right")` for uniform words, several times as fast.

    A table has this number for those first bits for which it is the same for all words. The few other words are
    searched for. Both are integer comparisons, so the results are the same everywhere.
    """

    __slots__ = ("_counts", "_thresholds")

    def __init__(self, thresholds: NDArray[np.uint64]) -> None:
        """Make the table.

        Args:
            thresholds: (n,) uint64, ascending, fewer than 2^15.
        """
        first = np.arange(1 << _FIRST_BITS, dtype=np.uint64) << _SHIFT
        counts = np.searchsorted(thresholds, first, side="right").astype(np.int16)
        within = (thresholds >> _SHIFT).astype(np.int64)
        # A threshold that is the first word of an entry lies between this entry and the one before: inside neither.
        counts[within[thresholds != first[within]]] = _UNDECIDED
        self._counts = counts
        self._thresholds = thresholds

    def passed(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many thresholds are at or below each word, int64, for words of shape (n,)."""
        if len(words) < _FEW:
            return np.searchsorted(self._thresholds, words, side="right").astype(np.int64, copy=False)
        counts = self._counts.take((words >> _SHIFT).astype(np.int64))
        undecided = np.flatnonzero(counts < 0)
        counts[undecided] = np.searchsorted(self._thresholds, words[undecided], side="right")
        return counts.astype(np.int64)
