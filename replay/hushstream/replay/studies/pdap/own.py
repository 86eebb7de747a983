"""Reads a user's own log of several vendors: CSV and Parquet files with a mapping file.

    features: {age: {kind: number, range: [18, 100]}}   declared features of a visit, by column
    vendor: shop                      column of the vendor that the user came to
    items: {north: 120, south: [lamp, sofa]}   items of each vendor: how many, numbered from 0, or their names
    arm: item                         column of the item that was shown
    owner: seller                     column of the vendor whose item it was; left out: each vendor showed its own
    reward: clicked                   column of what it earned, from 0 to 1
    user: who                         column of the user; left out: each row is a user of its own
    delimiter: ","                    of a CSV file
    data: internal                    or public: whether exact figures may be shown to anybody

Everything in the mapping is public, and no part of it is taken from the rows. An error names the row and the column,
never the value.

The world ``own-vendors`` plays such a log.

Contexts, homes and users are those of the log, row after row; a longer run starts the log again. A log has rewards of
the shown items only. So clicks come from worlds drawn from what the log leaves possible (`ClickPosterior`): the first
is deployed, and the interval is over `DRAWN`, each with users and noise of its own. Where the users of a vendor never
saw another vendor's item, nothing tells what they would click, and no interval is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from scipy.special import ndtr, ndtri

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
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdap.cells import LARGEST_DIMENSION, Grid
from hushstream.systems.pdap.configuration import LARGEST_ARMS

_LEVELS = 3
DRAWN = 24
"""Worlds that are drawn from a log."""

_BEFORE, _BETWEEN = 300, 20
"""Rounds of the sampler before the first drawn world, and from one to the next."""

_SCALE = 0.5
"""Scale of the half-Cauchy priors of deviations, on the probit scale."""

_WIDE = 25.0
"""Prior variance of the overall rate."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedVisits:
    """The rows of a log, (n,) each.

    Attributes:
        contexts: float32 (n, d), entries from 0 to 1.
        homes: the vendor to whom each user came.
        users: numbers of the users.
        arms: the shown items; the items of all vendors are numbered together.
        rewards: from 0 to 1.
    """

    contexts: Float32
    homes: Int64
    users: Int64
    arms: Int64
    rewards: Float64


_Effects = tuple[list[Float64], Float64]
"""Effects of the known keys of each level, and the variance of each level."""


class _Tree:
    """Normal effects of nested groups of rows: a group's is that of the group above plus its own.

    A round draws all of them from their distribution given everything else, exactly: sums go up the tree, draws down.
    """

    def __init__(self, levels: Sequence[Int64], wide: bool) -> None:
        """``levels``: each level's keys of all rows, coarse to fine; where ``wide``, the top has variance `_WIDE`."""
        self.known, self._above, place = [], [], np.zeros(len(levels[0]), dtype=np.int64)
        for keys in levels:
            known, first, at = np.unique(keys, return_index=True, return_inverse=True)
            self.known.append(known)
            self._above.append(place[first])
            place = at
        self._place, self._wide = place, wide
        self.variances = np.full(len(levels), 0.05)
        if wide:
            self.variances[0] = _WIDE
        self.effects = [np.zeros(len(known)) for known in self.known]
        self.fitted = np.zeros(len(place))

    def draw(self, rest: Float64, generator: np.random.Generator) -> None:
        """Draw effects, then variances, given what the other trees leave of each row, whose variance is 1."""
        precisions, sums = [_added(self._place, np.ones(len(rest)))], [_added(self._place, rest)]
        for above, variance in zip(self._above[:0:-1], self.variances[:0:-1], strict=True):
            shrunk = 1 / (1 + precisions[0] * variance)
            precisions.insert(0, _added(above, precisions[0] * shrunk))
            sums.insert(0, _added(above, sums[0] * shrunk))
        found = np.zeros(1)
        for level, (precision, total) in enumerate(zip(precisions, sums, strict=True)):
            base, known = found[self._above[level]], precision + 1 / self.variances[level]
            noise = generator.standard_normal(len(known)) / np.sqrt(known)
            self.effects[level] = (total - precision * base) / known + noise
            found = base + self.effects[level]
            if level or not self._wide:
                # A half-Cauchy prior as two inverse gamma draws (Makalic and Schmidt 2016, section 2).
                mixed = (1 / _SCALE**2 + 1 / self.variances[level]) / generator.gamma(1.0)
                rate = (self.effects[level] ** 2).sum() / 2 + 1 / mixed
                self.variances[level] = max(1e-8, rate / generator.gamma((len(known) + 1) / 2))
        self.fitted = found[self._place]

    def at(self, effects: _Effects, levels: Sequence[Int64], fresh: Draws) -> Float64:
        """The effects of rows by their keys; a group that the log lacks has its own draw."""
        found = np.zeros(len(levels[0]))
        for level, (known, drawn, keys) in enumerate(zip(self.known, effects[0], levels, strict=True)):
            place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            there, values = known[place] == keys, drawn[place]
            new = keys[~there]
            values[~there] = np.sqrt(effects[1][level]) * fresh.normals(new & 0xFFFFFFFF, level, new >> 32)
            found += values
        return found


def _added(places: Int64, values: Float64) -> Float64:
    return np.bincount(places, values).astype(np.float64, copy=False)


class ClickPosterior:
    """The worlds that a log leaves possible: chances of a click by context, home, user and item.

    A probit model (Albert and Chib 1993) of nested normal effects on cells of the space: of all visits, of homes, of
    vendors' items, of pairs of home and vendor or item, of items and, where rows share them, of users. Variances have
    half-Cauchy priors and are drawn too, so where rows are few, worlds differ much. A reward between 0 and 1 is a click
    with that chance. Rows may have been shown by any policy that looked at context, home and user alone.
    """

    def __init__(self, log: LoggedVisits, owners: Int64) -> None:
        """Bind to a log; ``owners`` (arms,) are the vendors of all items, including those never shown."""
        self._grid, self._log, self._owners = Grid(log.contexts.shape[1], 2, _LEVELS), log, owners
        self._named = len(np.unique(log.users)) < len(log.users)
        crossed = np.bincount(log.homes, owners[log.arms] != log.homes, int(owners.max()) + 1)
        self.crossed = bool((crossed[np.unique(log.homes)] > 0).all())
        """Whether users of every vendor saw an item of another."""

    @cached_property
    def _drawn(self) -> tuple[list[_Tree], list[list[_Effects]]]:
        log, generator = self._log, Draws(len(self._log.rewards), "pdap-posterior").generator()
        rows = len(log.rewards)
        keys = self._keys(log.contexts, log.homes, log.users, log.arms)
        trees = [_Tree(levels, not number) for number, levels in enumerate(keys)]
        fitted, drawn = np.full(rows, ndtri(np.clip(log.rewards.mean(), 0.5 / rows, 1 - 0.5 / rows))), []
        trees[0].fitted = fitted.copy()
        for done in range(1, _BEFORE + DRAWN * _BETWEEN + 1):
            signs = np.where(generator.random(rows) < log.rewards, 1.0, -1.0)
            below = np.maximum(generator.random(rows) * ndtr(signs * fitted), 1e-300)
            latent = fitted - signs * ndtri(below)
            for tree in trees:
                others = fitted - tree.fitted
                tree.draw(latent - others, generator)
                fitted = others + tree.fitted
            if done > _BEFORE and not (done - _BEFORE) % _BETWEEN:
                drawn.append([(list(tree.effects), tree.variances.copy()) for tree in trees])
        return trees, drawn

    def means(self, number: int, arrivals: Arrivals, arms: Int64) -> Float64:
        """Chance of a click on one item for each user, (n,), in the drawn world of a number from 0."""
        trees, drawn = self._drawn
        keys = self._keys(arrivals.contexts, arrivals.homes, arrivals.users, np.broadcast_to(arms, len(arrivals)))
        parts = zip(trees, drawn[number], keys, strict=True)
        return np.asarray(
            ndtr(sum(tree.at(one, key, Draws(number, f"pdap-{at}")) for at, (tree, one, key) in enumerate(parts)))
        )

    def _keys(self, contexts: Float32, homes: Int64, users: Int64, arms: Int64) -> list[list[Int64]]:
        paths, vendors, items = self._grid.paths(contexts), int(self._owners.max()) + 1, len(self._owners)
        cells = [paths // self._grid.width(level) for level in range(_LEVELS + 1)]
        owners = self._owners[arms]
        found = [
            cells,
            [cell * vendors + homes for cell in cells[:2]],
            [cell * vendors + owners for cell in cells],
            [homes * vendors + owners, homes * items + arms],
            [cell * items + arms for cell in cells],
        ]
        return [*found, [users]] if self._named else found


@dataclass(frozen=True, slots=True, eq=False)
class OwnVendors:
    """A log as a world; see the module.

    Attributes:
        name: name of the log's file.
        vendors: names of the vendors.
        owners: (items,) the vendor of each item.
        log: the rows of the log.
        posterior: the worlds that it leaves possible.
        internal: whether figures on it may be shown only inside the organisation.
        number: which of these worlds this one is.
    """

    name: str
    vendors: tuple[str, ...]
    owners: Int64 = field(repr=False)
    log: LoggedVisits = field(repr=False)
    posterior: ClickPosterior = field(repr=False)
    internal: bool
    number: int = 0

    @property
    def dimension(self) -> int:
        """The number of entries of a context."""
        return int(self.log.contexts.shape[1])

    def arrivals(self, count: int, generator: np.random.Generator) -> Arrivals:
        """See `VendorWorld`: in world 0 the first rows of the log; in others rows of users drawn again from it."""
        rows = np.arange(count) % len(self.log.homes)
        if self.number:
            sizes, order = np.bincount(self.log.users), np.argsort(self.log.users, kind="stable")
            ends, drawn = np.cumsum(sizes), generator.integers(0, len(sizes), count)
            # Only users who fill the run: all visits of so many users would take gigabytes where a user has thousands.
            drawn = drawn[: np.searchsorted(np.cumsum(sizes[drawn]), count) + 1]
            visits = [order[ends[user] - sizes[user] : ends[user]] for user in drawn]
            rows = generator.permutation(np.concatenate(visits)[:count])
        return Arrivals(self.log.contexts[rows], self.log.homes[rows], self.log.users[rows])

    def means(self, arrivals: Arrivals, arms: Int64, progress: float) -> Float64:
        """See `VendorWorld`; items do not change over the run."""
        return self.posterior.means(self.number, arrivals, arms)


_COLUMNS = ("vendor", "arm", "owner", "reward", "user")


def _data(key: str, value: object) -> str:
    if value not in DATA:
        raise LogError(f"{key}: expected {DATA_MEANING}")
    return str(value)


def _features(key: str, value: FeatureSchema) -> FeatureSchema:
    if not all(one.level_names for one in value.features.values()) or len(value.features) > LARGEST_DIMENSION:
        raise LogError(
            f"{key}: expected at most {LARGEST_DIMENSION}, each a category, number, boolean, time_of_day or "
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
    return OwnVendors(Path(source).name, tuple(read.items), owners, log, ClickPosterior(log, owners), internal)


def vendor_mapping(given: Mapping[str, Any] | str | Path) -> VendorMapping:
    """Read a mapping from its file, or check its keys and values.

    Raises:
        LogError: as `hushstream.replay.logged.mapping.read_mapping`; or combinations of values that are not valid.
    """
    mapping, source = read_mapping(given, VendorMapping), source_of(given)
    if mapping.sizes.sum() > LARGEST_ARMS:
        raise LogError(f"{source}: items: expected at most {LARGEST_ARMS} in all, got {mapping.sizes.sum()}")
    return mapping


_Columns = tuple[Float32, Int64, Any, Int64, Float64]
"""Contexts, homes, users as texts or None, arms, rewards."""


def _part(source: str, mapping: VendorMapping, chunk: RawChunk) -> _Columns:
    place = (source, chunk.row_names)

    def column(name: str) -> tuple[Sequence[Any], str, Place]:
        return chunk.columns[name], name, place

    vendors = tuple(mapping.items)
    homes = category_numbers(*column(mapping.vendor), vendors)
    sellers = homes if mapping.owner is None else category_numbers(*column(mapping.owner), vendors)
    return (
        _places(mapping.features, chunk, place).astype(np.float32),
        homes,
        None if mapping.user is None else texts(*column(mapping.user)),
        _arms(mapping, chunk, source, sellers),
        numbers(*column(mapping.reward), least=0.0, most=1.0),
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
    contexts, homes, users, arms, rewards = zip(*parts, strict=True)
    rows = sum(map(len, homes))
    numbered = np.arange(rows) if users[0] is None else np.unique(np.concatenate(users), return_inverse=True)[1]
    placed, homed, shown, earned = (np.concatenate(column) for column in (contexts, homes, arms, rewards))
    return LoggedVisits(placed, homed, numbered, shown, earned)
