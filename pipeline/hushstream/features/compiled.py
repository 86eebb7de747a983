"""Reads the rows of a schema as learners need them: all features together, not one after the other.

`FeatureSchema.blocks` says what a row means. `CompiledRows` gives the same cells and values, with the same bits, of a
run of rows: a feature of one or two bytes has a table of what each of its numbers means, by its own kind, so a run is
read by a few look-ups, whether it has one row or thousands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.features.kinds import STEPS, Coordinates, Cross, Feature, Number, Tags

_MOST_TAGS = 12
"""Tags of a vocabulary up to this size have a table. Longer ones, and vectors, are read by their own kind."""

_VALID, _MISSING, _AT_END = 1, 1 << 10, 1 << 20
"""What is known of a number: that `Feature.encode` gives it, that it means missing, that it is at an end of its range.
A row's sum of these counts each, as no schema has 1,024 features."""


class _Table(NamedTuple):
    """What each number of a feature means; the last entry is an invalid number, unless all of them are valid.

    Attributes:
        known: (n,) sums of the flags above.
        levels: (n,) levels in a cross, -1 for none.
        cells: (places, n) the cells of its block, from 0.
        powers: (places, n, 2) what a learner sees there, and its square.
    """

    known: NDArray[np.int32]
    levels: NDArray[np.int8]
    cells: NDArray[np.int16]
    powers: NDArray[np.float32]


_CONSTANT = _Table(
    np.array([_VALID], np.int32), np.zeros(1, np.int8), np.zeros((1, 1), np.int16), np.ones((1, 1, 2), np.float32)
)
"""Of a column that holds 0 in every row."""


@lru_cache(maxsize=64)
def _table(feature: Feature) -> _Table:
    """The table of a feature of one or two bytes. Features that are read alike share it: a number's takes .9 MB."""
    column = feature.column
    wire = np.arange(1 << (len(feature.vocabulary) if isinstance(feature, Tags) else 8 * column.itemsize)).astype("<u2")
    whole = np.ascontiguousarray(wire.view(np.uint8).reshape(-1, 2)[:, : column.itemsize]).view(column.base)
    whole = whole if column.shape else whole[:, 0]
    valid = feature.valid(whole)
    numbers, whole = wire[valid], whole[valid]
    size, shares = min(int(numbers[-1]) + 2, 1 << 16), feature.shares(whole)
    known, levels = np.zeros(size, np.int32), np.full(size, -1, np.int8)
    cells, powers = np.zeros((feature.places, size), np.int16), np.zeros((feature.places, size, 2), np.float32)
    known[numbers], gap = _VALID, feature.encode("", None).wire
    cells[:, numbers], powers[:, numbers, 0] = shares.cells.T, feature.values(whole, shares).T
    np.square(powers[..., 0], out=powers[..., 1])
    if isinstance(gap, int):
        known[gap] += _MISSING
    if isinstance(feature, Number):
        known[[0, STEPS]] += _AT_END
    if feature.level_names:
        levels[numbers] = feature.levels(whole)
    return _Table(known, levels, cells, powers)


class _Joined(NamedTuple):
    """The tables of all columns, one behind the other.

    Attributes:
        tops: (columns,) the last number of each table.
        starts: (columns,) where each begins in ``known`` and ``levels``.
        place_starts: (places,) where each place begins in ``cells`` and ``powers``.
        known, levels, cells, powers: see `_Table`.
    """

    tops: NDArray[np.uint16]
    starts: NDArray[np.intp]
    place_starts: NDArray[np.intp]
    known: NDArray[np.int32]
    levels: NDArray[np.int8]
    cells: NDArray[np.int16]
    powers: NDArray[np.float32]


class _Pair(NamedTuple):
    """A cross: the columns of its two features, the number of levels of the second, its first cell and its place."""

    left: int
    right: int
    right_levels: int
    cell: int
    place: int


class _Wide(NamedTuple):
    """A feature without a table: its bytes in a row, its first cell and its first place."""

    feature: Feature
    bytes: slice
    cell: int
    place: int


class CompiledRows:
    """Rows of a schema, checked and read together.

    Attributes:
        places: largest number of cells of a row, the constant included.
        row_bytes: bytes of a row.
    """

    def __init__(self, features: Mapping[str, Feature], first: Sequence[tuple[int, int]]) -> None:
        """Sort features by their form.

        Args:
            features: by name, in canonical order.
            first: the first cell and the first place of each, from 0.
        """
        self.places, self.row_bytes = 1 + sum(feature.places for feature in features.values()), 0
        self._narrow, self._pairs, self._wide = list[Feature](), list[_Pair](), list[_Wide]()
        # The constant, and at first what has no table, is read from a column without bytes: it holds 0 in every row.
        self._column_of, self._first_cell = np.zeros(self.places, np.intp), np.zeros(self.places, np.intp)
        ends, masks, numbers = [(0, 0)], [0], dict[str, int]()
        for (name, feature), (cell, place) in zip(features.items(), first, strict=True):
            cell, place, size = cell + 1, place + 1, feature.column.itemsize
            if isinstance(feature, Cross):
                of = (numbers[feature.left], numbers[feature.right], feature.right_levels)
                self._pairs.append(_Pair(*of, cell, place))
                continue
            low, self.row_bytes = self.row_bytes, self.row_bytes + size
            if isinstance(feature, Coordinates) or (isinstance(feature, Tags) and len(feature.vocabulary) > _MOST_TAGS):
                self._wide.append(_Wide(feature, slice(low, low + size), cell, place))
                continue
            numbers[name], across = len(ends), slice(place, place + feature.places)
            self._column_of[across], self._first_cell[across] = len(ends), cell
            self._narrow.append(feature)
            ends.append((low, low + size - 1))
            masks.append((1 << 8 * size) - 1)
        self._ends, self._masks = np.array(ends).ravel(), np.array(masks, "<u2")

    @cached_property
    def _joined(self) -> _Joined:
        """Made when rows are first read: who only encodes rows needs no table."""
        alike = [replace(one, low=0.0, high=1.0, scale="linear") if isinstance(one, Number) else one
                 for one in self._narrow]  # fmt: skip
        tables = [_CONSTANT, *map(_table, alike)]
        distinct = list({id(table): table for table in tables}.values())
        sizes = np.cumsum([0, *(len(table.known) for table in distinct)])
        areas = np.cumsum([0, *(table.cells.size for table in distinct)])
        number = {id(table): at for at, table in enumerate(distinct)}
        at, length = [number[id(table)] for table in tables], [len(table.known) for table in tables]
        place_starts = np.zeros(self.places, np.intp)
        for column in range(1, len(tables)):
            places = np.flatnonzero(self._column_of == column)
            place_starts[places] = areas[at[column]] + length[column] * np.arange(len(places))
        known, levels, cells = (np.concatenate([table[field].ravel() for table in distinct]) for field in range(3))
        powers = np.concatenate([table.powers.reshape(-1, 2) for table in distinct])
        tops = (np.array(length) - 1).astype("<u2")
        return _Joined(tops, sizes[at], place_starts, known, levels, cells, powers)

    def checked(self, content: bytes) -> tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32]]:
        """Which of n rows `FeatureSchema.encode` can have given, and what is lost in each, (n,) each.

        Lost are values that are missing or unknown, and values at an end of their range: these were clipped, or are
        exactly there. Tags, embeddings and histograms are not counted.
        """
        joined, numbers = self._joined, self._numbers(content)
        found = np.add.reduce(joined.known.take(numbers + joined.starts), 1)
        good: NDArray[np.bool_] = found & (_MISSING - 1) == len(joined.starts)
        for one in self._wide:
            good &= one.feature.valid(self._column(content, one))
        return good, found // _MISSING & (_MISSING - 1), found // _AT_END

    def read(self, content: bytes) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Of n valid rows the cells (n, places), and what a learner sees there and its square (n, places, 2).

        The constant comes first (cell 0), then the blocks, from cell 1.
        """
        joined, numbers = self._joined, self._numbers(content)
        where = numbers.take(self._column_of, 1) + joined.place_starts
        cells, powers = joined.cells.take(where) + self._first_cell, joined.powers.take(where, 0)
        for pair in self._pairs:
            left, right = (joined.levels.take(numbers[:, one] + joined.starts[one]) for one in (pair.left, pair.right))
            known = (left >= 0) & (right >= 0)
            cells[:, pair.place] = (left.astype(np.intp) * pair.right_levels + right) * known + pair.cell
            powers[:, pair.place] = known[:, None]
        for one in self._wide:
            column, across = self._column(content, one), slice(one.place, one.place + one.feature.places)
            shares = one.feature.shares(column)
            np.add(shares.cells, one.cell, out=cells[:, across])
            powers[:, across, 0] = one.feature.values(column, shares)
            np.square(powers[:, across, 0], out=powers[:, across, 1])
        return cells, powers

    def _numbers(self, content: bytes) -> NDArray[np.uint16]:
        """(n, columns) the numbers of the features that have a table; larger ones are those of its last entry."""
        ends = np.frombuffer(content, np.uint8).reshape(-1, self.row_bytes).take(self._ends, 1)
        found: NDArray[np.uint16] = np.minimum(ends.view("<u2") & self._masks, self._joined.tops)
        return found

    def _column(self, content: bytes, one: _Wide) -> NDArray[Any]:
        """(n, length) the tags or the vector of each row."""
        raw = np.frombuffer(content, np.uint8).reshape(-1, self.row_bytes)
        found: NDArray[Any] = np.ascontiguousarray(raw[:, one.bytes]).view(one.feature.column.base)
        return found
