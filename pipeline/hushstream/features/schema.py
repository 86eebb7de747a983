"""A declaration of features: from a dict of values to a row on the wire, and from rows to sparse blocks.

    schema = declare({
        "country": {"kind": "category", "vocabulary": ["de", "fr"]},
        "age": {"kind": "number", "range": [16, 96]},
    })
    row = schema.encode({"country": "fr", "age": 31}).row
    blocks = schema.blocks(schema.read(row))

Features are ordered by name, and crosses come last, whatever the order of the declaration. So two equal declarations
have the same digest, row layout and cells.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.features import checks
from hushstream.features.checks import BadDeclaration, BadRows, BadValue, require_name, type_name
from hushstream.features.compiled import CompiledRows
from hushstream.features.kinds import KINDS, Cross, Feature, Int64, Outcome, Shares

MOST_FEATURES = 64
MOST_CELLS = 65_535
"""Largest number of cells of all blocks together, because a slot names a cell in two bytes."""

MOST_ROW_BYTES = 16_384

_VERSION = 1
_DIGEST_BYTES = 16

Rows = NDArray[np.void]
"""(n,) rows of a schema's `FeatureSchema.layout`."""


class EncodedRow(NamedTuple):
    """One dict of values.

    Attributes:
        row: its bytes on the wire, of the schema's fixed size.
        outcomes: outcomes of the features without a plain known value, by name.
    """

    row: bytes
    outcomes: Mapping[str, Outcome]


class EncodedRows(NamedTuple):
    """A batch of values.

    Attributes:
        rows: (n,) rows.
        counts: number of values with each `Outcome`, (4,) int64 by feature. Zone-private.
    """

    rows: Rows
    counts: Mapping[str, NDArray[np.int64]]

    def share(self, name: str, outcome: Outcome) -> float:
        """The share of a feature's values that had this outcome; 0 of an empty batch."""
        counts = self.counts[name]
        return float(counts[outcome] / max(int(counts.sum()), 1))


@dataclass(frozen=True, slots=True)
class Block:
    """The position of a feature's block among all cells and places.

    Attributes:
        name: the feature's.
        first_cell, cells: its cells.
        first_place, places: its columns in `SparseBlocks`.
        signed, complete, usual, own_part: see `Feature`.
    """

    name: str
    first_cell: int
    cells: int
    first_place: int
    places: int
    signed: bool
    complete: bool
    usual: float
    own_part: float = 1.0


class SparseBlocks(NamedTuple):
    """The blocks of n rows, side by side.

    Attributes:
        cells: (n, places) int64 in [0, cells of the schema); the block's first cell where the share is 0.
        parts: (n, places) int64, the numerators of shares.
        wholes: (n, features) int64, the denominators, one column for each block.
        values: (n, places) float64, what a learner sees.
    """

    cells: Int64
    parts: Int64
    wholes: Int64
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """A checked declaration.

    Attributes:
        features: by name, in canonical order.
        layout: layout of a row on the wire; packed, little-endian.
        table: positions of the blocks, in the same order.
        canonical: the declaration with every default written out, as canonical bytes.
        digest: of 16 bytes; it is equal exactly if two declarations are equal.
        cells: how many cells all blocks together have.
        places: largest number of cells with a share of one row.
        compiled: reads many rows at once, as learners need them.
    """

    features: Mapping[str, Feature]
    layout: np.dtype[Any] = field(init=False, compare=False)
    table: tuple[Block, ...] = field(init=False, compare=False)
    canonical: bytes = field(init=False, repr=False, compare=False)
    digest: bytes = field(init=False, repr=False, compare=False)
    cells: int = field(init=False, repr=False, compare=False)
    places: int = field(init=False, repr=False, compare=False)
    compiled: CompiledRows = field(init=False, repr=False, compare=False)
    _sizes: tuple[tuple[str, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Lay out rows and cells.

        Raises:
            BadDeclaration: too many cells, or rows that are too long.
        """
        columns = [(name, one.column) for name, one in self.features.items() if not isinstance(one, Cross)]
        object.__setattr__(self, "layout", np.dtype(columns))
        object.__setattr__(self, "_sizes", tuple((name, column.itemsize) for name, column in columns))
        table, cell, place = [], 0, 0
        for name, one in self.features.items():
            like = (one.signed, one.complete, one.usual, one.own_part)
            table.append(Block(name, cell, one.cells, place, one.places, *like))
            cell, place = cell + one.cells, place + one.places
        object.__setattr__(self, "table", tuple(table))
        object.__setattr__(self, "cells", cell)
        object.__setattr__(self, "places", place)
        first = [(block.first_cell, block.first_place) for block in table]
        object.__setattr__(self, "compiled", CompiledRows(self.features, first))
        # A learner reads the digest at every fold.
        content = {"version": _VERSION, "features": self.plain}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        object.__setattr__(self, "canonical", canonical)
        digest = hashlib.blake2b(canonical, digest_size=_DIGEST_BYTES, person=b"hush-features").digest()
        object.__setattr__(self, "digest", digest)
        if cell > MOST_CELLS:
            raise BadDeclaration(f"features: expected at most {MOST_CELLS:,} coordinates in all blocks, got {cell:,}")
        if self.row_bytes > MOST_ROW_BYTES:
            raise BadDeclaration(f"features: expected rows of at most {MOST_ROW_BYTES:,} bytes, got {self.row_bytes:,}")

    def __hash__(self) -> int:
        """Hash of the canonical form, which is the same for equal schemas."""
        return hash(self.canonical)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on the wire."""
        return self.layout.itemsize

    @property
    def plain(self) -> dict[str, dict[str, Any]]:
        """The declaration with every default written out, as plain values."""
        return {name: {"kind": one.kind, **one.settings()} for name, one in self.features.items()}

    def encode(self, values: Mapping[str, Any]) -> EncodedRow:
        """Encode one dict of values; a name that is absent or has the value None is missing.

        Raises:
            BadValue: a name that is not declared, or a value of another type; names the key, never the value.
        """
        self._require_known(values)
        parts, outcomes = [], {}
        for name, size in self._sizes:
            wire, outcome = self.features[name].encode(name, values.get(name))
            parts.append(wire if isinstance(wire, bytes) else wire.to_bytes(size, "little"))
            if outcome is not Outcome.KNOWN:
                outcomes[name] = outcome
        return EncodedRow(b"".join(parts), outcomes)

    def encode_columns(self, columns: Mapping[str, Sequence[Any]]) -> EncodedRows:
        """Encode columns of equal length; an absent column is missing in every row.

        NaN of a float array is missing, as data frames write it; NaN among other values is refused.

        Raises:
            BadValue: as `encode`; or columns of unequal lengths, or none.
        """
        self._require_known(columns)
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise BadValue(f"features: expected columns of one length, got {len(lengths)} lengths")
        size = lengths.pop()
        rows, counts = np.zeros(size, self.layout), {}
        for name in self.layout.names or ():
            # An absent column is encoded once, because it has the same value in each row.
            column, outcomes = self.features[name].encode_all(name, columns.get(name, [None]))
            rows[name] = column
            counts[name] = np.bincount(outcomes, minlength=len(Outcome)) * (1 if name in columns else size)
        return EncodedRows(rows, counts)

    def read(self, content: bytes) -> Rows:
        """Read and check rows from the wire: (n,), a view of ``content``.

        Raises:
            BadRows: another length, or a value that `encode` never gives; names the feature and the row.
        """
        if not self.layout.itemsize:
            raise BadRows("rows: expected a schema with columns, got one without")
        if len(content) % self.row_bytes:
            raise BadRows(f"rows: expected a multiple of {self.row_bytes} bytes, got {len(content):,}")
        rows = np.frombuffer(content, self.layout)
        for name in self.layout.names or ():
            valid = self.features[name].valid(rows[name])
            if not valid.all():
                raise BadRows(
                    f"{name}: expected a value of a {self.features[name].kind}, got another in row {valid.argmin()}"
                )
        return rows

    def values(self, row: np.void) -> dict[str, Any]:
        """The values by name that one checked row stands for; see `Feature.value`."""
        return {name: self.features[name].value(row[name]) for name in self.layout.names or ()}

    def readable(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """(n,) which of the rows (n, row bytes) are valid encodings."""
        return self.compiled.checked(rows.tobytes())[0]

    def positions(self, rows: Rows) -> NDArray[np.float64]:
        """(n, features) the position of each value of checked rows on [0, 1], one column for each feature, by name.

        The position of a number is that in its range (on its scale), of an hour that in its day, of a day that in its
        week. A category's entries lie side by side in the order of the vocabulary; unknown and missing are last. False
        is at 1/6 and true at 5/6. A missing value of another kind is in the middle.
        """
        return np.stack([self.features[name].positions(rows[name]) for name in self.layout.names or ()], axis=1)

    def blocks(self, rows: Rows) -> SparseBlocks:
        """The blocks of checked rows."""
        size = len(rows)
        cells = np.empty((size, self.places), dtype=np.int64)
        parts, values = np.empty_like(cells), np.empty((size, self.places))
        wholes = np.empty((size, len(self.table)), dtype=np.int64)
        for number, block in enumerate(self.table):
            feature, (column, shares) = self.features[block.name], self._shares(block.name, rows)
            across = slice(block.first_place, block.first_place + block.places)
            np.add(shares.cells, block.first_cell, out=cells[:, across])
            parts[:, across] = shares.parts
            wholes[:, number] = shares.whole
            values[:, across] = feature.values(column, shares)
        return SparseBlocks(cells, parts, wholes, values)

    def cell_names(self) -> list[str]:
        """The meaning of each cell in words: "country: fr", "age: about 39", "hour: about 4:00"."""
        return [f"{block.name}: {meaning}" for block in self.table for meaning in _cells_of(self.features[block.name])]

    def _shares(self, name: str, rows: Rows) -> tuple[NDArray[Any], Shares]:
        feature = self.features[name]
        if isinstance(feature, Cross):
            left, right = (self.features[one].levels(rows[one]) for one in (feature.left, feature.right))
            column: NDArray[Any] = feature.paired(left, right)
        else:
            column = rows[name]
        return column, feature.shares(column)

    def _require_known(self, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise BadValue(f"features: expected names with values, got {type_name(values)}")
        for name in values:
            if name in self.features and not isinstance(self.features[name], Cross):
                continue
            if name in self.features:
                self.features[name].encode(name, values[name])
            # An application may have put anything into a name; only what looks like one is repeated, to its sender.
            known, got = ", ".join(self.layout.names or ()), f'"{name}"' if _NAME.fullmatch(str(name)) else "another"
            raise BadValue(f"features: expected names among {known}, got {got}")


_NAME = re.compile(r"[A-Za-z_](?:[A-Za-z_ .-]|[0-9]{1,2}(?![0-9])){0,39}")
"""What a refusal repeats of an unknown feature's name: neither long numbers nor signs, so no id and no address."""


def declare(given: Mapping[Any, Any]) -> FeatureSchema:
    """The schema of a declaration: names with ``kind`` and that kind's settings.

    Raises:
        BadDeclaration: names the feature and the key, the expected and the given value.
        Unconfirmed: settings were taken from rows, and were not confirmed as public.
    """
    if not isinstance(given, Mapping) or not 1 <= len(given) <= MOST_FEATURES:
        raise BadDeclaration(
            f"features: expected 1 to {MOST_FEATURES} names with declarations, got "
            + (f"{len(given)}" if isinstance(given, Mapping) else type_name(given))
        )
    checks.require_confirmed(given, "features")
    plain, crosses = dict[str, Feature](), dict[str, Cross]()
    for key, content in checks.without_marks(given).items():
        name, feature = require_name(key), _declared(str(key), content)
        if isinstance(feature, Cross):
            crosses[name] = feature
        else:
            plain[name] = feature
    if not plain:
        raise BadDeclaration("features: expected a feature that is no cross, got crosses alone")
    ordered: dict[str, Feature] = {name: plain[name] for name in sorted(plain)}
    for name in sorted(crosses):
        ordered[name] = _resolved(name, crosses[name], plain)
    return FeatureSchema(ordered)


def _declared(name: str, content: object) -> Feature:
    place = f"features.{name}"
    if not isinstance(content, Mapping):
        raise BadDeclaration(f"{place}: expected a kind with its settings, got {type_name(content)}")
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadDeclaration(f"{place}.kind: expected one of {', '.join(KINDS)}, got {'another' if kind else 'none'}")
    return KINDS[kind].declared(place, {key: value for key, value in content.items() if key != "kind"})


def _resolved(name: str, cross: Cross, plain: Mapping[str, Feature]) -> Cross:
    levels = []
    for one in (cross.left, cross.right):
        if one not in plain:
            raise BadDeclaration(
                f"features.{name}.of: expected declared features that are no crosses, got another name"
            )
        if not plain[one].level_names:
            raise BadDeclaration(
                f"features.{name}.of: expected a category, number, boolean, time_of_day or day_of_week, "
                f"got a {plain[one].kind}"
            )
        levels.append(len(plain[one].level_names))
    return replace(cross, left_levels=levels[0], right_levels=levels[1])


def _cells_of(feature: Feature) -> list[str]:
    match feature.settings():
        case {"vocabulary": known}:
            return [*known, "none" if feature.kind == "tags" else "other"]
        case {"nodes": int(nodes), "range": [float(low), float(high)], "scale": scale}:
            return [*_abouts(low, high, nodes, log=scale == "log"), "missing"]
    if feature.kind == "time_of_day":
        return [f"about {24 * node // feature.cells}:00" for node in range(feature.cells)]
    if feature.level_names:
        return list(feature.level_names)
    return [f"cell {cell} of {feature.cells}" for cell in range(1, feature.cells + 1)]


def _abouts(low: float, high: float, nodes: int, log: bool) -> list[str]:
    """Name the values at the nodes of a number, with as few digits as distinguish them."""
    shares = [node / (nodes - 1) for node in range(nodes)]
    values = [low * (high / low) ** one if log else low + (high - low) * one for one in shares]
    for digits in range(3, 18):
        names = [f"about {value:.{digits}g}" for value in values]
        if len(set(names)) == nodes:
            break
    return names
