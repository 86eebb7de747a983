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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import Reader, count_or_names, flag, number, read_mapping, source_of, whole
from hushstream.replay.logged.table import Table, name_of, read_chunks
from hushstream.replay.logged.values import category_numbers, integers, numbers, texts
from hushstream.replay.studies.bgt.worlds import Float64, Int64, RatingWorld
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
    mapping, source = read_mapping(given, RatingMapping, _NEEDED, _READERS), source_of(given)
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


_NEEDED = ("user", "item", "rating", "lowest", "highest")
_READERS: Mapping[str, Reader] = {
    "lowest": number,
    "highest": number,
    "items": count_or_names(2, LARGEST_ITEMS),
    "first_item": whole(0, 2**53),
    "public": flag,
}
