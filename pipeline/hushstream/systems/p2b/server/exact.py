"""Exact sums of raw interactions, for the non-private model track of public data.

Contexts and rewards are put on the lattice of ``2^-16`` and summed in int64. Whole numbers add up to the same total in
every order and grouping. So partitions may arrive in any order, and their sums may be merged in any way.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.estimate import ModelSums

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.integer]

STEPS = 1 << 16
LARGEST_ENTRY = 16.0

# A product of two entries is at most (16 * 2^16)^2 = 2^40, so 4096 of them stay below 2^53: the matrix
# product may run in float64 and is still exact.
_ROWS = 4096
_LIMIT = 1 << 61
_HEADER = struct.Struct("<4sBxxxIIq")
_MAGIC = b"HEXS"
_VERSION = 1


class ExactSums:
    """The sums of ``x x'`` and ``r x`` over interactions, for each arm, in units of ``2^-32``."""

    def __init__(self, arms: int, dimension: int) -> None:
        if arms < 1 or dimension < 1:
            raise AggregationError(f"expected at least one arm and dimension, got {arms} and {dimension}")
        self.gram: Int64 = np.zeros((arms, dimension, dimension), dtype=np.int64)
        self.moment: Int64 = np.zeros((arms, dimension), dtype=np.int64)
        self.observations = 0

    @property
    def arms(self) -> int:
        """K, the number of arms."""
        return int(self.moment.shape[0])

    @property
    def dimension(self) -> int:
        """D, the number of entries of a context."""
        return int(self.moment.shape[1])

    def add(self, contexts: Floats, arms: Integers, rewards: Floats) -> None:
        """Add interactions; if they are refused, nothing changes.

        Args:
            contexts: (n, D), entries within `LARGEST_ENTRY` of zero, rounded to the lattice.
            arms: (n,) integers in [0, K).
            rewards: (n,), clipped to [0, 1], then rounded toward zero.

        Raises:
            AggregationError: shapes or values that do not fit, or sums that could overflow.
        """
        self._require(contexts, arms, rewards)
        points = np.rint(contexts.astype(np.float64) * STEPS)
        levels = np.trunc(np.clip(rewards.astype(np.float64), 0.0, 1.0) * STEPS)
        added = ExactSums(self.arms, self.dimension)
        added.observations = len(arms)
        for arm in np.unique(arms).tolist():
            rows = np.flatnonzero(arms == arm)
            for low in range(0, len(rows), _ROWS):
                part = points[rows[low : low + _ROWS]]
                added.gram[arm] += (part.T @ part).astype(np.int64)
                added.moment[arm] += (levels[rows[low : low + _ROWS]] @ part).astype(np.int64)
        self.merge(added)

    def merge(self, other: ExactSums) -> None:
        """Add the sums of another part of the data.

        Raises:
            AggregationError: another shape, or sums that could overflow.
        """
        if other.moment.shape != self.moment.shape:
            raise AggregationError(f"expected sums of shape {self.moment.shape}, got {other.moment.shape}")
        # The diagonal bounds the whole gram, and no sum of squares is negative.
        if max(int(self.gram.max()), int(other.gram.max())) > _LIMIT:
            raise AggregationError(f"expected sums of at most {_LIMIT} units, got larger ones")
        self.gram = self.gram + other.gram
        self.moment = self.moment + other.moment
        self.observations += other.observations

    def model(self, ridge: float = 1.0) -> ModelSums:
        """The LinUCB model of these interactions.

        Raises:
            AggregationError: a ridge that is not positive.
        """
        if not 0.0 < ridge < np.inf:
            raise AggregationError(f"expected a positive ridge, got {ridge}")
        unit = float(STEPS) ** 2
        gram = self.gram / unit + ridge * np.eye(self.dimension)
        return ModelSums(gram, self.moment / unit, float(self.observations))

    def dump(self) -> bytes:
        """The sums as bytes: a header, then little-endian int64."""
        header = _HEADER.pack(_MAGIC, _VERSION, self.arms, self.dimension, self.observations)
        return header + self.gram.astype("<i8").tobytes() + self.moment.astype("<i8").tobytes()

    @classmethod
    def load(cls, dumped: bytes) -> ExactSums:
        """The sums that `dump` wrote.

        Raises:
            AggregationError: these are not such bytes, or of another version or length.
        """
        if len(dumped) < _HEADER.size:
            raise AggregationError(f"expected at least {_HEADER.size} bytes of sums, got {len(dumped)}")
        magic, version, arms, dimension, observations = _HEADER.unpack_from(dumped)
        if magic != _MAGIC or version != _VERSION:
            raise AggregationError(f"expected sums of version {_VERSION}, got something else")
        cells = arms * dimension * dimension
        expected = _HEADER.size + 8 * (cells + arms * dimension)
        if len(dumped) != expected:
            raise AggregationError(f"expected {expected} bytes of sums, got {len(dumped)}")
        sums = cls(arms, dimension)
        values = np.frombuffer(dumped, dtype="<i8", offset=_HEADER.size).astype(np.int64)
        sums.gram = values[:cells].reshape(sums.gram.shape)
        sums.moment = values[cells:].reshape(sums.moment.shape)
        sums.observations = observations
        return sums

    def _require(self, contexts: Floats, arms: Integers, rewards: Floats) -> None:
        if contexts.ndim != 2 or contexts.shape[1] != self.dimension:
            raise AggregationError(f"expected contexts of shape (n, {self.dimension}), got {contexts.shape}")
        if arms.shape != (len(contexts),) or rewards.shape != (len(contexts),):
            raise AggregationError(f"expected {len(contexts)} arms and rewards, got {arms.shape} and {rewards.shape}")
        if not (np.isfinite(contexts).all() and np.isfinite(rewards).all()):
            raise AggregationError("expected finite contexts and rewards, got NaN or infinity")
        if len(contexts) and np.abs(contexts).max() > LARGEST_ENTRY:
            raise AggregationError(f"expected context entries within {LARGEST_ENTRY} of zero, got a larger one")
        if len(arms) and (int(arms.min()) < 0 or int(arms.max()) >= self.arms):
            raise AggregationError(f"expected arms from 0 to {self.arms - 1}, got one outside")
