"""Reads a user's own log of several vendors: CSV and Parquet files with a mapping file.

    context: [age, device]            columns of the context, in order; each becomes a number from 0 to 1
    bounds: {age: [18, 100]}          numbers, by column; a value is mapped to 0..1 between its bounds, cut at them
    categories: {device: [phone, desk]}   names, by column; mapped to 0..1 in this order, in equal steps
    features: {age: {kind: number, range: [18, 100]}}   in place of these three: declared features by column
    vendor: shop                      column of the vendor that the user came to
    items: {north: 120, south: [lamp, sofa]}   items of each vendor: how many, numbered from 0, or their names
    arm: item                         column of the item that was shown
    owner: seller                     column of the vendor whose item it was; left out: each vendor showed its own
    reward: clicked                   column of what it earned, from 0 to 1
    propensity: p                     column of the probability that it was shown, in (0, 1]; may be left out
    user: who                         column of the user; left out: each row is a user of its own
    delimiter: ","                    of a CSV file
    data: internal                    or public: whether exact figures may be shown to anybody

Everything in the mapping is public, and no part of it is taken from the rows. An error names the row and the column,
never the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.features.schema import FeatureSchema
from hushstream.replay.logged.declared import visits_of
from hushstream.replay.logged.frames import Table, name_of
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import (
    DATA,
    DATA_MEANING,
    INTERNAL,
    pair,
    read_keys,
    require_keys,
    text,
    with_features,
)
from hushstream.replay.logged.table import RawChunk, read_chunks
from hushstream.replay.logged.values import Place, category_numbers, integers, numbers, texts
from hushstream.replay.studies.pdap.worlds.logged_vendors import ClickFit, LoggedVisits, OwnVendors
from hushstream.replay.studies.pdap.worlds.vendors import Float32, Float64, Int64
from hushstream.systems.pdap.cells import LARGEST_DIMENSION
from hushstream.systems.pdap.configuration import LARGEST_ARMS

_REQUIRED = ("vendor", "items", "arm", "reward", "data")
_COLUMNS = ("vendor", "arm", "owner", "reward", "propensity", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorMapping:
    """The keys of a mapping file; see the module."""

    vendor: str
    items: Mapping[str, int | tuple[str, ...]]
    arm: str
    reward: str
    data: str
    owner: str | None = None
    propensity: str | None = None
    user: str | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    delimiter: str = ","
    context: tuple[str, ...] = ()
    features: FeatureSchema | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the log must have, without repeats."""
        single = (getattr(self, name) for name in _COLUMNS)
        declared = () if self.features is None else self.features.layout.names or ()
        return tuple(dict.fromkeys([*self.context, *declared, *(name for name in single if name is not None)]))

    @property
    def sizes(self) -> Int64:
        """The number of items of each vendor."""
        return np.array([held if isinstance(held, int) else len(held) for held in self.items.values()], dtype=np.int64)


def own_vendors(*, file: Table, mapping: str | Path | Mapping[str, Any]) -> OwnVendors:
    """Your own log of several vendors: a CSV or Parquet file, read through a mapping file.

    Args:
        file: the log, or a data frame of it.
        mapping: the mapping, as a file or as its keys and values; see `hushstream.replay.studies.pdap.worlds.own`.

    Raises:
        LogError: the file, the mapping or a value is invalid.
    """
    read = parse_vendor_mapping(mapping, "mapping") if isinstance(mapping, Mapping) else load_vendor_mapping(mapping)
    source = name_of(file)
    owners = np.repeat(np.arange(len(read.items)), read.sizes)
    log = _joined([_part(source, read, chunk) for chunk in read_chunks(file, read)])
    internal = read.data == INTERNAL
    return OwnVendors(Path(source).name, tuple(read.items), owners, log, ClickFit(log, owners), internal)


def load_vendor_mapping(path: str | Path) -> VendorMapping:
    """Read a mapping file (YAML).

    Raises:
        LogError: the file cannot be read, has an unknown key, lacks a required one, or a value has the wrong form.
    """
    return parse_vendor_mapping(read_keys(path), str(path))


def parse_vendor_mapping(content: Mapping[Any, Any], source: str) -> VendorMapping:
    """Check the keys and values of a mapping.

    Raises:
        LogError: as `load_vendor_mapping`.
    """
    declared = "features" in content
    require_keys(content, source, VendorMapping, (*(() if declared else ("context",)), *_REQUIRED))
    values = with_features(content, source)
    mapping = VendorMapping(**{key: _READERS.get(key, text)(source, key, value) for key, value in values.items()})
    named = [*mapping.bounds, *mapping.categories]
    if sorted(named) != sorted(mapping.context):
        raise LogError(f"{source}: expected bounds or categories for each column of the context, and for no other")
    if mapping.sizes.sum() > LARGEST_ARMS:
        raise LogError(f"{source}: items: expected at most {LARGEST_ARMS} in all, got {mapping.sizes.sum()}")
    return mapping


def _data(source: str, key: str, value: object) -> str:
    if value not in DATA:
        raise LogError(f"{source}: {key}: expected {DATA_MEANING}")
    return str(value)


def _names(source: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or len(set(map(str, value))) != len(value):
        raise LogError(f"{source}: {key}: expected a list of different names")
    return tuple(map(str, value))


def _features(source: str, key: str, value: FeatureSchema) -> FeatureSchema:
    if not all(one.level_names for one in value.features.values()) or len(value.features) > LARGEST_DIMENSION:
        raise LogError(
            f"{source}: {key}: expected at most {LARGEST_DIMENSION}, each a category, number, boolean, time_of_day or "
            "day_of_week, as each context is in one cell"
        )
    return value


def _context(source: str, key: str, value: object) -> tuple[str, ...]:
    names = _names(source, key, value)
    if len(names) > LARGEST_DIMENSION:
        raise LogError(f"{source}: {key}: expected at most {LARGEST_DIMENSION} columns, got {len(names)}")
    return names


def _table(source: str, key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise LogError(f"{source}: {key}: expected names with values, got {type(value).__name__}")
    return {str(name): one for name, one in value.items()}


def _bounds(source: str, key: str, value: object) -> dict[str, tuple[float, float]]:
    return {name: pair(source, f"{key}.{name}", ends) for name, ends in _table(source, key, value).items()}


def _categories(source: str, key: str, value: object) -> dict[str, tuple[str, ...]]:
    return {name: _names(source, f"{key}.{name}", names) for name, names in _table(source, key, value).items()}


def _items(source: str, key: str, value: object) -> dict[str, int | tuple[str, ...]]:
    return {vendor: _held(source, f"{key}.{vendor}", held) for vendor, held in _table(source, key, value).items()}


def _held(source: str, key: str, value: object) -> int | tuple[str, ...]:
    if isinstance(value, list):
        return _names(source, key, value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_ARMS:
        raise LogError(f"{source}: {key}: expected a number of items, from 1 to {LARGEST_ARMS}, or their names")
    return value


_READERS: Mapping[str, Any] = {
    "context": _context,
    "features": _features,
    "items": _items,
    "bounds": _bounds,
    "categories": _categories,
    "data": _data,
}


_Columns = tuple[Float32, Int64, Any, Int64, Float64, Float64 | None]
"""Contexts, homes, users as texts or None, arms, rewards, propensities."""


def _part(source: str, mapping: VendorMapping, chunk: RawChunk) -> _Columns:
    place = (source, chunk.row_names)

    def column(name: str) -> tuple[Sequence[Any], str, Place]:
        return chunk.columns[name], name, place

    vendors = tuple(mapping.items)
    homes = category_numbers(*column(mapping.vendor), vendors)
    sellers = homes if mapping.owner is None else category_numbers(*column(mapping.owner), vendors)
    least = float(np.nextafter(0.0, 1.0))
    return (
        _places(mapping, chunk, place).astype(np.float32),
        homes,
        None if mapping.user is None else texts(*column(mapping.user)),
        _arms(mapping, chunk, source, sellers),
        numbers(*column(mapping.reward), least=0.0, most=1.0),
        None
        if mapping.propensity is None
        else numbers(*column(mapping.propensity), least=least, most=1.0, form="a number in (0, 1]"),
    )


def _places(mapping: VendorMapping, chunk: RawChunk, place: Place) -> Float64:
    """The place of each context, (n, d), with entries from 0 to 1."""
    schema = mapping.features
    if schema is None:
        return np.stack([_coordinate(mapping, chunk.columns[name], name, place) for name in mapping.context], axis=1)
    visits, _ = visits_of(schema, chunk.columns, place)
    return schema.positions(schema.read(b"".join(schema.encode(visit).row for visit in visits)))


def _coordinate(mapping: VendorMapping, values: Sequence[Any], name: str, place: Place) -> Float64:
    if name in mapping.categories:
        known = mapping.categories[name]
        # Each name is in the middle of its step, so two names share a cell only if cells are wider than a step.
        return np.asarray((category_numbers(values, name, place, known) + 0.5) / len(known))
    low, high = mapping.bounds[name]
    found = numbers(values, name, place, least=-np.inf, most=np.inf)
    return np.asarray((np.clip(found, low, high) - low) / (high - low))


def _arms(mapping: VendorMapping, chunk: RawChunk, source: str, sellers: Int64) -> Int64:
    """The item of each row, numbered over all vendors; the row's number is among the items of its seller."""
    arms, ends = np.zeros(len(sellers), dtype=np.int64), np.cumsum(mapping.sizes)
    values = chunk.columns[mapping.arm]
    for vendor, (held, first) in enumerate(zip(mapping.items.values(), ends - mapping.sizes, strict=True)):
        rows = np.flatnonzero(sellers == vendor).tolist()
        place = (source, [chunk.row_names[row] for row in rows])
        arms[rows] = first + _numbered([values[row] for row in rows], mapping.arm, place, held)
    return arms


def _numbered(values: Sequence[Any], name: str, place: Place, held: int | tuple[str, ...]) -> Int64:
    if not isinstance(held, int):
        return category_numbers(values, name, place, held)
    found = integers(values, name, place)
    wrong = np.flatnonzero((found < 0) | (found >= held))
    if wrong.size:
        where = f"{place[0]}, {place[1][int(wrong[0])]}, column {name}"
        raise LogError(f"{where}: expected an item of its vendor, 0 to {held - 1}, got another number")
    return found


def _joined(parts: Sequence[_Columns]) -> LoggedVisits:
    contexts, homes, users, arms, rewards, propensities = zip(*parts, strict=True)
    rows = sum(map(len, homes))
    numbered = np.arange(rows) if users[0] is None else np.unique(np.concatenate(users), return_inverse=True)[1]
    weighed = None if propensities[0] is None else np.concatenate(propensities)
    placed, homed, shown, earned = (np.concatenate(column) for column in (contexts, homes, arms, rewards))
    return LoggedVisits(placed, homed, numbered, shown, earned, weighed)
