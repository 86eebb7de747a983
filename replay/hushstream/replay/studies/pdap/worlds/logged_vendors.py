"""``own-vendors``: a user's own log of several vendors, as a world that can be played.

Contexts, homes and users are those of the log, row after row; a longer run starts the log again. A log has rewards of
the shown items only. So clicks come from a fitted model: an item's mean reward in a cell of the space, shrunk towards
that of the cell above as if it had `_RIDGE` more rewards of that size. The item's overall mean is shrunk towards that
of all items of its vendor. Where the log has propensities, rewards are weighted by their inverse (scaled to a mean of 1
for each item). So an item that was shown only where it suits does not seem to suit everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hushstream.replay.studies.pdap.worlds.vendors import Arrivals, Float32, Float64, Int64
from hushstream.systems.pdap.cells import Grid

_LEVELS = 3
_RIDGE = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class LoggedVisits:
    """The rows of a log, (n,) each.

    Attributes:
        contexts: float32 (n, d), entries from 0 to 1.
        homes: the vendor to whom each user came.
        users: numbers of the users.
        arms: the shown items; the items of all vendors are numbered together.
        rewards: from 0 to 1.
        propensities: in (0, 1], or None.
    """

    contexts: Float32
    homes: Int64
    users: Int64
    arms: Int64
    rewards: Float64
    propensities: Float64 | None = None


class ClickFit:
    """A fitted model of the mean reward of an item at a context."""

    def __init__(self, log: LoggedVisits, owners: Int64) -> None:
        """Fit to a log; ``owners`` (arms,) are the vendors of all items, including those never shown."""
        self._grid = Grid(log.contexts.shape[1], 2, _LEVELS)
        self._arms = len(owners)
        weights = _weights(log, self._arms)
        earned = weights * log.rewards
        self._base = _bases(log, weights, earned, owners)
        paths = self._grid.paths(log.contexts)
        self._levels = [
            _sums(self._keys(paths, log.arms, level), earned, weights) for level in range(1, self._grid.levels + 1)
        ]

    def __call__(self, contexts: Float32, arms: Int64) -> Float64:
        """Mean reward of one item for each context, (n,)."""
        paths = self._grid.paths(contexts)
        found = self._base[np.broadcast_to(arms, len(contexts))]
        for level, (keys, earned, weights) in enumerate(self._levels, 1):
            asked = self._keys(paths, arms, level)
            at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
            found = np.where(keys[at] == asked, _drawn(earned[at], weights[at], found), found)
        return np.asarray(found)

    def _keys(self, paths: Int64, arms: Int64, level: int) -> Int64:
        return np.asarray(paths // self._grid.width(level) * self._arms + arms)


def _weights(log: LoggedVisits, arms: int) -> Float64:
    if log.propensities is None:
        return np.ones(len(log.arms))
    weights = 1.0 / log.propensities
    shown, total = np.bincount(log.arms, minlength=arms), _added(log.arms, weights, arms)
    return np.asarray(weights * (shown / np.maximum(total, 1.0))[log.arms])


def _bases(log: LoggedVisits, weights: Float64, earned: Float64, owners: Int64) -> Float64:
    """Mean reward of each item over all contexts, (arms,)."""
    sold, vendors = owners[log.arms], int(owners.max()) + 1
    grand = earned.sum() / weights.sum()
    of_vendor = _drawn(_added(sold, earned, vendors), _added(sold, weights, vendors), grand)
    return _drawn(_added(log.arms, earned, len(owners)), _added(log.arms, weights, len(owners)), of_vendor[owners])


def _drawn(earned: Float64, weights: Float64, to: Float64) -> Float64:
    return np.asarray((earned + _RIDGE * to) / (weights + _RIDGE))


def _added(places: Int64, values: Float64, size: int) -> Float64:
    return np.bincount(places, values, size).astype(np.float64, copy=False)


def _sums(keys: Int64, earned: Float64, weights: Float64) -> tuple[Int64, Float64, Float64]:
    known, places = np.unique(keys, return_inverse=True)
    return known, _added(places, earned, len(known)), _added(places, weights, len(known))


@dataclass(frozen=True, slots=True, eq=False)
class OwnVendors:
    """A log as a world; see the module.

    Attributes:
        name: name of the log's file.
        vendors: names of the vendors.
        owners: (items,) the vendor of each item.
        log: the rows of the log.
        fit: the model of an item's mean reward.
        internal: whether figures on it may be shown only inside the organisation.
    """

    name: str
    vendors: tuple[str, ...]
    owners: Int64 = field(repr=False)
    log: LoggedVisits = field(repr=False)
    fit: ClickFit = field(repr=False)
    internal: bool

    @property
    def dimension(self) -> int:
        """The number of entries of a context."""
        return int(self.log.contexts.shape[1])

    def arrivals(self, count: int, generator: np.random.Generator) -> Arrivals:
        """See `VendorWorld`: always the first rows of the log; nothing is drawn."""
        rows = np.arange(count) % len(self.log.homes)
        return Arrivals(self.log.contexts[rows], self.log.homes[rows], self.log.users[rows])

    def means(self, arrivals: Arrivals, arms: Int64, progress: float) -> Float64:
        """See `VendorWorld`; items do not change over the run."""
        return self.fit(arrivals.contexts, arms)
