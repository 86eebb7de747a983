"""The encoder of P2B: turns a context into the number of its nearest centroid (Malekzadeh et al. 2020, 3.2).

Every machine must compute the same bits for a slot. So centroids are multiples of ``2^-16``, and contexts are grid
units (`hushstream.systems.p2b.contribution.grid`). The nearest centroid of ``x = u / 10^q`` has the largest score

    2 * 10^q * 2^32 * (x'c - |c|^2 / 2)  =  2^17 u'C - 10^q |C|^2        with  C = 2^16 c,

a whole number. All scores stay below 2^53, where float64 is exact in every order of summation. So one float64 matrix
product gives the same codes on every machine. Among equal distances the lowest code is taken.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.contribution.grid import MAX_DIGITS, Floats, Int64, grid_units

CENTROID_STEPS = 1 << 16
_EXACT = 1 << 52
_ROWS = 2048


class Encoder:
    """Nearest-centroid codes on the grid of ``digits`` decimal digits.

    Holds scratch memory: one encoder serves one thread.
    """

    def __init__(self, centroids: Floats, digits: int) -> None:
        """Round the centroids to multiples of ``2^-16`` and prepare the integer scores.

        Args:
            centroids: (k, d), finite.
            digits: q, the decimal digits of a context's entries.

        Raises:
            ContributionError: a wrong shape, values that are not finite, or so large that scores would
                leave the exact range.
        """
        if centroids.ndim != 2 or 0 in centroids.shape:
            raise ContributionError(f"expected centroids of shape (k, d), got {centroids.shape}")
        if not 1 <= digits <= MAX_DIGITS:
            raise ContributionError(f"expected 1 to {MAX_DIGITS} digits, got {digits}")
        if not np.isfinite(centroids).all() or np.abs(centroids).max() > CENTROID_STEPS:
            raise ContributionError("expected finite centroids near the unit simplex, got another value")
        self.digits = digits
        self.lattice: Int64 = np.rint(centroids.astype(np.float64) * CENTROID_STEPS).astype(np.int64)
        """(k, d) int64: the centroids in units of ``2^-16``. They and ``digits`` define the encoder."""
        squares = (self.lattice**2).sum(axis=1)
        units = 10**digits
        largest = max(int(np.abs(self.lattice).max()) * units * 2 * CENTROID_STEPS, int(squares.max()) * units)
        if largest > _EXACT:
            raise ContributionError("expected centroids on the unit simplex, got entries too large for exact scores")
        self._weights = np.ascontiguousarray(self.lattice.T * (2.0 * CENTROID_STEPS))
        self._offsets = squares * float(units)
        self._units = np.empty((_ROWS, self.dimension))
        self._scores = np.empty((_ROWS, self.codes))

    @property
    def codes(self) -> int:
        """k, the number of codes."""
        return int(self.lattice.shape[0])

    @property
    def dimension(self) -> int:
        """d, the number of entries of a context."""
        return int(self.lattice.shape[1])

    @property
    def centroids(self) -> npt.NDArray[np.float32]:
        """(k, d) float32; exact, since a multiple of ``2^-16`` below 2^8 has at most 24 bits."""
        return (self.lattice / CENTROID_STEPS).astype(np.float32)

    def encode(self, contexts: Floats) -> npt.NDArray[np.int32]:
        """The codes of contexts.

        Args:
            contexts: (n, d) floats; put on the grid first.

        Returns:
            (n,) int32 in [0, k).

        Raises:
            ContributionError: a wrong shape, or contexts that are no histograms.
        """
        return self.encode_units(grid_units(contexts, self.digits))

    def encode_one(self, context: Floats) -> int:
        """The code of one context of shape (d,)."""
        return int(self.encode(context[None, :])[0])

    def encode_units(self, units: Int64) -> npt.NDArray[np.int32]:
        """The codes of contexts given as grid units, (n, d) int64 rows summing to ``10^q``.

        Raises:
            ContributionError: the wrong shape, or units that are not on this encoder's grid.
        """
        if units.ndim != 2 or units.shape[1] != self.dimension:
            raise ContributionError(f"expected units of shape (n, {self.dimension}), got {units.shape}")
        if (units < 0).any() or (units.sum(axis=1) != 10**self.digits).any():
            raise ContributionError(f"expected rows of at least 0 that sum to {10**self.digits}, got others")
        codes = np.empty(len(units), dtype=np.int32)
        for low in range(0, len(units), _ROWS):
            high = min(low + _ROWS, len(units))
            chunk, scores = self._units[: high - low], self._scores[: high - low]
            chunk[:] = units[low:high]
            np.matmul(chunk, self._weights, scores)
            np.subtract(scores, self._offsets, scores)
            codes[low:high] = scores.argmax(axis=1)
        return codes
