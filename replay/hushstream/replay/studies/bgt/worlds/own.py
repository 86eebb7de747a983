"""Reads a user's own ratings: CSV and Parquet files with a mapping file.

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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.replay.logged.frames import Table, name_of
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import flag, read_keys, require_keys, text
from hushstream.replay.logged.table import read_chunks
from hushstream.replay.logged.values import category_numbers, integers, numbers, texts
from hushstream.replay.studies.bgt.worlds.ratings import Float64, Int64, RatingWorld
from hushstream.systems.bgt.configuration import LARGEST_ITEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingMapping:
    """The keys of a mapping file; see the module."""

    user: str
    item: str
    rating: str
    lowest: float
    highest: float
    items: int | tuple[str, ...] | None = None
    first_item: int = 1
    delimiter: str = ","
    public: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the table must have."""
        return self.user, self.item, self.rating


def load_ratings(table: Table, mapping: RatingMapping | Mapping[str, Any] | str | Path) -> RatingWorld:
    """Read ratings, in the order of the rows.

    Args:
        table: a data frame, or the path of a file: ``.parquet`` or ``.pq``; anything else is CSV.
        mapping: a mapping, its keys and values, or the path of a mapping file.

    Raises:
        LogError: the file, the mapping or a value is invalid.
    """
    if isinstance(mapping, Mapping):
        mapping = parse_rating_mapping(mapping, "mapping")
    elif not isinstance(mapping, RatingMapping):
        mapping = load_rating_mapping(mapping)
    name = name_of(table)
    users, items, values = [], [], []
    for chunk in read_chunks(table, mapping):
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


def own_ratings(*, file: Table, mapping: str | Mapping[str, Any]) -> RatingWorld:
    """Your own ratings: a CSV or Parquet file, read through a mapping file.

    Args:
        file: the ratings, or a data frame of them.
        mapping: the mapping, as a file or as its keys and values; see the module.

    Raises:
        LogError: the file, the mapping or a value is invalid.
    """
    return load_ratings(file, mapping)


def load_rating_mapping(path: str | Path) -> RatingMapping:
    """Read a mapping file (YAML).

    Raises:
        LogError: the file cannot be read, has an unknown key, lacks a required one, or a value has the wrong form.
    """
    return parse_rating_mapping(read_keys(path), str(path))


def parse_rating_mapping(content: Mapping[Any, Any], source: str) -> RatingMapping:
    """Check the keys and values of a mapping.

    Raises:
        LogError: as `load_rating_mapping`.
    """
    require_keys(content, source, RatingMapping, ("user", "item", "rating", "lowest", "highest"))
    mapping = RatingMapping(**{name: _READERS[name](source, name, value) for name, value in content.items()})
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


def _number(source: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LogError(f"{source}: {name}: expected a finite number, got {type(value).__name__}")
    return float(value)


def _whole(source: str, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**53:
        raise LogError(f"{source}: {name}: expected a whole number from 0, got {type(value).__name__}")
    return value


def _items(source: str, name: str, value: object) -> int | tuple[str, ...]:
    if isinstance(value, list):
        names = tuple(str(one) for one in value)
        if len(set(names)) != len(names) or not 2 <= len(names) <= LARGEST_ITEMS:
            raise LogError(f"{source}: {name}: expected 2 to {LARGEST_ITEMS} different names")
        return names
    count = _whole(source, name, value)
    if not 2 <= count <= LARGEST_ITEMS:
        raise LogError(f"{source}: {name}: expected 2 to {LARGEST_ITEMS} items, got {count}")
    return count


_READERS: Mapping[str, Any] = {
    "user": text,
    "item": text,
    "rating": text,
    "lowest": _number,
    "highest": _number,
    "items": _items,
    "first_item": _whole,
    "delimiter": text,
    "public": flag,
}
