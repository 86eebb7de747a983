"""Worlds of users with declared features: a mixed table of eight features, and embeddings alone.

Everything that is drawn depends only on seed, user and round, so users may come in any order and number.

*Tagged documents.* Documents as users: words are tags and labels are items. An item is clicked if the document has this
label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from hushstream.features.schema import FeatureSchema, Rows, declare
from hushstream.replay.datasets.store import locate
from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.multilabel import read_corpus, split_labels
from hushstream.replay.worlds.world import check_request, require_number

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

COUNTRIES, DEVICES, CHANNELS, TAGS = 20, 5, 8, 12
DECLARATION: Mapping[str, Mapping[str, Any]] = {
    "country": {"kind": "category", "vocabulary": [f"country-{number:02d}" for number in range(COUNTRIES)]},
    "device": {"kind": "category", "vocabulary": [f"device-{number}" for number in range(DEVICES)]},
    "channel": {"kind": "category", "vocabulary": [f"channel-{number}" for number in range(CHANNELS)]},
    "age": {"kind": "number", "range": [16, 96]},
    "spend": {"kind": "number", "range": [1, 10_000], "scale": "log"},
    "tenure": {"kind": "number", "range": [0, 3650]},
    "tags": {"kind": "tags", "vocabulary": [f"tag-{number:02d}" for number in range(TAGS)], "most": TAGS},
    "hour": {"kind": "time_of_day"},
}
"""The features of the mixed table."""

ITEMS: Mapping[str, Mapping[str, Any]] = {
    "kind": {"kind": "category", "vocabulary": [f"kind-{number}" for number in range(8)]},
    "price": {"kind": "number", "range": [1, 1000], "scale": "log"},
    "about": {"kind": "tags", "vocabulary": [f"about-{number}" for number in range(5)], "most": 5},
}
"""The features of its items, where they have some."""

_LEVELS = 6
_PAIRED = ("country", "device", "channel", "age", "spend", "tenure", "hour")
_NUMBERS = ("age", "spend", "tenure")


class Visits(NamedTuple):
    """The visits of n users at one round.

    Attributes:
        rows: (n,) rows of the world's schema.
        chances: (n, K) probability of a click on each item.
    """

    rows: Rows
    chances: Float64


class FeatureWorld(Protocol):
    """A population with visits that declared features describe."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> FeatureSchema: ...
    @property
    def arms(self) -> int: ...
    @property
    def click_rate(self) -> float: ...

    def visits(self, users: Int64, round_index: int) -> Visits:
        """The visits of ``users`` (n,) at one round."""
        ...


@dataclass(frozen=True)
class MixedTable:
    """Users with categories, numbers, tags and an hour; rewards depend on each, on pairs of them, and on users' tastes.

    Attributes:
        seed: seed of everything.
        arms: K items.
        strength: root of the sum of squares of the eight features' strengths.
        pair_strength: standard deviation of a cell of a pair.
        item_spread: scale of the items' own effects.
        heavy: whether these have a heavy tail (Student's t with 2 degrees of freedom) in place of a normal one.
        rate: share of visits in which a random item is clicked.
        alike: share of the variance of items' effects, in each cell and on the whole, that follows their features;
            None: items have no features.
    """

    seed: int
    arms: int = 10
    strength: float = 0.6
    pair_strength: float = 0.175
    item_spread: float = 0.25
    heavy: bool = False
    rate: float = 0.08
    alike: float | None = None
    name: str = field(default="mixed table", init=False)

    @cached_property
    def schema(self) -> FeatureSchema:
        """The schema of the eight features."""
        return declare(DECLARATION)

    @property
    def click_rate(self) -> float:
        """The click rate as an operator would declare it."""
        return self.rate + 0.01

    @cached_property
    def items(self) -> Sequence[Mapping[str, Any]]:
        """The features of the K items, by name."""
        draw = Draws(self.seed, "items").generator()
        kinds, prices = draw.integers(0, 8, self.arms), np.exp(draw.normal(3.0, 1.0, self.arms)).clip(1, 1000)
        tags = draw.random((self.arms, 5)) < 0.4
        return [
            {"kind": f"kind-{kind}", "price": float(price), "about": [f"about-{one}" for one in np.flatnonzero(row)]}
            for kind, price, row in zip(kinds, prices, tags, strict=True)
        ]

    @cached_property
    def _places(self) -> Float64:
        """(K, 14) the items as points of mean squared length 1: half of it their kind, a quarter each the rest."""
        names, tags = ITEMS["kind"]["vocabulary"], ITEMS["about"]["vocabulary"]
        kinds = np.array([[item["kind"] == name for name in names] for item in self.items], dtype=np.float64)
        prices = np.log([[item["price"]] for item in self.items])
        about = np.array([[name in item["about"] for name in tags] for item in self.items], dtype=np.float64)
        rest = [one - one.mean(axis=0) for one in (prices, about)]
        return np.hstack([np.sqrt(0.5) * kinds, *(one / np.sqrt(4 * (one**2).sum(axis=1).mean()) for one in rest)])

    def _drawn(self, own: Float64, shared: Float64) -> Float64:
        """Effects (..., K): of the items themselves, and of the coordinates of their features (..., 14)."""
        if self.alike is None:
            return own
        return np.asarray(np.sqrt(1 - self.alike) * own + np.sqrt(self.alike) * shared @ self._places.T)

    def visits(self, users: Int64, round_index: int) -> Visits:
        """See `FeatureWorld`."""
        seen = self._seen(users, round_index)
        return Visits(self._rows(seen), 1.0 / (1.0 + np.exp(-(self._base + self._odds(users, seen)))))

    def values(self, users: Int64, round_index: int) -> NDArray[np.object_]:
        """(n,) the features of these users' visits by name, as an application gives them."""
        seen = self._seen(users, round_index)
        columns: dict[str, list[Any]] = {
            name: [None if np.isnan(one) else float(one) for one in column] for name, column in self._numbers(seen)
        }
        for name in ("country", "device", "channel"):
            names = [*DECLARATION[name]["vocabulary"], None]
            columns[name] = [names[one] for one in seen[name]]
        columns["tags"] = [[f"tag-{one:02d}" for one in np.flatnonzero(row)] for row in seen["tags"]]
        found = np.empty(len(users), dtype=np.object_)
        for place in range(len(users)):
            given = {name: column[place] for name, column in columns.items()}
            found[place] = {name: value for name, value in given.items() if value is not None}
        return found

    @cached_property
    def _base(self) -> float:
        """The log-odds at which a random item is clicked in ``rate`` of visits."""
        users = np.arange(2_000, dtype=np.int64) + (1 << 31)
        odds = self._odds(users, self._seen(users, 0))
        low, high = -10.0, 5.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if float((1 / (1 + np.exp(-middle - odds))).mean()) < self.rate else (low, middle)
            )
        return low

    def _seen(self, users: Int64, round_index: int) -> dict[str, Any]:
        """The true features of users at a visit: category numbers, quantiles of numbers (NaN: missing), tags, hour."""
        fixed = Draws(self.seed, "user").uniforms(users, 0, 12 + TAGS)
        visit = Draws(self.seed, "visit").uniforms(users, round_index, 5)
        country = _zipf(fixed[:, 0], COUNTRIES, 1.1)
        channel = np.where(fixed[:, 3] < 0.3, country % CHANNELS, _zipf(fixed[:, 2], CHANNELS, 0.8))
        device = _zipf(fixed[:, 4], DEVICES, 1.0)
        other = (device + 1 + (visit[:, 1] * (DEVICES - 1)).astype(np.int64)) % DEVICES
        seen: dict[str, Any] = {
            "country": np.where(fixed[:, 1] < 0.03, COUNTRIES, country),
            "channel": channel,
            "device": np.where(visit[:, 0] < 0.2, other, device),
            "tags": fixed[:, 12:] < 0.55 * np.arange(1, TAGS + 1) ** -0.6,
        }
        common = ndtri(np.clip(fixed[:, 5], 1e-12, 1 - 1e-12))
        for place, name in enumerate(_NUMBERS):
            own = ndtri(np.clip(fixed[:, 6 + place], 1e-12, 1 - 1e-12))
            quantile = ndtr((own + 0.8 * common) / np.sqrt(1.64))
            seen[name] = np.where(fixed[:, 9 + place] < 0.05, np.nan, quantile)
        normal = ndtri(np.clip(visit[:, 3], 1e-12, 1 - 1e-12))
        seen["hour"] = np.where(visit[:, 2] < 0.5, 9.0 + 2.5 * normal, 20.0 + 3.0 * normal) % 24.0
        return seen

    def _numbers(self, seen: Mapping[str, Any]) -> Iterator[tuple[str, Float64]]:
        """The columns of numbers and the hour; NaN where a value is missing."""
        yield "age", np.clip(40.0 + 13.0 * ndtri(seen["age"]), 16.0, 95.0)
        yield "spend", np.exp(3.5 + 1.2 * ndtri(seen["spend"]))
        yield "tenure", 3650.0 * np.sin(np.pi / 2 * seen["tenure"]) ** 2
        yield "hour", seen["hour"]

    def _rows(self, seen: Mapping[str, Any]) -> Rows:
        columns: dict[str, Any] = dict(self._numbers(seen))
        rows = self.schema.encode_columns(columns).rows
        # These columns hold numbers of categories and bits of tags.
        for name in ("country", "device", "channel"):
            rows[name] = seen[name]
        rows["tags"] = np.packbits(seen["tags"], axis=1, bitorder="little")
        return rows

    @cached_property
    def _effects(self) -> Mapping[str, Any]:
        draw = Draws(self.seed, "effects").generator()
        strengths = draw.gamma(1.0, size=len(DECLARATION))
        strengths *= self.strength / np.sqrt((strengths**2).sum())
        by_name = dict(zip(DECLARATION, strengths, strict=True))
        sizes = {"country": COUNTRIES, "device": DEVICES, "channel": CHANNELS, "tags": TAGS}
        width = 0 if self.alike is None else self._places.shape[1]
        found: dict[str, Any] = {
            name: self._drawn(*(draw.normal(0.0, by_name[name], (size, one)) for one in (self.arms, width)))
            for name, size in sizes.items()
        }
        # The last row is for users whose country is not known: no effect.
        found["country"] = np.vstack([found["country"], np.zeros(self.arms)])
        for name in (*_NUMBERS, "hour"):
            count = self.arms + width
            waves = np.ones(count) if name == "hour" else draw.uniform(0.4, 1.2, count)
            found[name] = (by_name[name] * np.sqrt(2.0), waves, draw.uniform(0.0, 1.0, count))
        own = draw.standard_t(2.0, self.arms) if self.heavy else draw.normal(0.0, 1.0, self.arms)
        found["items"] = self.item_spread * self._drawn(own, draw.normal(0.0, 1.0, width))
        every = [(left, right) for place, left in enumerate(_PAIRED) for right in _PAIRED[place + 1 :]]
        chosen = [every[place] for place in draw.choice(len(every), 4, replace=False)]
        cells = (_LEVELS, _LEVELS, self.arms)
        found["pairs"] = [(pair, draw.normal(0.0, self.pair_strength, cells)) for pair in chosen]
        return found

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of features that have effects together."""
        return [pair for pair, _ in self._effects["pairs"]]

    def _odds(self, users: Int64, seen: Mapping[str, Any]) -> Float64:
        effects = self._effects
        odds = np.tile(effects["items"], (len(users), 1))
        for name in ("country", "device", "channel"):
            odds += effects[name][seen[name]]
        tags = seen["tags"]
        odds += tags @ effects["tags"] / np.sqrt(np.maximum(tags.sum(axis=1), 1))[:, None]
        for name in (*_NUMBERS, "hour"):
            size, waves, phases = effects[name]
            quantile = seen[name] / 24.0 if name == "hour" else seen[name]
            wave = size * np.sin(2 * np.pi * (quantile[:, None] * waves + phases))
            odds += np.where(np.isnan(quantile)[:, None], 0.0, self._drawn(*np.split(wave, [self.arms], axis=1)))
        for (left, right), table in effects["pairs"]:
            odds += table[_level(left, seen[left]), _level(right, seen[right])]
        taste = Draws(self.seed, "taste").uniforms(users, 0, self.arms)
        return np.asarray(odds + 0.3 * ndtri(np.clip(taste, 1e-12, 1 - 1e-12)))


@dataclass(frozen=True)
class CatalogueWorld:
    """Users of a mixed table, for a closed loop; the items have names and features."""

    table: MixedTable
    users: int
    rounds: int
    public: bool = True
    name: str = "catalogue"

    @property
    def arms(self) -> int:
        """The number of items."""
        return self.table.arms

    @property
    def schema(self) -> FeatureSchema:
        """The schema of the users' features."""
        return self.table.schema

    @property
    def dimension(self) -> int:
        """The number of cells of all blocks together."""
        return self.schema.cells

    @property
    def click_rate(self) -> float:
        """The click rate as an operator would declare it."""
        return self.table.click_rate

    def contexts(self, users: IntArray, round_index: int) -> NDArray[np.object_]:
        """Return (n,) values by name, as an application gives them, of ``users`` (n,) at one round."""
        check_request(self, users, round_index)
        return self.table.values(np.asarray(users), round_index)

    def visits(self, users: IntArray, round_index: int) -> Visits:
        """See `FeatureWorld`."""
        return self.table.visits(np.asarray(users), round_index)

    def rewards(self, users: IntArray, round_index: int, arms: IntArray) -> Float64:
        """Return the (n,) clicks, 0 or 1; the coin is the same for every item."""
        coins = Draws(self.table.seed, "coins").uniforms(np.asarray(users), round_index, 1)[:, 0]
        return (coins < self.expected(users, round_index, arms)).astype(np.float64)

    def expected(self, users: IntArray, round_index: int, arms: IntArray) -> Float64:
        """Return the (n,) chances of a click."""
        check_request(self, users, round_index, arms)
        chances = _chances(self.table, np.asarray(users, dtype=np.int64).tobytes(), round_index)
        return np.asarray(chances[np.arange(len(chances)), np.asarray(arms)])

    def eligible(self, users: IntArray, round_index: int) -> None:
        """None: every item may be shown to everyone."""
        return


@lru_cache(maxsize=64)
def _chances(table: MixedTable, users: bytes, round_index: int) -> Float64:
    """(n, K) the chances of all items: a closed loop asks for one item after the other, of the same users."""
    return table.visits(np.frombuffer(users, np.int64), round_index).chances


def catalogue(
    *, users: int = 4_000, rounds: int = 10, arms: int = 200, alike: float = 0.5, seed: int = 0
) -> CatalogueWorld:
    """Build a mixed table whose items have features.

    Args:
        users: how many users there are.
        rounds: how many visits each of them makes.
        arms: K items.
        alike: share of the variance of items' effects that follows their features.
        seed: seed of everything.

    Raises:
        WorldError: an option that is not a number within its bounds.
    """
    for option, value, least, most in (
        ("users", users, 1, 1 << 30),
        ("rounds", rounds, 1, 1 << 31),
        ("arms", arms, 2, 10_000),
        ("alike", alike, 0.0, 1.0),
        ("seed", seed, 0, 1 << 63),
    ):
        require_number("catalogue", option, value, least, most)
    return CatalogueWorld(MixedTable(seed, arms, alike=alike), users, rounds)


@dataclass(frozen=True)
class EmbeddedUsers:
    """Users who are points on the unit sphere, and items with log-odds that are linear in the point.

    Attributes:
        seed: seed of everything.
        arms: K items.
        dimension: m.
        strength: standard deviation of an item's log-odds over users.
    """

    seed: int
    arms: int = 10
    dimension: int = 16
    strength: float = 0.8
    name: str = field(default="embedding alone", init=False)

    @cached_property
    def schema(self) -> FeatureSchema:
        """The schema of the embedding."""
        return declare({"taste": {"kind": "embedding", "dimension": self.dimension}})

    @property
    def click_rate(self) -> float:
        """The click rate as an operator would declare it."""
        return 0.09

    def visits(self, users: Int64, round_index: int) -> Visits:
        """See `FeatureWorld`: a user's point is the same at every visit; a random taste of each user is added."""
        drawn = Draws(self.seed, "user").uniforms(users, 0, self.dimension + self.arms)
        normal = ndtri(np.clip(drawn, 1e-12, 1 - 1e-12))
        points = normal[:, : self.dimension]
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        generator = Draws(self.seed, "items").generator()
        items = generator.normal(0.0, self.strength, (self.arms, self.dimension))
        odds = -2.6 + generator.normal(0.0, 0.25, self.arms) + points @ items.T + 0.3 * normal[:, self.dimension :]
        rows = np.zeros(len(users), self.schema.layout)
        rows["taste"] = np.trunc(points * 32767)
        return Visits(rows, 1.0 / (1.0 + np.exp(-odds)))


def _zipf(uniforms: Float64, size: int, power: float) -> Int64:
    weights = np.arange(1, size + 1) ** -power
    return np.minimum(np.searchsorted(np.cumsum(weights) / weights.sum(), uniforms, side="right"), size - 1)


def _level(name: str, seen: NDArray[Any]) -> Int64:
    """The level of a feature in a pair: the first five of a category and the rest, sixths of a number or a day."""
    if name in ("country", "device", "channel"):
        return np.asarray(np.minimum(seen, _LEVELS - 1), dtype=np.int64)
    share = seen / 24.0 if name == "hour" else seen
    # A missing value acts like the last sixth.
    places = np.where(np.isnan(share), _LEVELS - 1, share * _LEVELS)
    return np.asarray(np.minimum(places, _LEVELS - 1), dtype=np.int64)


MOST_WORDS = 64
_SAID_TWICE = 0.2
"""Redundancy of the words of one report: many words occur together, so a word's sums contain effects of others."""
_LEARNED_FROM = 0.7
_FIRST_NEW_USER = 1 << 30


@dataclass(frozen=True)
class TaggedDocuments:
    """TMC2007 with its 500 words as tags. A user shows another document at each visit.

    Attributes:
        seed: seed of the split and of who shows which document.
        arms: K, the most frequent labels.
        data_dir: see `locate`.
    """

    seed: int
    arms: int = 22
    data_dir: str | None = None
    name: str = "TMC2007, words as tags"

    @cached_property
    def schema(self) -> FeatureSchema:
        """The schema of the words."""
        vocabulary = [f"word-{number:03d}" for number in range(self._documents[0].shape[1])]
        words = {"kind": "tags", "vocabulary": vocabulary, "most": MOST_WORDS, "redundancy": _SAID_TWICE}
        return declare({"words": words})

    @property
    def click_rate(self) -> float:
        """The click rate as an operator would declare it."""
        return 0.2

    def visits(self, users: Int64, round_index: int) -> Visits:
        """See `FeatureWorld`; users from 2^30 on show documents that no contributor shows."""
        words, labels = self._documents
        order = Draws(self.seed, "split").generator().permutation(len(words))
        parts = np.split(order, [int(_LEARNED_FROM * len(words))])
        drawn = Draws(self.seed, "document").uniforms(users, round_index, 1)[:, 0]
        new = users >= _FIRST_NEW_USER
        sizes = np.where(new, len(parts[1]), len(parts[0]))
        place = (drawn * sizes).astype(np.int64)
        chosen = np.where(new, parts[1][np.minimum(place, len(parts[1]) - 1)], parts[0][place])
        return Visits(self._rows[chosen], labels[chosen].astype(np.float64))

    @cached_property
    def _documents(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        words, labels, _ = split_labels(read_corpus(locate("tmc2007", self.data_dir)))
        frequent = np.argsort(-labels.sum(axis=0), kind="stable")[: self.arms]
        return words, labels[:, np.sort(frequent)]

    @cached_property
    def _rows(self) -> Rows:
        words = self._documents[0]
        # A row holds a limited number of words; as for any tags, the first ones are kept.
        kept = words & (np.cumsum(words, axis=1) <= MOST_WORDS)
        rows = np.zeros(len(words), self.schema.layout)
        rows["words"] = np.packbits(kept, axis=1, bitorder="little")
        return rows
