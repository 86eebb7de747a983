"""Slots: the records that users send, one padded record of each kind, in whole numbers. Many slots are held as columns.

A slot of any kind has P pairs of item and value, one weight and d numbers of a direction. Its meaning:

* items (A): each of its items counts ``weight``, and its residual is ``value``;
* pairs (B): z is ``value`` at each of its items, 0 elsewhere;
* factors (C): the matrix is the outer product of ``value`` and ``direction``.

Unused places have item -1 and value 0, so a null slot has nothing but those. All numbers are on the lattice of 2^-20.

*Rounds.* Rounds: the server's requests, and the models from which users answer.

All of it is public and computed from releases alone.

*Errors.* Errors of BGTplanner's stages. No message repeats a rating or a value of a slot.

*Features.* Public features of items, which are known without any rating, such as genres.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.values import ConfigurationError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.configuration import KINDS, BgtConfig, Kind


class BgtError(HushstreamError):
    """A stage cannot do this. The message says what was expected and what was given."""


class BadRatings(BgtError):
    """Invalid ratings: unknown items, values off the scale, or columns of different lengths."""


class BadSlots(BgtError):
    """Columns that do not make slots."""


class BadRelease(BgtError):
    """A release that does not belong to the round."""


NOTHING = -1
"""The item of an unused place."""

ID_BYTES = 16
"""Size of a slot's id, by which it counts once."""

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """n slots of one kind.

    Attributes:
        items: (n, P) ascending in each row, then -1.
        values: (n, P).
        weights: (n,); 0 but for kind A.
        directions: (n, d); 0 but for kind C.
    """

    items: Int32
    values: Int32
    weights: Int32
    directions: Int32

    def __post_init__(self) -> None:
        """Refuse columns of different lengths.

        Raises:
            BadSlots: two columns differ.
        """
        shapes = self.items.shape, self.values.shape
        if self.items.ndim != 2 or shapes[0] != shapes[1]:
            raise BadSlots(f"slots: expected items and values of one shape (n, P), got {shapes[0]} and {shapes[1]}")
        rows = len(self.items)
        if self.weights.shape != (rows,) or self.directions.ndim != 2 or len(self.directions) != rows:
            got = f"{self.weights.shape} and {self.directions.shape}"
            raise BadSlots(f"slots: expected weights ({rows},) and directions ({rows}, d), got {got}")

    def __len__(self) -> int:
        """How many slots."""
        return len(self.items)

    def __getitem__(self, rows: slice | Int64 | NDArray[np.bool_]) -> Slots:
        """The slots of some rows."""
        return Slots(self.items[rows], self.values[rows], self.weights[rows], self.directions[rows])


def null_slots(count: int, config: BgtConfig) -> Slots:
    """Slots that hold nothing."""
    shape = count, config.release.pairs
    return Slots(
        np.full(shape, NOTHING, dtype=np.int32),
        np.zeros(shape, dtype=np.int32),
        np.zeros(count, dtype=np.int32),
        np.zeros((count, config.release.factors), dtype=np.int32),
    )


def packed_slots(slots: Slots) -> list[bytes]:
    """Each slot as bytes of one length: items, values, weight, direction, little-endian."""
    columns = (slots.items, slots.values, slots.weights[:, None], slots.directions)
    whole = np.concatenate(columns, axis=1).astype("<i4")
    return [row.tobytes() for row in whole]


def slot_bytes(config: BgtConfig) -> int:
    """Size of one slot's content, which is the same for every slot: all its numbers have 32 bits."""
    return 4 * (2 * config.release.pairs + 1 + config.release.factors)


ROUNDS = len(KINDS)
"""Each user has one slot in each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The model for predictions.

    Attributes:
        biases: (I,) of items.
        factors: (I, k) of items; k = 0 where there are none.
    """

    biases: Float64
    factors: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The request to each user.

    Attributes:
        number: from 0; there are `ROUNDS`.
        kind: kind of the requested slots. The last round requests kind A again if no factors were kept.
        model: the model for slots; in the first round it is empty.
        top: (M,) the items whose pairs are requested, for kind B.
        gains: (M,) a device multiplies its residuals of these items by them.
    """

    number: int
    kind: Kind
    model: Model
    top: Int64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    gains: Float64 = field(default_factory=lambda: np.zeros(0))


def first_round(config: BgtConfig) -> Round:
    """The first round."""
    return Round(0, "items", Model(np.zeros(config.items), np.zeros((config.items, 0))))


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Noised sums of one round.

    Attributes:
        number: of the round.
        kind: kind of the slots.
        slots: number of slots; nulls and refused slots are included.
        sums: kind A (2, I): weights, residuals; kind B (M (M - 1) / 2,): the strict lower triangle by rows; kind C
            (I, k). Whole multiples of 2^-20, of 2^-40 in kind B.
    """

    number: int
    kind: Kind
    slots: int
    sums: NDArray[np.int64]


def features_bytes(features: Float64) -> bytes:
    """(I, f) features as bytes for the deployment's digest; empty if there are none."""
    return features.astype("<f8").tobytes()


def features_file(features: Float64) -> bytes:
    """(I, f) features as a file: a row of numbers for each item, exactly."""
    return (json.dumps(features.tolist()) + "\n").encode()


def features_of(rows: Any, items: int, count: int, where: str) -> Float64:
    """(items, count) features from the content of their file.

    Raises:
        ConfigurationError: they are of another size, or not finite.
    """
    try:
        features = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        features = np.zeros((0, 0))
    if features.shape != (items, count) or not np.isfinite(features).all():
        raise ConfigurationError(f"{where}: expected {count} finite features of {items} items, got something else")
    return features


def parse_features(text: str, items: int, count: int, where: str) -> Float64:
    """(items, count) features from lines ``item,number,...,number``; an item without a line has zeros.

    Raises:
        ConfigurationError: a line is something else, or an item has two lines.
    """
    features = np.zeros((items, count))
    seen: set[int] = set()
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        item = _item(row, items, count)
        if item is None or item in seen:
            raise ConfigurationError(
                f"{where}, line {number}: expected an item from 0 to {items - 1}, each once, and {count} finite "
                f"numbers, got something else"
            )
        seen.add(item)
        features[item] = [float(value) for value in row[1:]]
    return features


def _item(row: Sequence[str], items: int, count: int) -> int | None:
    """The item of a line, if it is one."""
    try:
        item, values = int(row[0]), [float(value) for value in row[1:]]
    except ValueError:
        return None
    fits = 0 <= item < items and len(values) == count and bool(np.isfinite(values).all())
    return item if fits else None
