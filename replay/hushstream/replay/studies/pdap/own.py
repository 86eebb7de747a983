"""Reads a user's own log of several vendors: CSV and Parquet files with a mapping file.

    features: {age: {kind: number, range: [18, 100]}}   declared features of a visit, by column
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

The world ``own-vendors`` plays such a log.

Contexts, homes and users are those of the log, row after row; a longer run starts the log again. A log has rewards of
the shown items only. So clicks come from a fitted model: an item's mean reward in a cell of the space, shrunk towards
that of the cell above as if it had `_RIDGE` more rewards of that size. The item's overall mean is shrunk towards that
of all items of its vendor. Where the log has propensities, rewards are weighted by their inverse (scaled to a mean of 1
for each item). So an item that was shown only where it suits does not seem to suit everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hushstream.features.schema import FeatureSchema
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import (
    DATA,
    DATA_MEANING,
    INTERNAL,
    count_or_names,
    each,
    read_mapping,
    source_of,
)
from hushstream.replay.logged.table import RawChunk, Table, name_of, read_chunks
from hushstream.replay.logged.values import Place, category_numbers, integers, numbers, texts, visits_of
from hushstream.replay.studies.pdap.worlds import Arrivals, Float32, Float64, Int64
from hushstream.systems.pdap.cells import LARGEST_DIMENSION, Grid
from hushstream.systems.pdap.configuration import LARGEST_ARMS

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


_COLUMNS = ("vendor", "arm", "owner", "reward", "propensity", "user")


def _data(source: str, key: str, value: object) -> str:
    if value not in DATA:
        raise LogError(f"{source}: {key}: expected {DATA_MEANING}")
    return str(value)


def _features(source: str, key: str, value: FeatureSchema) -> FeatureSchema:
    if not all(one.level_names for one in value.features.values()) or len(value.features) > LARGEST_DIMENSION:
        raise LogError(
            f"{source}: {key}: expected at most {LARGEST_DIMENSION}, each a category, number, boolean, time_of_day or "
            "day_of_week, as each context is in one cell"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorMapping:
    """The keys of a mapping file; see the module."""

    features: Annotated[FeatureSchema, _features]
    vendor: str
    items: Annotated[Mapping[str, int | tuple[str, ...]], each(count_or_names(1, LARGEST_ARMS), least=1)]
    arm: str
    reward: str
    data: Annotated[str, _data]
    owner: str | None = None
    propensity: str | None = None
    user: str | None = None
    delimiter: str = ","

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that the log must have, without repeats."""
        single = (getattr(self, name) for name in _COLUMNS)
        return tuple(dict.fromkeys([*(self.features.layout.names or ()), *(one for one in single if one is not None)]))

    @property
    def sizes(self) -> Int64:
        """The number of items of each vendor."""
        return np.array([held if isinstance(held, int) else len(held) for held in self.items.values()], dtype=np.int64)


def own_vendors(*, file: Table, mapping: str | Path | Mapping[str, Any]) -> OwnVendors:
    """Your own log of several vendors: a CSV, Parquet or JSON file, read through a mapping file.

    Args:
        file: the log, or a data frame of it.
        mapping: the mapping, as a file or as its keys and values.

    Raises:
        LogError: the file, the mapping or a value is invalid.
    """
    read = vendor_mapping(mapping)
    source = name_of(file)
    owners = np.repeat(np.arange(len(read.items)), read.sizes)
    log = _joined([_part(source, read, chunk) for chunk in read_chunks(file, read)])
    internal = read.data == INTERNAL
    return OwnVendors(Path(source).name, tuple(read.items), owners, log, ClickFit(log, owners), internal)


def vendor_mapping(given: Mapping[str, Any] | str | Path) -> VendorMapping:
    """Read a mapping from its file, or check its keys and values.

    Raises:
        LogError: as `hushstream.replay.logged.mapping.read_mapping`; or combinations of values that are not valid.
    """
    mapping, source = read_mapping(given, VendorMapping), source_of(given)
    if mapping.sizes.sum() > LARGEST_ARMS:
        raise LogError(f"{source}: items: expected at most {LARGEST_ARMS} in all, got {mapping.sizes.sum()}")
    return mapping


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
        _places(mapping.features, chunk, place).astype(np.float32),
        homes,
        None if mapping.user is None else texts(*column(mapping.user)),
        _arms(mapping, chunk, source, sellers),
        numbers(*column(mapping.reward), least=0.0, most=1.0),
        None
        if mapping.propensity is None
        else numbers(*column(mapping.propensity), least=least, most=1.0, form="a number in (0, 1]"),
    )


def _places(schema: FeatureSchema, chunk: RawChunk, place: Place) -> Float64:
    """The place of each visit, (n, d), with entries from 0 to 1."""
    visits, _ = visits_of(schema, chunk.columns, place)
    return schema.positions(schema.read(b"".join(schema.encode(visit).row for visit in visits)))


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
