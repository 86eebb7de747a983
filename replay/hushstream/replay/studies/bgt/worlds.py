"""Worlds of ratings: FilmTrust, MovieLens-100K, and a simulated one with factors.

Ratings are scaled to 0 to 1. FilmTrust: (r - .5) / 3.5, for the users who are in the network of trust, as in the paper
(18,662 ratings). MovieLens: r / 5. The public features of a film are its genres divided by the root of their number,
and (1995 - year) / 20 cut to -.2 and 2.5.

Reads a user's own ratings: CSV and Parquet files with a mapping file.

    user: user_id            column of the user: any text
    item: movie_id           column of the item
    rating: stars            column of the rating
    lowest: 0                becomes 0
    highest: 5               becomes 1
    items: [a, b, c]         names of the items; or how many, numbered from ``first_item`` (1)
    delimiter: ","           of a CSV file
    public: true             whether exact figures may be shown

The list of items is public, so the mapping states it, and it is never taken from the rows; for data marked public it
may be left out. If a pair of user and item occurs twice, the last rating counts. An error names the row and the column,
never the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from hushstream.replay.datasets.store import locate
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import count_or_names, finite, read_mapping, source_of, within
from hushstream.replay.logged.table import Table, name_of, read_chunks
from hushstream.replay.logged.values import category_numbers, integers, numbers, texts
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.movielens import read_ratings
from hushstream.replay.worlds.world import WorldError, require_number
from hushstream.systems.bgt.configuration import LARGEST_ITEMS, BgtConfig, ScaleConfig
from hushstream.systems.bgt.edge.agent import Ratings, ratings_of

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_TEST_PART = 5
"""One of this many ratings is kept for the evaluation."""

_LATEST, _SPAN = 1995, 20.0
_LEAST_AGE, _MOST_AGE = -0.2, 2.5


@dataclass(frozen=True, slots=True, eq=False)
class RatingWorld:
    """All ratings of a population.

    Attributes:
        name: name of dataset and variant.
        users: (n,) from 0, in the order in which ratings came.
        items: (n,) from 0.
        values: (n,) from 0 to 1.
        features: (I, f) public features of items; f may be 0.
        user_count: U.
        public: whether exact figures may be shown.
    """

    name: str
    users: Int64 = field(repr=False)
    items: Int64 = field(repr=False)
    values: Float64 = field(repr=False)
    features: Float64 = field(repr=False)
    user_count: int
    public: bool = True

    @property
    def item_count(self) -> int:
        """I, the number of items."""
        return len(self.features)

    def without_features(self) -> RatingWorld:
        """The same ratings without features of items."""
        none = np.zeros((self.item_count, 0))
        return RatingWorld(self.name, self.users, self.items, self.values, none, self.user_count, self.public)

    def split(self, seed: int) -> Split:
        """Split at random: four fifths of the ratings to learn from, the others for the evaluation."""
        order = Draws(seed, "bgt-split").generator().permutation(len(self.users))
        later, earlier = np.split(order, [len(order) // _TEST_PART])
        # Both keep the order of the ratings, as the last rating counts if a pair was rated twice.
        return Split(self, np.sort(earlier), np.sort(later))


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Ratings to learn from, and ratings for the evaluation.

    Attributes:
        world: the world that was split.
        earlier: which ratings users have on their devices.
        later: which ratings are predicted.
    """

    world: RatingWorld
    earlier: Int64 = field(repr=False)
    later: Int64 = field(repr=False)

    def known(self, config: BgtConfig) -> Ratings:
        """The ratings on the devices."""
        world, rows = self.world, self.earlier
        values = config.scale.lowest + world.values[rows] * (config.scale.highest - config.scale.lowest)
        return ratings_of(world.users[rows], world.items[rows], values, config, world.user_count)


UNIT_SCALE = ScaleConfig(0.0, 1.0)
"""The scale of the ratings of worlds."""


def filmtrust(*, data_dir: str | None = None) -> RatingWorld:
    """FilmTrust; see the module.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: a line is malformed.
    """
    return _filmtrust(locate("filmtrust", data_dir))


@lru_cache(maxsize=2)
def _filmtrust(folder: Path) -> RatingWorld:
    trusting = {int(entry) for line in _lines(folder / "trust.txt") for entry in line.split()[:2]}
    rows = [line.split() for part in range(4) for line in _lines(folder / f"ratings_{part}.txt")]
    if any(len(row) != 3 for row in rows):
        raise WorldError(f"{folder}: expected 'user item rating' in every line of ratings")
    last = {(int(row[0]), int(row[1])): (float(row[2]) - 0.5) / 3.5 for row in rows if int(row[0]) in trusting}
    pairs = np.array(list(last), dtype=np.int64)
    users, items = (np.unique(column, return_inverse=True) for column in pairs.T)
    values = np.array(list(last.values()))
    none = np.zeros((len(items[0]), 0))
    return RatingWorld("filmtrust", users[1], items[1], values, none, len(users[0]))


def ml_100k(*, data_dir: str | None = None) -> RatingWorld:
    """MovieLens-100K with genres and years; see the module.

    Raises:
        DatasetError: the files are absent or differ from the published ones.
        WorldError: a line is malformed.
    """
    return _ml_100k(locate("ml-100k", data_dir))


@lru_cache(maxsize=2)
def _ml_100k(folder: Path) -> RatingWorld:
    read = read_ratings(folder)
    genres = read.genres / np.sqrt(np.maximum(read.genres.sum(axis=1), 1))[:, None]
    ages = (_LATEST - _years(folder / "u.item")) / _SPAN
    features = np.column_stack((genres, np.clip(ages, _LEAST_AGE, _MOST_AGE)))
    return RatingWorld("ml-100k", read.users, read.items, read.stars / 5, features, int(read.users.max()) + 1)


def _years(path: Path) -> Int64:
    """The year of each film, from the end of its date; `_LATEST` where no date is given."""
    dates = [line.split("|")[2] for line in _lines(path)]
    return np.array([int(date[-4:]) if date[-4:].isdecimal() else _LATEST for date in dates])


def tastes(
    *,
    users: int = 2000,
    items: int = 400,
    ratings: int = 60,
    factors: int = 2,
    strength: float = 0.09,
    item_spread: float = 0.1,
    user_spread: float = 0.1,
    head: float = 10.0,
    seed: int = 0,
) -> RatingWorld:
    """A simulated world: item and user offsets, ``factors`` tastes, popularity 1 / (rank + head), normal noise.

    Args:
        users: U.
        items: I.
        ratings: how many each user gives, at most a fifth of the items.
        factors: how many tastes there are.
        strength: standard deviation of a rating due to tastes.
        item_spread, user_spread: standard deviations of the offsets.
        head: the smaller, the fewer items have most of the ratings.
        seed: seed of everything.

    Raises:
        WorldError: an option is out of range.
    """
    for option, value, least, most in (("users", users, 2, 10**6), ("items", items, 10, 10**5)):
        require_number("tastes", option, value, least, most)
    require_number("tastes", "ratings", ratings, 1, items // _TEST_PART)
    require_number("tastes", "factors", factors, 0, 16)
    require_number("tastes", "head", head, 1.0, 1e5)
    draw = Draws(seed, "bgt-tastes").generator()
    popularity = -np.log(np.arange(items) + head)
    # The largest values of log popularity plus Gumbel noise give a draw without replacement.
    keys = popularity + draw.gumbel(size=(users, items))
    chosen = np.argpartition(-keys, ratings, axis=1)[:, :ratings]
    likes = draw.standard_normal((users, factors)) @ draw.standard_normal((factors, items)) / max(1, factors) ** 0.5
    offsets = item_spread * draw.standard_normal(items) + user_spread * draw.standard_normal((users, 1))
    means = 0.7 + offsets + strength * likes
    rows = np.repeat(np.arange(users), ratings)
    columns = chosen.ravel().astype(np.int64)
    order = draw.permutation(len(rows))
    rows, columns = rows[order], columns[order]
    values = np.clip(means[rows, columns] + 0.17 * draw.standard_normal(len(rows)), 0, 1)
    return RatingWorld(f"tastes/{factors}", rows, columns, values, np.zeros((items, 0)), users)


WORLDS: Mapping[str, Callable[..., RatingWorld]] = {"filmtrust": filmtrust, "ml-100k": ml_100k, "tastes": tastes}


def make_world(name: str, data_dir: str | None = None) -> RatingWorld:
    """A world by its name.

    Raises:
        WorldError: no world has this name.
    """
    if name not in WORLDS:
        raise WorldError(f"world: expected one of {', '.join(WORLDS)}, got {name!r}")
    return WORLDS[name]() if name == "tastes" else WORLDS[name](data_dir=data_dir)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="latin-1").splitlines() if line.strip()]
    except OSError as error:
        raise WorldError(f"{path}: expected a readable file, got: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingMapping:
    """The keys of a mapping file; see the module."""

    user: str
    item: str
    rating: str
    lowest: Annotated[float, finite]
    highest: Annotated[float, finite]
    items: Annotated[int | tuple[str, ...] | None, count_or_names(2, LARGEST_ITEMS)] = None
    first_item: Annotated[int, within(0, 2**53)] = 1
    delimiter: str = ","
    public: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the table must have."""
        return self.user, self.item, self.rating


def load_ratings(file: Table, mapping: RatingMapping | Mapping[str, Any] | str | Path) -> RatingWorld:
    """Your own ratings: a CSV, Parquet or JSON file, read through a mapping file, in the order of the rows.

    Args:
        file: a data frame, or the path of a file: ``.parquet`` or ``.pq``; anything else is CSV.
        mapping: a mapping, its keys and values, or the path of a mapping file; see the module.

    Raises:
        LogError: the file, the mapping or a value is invalid.
    """
    if not isinstance(mapping, RatingMapping):
        mapping = rating_mapping(mapping)
    name = name_of(file)
    users, items, values = [], [], []
    for chunk in read_chunks(file, mapping):
        place = (name, chunk.row_names)
        users.append(texts(chunk.columns[mapping.user], mapping.user, place))
        column = chunk.columns[mapping.item]
        if isinstance(mapping.items, tuple):
            items.append(category_numbers(column, mapping.item, place, mapping.items).astype(str))
        elif mapping.items is None:
            items.append(texts(column, mapping.item, place))
        else:
            items.append(_numbered(integers(column, mapping.item, place), mapping, place))
        rating = chunk.columns[mapping.rating]
        values.append(numbers(rating, mapping.rating, place, least=mapping.lowest, most=mapping.highest))
    return _world(Path(name), mapping, np.concatenate(users), np.concatenate(items), np.concatenate(values))


def rating_mapping(given: Mapping[str, Any] | str | Path) -> RatingMapping:
    """Read a mapping from its file, or check its keys and values.

    Raises:
        LogError: as `hushstream.replay.logged.mapping.read_mapping`; or combinations of values that are not valid.
    """
    mapping, source = read_mapping(given, RatingMapping), source_of(given)
    if mapping.lowest >= mapping.highest:
        raise LogError(
            f"{source}: highest: expected a number above lowest ({mapping.lowest:g}), got {mapping.highest:g}"
        )
    if mapping.items is None and not mapping.public:
        raise LogError(f"{source}: items: expected their number or names, as rows are not public")
    return mapping


def _numbered(items: Int64, mapping: RatingMapping, place: tuple[str, Any]) -> Any:
    assert isinstance(mapping.items, int)
    wrong = np.flatnonzero((items < mapping.first_item) | (items >= mapping.first_item + mapping.items))
    if wrong.size:
        last = mapping.first_item + mapping.items - 1
        where = f"{place[0]}, {place[1][int(wrong[0])]}"
        raise LogError(f"{where}: {mapping.item}: expected an item from {mapping.first_item} to {last}")
    return (items - mapping.first_item).astype(str)


def _world(path: Path, mapping: RatingMapping, users: Any, items: Any, values: Float64) -> RatingWorld:
    _, user_numbers = np.unique(users, return_inverse=True)
    if mapping.items is None:
        names, item_numbers = np.unique(items, return_inverse=True)
        count = len(names)
    else:
        item_numbers = items.astype(np.int64)
        count = mapping.items if isinstance(mapping.items, int) else len(mapping.items)
    unit = (values - mapping.lowest) / (mapping.highest - mapping.lowest)
    none = np.zeros((count, 0))
    return RatingWorld(path.name, user_numbers, item_numbers, unit, none, int(user_numbers.max()) + 1, mapping.public)
