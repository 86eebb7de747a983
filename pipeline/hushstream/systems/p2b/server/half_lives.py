"""Chooses the half-life that predicts released windows best: keeps totals for several half-lives, and scores each.

Before a window is added, the effects by each totals (`server.effects`, with variances D) are compared with the raw
effects of that window (with variances V). The score is the log-likelihood of N(m, V + D), with the tails of Laplace
noise, summed over effects. Old scores count less (half after `_SCORED_WINDOWS` windows), so that a change is noticed
even after a long time without one. The first `SETTLING_WINDOWS` windows are not scored: their visitors start from no
model or a poor one, so the items shown to them differ from later windows. A half-life is used only if it predicts
better than no forgetting by more than `_LEAST_GAIN`. Without changes that hardly ever happens, because forgetting drops
the information of earlier windows. (In four mixed tables without changes, with 10 items and windows of 6,250 slots, the
largest such sum was 7.6; in changing ones it exceeded 12 within one or two windows.)

Only released windows are read, so this costs no privacy. Each window needs fresh noise: with a counter, the noise of
one window is part of the next.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.server.effects import effects, log_likelihood, raw_effects
from hushstream.systems.p2b.server.elementary import halving
from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.fading import Int64, WeightedSums
from hushstream.systems.p2b.server.totals import CrowdTotals

HALF_LIVES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The candidates besides no forgetting, in windows of a partition."""

_SCORED_WINDOWS = 24.0
SETTLING_WINDOWS = 8
"""Number of first windows of each partition that are not scored."""

_LEAST_GAIN = 12.0
_LENGTH = struct.Struct("<Q")


class Totals(Protocol):
    """Running totals of windows (`server.totals`, `server.item_totals`)."""

    @property
    def crowds(self) -> int:
        """How many windows were added."""

    def dump(self) -> bytes:
        """The totals as bytes."""


T = TypeVar("T", bound=Totals)


def log_score(layout: FeatureLayout, known: WeightedSums, window: WeightedSums) -> float:
    """The log-likelihood of a window's raw effects, up to a constant, given sums of the windows before it.

    Args:
        layout: the layout of both sums.
        known: the sums of the windows before.
        window: the sums of the window.
    """
    expected, found = effects(layout, *known), raw_effects(layout, *window)
    raw, spread = (
        np.concatenate([one[place].reshape(layout.arms, -1) for one in found.blocks.values()], axis=1)
        for place in range(2)
    )
    own, own_spread = found.arms
    cells = log_likelihood(raw - expected.cells, spread + expected.cell_variances, 0.0)
    return cells + log_likelihood(own - expected.arms, own_spread + expected.arm_variances, 0.0)


class HalfLives(Generic[T]):
    """Totals under each of several half-lives, and the choice of those from which a model is made."""

    def __init__(self, make: Callable[[float], T], fades: Sequence[float], partitions: int = 1) -> None:
        """Begin without windows.

        Args:
            make: makes totals; its argument is the factor of earlier windows when a new window comes.
            fades: that factor for each half-life. If there are several, the first is 1: nothing is forgotten.
            partitions: P, the number of partitions; all figures here count windows of one partition.
        """
        self._fades, self._score_fade = fades, halving(_SCORED_WINDOWS * partitions)
        self._settling = SETTLING_WINDOWS * partitions
        self._totals = [make(fade) for fade in fades]
        self._scores = [0.0] * len(fades)

    @property
    def place(self) -> int:
        """The place of the half-life that predicted best; 0 if no half-life is clearly better than no forgetting."""
        place = max(range(len(self._scores)), key=self._scores.__getitem__)
        return place if self._scores[place] > self._scores[0] + _LEAST_GAIN else 0

    @property
    def best(self) -> T:
        """The totals under the chosen half-life."""
        return self._totals[self.place]

    @property
    def fade(self) -> float:
        """The factor of earlier windows under the chosen half-life when a new window comes."""
        return self._fades[self.place]

    def add(self, add: Callable[[T], None], score: Callable[[T], float]) -> None:
        """Add a window to all totals.

        Args:
            add: adds it to totals; if it raises an error for the first totals, nothing changes.
            score: how well totals predicted it (`log_score`), before it is added.
        """
        scored = len(self._totals) > 1 and self._totals[0].crowds >= self._settling
        scores = [score(one) if scored else 0.0 for one in self._totals]
        for one in self._totals:
            add(one)
        self._scores = [self._score_fade * before + now for before, now in zip(self._scores, scores, strict=True)]

    def dump(self) -> bytes:
        """The totals as bytes; of several, the scores as little-endian float64, then each totals behind its length."""
        dumped = [one.dump() for one in self._totals]
        if len(dumped) == 1:
            return dumped[0]
        scores = np.array(self._scores, dtype="<f8").tobytes()
        return scores + b"".join(_LENGTH.pack(len(one)) + one for one in dumped)

    def load(self, dumped: bytes, read: Callable[[bytes, float], T]) -> None:
        """Return to what `dump` wrote.

        Args:
            dumped: what `dump` wrote.
            read: makes totals from their bytes and the factor of earlier windows.

        Raises:
            AggregationError: these are not such bytes.
        """
        count = len(self._totals)
        parts = [dumped] if count == 1 else _parts(dumped, 8 * count)
        if len(parts) != count:
            raise AggregationError(f"expected {count} totals, got {len(parts)}")
        if count > 1:
            self._scores = np.frombuffer(dumped, "<f8", count).astype(np.float64).tolist()
        self._totals = [read(part, fade) for part, fade in zip(parts, self._fades, strict=True)]


def add_crowd(
    kept: HalfLives[CrowdTotals], layout: FeatureLayout, ones: Int64, zeros: Int64, variance: float, slots: int
) -> None:
    """Add a window to totals of items that stay the same; arguments and errors as in `CrowdTotals.add`."""

    def score(totals: CrowdTotals) -> float:
        return log_score(layout, totals.weighted_sums(), WeightedSums(ones, zeros, variance)) if totals.crowds else 0.0

    kept.add(lambda totals: totals.add(ones, zeros, variance, slots), score)


def _parts(dumped: bytes, place: int) -> Sequence[bytes]:
    """Split bytes, from ``place`` on, into parts that each stand behind their length."""
    parts = []
    while place < len(dumped):
        if len(dumped) - place < _LENGTH.size:
            raise AggregationError("expected totals behind their lengths, got other bytes")
        (length,) = _LENGTH.unpack_from(dumped, place)
        place += _LENGTH.size + length
        parts.append(dumped[place - length : place])
    if place != len(dumped):
        raise AggregationError("expected totals behind their lengths, got fewer bytes")
    return parts
