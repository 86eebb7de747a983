"""A small shop whose visitors are described by named features: the world of the demo.

The preferences are simple: an interest has its item, two countries like sunglasses, mornings like coffee, readers are
older and listeners younger. In addition every item has its own effect in every country, and every visitor has a taste
of their own; both are drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from hushstream.features.schema import FeatureSchema, declare
from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.mixed_table import Float64, Visits
from hushstream.replay.worlds.world import check_request, require_number

ITEMS = (
    "running shoes",
    "cookbook",
    "headphones",
    "novel",
    "coffee beans",
    "sunglasses",
)
"""The items, by arm."""

INTERESTS = ("sport", "cooking", "music", "reading")
"""The interests; each belongs to the item with the same index."""

COUNTRIES = ("de", "fr", "gb", "it", "es")
DECLARATION: Mapping[str, Mapping[str, Any]] = {
    "country": {"kind": "category", "vocabulary": list(COUNTRIES)},
    "age": {"kind": "number", "range": [16, 80]},
    "hour": {"kind": "time_of_day"},
    "interests": {"kind": "tags", "vocabulary": list(INTERESTS), "most": 3},
}
CLICK_RATE = 0.2
"""The click rate as an operator would declare it."""

_SUNNY = ("it", "es")
_COFFEE, _SUNGLASSES = ITEMS.index("coffee beans"), ITEMS.index("sunglasses")
_NOVEL, _HEADPHONES = ITEMS.index("novel"), ITEMS.index("headphones")
_BASE, _INTEREST, _SUN, _MORNING, _AGE = -2.8, 2.8, 2.4, 1.6, 0.8
_COUNTRY_DEVIATION, _TASTE_DEVIATION = 0.3, 0.3
_MOST_USERS = 2**32


@dataclass(frozen=True)
class ShopWorld:
    """Visitors with a country, an age, interests, and an hour of each visit; see `shop`."""

    users: int
    rounds: int
    arms: int
    seed: int
    public: bool = True
    name: str = "shop"

    @property
    def schema(self) -> FeatureSchema:
        """The schema of the four features."""
        return _schema()

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        """The declaration of the four features."""
        return DECLARATION

    @property
    def dimension(self) -> int:
        """The number of cells of all blocks together."""
        return self.schema.cells

    @property
    def click_rate(self) -> float:
        """The click rate as an operator would declare it."""
        return CLICK_RATE

    def contexts(self, users: IntArray, round_index: int) -> npt.NDArray[np.object_]:
        """Return (n,) values by name, as an application gives them, of ``users`` (n,) at one round."""
        check_request(self, users, round_index)
        seen = self._seen(np.asarray(users), round_index)
        found = np.empty(len(seen["age"]), dtype=np.object_)
        for place in range(len(found)):
            found[place] = {name: column[place] for name, column in seen.items()}
        return found

    def visits(self, users: IntArray, round_index: int) -> Visits:
        """See `hushstream.replay.worlds.mixed_table.FeatureWorld`."""
        seen = self._seen(np.asarray(users), round_index)
        return Visits(self.schema.encode_columns(seen).rows, self._chances(np.asarray(users), seen))

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> Float64:
        """Return the (n,) clicks, 0 or 1."""
        coins = Draws(self.seed, "clicks").uniforms(np.asarray(users), round_index, 1, np.asarray(arms))[:, 0]
        return (coins < self.expected(users, round_index, arms)).astype(np.float64)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> Float64:
        """Return the (n,) chances of a click."""
        check_request(self, users, round_index, arms)
        numbers = np.asarray(users)
        chances = self._chances(numbers, self._seen(numbers, round_index))
        return np.asarray(chances[np.arange(len(numbers)), np.asarray(arms)])

    def eligible(self, users: IntArray, round_index: int) -> None:
        """None: every item may be shown to everyone."""
        return

    def _seen(self, users: IntArray, round_index: int) -> dict[str, list[Any]]:
        """Columns of values by feature."""
        fixed = Draws(self.seed, "user").uniforms(users, 0, 3 + len(INTERESTS))
        visit = Draws(self.seed, "visit").uniforms(users, round_index, 2)
        # A visitor's first interest is certain; each other one is added with probability .2.
        first = (fixed[:, 2] * len(INTERESTS)).astype(np.int64)
        interests = fixed[:, 3:] < 0.2
        interests[np.arange(len(users)), first] = True
        hour = np.where(visit[:, 1] < 0.5, 8.0, 20.0) + 2.0 * ndtri(np.clip(visit[:, 0], 1e-12, 1 - 1e-12))
        return {
            "country": [COUNTRIES[place] for place in _one_of(fixed[:, 0], len(COUNTRIES))],
            "age": [float(age) for age in np.round(16 + 64 * fixed[:, 1])],
            "hour": [float(one) for one in np.round(hour % 24.0, 2) % 24.0],
            "interests": [[INTERESTS[one] for one in np.flatnonzero(row)[:3]] for row in interests],
        }

    def _chances(self, users: IntArray, seen: Mapping[str, list[Any]]) -> Float64:
        """(n, K) probabilities of a click."""
        odds = np.full((len(users), len(ITEMS)), _BASE)
        for row, interests in enumerate(seen["interests"]):
            odds[row, [INTERESTS.index(one) for one in interests]] += _INTEREST
        countries = np.array([COUNTRIES.index(one) for one in seen["country"]])
        odds += (
            Draws(self.seed, "countries")
            .generator()
            .normal(0.0, _COUNTRY_DEVIATION, (len(COUNTRIES), len(ITEMS)))[countries]
        )
        odds[:, _SUNGLASSES] += _SUN * np.isin(countries, [COUNTRIES.index(one) for one in _SUNNY])
        odds[:, _COFFEE] += _MORNING * np.cos(2 * np.pi * (np.array(seen["hour"]) - 8.0) / 24.0)
        older = (np.array(seen["age"]) - 48.0) / 32.0
        odds[:, _NOVEL] += _AGE * older
        odds[:, _HEADPHONES] -= _AGE * older
        taste = Draws(self.seed, "taste").uniforms(users, 0, len(ITEMS))
        odds += _TASTE_DEVIATION * ndtri(np.clip(taste, 1e-12, 1 - 1e-12))
        return np.asarray(1.0 / (1.0 + np.exp(-odds[:, : self.arms])))


def shop(*, users: int = 3600, rounds: int = 5, arms: int = len(ITEMS), seed: int = 0) -> ShopWorld:
    """Build the shop.

    Args:
        users: how many visitors there are.
        rounds: how many visits each visitor makes.
        arms: how many of `ITEMS` there are, from the first on.
        seed: seed of everything.

    Raises:
        WorldError: an option that is not a number within its bounds.
    """
    require_number("shop", "users", users, 1, _MOST_USERS)
    require_number("shop", "rounds", rounds, 1, 2**31)
    require_number("shop", "seed", seed, 0, 2**63)
    require_number("shop", "arms", arms, 2, len(ITEMS))
    return ShopWorld(users, rounds, arms, seed)


@lru_cache(maxsize=1)
def _schema() -> FeatureSchema:
    return declare(DECLARATION)


def _one_of(uniforms: Float64, size: int) -> npt.NDArray[np.int64]:
    """A number below ``size``; number 0 is about twice as frequent as the last one, with shares that fall evenly."""
    weights = np.arange(2 * size, size, -1, dtype=np.float64)
    return np.minimum(np.searchsorted(np.cumsum(weights) / weights.sum(), uniforms, side="right"), size - 1)
