"""Reads the rows of a schema as learners need them: all features of one form together, not one after the other.

`FeatureSchema.blocks` says what a row means. `CompiledRows` computes the same cells and values, with the same bits, for
a run of rows: values of one or two bytes are gathered in one step, hat functions are computed in one step, and so are
features of one cell, and crosses. For a few rows Python is faster than NumPy's calls, so there is a scalar form of each
step; which one is used changes no bit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.features.kinds import (
    CROSS_LEVELS,
    DAY_STEPS,
    MISSING_STEP,
    STEPS,
    TIME_NODES,
    Boolean,
    Category,
    Coordinates,
    Cross,
    DayOfWeek,
    Feature,
    Number,
    Tags,
    TimeOfDay,
)

_NONE = -1
"""In place of a value or a cell that a feature does not have."""

_FEW = 128
"""Up to so many places of all rows together, rows are read one by one."""


class _Plain(NamedTuple):
    """A feature of one or two bytes: its position in a row, and what its numbers mean.

    Attributes:
        low, high: columns of its bytes; the second is `_NONE` for one byte.
        most: the largest valid number, beside ``gap``.
        gap: the number of a missing value.
        ends: the numbers at the ends of its range.
        levels: of number v in a cross: min(v ``times`` // ``parts``, ``highest``), none for ``void``.
    """

    low: int
    high: int
    most: int
    gap: int
    ends: tuple[int, int]
    levels: tuple[int, int, int, int]


class _Hat(NamedTuple):
    """Hat functions: v times ``intervals`` lies between two nodes that are ``steps`` apart."""

    column: int
    intervals: int
    steps: int
    missing: int
    around: int
    cell: int
    place: int


class _Cell(NamedTuple):
    """A feature of one cell for each number; the block is empty for the number ``void``."""

    column: int
    void: int
    cell: int
    place: int


class _Pair(NamedTuple):
    """A cross of two plain features."""

    left: int
    right: int
    right_levels: int
    cell: int
    place: int


class _Wide(NamedTuple):
    """Tags or a vector, and its columns in a row."""

    feature: Feature
    columns: slice
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
        self._plain: list[_Plain] = []
        self._hats: list[_Hat] = []
        self._cells: list[_Cell] = []
        self._pairs: list[_Pair] = []
        self._tags: list[tuple[_Wide, Tags]] = []
        self._vectors: list[_Wide] = []
        self.places = 1 + sum(feature.places for feature in features.values())
        self._form, self.row_bytes, numbers = "<", 0, dict[str, int]()
        for (name, feature), (cell, place) in zip(features.items(), first, strict=True):
            size = feature.column.itemsize
            if isinstance(feature, Cross):
                of = (numbers[feature.left], numbers[feature.right], feature.right_levels)
                self._pairs.append(_Pair(*of, cell + 1, place + 1))
            elif isinstance(feature, Tags | Coordinates):
                wide = _Wide(feature, slice(self.row_bytes, self.row_bytes + size), cell + 1, place + 1)
                if isinstance(feature, Tags):
                    self._tags.append((wide, feature))
                else:
                    self._vectors.append(wide)
                self._form, self.row_bytes = f"{self._form}{size}x", self.row_bytes + size
            else:
                numbers[name] = len(self._plain)
                self._add(feature, cell + 1, place + 1)
                self._form, self.row_bytes = self._form + "BH"[size - 1], self.row_bytes + size
        self._wide = [*self._vectors, *(wide for wide, _ in self._tags)]
        self._make_tables()

    def _add(self, feature: Feature, cell: int, place: int) -> None:
        """Add a feature of one or two bytes."""
        column, ends = len(self._plain), (_NONE, _NONE)
        gap, levels, most = feature.encode("", None).wire, (1, 1, MISSING_STEP, _NONE), MISSING_STEP
        assert isinstance(gap, int)
        match feature:
            case Number():
                ends, levels = (0, STEPS), (CROSS_LEVELS - 1, MISSING_STEP, MISSING_STEP, _NONE)
                self._hats.append(_Hat(column, feature.nodes - 1, STEPS, feature.nodes, _NONE, cell, place))
            case TimeOfDay():
                most, levels = DAY_STEPS - 1, (TIME_NODES, DAY_STEPS, MISSING_STEP, gap)
                self._hats.append(_Hat(column, TIME_NODES, DAY_STEPS, _NONE, TIME_NODES, cell, place))
            case Category() | Boolean():
                most, levels = gap, (1, 1, CROSS_LEVELS - 1, _NONE)
                self._cells.append(_Cell(column, _NONE, cell, place))
            case DayOfWeek():
                most, levels = gap, (1, 1, MISSING_STEP, gap)
                self._cells.append(_Cell(column, gap, cell, place))
        low = self.row_bytes
        high = low + 1 if feature.column.itemsize > 1 else _NONE
        self._plain.append(_Plain(low, high, most, gap, ends, levels))

    def _make_tables(self) -> None:
        """The same as arrays, a row for each field."""
        plain = [(one.low, max(one.high, 0), one.high != _NONE, one.most, one.gap, *one.ends) for one in self._plain]
        self._by_plain = np.array(plain, np.int64).reshape(-1, 7).T.copy()
        self._by_hat = np.array(self._hats, np.int64).reshape(-1, len(_Hat._fields)).T.copy()
        self._by_cell = np.array(self._cells, np.int64).reshape(-1, len(_Cell._fields)).T.copy()

    # Checks.

    def valid(self, content: bytes) -> NDArray[np.bool_]:
        """(n,) which of n rows `FeatureSchema.encode` can have given."""
        size = len(content) // self.row_bytes
        if size * self.places <= _FEW:
            fits = [self._fits(numbers) for numbers in self._rows(content)]
            for wide, tags in self._tags:
                many = 1 << len(tags.vocabulary)
                fits = [
                    fit and bits < many and bits.bit_count() <= tags.most
                    for fit, bits in zip(fits, self._bits(content, wide), strict=True)
                ]
            good, wider = np.array(fits, np.bool_), self._vectors
        else:
            found, (most, gap) = self._gathered(content), self._by_plain[3:5]
            good, wider = ((found <= most) | (found == gap)).all(axis=1), self._wide
        for one in wider:
            good &= one.feature.valid(self._column(content, one))
        return good

    def losses(self, content: bytes) -> list[tuple[int, int]]:
        """See `FeatureSchema.losses`."""
        if len(content) // self.row_bytes * self.places <= _FEW:
            return [self._lost(numbers) for numbers in self._rows(content)]
        found, (gap, low, high) = self._gathered(content), self._by_plain[4:]
        missing, clipped = found == gap, (found == low) | (found == high)
        return list(zip(missing.sum(axis=1).tolist(), clipped.sum(axis=1).tolist(), strict=True))

    def _fits(self, numbers: Sequence[int]) -> bool:
        return all(v <= one.most or v == one.gap for v, one in zip(numbers, self._plain, strict=True))

    def _lost(self, numbers: Sequence[int]) -> tuple[int, int]:
        missing = clipped = 0
        for value, one in zip(numbers, self._plain, strict=True):
            missing, clipped = missing + (value == one.gap), clipped + (value in one.ends)
        return missing, clipped

    # Cells and values.

    def read(self, content: bytes) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """(n, places) cells and values of n valid rows: of the constant (cell 0), then of the blocks, from cell 1."""
        size = len(content) // self.row_bytes
        if size * self.places <= _FEW:
            (cells, values), wider = self._read_few(content), self._vectors
        else:
            cells, values = np.zeros((size, self.places), np.intp), np.zeros((size, self.places), np.float32)
            wider = self._wide
            values[:, 0] = 1.0
            found = self._gathered(content)
            self._read_hats(found, cells, values)
            self._read_cells(found, cells, values)
        for one in wider:
            column, across = self._column(content, one), slice(one.place, one.place + one.feature.places)
            shares = one.feature.shares(column)
            np.add(shares.cells, one.cell, out=cells[:, across])
            values[:, across] = one.feature.values(column, shares)
        return cells, values

    def _rows(self, content: bytes) -> Iterable[tuple[int, ...]]:
        """The numbers of the plain features of each row."""
        return struct.iter_unpack(self._form, content)

    def _bits(self, content: bytes, tags: _Wide) -> list[int]:
        """The tags of each row, one bit for each."""
        low, high = tags.columns.start, tags.columns.stop
        starts = range(0, len(content), self.row_bytes)
        return [int.from_bytes(content[start + low : start + high], "little") for start in starts]

    def _column(self, content: bytes, one: _Wide) -> NDArray[Any]:
        """(n, length) the tags or the vector of each row."""
        raw = np.frombuffer(content, np.uint8).reshape(-1, self.row_bytes)
        found: NDArray[Any] = np.ascontiguousarray(raw[:, one.columns]).view(one.feature.column.base)
        return found

    def _gathered(self, content: bytes) -> NDArray[np.int64]:
        """(n, plain features) their numbers."""
        raw, (low, high, two) = np.frombuffer(content, np.uint8).reshape(-1, self.row_bytes), self._by_plain[:3]
        found: NDArray[np.int64] = raw[:, low] + (raw[:, high].astype(np.int64) << 8) * two
        return found

    def _read_hats(self, found: NDArray[np.int64], cells: NDArray[np.intp], values: NDArray[np.float32]) -> None:
        column, intervals, steps, missing, around, cell, place = self._by_hat
        number = found[:, column]
        gone = number == MISSING_STEP
        node, right = np.divmod(np.where(gone, 0, number) * intervals, steps)
        left = np.where(gone & (missing == _NONE), 0, steps - right)
        after = np.where(right > 0, np.where(node + 1 == around, 0, node + 1), 0)
        cells[:, place] = np.where(gone, np.maximum(missing, 0), node) + cell
        cells[:, place + 1] = after + cell
        values[:, place], values[:, place + 1] = left / steps, right / steps

    def _read_cells(self, found: NDArray[np.int64], cells: NDArray[np.intp], values: NDArray[np.float32]) -> None:
        column, void, cell, place = self._by_cell
        number = found[:, column]
        known = number != void
        cells[:, place], values[:, place] = number * known + cell, known
        for pair in self._pairs:
            left, right = (self._levels(found[:, one], one) for one in (pair.left, pair.right))
            known = (left >= 0) & (right >= 0)
            cells[:, pair.place] = (left * pair.right_levels + right) * known + pair.cell
            values[:, pair.place] = known

    def _levels(self, number: NDArray[np.int64], column: int) -> NDArray[np.int64]:
        times, parts, highest, void = self._plain[column].levels
        return np.where(number == void, _NONE, np.minimum(number * times // parts, highest))

    def _read_few(self, content: bytes) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """`read` of plain features, a row at a time."""
        all_cells, all_values = list[list[int]](), list[list[float]]()
        for numbers in self._rows(content):
            cells, values = [0] * self.places, [0.0] * self.places
            values[0] = 1.0
            for column, intervals, steps, missing, around, cell, place in self._hats:
                cells[place + 1], number = cell, numbers[column]
                if number == MISSING_STEP:
                    cells[place], values[place] = max(missing, 0) + cell, float(missing != _NONE)
                    continue
                node, right = divmod(number * intervals, steps)
                cells[place], values[place] = node + cell, (steps - right) / steps
                if right:
                    cells[place + 1] = cell if node + 1 == around else node + 1 + cell
                    values[place + 1] = right / steps
            for column, void, cell, place in self._cells:
                number = numbers[column]
                cells[place], values[place] = (cell, 0.0) if number == void else (number + cell, 1.0)
            for left, right, right_levels, cell, place in self._pairs:
                one, other = self._level(numbers[left], left), self._level(numbers[right], right)
                known = one >= 0 and other >= 0
                cells[place], values[place] = known * (one * right_levels + other) + cell, float(known)
            all_cells.append(cells)
            all_values.append(values)
        for wide, tags in self._tags:
            across = slice(wide.place, wide.place + tags.most)
            for cells, values, bits in zip(all_cells, all_values, self._bits(content, wide), strict=True):
                cells[across], values[across] = _tagged(bits, tags, wide.cell)
        shape = (len(all_cells), self.places)
        return np.array(all_cells, np.intp).reshape(shape), np.array(all_values, np.float32).reshape(shape)

    def _level(self, number: int, column: int) -> int:
        times, parts, highest, void = self._plain[column].levels
        return _NONE if number == void else min(number * times // parts, highest)


def _tagged(bits: int, tags: Tags, first: int) -> tuple[list[int], list[float]]:
    """The cells and values of tags, one bit for each."""
    found = [tag for tag in range(bits.bit_length()) if bits >> tag & 1] or [len(tags.vocabulary)]
    spare = tags.most - len(found)
    return [tag + first for tag in found] + [first] * spare, [1 / math.sqrt(len(found))] * len(found) + [0.0] * spare
