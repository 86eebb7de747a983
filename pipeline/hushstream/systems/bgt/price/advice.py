"""Whether a deployment is worth it, from public or assumed numbers, before anything runs.

*Factors.* Kind B finds a factor if its eigenvalue lies beyond the noise's edge C^2 sqrt(M / rho_B). How large the
eigenvalue is follows from the data; over FilmTrust, MovieLens-100K and a set of a million ratings it was about .0095 U
at C = 1, so ratio = .0095 U / sqrt(M / rho_B): factors helped where it was .8 and above, and hurt at .4 and below.

*Biases.* An item rated by N users has its bias within a variance v = 1 / (1/tau2 + N / (s2 + sigma^2 / N)), and a
device alone has variance tau2. `ITEM_SPREAD` and `RATING_SPREAD` are those of the datasets. Items are rated with
popularity 1 / (rank + 10): the expected variance is the mean of v over ratings, which popular items dominate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.values import whole
from hushstream.privacy.amounts import count_text
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.sensitivity import deviation_of, rho_micro

PER_USER = 0.0095
"""Largest eigenvalue of kind B, for each user."""

HELPS, HURTS = 0.8, 0.4
RATING_SPREAD = 0.187
"""Deviation of a rating about the user's and the item's offsets, on the scale from 0 to 1."""

ITEM_SPREAD = 0.1
"""Standard deviation of item offsets over ratings; a device alone does not know them."""

_RANKS = 10.0
LEAST_GAIN = 0.001
"""Least gain in RMSE that counts."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The expected result of a deployment.

    Attributes:
        local: RMSE of predictions by the user's own mean, which costs nothing.
        shared: RMSE with the items' biases of kind A.
        ratio: the expected factor's eigenvalue, divided by the largest eigenvalue of the noise (its edge).
    """

    local: float
    shared: float
    ratio: float

    @property
    def gain(self) -> float:
        """Reduction of the RMSE by sharing."""
        return self.local - self.shared

    @property
    def pays(self) -> bool:
        """Whether sharing is better than the device alone."""
        return self.gain >= LEAST_GAIN

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "local_rmse": round(self.local, 4),
            "shared_rmse": round(self.shared, 4),
            "gain": round(self.gain, 4),
            "pays": self.pays,
            "factor_ratio": None if math.isinf(self.ratio) else round(self.ratio, 3),
        }

    def as_text(self) -> str:
        """Two lines of text."""
        gained = f"a gain of {self.gain:.4f}" if self.pays else "nothing is gained over the device alone"
        return (
            f"Expected RMSE on a scale from 0 to 1: {self.shared:.3f} with item biases, {self.local:.3f} by each user's"
            f" own mean alone; {gained}.\n{self.factors_text}.\n"
        )

    @property
    def factors_text(self) -> str:
        """Whether factors will be found, in words."""
        if self.ratio >= HELPS:
            factors = "factors are likely to be found, and to help"
        elif self.ratio <= HURTS:
            factors = "factors will not be found: the third slot repeats the first"
        else:
            factors = "factors may or may not be found"
        return f"Ratio of a factor to the noise's edge: {self.ratio:.2f}; {factors}"


def advise(config: BgtConfig, users: int, ratings_per_user: int, item_spread: float = ITEM_SPREAD) -> Advice:
    """The forecast for a number of users.

    Args:
        config: of the deployment.
        users: U, the number of users.
        ratings_per_user: typical number of ratings of a user.
        item_spread: standard deviation of item offsets over ratings.

    Raises:
        ConfigurationError: a number out of range.
    """
    whole("users", users, 1, 1 << 22)
    whole("ratings_per_user", ratings_per_user, 1, 1 << 16)
    spread = item_spread**2
    own = (RATING_SPREAD**2 + spread) / (ratings_per_user + config.model.lone_ridge)
    rest = _remaining_variance(config, users, ratings_per_user, spread)
    shared = RATING_SPREAD**2 + rest + (RATING_SPREAD**2 + rest) / (ratings_per_user + config.model.lone_ridge)
    return Advice((RATING_SPREAD**2 + spread + own) ** 0.5, shared**0.5, factor_ratio(config, users))


TYPICAL_RATINGS = 50
"""Number of ratings of a user, by default."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of users from which on sharing helps.

    Attributes:
        ratings: number of ratings of each user.
        biases: number of users from which on sharing is better than the device alone; None if no possible number is
            enough.
        factors: number of users from which on factors are likely to help.
    """

    ratings: int
    biases: int | None
    factors: int

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; ``users_to_gain`` is null if no number of users is enough."""
        return {"ratings": self.ratings, "users_to_gain": self.biases, "users_for_factors": self.factors}

    def as_text(self) -> str:
        """Two lines of text."""
        least = (
            "nothing is gained over the device alone, however many users take part"
            if self.biases is None
            else f"nothing is gained over the device alone below some {count_text(self.biases, 'user', ',')}"
        )
        each = f"with {count_text(self.ratings, 'rating')} each"
        return (
            f"Users {each}: {least}.\nFactors are likely to help from some "
            f"{count_text(self.factors, 'user', ',')} on.\n"
        )


def sizes(config: BgtConfig, ratings: int = TYPICAL_RATINGS) -> Sizes:
    """The required numbers of users if each has a given number of ratings.

    Raises:
        ConfigurationError: a number out of range.
    """
    candidates = (1 << power for power in range(3, 23))
    biases = next((users for users in candidates if advise(config, users, ratings).pays), None)
    return Sizes(ratings, biases, max(1, math.ceil(HELPS / factor_ratio(config, 1))))


def factor_ratio(config: BgtConfig, users: int) -> float:
    """The expected factor's eigenvalue, divided by the noise's edge; see the module."""
    if config.release.noise == "exact":
        return float("inf")
    rho = rho_micro(1, config.release) / 1e6
    return float(PER_USER * users / (config.top / rho) ** 0.5)


def _remaining_variance(config: BgtConfig, users: int, ratings_per_user: int, spread: float) -> float:
    """Mean remaining variance of item biases, over ratings."""
    popularity = 1.0 / (np.arange(config.items) + _RANKS)
    popularity /= popularity.sum()
    sent = min(ratings_per_user, config.release.pairs)
    weight = config.release.count_weight**2 + RATING_SPREAD**2 + spread
    # Longer slots are scaled down to the clip.
    shrink = min(1.0, config.release.clip / (sent * weight) ** 0.5)
    counts = np.minimum(users, users * sent * popularity) * shrink
    deviation = deviation_of(0, "items", config)
    noise = deviation**2 + counts * RATING_SPREAD**2
    return float((popularity * (1 / (1 / spread + counts**2 / noise))).sum())
