"""Ratings of one or of many users, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.errors import BadRatings
from hushstream.systems.bgt.slots import Float64, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Ratings:
    """Ratings of U users, sorted by user and then by item; no user has two ratings of an item.

    Attributes:
        ends: (U + 1,) the ratings of user u lie from ends[u] to ends[u + 1].
        items: (n,) the rated items, from 0.
        values: (n,) the ratings, from 0 to 1.
    """

    ends: Int64
    items: Int64
    values: Float64

    @property
    def users(self) -> int:
        """U, the number of users."""
        return len(self.ends) - 1

    @property
    def owners(self) -> Int64:
        """(n,) the user of each rating."""
        return np.repeat(np.arange(self.users), self.counts)

    @property
    def counts(self) -> Int64:
        """(U,) the number of ratings of each user."""
        return np.diff(self.ends)

    def sums(self, values: Float64) -> Float64:
        """(U,) sums over each user's ratings of (n,) ``values``."""
        return np.bincount(self.owners, weights=values, minlength=self.users).astype(np.float64)


def ratings_of(users: ArrayLike, items: ArrayLike, ratings: ArrayLike, config: BgtConfig, count: int) -> Ratings:
    """Sort ratings, put them on the scale from 0 to 1, and keep the last one of each user and item.

    Args:
        users: (n,) from 0 to below ``count``.
        items: (n,) from 0.
        ratings: (n,) on the configured scale, in the order in which they were given.
        config: of the deployment.
        count: U, the number of users; those without ratings are included.

    Raises:
        BadRatings: columns of different lengths, an unknown user or item, or a rating off the scale.
    """
    users, items = np.asarray(users), np.asarray(items)
    values = np.asarray(ratings, dtype=np.float64)
    if not users.shape == items.shape == values.shape or values.ndim != 1:
        raise BadRatings(f"ratings: expected columns of one length, got {users.shape}, {items.shape}, {values.shape}")
    require_numbers("user", users, count)
    require_numbers("item", items, config.items)
    unit = _on_scale(values, config)
    # An empty list becomes an array of floats, so both columns are converted.
    pairs = users.astype(np.int64) * config.items + items.astype(np.int64)
    # `unique` keeps the first of equal pairs. Reversed, that is the last one.
    found, last = np.unique(pairs[::-1], return_index=True)
    owners = found // config.items
    ends = np.concatenate(([0], np.cumsum(np.bincount(owners, minlength=count)))).astype(np.int64)
    return Ratings(ends, found % config.items, unit[::-1][last])


def require_numbers(what: str, numbers: NDArray[Any], count: int) -> None:
    """Refuse numbers of users or items that are not from 0 to below ``count``.

    Raises:
        BadRatings: there is another one.
    """
    if not np.issubdtype(numbers.dtype, np.integer) and numbers.size:
        raise BadRatings(f"{what}s: expected whole numbers, got {numbers.dtype}")
    outside = int(np.count_nonzero((numbers < 0) | (numbers >= count))) if numbers.size else 0
    if outside:
        raise BadRatings(f"{what}s: expected numbers from 0 to {count - 1}, got {outside} outside")


def _on_scale(values: Float64, config: BgtConfig) -> Float64:
    low, high = config.scale.lowest, config.scale.highest
    # NaN fails both comparisons.
    outside = int(np.count_nonzero(~((values >= low) & (values <= high))))
    if outside:
        raise BadRatings(f"ratings: expected numbers from {low:g} to {high:g}, got {outside} that are not")
    return np.asarray((values - low) / (high - low))
