"""The kinds of features: accepted values, encoding on the wire, and the block of shares that a value becomes.

A block has a number of cells. The shares of one value are at least 0 and sum to 1, or to 0 where the value says
nothing; those of an embedding have signs, and their absolute values sum to 1. Shares are fractions of whole numbers,
computed from the wire's whole numbers alone, so they are the same on every machine.

| kind | on the wire | block |
| --- | --- | --- |
| category | number in the vocabulary (2 bytes) | one cell for each entry, and one for unknown or missing |
| number | place in the range in steps of 1/65534 (2 bytes) | hat functions on nodes, and a cell for missing |
| boolean | 0, 1 or 2 for missing (1 byte) | three cells |
| time_of_day | steps of 2 seconds (2 bytes) | 6 hat functions around the day; empty where missing |
| day_of_week | 0 to 6, or 7 for missing (1 byte) | 7 cells; empty where missing |
| tags | one bit for each tag | 1/s on each of s tags, and a cell for none |
| embedding | 2 bytes for each coordinate | a signed share e/\\|e\\|_1 for each coordinate; empty where missing |
| histogram | 2 bytes for each bin | the shares themselves; empty where missing |
| cross | nothing | one cell for each pair of levels of two features |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hushstream.features.checks import (
    BadDeclaration,
    BadValue,
    finite,
    fraction,
    limits,
    require_keys,
    text,
    vocabulary,
    whole,
    wrong_type,
)
from hushstream.privacy.amounts import count_text

MOST_ENTRIES = 4096
"""Largest number of entries of a vocabulary."""

MOST_NODES = 64
MOST_COORDINATES = 1024
"""Largest number of coordinates of an embedding, and of bins of a histogram."""

CROSS_LEVELS = 6
"""Largest number of levels that a category or a number has in a cross."""

STEPS = 65534
"""Number of parts of a number's range; the next value means missing."""

MISSING_STEP = 65535
DAY_STEPS = 43200
TIME_NODES = 6
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MOST_AGAINST_USUAL = 3.0
"""Largest number of tags of a value over the usual number: a visit is assumed to have a third of the largest number."""

UNIT = 32767
"""An embedding's coordinates are in units of 1/32767."""

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MOST_NAMED = 4
"""Largest number of similar values that are named one by one."""


class Outcome(IntEnum):
    """The outcome of encoding one value.

    Counts for each feature are zone-private (PRIVACY rule 11) and never released.
    """

    KNOWN = 0
    MISSING = 1
    UNKNOWN = 2
    """Not in the vocabulary; of tags: at least one was not, and was left out."""
    CLIPPED = 3
    """Outside the range or the limit, and moved to its edge; of tags: more than the limit, and the last left out."""


class Encoded(NamedTuple):
    """A value on the wire (a whole number, or the bytes of several), and its outcome."""

    wire: int | bytes
    outcome: Outcome


class Shares(NamedTuple):
    """The blocks of n values.

    Attributes:
        cells: (n, places) int64, from 0 to the block's cells - 1; 0 where the share is 0.
        parts: (n, places) int64, numerators.
        whole: (n,) int64, denominators, at least 1.
    """

    cells: Int64
    parts: Int64
    whole: Int64


class Feature(ABC):
    """One declared feature.

    A kind is a frozen dataclass that refuses impossible settings, and has these.
    """

    kind: ClassVar[str]
    signed: ClassVar[bool] = False
    """Whether shares have signs."""

    @property
    def usual(self) -> float:
        """Usual number of cells that share a value; a public guess."""
        return 1.0

    @property
    def own_part(self) -> float:
        """Assumed share of the information in a cell's sums that is not also in the sums of its neighbours."""
        return 1.0

    @classmethod
    def declared(cls, place: str, given: Mapping[Any, Any]) -> Feature:
        """Make the feature from its declaration without ``kind``. This version is for a kind that has no settings.

        Raises:
            BadDeclaration: an unknown key, the lack of one, or an impossible value.
        """
        require_keys(place, given, (), ())
        return cls()

    def settings(self) -> dict[str, Any]:
        """Every setting as plain values: the declaration, with defaults written out."""
        return {}

    @property
    @abstractmethod
    def cells(self) -> int:
        """How many cells the block has."""

    @property
    @abstractmethod
    def places(self) -> int:
        """Largest number of cells with a share of one value."""

    @property
    @abstractmethod
    def column(self) -> np.dtype[Any]:
        """The type of a value on the wire."""

    @property
    def complete(self) -> bool:
        """Whether every block sums to 1, so that the sums of its cells add up to the number of values."""
        return True

    @abstractmethod
    def encode(self, name: str, value: Any) -> Encoded:
        """Encode one value; None means that it is missing.

        Raises:
            BadValue: of another type, NaN or infinite.
        """

    def encode_all(self, name: str, values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode a column of n values; returns it, and the `Outcome` of each value, (n,).

        NaN in a float array means that the value is missing: data frames write it so.

        Raises:
            BadValue: as `encode`.
        """
        found = [self.encode(name, None if _is_missing(values, value) else value) for value in values]
        outcomes = np.array([one.outcome for one in found], dtype=np.int64)
        if not self.column.shape:
            return np.array([one.wire for one in found], dtype=self.column), outcomes
        content = b"".join(one.wire for one in found if isinstance(one.wire, bytes))
        return np.frombuffer(content, self.column.base).reshape(len(found), *self.column.shape), outcomes

    def value(self, wire: Any) -> Any:
        """The value that one number or vector of a valid column stands for; None where it is missing or unknown.

        It is encoded to the same column again; coordinates may differ by their last unit.
        """
        raise BadDeclaration(f"value: expected a feature with values of its own, got a {self.kind}")

    @abstractmethod
    def valid(self, column: NDArray[Any]) -> Bools:
        """(n,) whether each value from the wire is one that `encode` gives."""

    @abstractmethod
    def shares(self, column: NDArray[Any]) -> Shares:
        """The blocks of a valid column."""

    def values(self, column: NDArray[Any], shares: Shares) -> NDArray[np.float64]:
        """(n, places) what a learner sees in the cells of ``shares``: the shares, unless a kind says otherwise."""
        return np.asarray(shares.parts / shares.whole[:, None])

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the levels that this feature has in a cross; empty if it cannot be part of one."""
        return ()

    def levels(self, column: NDArray[Any]) -> Int64:
        """(n,) the level of each value of a valid column, -1 where there is none."""
        raise BadDeclaration(f"cross: expected a feature with levels, got a {self.kind}")

    def positions(self, column: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) the position of each value of a valid column on [0, 1]; only kinds that have levels have this."""
        raise BadDeclaration(f"positions: expected a feature with levels, got a {self.kind}")

    def within(self, low: float, high: float) -> str:
        """Describe the values with positions from ``low`` up to ``high``; only kinds that have levels have this."""
        raise BadDeclaration(f"within: expected a feature with levels, got a {self.kind}")


@dataclass(frozen=True, slots=True)
class Entries(Feature):
    """A kind with a vocabulary: a cell for each entry, and one for values without an entry.

    Attributes:
        vocabulary: distinct texts, numbered in this order.
    """

    vocabulary: tuple[str, ...]
    _numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Number the entries."""
        object.__setattr__(self, "_numbers", {entry: number for number, entry in enumerate(self.vocabulary)})

    @property
    def cells(self) -> int:
        return len(self.vocabulary) + 1


@dataclass(frozen=True, slots=True)
class Category(Entries):
    """An entry of a vocabulary. Missing and unknown values share a cell.

    Attributes:
        vocabulary: see `Entries`; a cross has separate levels for the first five.
    """

    kind: ClassVar[str] = "category"
    places = 1
    column = np.dtype("<u2")

    @classmethod
    def declared(cls, place: str, given: Mapping[Any, Any]) -> Category:
        require_keys(place, given, ("vocabulary",), ("vocabulary",))
        return cls(vocabulary(f"{place}.vocabulary", given["vocabulary"], MOST_ENTRIES))

    def settings(self) -> dict[str, Any]:
        return {"vocabulary": list(self.vocabulary)}

    def encode(self, name: str, value: Any) -> Encoded:
        if value is None:
            return Encoded(len(self.vocabulary), Outcome.MISSING)
        number = self._numbers.get(text(name, value, "a text"))
        return Encoded(len(self.vocabulary), Outcome.UNKNOWN) if number is None else Encoded(number, Outcome.KNOWN)

    def value(self, wire: Any) -> str | None:
        return self.vocabulary[wire] if wire < len(self.vocabulary) else None

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.asarray(column <= len(self.vocabulary))

    def shares(self, column: NDArray[Any]) -> Shares:
        return _one_cell(column)

    @property
    def level_names(self) -> tuple[str, ...]:
        if self.cells <= CROSS_LEVELS:
            return (*self.vocabulary, "other")
        return (*self.vocabulary[: CROSS_LEVELS - 1], "other")

    def levels(self, column: NDArray[Any]) -> Int64:
        return np.minimum(column.astype(np.int64), CROSS_LEVELS - 1)

    def positions(self, column: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray((column + 0.5) / self.cells)

    def within(self, low: float, high: float) -> str:
        return _named_within((*self.vocabulary, "unknown"), self.positions(np.arange(self.cells)), low, high)


@dataclass(frozen=True, slots=True)
class Number(Feature):
    """A finite number, clipped to a public range. A missing value has its own cell.

    Attributes:
        low, high: the range.
        scale: ``linear``, or ``log`` for values over several orders of magnitude (then low is above 0).
        nodes: number of hat functions over the range: 8, or 32 if the range is a guess.
    """

    kind: ClassVar[str] = "number"
    places = 2
    column = np.dtype("<u2")
    level_names = (*(f"part {part} of {CROSS_LEVELS - 1}" for part in range(1, CROSS_LEVELS)), "missing")

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"
    nodes: int = 8

    @classmethod
    def declared(cls, place: str, given: Mapping[Any, Any]) -> Number:
        require_keys(place, given, ("range", "scale", "nodes"), ("range",))
        low, high = limits(f"{place}.range", given["range"])
        scale = given.get("scale", "linear")
        if scale not in ("linear", "log"):
            raise BadDeclaration(f"{place}.scale: expected linear or log, got another value")
        if scale == "log" and low <= 0:
            raise BadDeclaration(f"{place}.range: expected a low end above 0 on a log scale, got {low:g}")
        return cls(low, high, scale, whole(f"{place}.nodes", given.get("nodes", 8), 2, MOST_NODES))

    def settings(self) -> dict[str, Any]:
        return {"range": [self.low, self.high], "scale": self.scale, "nodes": self.nodes}

    @property
    def cells(self) -> int:
        return self.nodes + 1

    def encode(self, name: str, value: Any) -> Encoded:
        if value is None:
            return Encoded(MISSING_STEP, Outcome.MISSING)
        number = finite(name, value, "a finite number")
        # NumPy computes the logarithm here as for a column: otherwise one value could be encoded differently alone.
        if self.scale == "log":
            clipped = min(max(number, self.low), self.high)
            place = float(np.log(clipped / self.low)) / math.log(self.high / self.low)
        else:
            place = (min(max(number, self.low), self.high) - self.low) / (self.high - self.low)
        outcome = Outcome.KNOWN if self.low <= number <= self.high else Outcome.CLIPPED
        return Encoded(min(max(round(place * STEPS), 0), STEPS), outcome)

    def encode_all(self, name: str, values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        floats = _floats(name, values)
        return Feature.encode_all(self, name, values) if floats is None else self._encode(floats)

    def _encode(self, values: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        missing = np.isnan(values)
        clipped = np.clip(np.where(missing, self.low, values), self.low, self.high)
        if self.scale == "log":
            place = np.log(clipped / self.low) / math.log(self.high / self.low)
        else:
            place = (clipped - self.low) / (self.high - self.low)
        steps = np.clip(np.rint(place * STEPS), 0, STEPS)
        outside = np.where((values < self.low) | (values > self.high), Outcome.CLIPPED, Outcome.KNOWN)
        return (
            np.where(missing, MISSING_STEP, steps).astype("<u2"),
            np.where(missing, Outcome.MISSING, outside).astype(np.int64),
        )

    def value(self, wire: Any) -> float | None:
        return None if wire == MISSING_STEP else self._at(int(wire) / STEPS)

    def _at(self, place: float) -> float:
        """The number at a position on [0, 1]."""
        if self.scale == "log":
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.ones(len(column), dtype=np.bool_)

    def shares(self, column: NDArray[Any]) -> Shares:
        missing = column == MISSING_STEP
        place = np.where(missing, 0, column).astype(np.int64) * (self.nodes - 1)
        node, right = place // STEPS, place % STEPS
        cells = _pairs(np.where(missing, self.nodes, node), np.where(right > 0, node + 1, 0))
        parts = _pairs(STEPS - right, right)
        return Shares(cells, parts, np.full(len(column), STEPS, dtype=np.int64))

    def levels(self, column: NDArray[Any]) -> Int64:
        return column.astype(np.int64) * (CROSS_LEVELS - 1) // MISSING_STEP

    def positions(self, column: NDArray[Any]) -> NDArray[np.float64]:
        return np.where(column == MISSING_STEP, 0.5, column / STEPS)

    def within(self, low: float, high: float) -> str:
        return f"{self._at(low):.4g} to {self._at(high):.4g}"


@dataclass(frozen=True, slots=True)
class Boolean(Feature):
    """True, false or missing; each has a cell."""

    kind: ClassVar[str] = "boolean"
    cells = 3
    places = 1
    column = np.dtype("u1")
    level_names = ("false", "true", "missing")

    def encode(self, name: str, value: Any) -> Encoded:
        if value is None:
            return Encoded(2, Outcome.MISSING)
        if not isinstance(value, bool | np.bool_):
            raise wrong_type(name, "true or false", value)
        return Encoded(int(value), Outcome.KNOWN)

    def value(self, wire: Any) -> bool | None:
        return (False, True, None)[wire]

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.asarray(column <= 2)

    def shares(self, column: NDArray[Any]) -> Shares:
        return _one_cell(column)

    def levels(self, column: NDArray[Any]) -> Int64:
        return column.astype(np.int64)

    def positions(self, column: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(np.array([1 / 6, 5 / 6, 0.5])[column])

    def within(self, low: float, high: float) -> str:
        return _named_within(self.level_names, self.positions(np.arange(len(self.level_names))), low, high)


@dataclass(frozen=True, slots=True)
class TimeOfDay(Feature):
    """Hours since midnight in the visitor's local time, as a number or as ``HH:MM``, from 00:00 to 24:00.

    A number below 0, or of 24 and more, is taken modulo 24 and counted as clipped. Missing leaves the block empty.
    """

    kind: ClassVar[str] = "time_of_day"
    cells = TIME_NODES
    places = 2
    column = np.dtype("<u2")
    complete = False
    level_names = tuple(f"{4 * part} to {4 * part + 4} h" for part in range(TIME_NODES))

    def encode(self, name: str, value: Any) -> Encoded:
        if value is None:
            return Encoded(MISSING_STEP, Outcome.MISSING)
        hours = _clock(name, value) if isinstance(value, str) else finite(name, value, "hours or HH:MM")
        outcome = Outcome.KNOWN if 0.0 <= hours < 24.0 else Outcome.CLIPPED
        return Encoded(round(hours % 24.0 * (DAY_STEPS / 24)) % DAY_STEPS, outcome)

    def encode_all(self, name: str, values: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        floats = _floats(name, values)
        return Feature.encode_all(self, name, values) if floats is None else self._encode(floats)

    def _encode(self, hours: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        missing = np.isnan(hours)
        steps = np.rint(np.mod(np.where(missing, 0.0, hours), 24.0) * (DAY_STEPS / 24)) % DAY_STEPS
        outside = np.where((hours < 0.0) | (hours >= 24.0), Outcome.CLIPPED, Outcome.KNOWN)
        return (
            np.where(missing, MISSING_STEP, steps).astype("<u2"),
            np.where(missing, Outcome.MISSING, outside).astype(np.int64),
        )

    def value(self, wire: Any) -> float | None:
        return None if wire == MISSING_STEP else int(wire) * 24.0 / DAY_STEPS

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.asarray((column < DAY_STEPS) | (column == MISSING_STEP))

    def shares(self, column: NDArray[Any]) -> Shares:
        known = (column != MISSING_STEP).astype(np.int64)
        place = column.astype(np.int64) * known * TIME_NODES
        node, right = place // DAY_STEPS, place % DAY_STEPS
        cells = _pairs(node, np.where(right > 0, (node + 1) % TIME_NODES, 0))
        parts = _pairs((DAY_STEPS - right) * known, right)
        return Shares(cells, parts, np.full(len(column), DAY_STEPS, dtype=np.int64))

    def levels(self, column: NDArray[Any]) -> Int64:
        return np.where(column == MISSING_STEP, -1, column.astype(np.int64) * TIME_NODES // DAY_STEPS)

    def positions(self, column: NDArray[Any]) -> NDArray[np.float64]:
        return np.where(column == MISSING_STEP, 0.5, column / DAY_STEPS)

    def within(self, low: float, high: float) -> str:
        return f"{24 * low:.3g} to {24 * high:.3g} h"


@dataclass(frozen=True, slots=True)
class DayOfWeek(Feature):
    """A day by its English name (or its first three letters), or by its ISO number, 1 for Monday to 7.

    A day is one of seven, so each has a cell: hat functions would smear it over two. Missing leaves the block empty.
    """

    kind: ClassVar[str] = "day_of_week"
    cells = len(_DAYS)
    places = 1
    column = np.dtype("u1")
    complete = False
    level_names = _DAYS

    def encode(self, name: str, value: Any) -> Encoded:
        expected = "a day by its name, or its number from 1 for Monday to 7"
        if value is None:
            return Encoded(len(_DAYS), Outcome.MISSING)
        if isinstance(value, str):
            # The text is cut first: a longer one is no name of a day, and converting all of it could take long.
            word = value[:12].lower()
            for number, day in enumerate(_DAYS):
                if word in (day, day[:3]):
                    return Encoded(number, Outcome.KNOWN)
            raise BadValue(f"{name}: expected {expected}, got another text")
        day_number = finite(name, value, expected)
        if day_number not in range(1, len(_DAYS) + 1):
            raise BadValue(f"{name}: expected {expected}, got another number")
        return Encoded(int(day_number) - 1, Outcome.KNOWN)

    def value(self, wire: Any) -> str | None:
        return (*_DAYS, None)[wire]

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.asarray(column <= len(_DAYS))

    def shares(self, column: NDArray[Any]) -> Shares:
        return _cell_where(column < len(_DAYS), column)

    def levels(self, column: NDArray[Any]) -> Int64:
        return np.where(column < len(_DAYS), column.astype(np.int64), -1)

    def positions(self, column: NDArray[Any]) -> NDArray[np.float64]:
        return np.where(column < len(_DAYS), (column + 0.5) / len(_DAYS), 0.5)

    def within(self, low: float, high: float) -> str:
        return _named_within(_DAYS, self.positions(np.arange(len(_DAYS))), low, high)


@dataclass(frozen=True, slots=True)
class Tags(Entries):
    """Any of a vocabulary, each at most once. Missing is the same as none.

    Unknown tags are left out; of more than ``most`` known ones the first are kept, as the application ordered them.

    Attributes:
        vocabulary: see `Entries`.
        most: largest number of tags of one value that count.
        redundancy: correlation of the tags of one value: 0 for tags that are given one by one, about .2 for the words
            of a text. The sums of a tag contain the rewards of all tags that come with it; s tags together are assumed
            to have the information of s / (1 + redundancy (s - 1)).
    """

    kind: ClassVar[str] = "tags"

    most: int
    redundancy: float = 0.0

    @classmethod
    def declared(cls, place: str, given: Mapping[Any, Any]) -> Tags:
        require_keys(place, given, ("vocabulary", "most", "redundancy"), ("vocabulary", "most"))
        known = vocabulary(f"{place}.vocabulary", given["vocabulary"], MOST_ENTRIES)
        redundancy = fraction(f"{place}.redundancy", given.get("redundancy", 0.0))
        return cls(known, whole(f"{place}.most", given["most"], 1, len(known)), redundancy)

    def settings(self) -> dict[str, Any]:
        # A value of 0 is left out, so that declarations from before this setting existed keep their digest.
        extra = {"redundancy": self.redundancy} if self.redundancy else {}
        return {"vocabulary": list(self.vocabulary), "most": self.most, **extra}

    @property
    def places(self) -> int:
        return self.most

    @property
    def column(self) -> np.dtype[Any]:
        return np.dtype(("u1", (-(-len(self.vocabulary) // 8),)))

    @property
    def usual(self) -> float:
        return max(1.0, self.most / _MOST_AGAINST_USUAL)

    @property
    def own_part(self) -> float:
        return 1.0 / (1.0 + self.redundancy * (self.usual - 1.0))

    def encode(self, name: str, value: Any) -> Encoded:
        size = self.column.itemsize
        if value is None:
            return Encoded(bytes(size), Outcome.MISSING)
        if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence | set | frozenset):
            raise wrong_type(name, "a list of texts", value)
        found, outcome = dict[int, None](), Outcome.KNOWN
        # A set has another order in each process. It is sorted, so that every process keeps the same tags.
        for entry in sorted(value, key=str) if isinstance(value, set | frozenset) else value:
            number = self._numbers.get(text(name, entry, "a list of texts"))
            if number is None:
                outcome = max(outcome, Outcome.UNKNOWN)
            else:
                found[number] = None
        if len(found) > self.most:
            outcome = Outcome.CLIPPED
        bits = 0
        for number in list(found)[: self.most]:
            bits |= 1 << number
        return Encoded(bits.to_bytes(size, "little"), outcome)

    def value(self, wire: Any) -> list[str]:
        bits = np.unpackbits(wire, count=len(self.vocabulary), bitorder="little")
        return [self.vocabulary[number] for number in np.flatnonzero(bits)]

    def valid(self, column: NDArray[Any]) -> Bools:
        bits = np.unpackbits(column, axis=1, bitorder="little")
        known = len(self.vocabulary)
        return np.asarray((bits.sum(axis=1, dtype=np.int64) <= self.most) & ~bits[:, known:].any(axis=1))

    def shares(self, column: NDArray[Any]) -> Shares:
        bits = np.unpackbits(column, axis=1, count=len(self.vocabulary), bitorder="little")
        rows, tags = np.nonzero(bits)
        counts = bits.sum(axis=1, dtype=np.int64)
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        cells = np.zeros((len(column), self.most), dtype=np.int64)
        parts = np.zeros_like(cells)
        cells[rows, rank], parts[rows, rank] = tags, 1
        none = counts == 0
        cells[none, 0], parts[none, 0] = len(self.vocabulary), 1
        return Shares(cells, parts, np.maximum(counts, 1))

    def values(self, column: NDArray[Any], shares: Shares) -> NDArray[np.float64]:
        """(n, most) 1/sqrt(s): vectors of length 1.

        With shares 1/s, a visit with many tags would have almost no weight.
        """
        return np.asarray(shares.parts / np.sqrt(shares.whole.astype(np.float64))[:, None])


@dataclass(frozen=True, slots=True)
class Coordinates(Feature):
    """A vector: a cell for each of a declared number of coordinates, 2 bytes each; a missing vector is all zeros.

    Attributes:
        count: number of coordinates; ``counted`` is its key in the declaration.
    """

    counted: ClassVar[str]
    least: ClassVar[int] = 1
    wire: ClassVar[str]
    """The type of a coordinate on the wire."""
    complete = False

    count: int

    @classmethod
    def declared(cls, place: str, given: Mapping[Any, Any]) -> Self:
        require_keys(place, given, (cls.counted,), (cls.counted,))
        return cls(whole(f"{place}.{cls.counted}", given[cls.counted], cls.least, MOST_COORDINATES))

    def settings(self) -> dict[str, Any]:
        return {self.counted: self.count}

    @property
    def cells(self) -> int:
        return self.count

    @property
    def places(self) -> int:
        return self.count

    @property
    def column(self) -> np.dtype[Any]:
        return np.dtype((self.wire, (self.count,)))

    def value(self, wire: Any) -> list[float] | None:
        """A vector of zeros was missing."""
        return (wire / float(UNIT)).tolist() if wire.any() else None

    def shares(self, column: NDArray[Any]) -> Shares:
        parts = column.astype(np.int64)
        cells = np.broadcast_to(np.arange(parts.shape[1], dtype=np.int64), parts.shape)
        return Shares(cells, parts, np.maximum(np.abs(parts).sum(axis=1), 1))


@dataclass(frozen=True, slots=True)
class Embedding(Coordinates):
    """A vector of Euclidean length at most 1; a longer one is scaled to 1 and counted as clipped.

    The slot holds its signed shares e/|e|_1, the learner sees e itself. Missing (or all zeros) leaves the block empty.
    """

    kind: ClassVar[str] = "embedding"
    signed: ClassVar[bool] = True
    counted: ClassVar[str] = "dimension"
    wire: ClassVar[str] = "<i2"

    def encode(self, name: str, value: Any) -> Encoded:
        if value is None:
            return Encoded(bytes(2 * self.count), Outcome.MISSING)
        found = _vector(name, value, self.count)
        # Scaled first, so that the squares of large coordinates do not overflow.
        largest = float(np.abs(found).max())
        length = largest * math.sqrt(float(np.square(found / largest).sum())) if largest else 0.0
        # Rounding toward zero keeps the length at most 1.
        units = np.trunc(found / max(length, 1.0) * UNIT)
        return Encoded(units.astype("<i2").tobytes(), Outcome.CLIPPED if length > 1.0 else Outcome.KNOWN)

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.asarray(np.square(column.astype(np.int64)).sum(axis=1) <= UNIT**2)

    def values(self, column: NDArray[Any], shares: Shares) -> NDArray[np.float64]:
        """(n, dimension) the vector itself."""
        return np.asarray(column / float(UNIT))


@dataclass(frozen=True, slots=True)
class Histogram(Coordinates):
    """Counts or shares of a fixed number of bins, at least 0, scaled to sum 1; empty where missing (or all zeros)."""

    kind: ClassVar[str] = "histogram"
    counted: ClassVar[str] = "bins"
    least: ClassVar[int] = 2
    wire: ClassVar[str] = "<u2"

    def encode(self, name: str, value: Any) -> Encoded:
        empty = bytes(2 * self.count)
        if value is None:
            return Encoded(empty, Outcome.MISSING)
        found = _vector(name, value, self.count)
        if found.min() < 0:
            raise BadValue(f"{name}: expected {self.count} numbers of at least 0, got one below")
        largest = float(found.max())
        if largest == 0.0:
            return Encoded(empty, Outcome.MISSING)
        shares = found / largest
        return Encoded(np.rint(shares / shares.sum() * STEPS).astype("<u2").tobytes(), Outcome.KNOWN)

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.ones(len(column), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Cross(Feature):
    """A table over the levels of two other features, for an important interaction. It has no values on the wire.

    A category has its first five entries as levels and all else as the sixth; a number five equal parts of its range
    (on its scale) and missing; a boolean three; a time of day six parts of four hours; a day of the week seven. The
    block is empty where a time or day is missing.

    Attributes:
        left, right: the names of the two features.
        left_levels, right_levels: how many levels they have; known once both are declared.
    """

    kind: ClassVar[str] = "cross"
    places = 1
    column = np.dtype(np.int64)
    complete = False

    left: str
    right: str
    left_levels: int = 0
    right_levels: int = 0

    @classmethod
    def declared(cls, place: str, given: Mapping[Any, Any]) -> Cross:
        require_keys(place, given, ("of",), ("of",))
        named = given["of"]
        if not isinstance(named, list | tuple) or len(named) != 2 or not all(isinstance(one, str) for one in named):
            raise BadDeclaration(f"{place}.of: expected the names of two features, got something else")
        if named[0] == named[1]:
            raise BadDeclaration(f"{place}.of: expected two different features, got one twice")
        return cls(*named)

    def settings(self) -> dict[str, Any]:
        return {"of": [self.left, self.right]}

    @property
    def cells(self) -> int:
        return self.left_levels * self.right_levels

    def encode(self, name: str, value: Any) -> Encoded:
        raise BadValue(f"{name}: expected no value of a cross (it follows from {self.left} and {self.right}), got one")

    def valid(self, column: NDArray[Any]) -> Bools:
        return np.asarray(column < self.cells)

    def paired(self, left: Int64, right: Int64) -> Int64:
        """(n,) the cell of each pair of levels; -1 if one of the two values has no level."""
        return np.where((left < 0) | (right < 0), -1, left * self.right_levels + right)

    def shares(self, column: NDArray[Any]) -> Shares:
        return _cell_where(column >= 0, column)


KINDS: Mapping[str, type[Feature]] = {
    one.kind: one for one in (Category, Number, Boolean, TimeOfDay, DayOfWeek, Tags, Embedding, Histogram, Cross)
}
"""Every kind by its name in a declaration."""


def _pairs(first: Int64, second: Int64) -> Int64:
    """Join two columns into (n, 2). `np.stack` takes six times as long for one row."""
    found = np.empty((len(first), 2), dtype=np.int64)
    found[:, 0], found[:, 1] = first, second
    return found


def _one_cell(column: NDArray[Any]) -> Shares:
    ones = np.ones(len(column), dtype=np.int64)
    return Shares(column.astype(np.int64)[:, None], ones[:, None], ones)


def _cell_where(known: Bools, column: NDArray[Any]) -> Shares:
    """Blocks of one cell for each value; the block of a value that is not known is empty."""
    cells = np.where(known, column, 0).astype(np.int64)[:, None]
    return Shares(cells, known.astype(np.int64)[:, None], np.ones(len(column), dtype=np.int64))


def _vector(name: str, value: Any, length: int) -> NDArray[np.float64]:
    expected = f"{count_text(length, 'finite number')}"
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
        raise wrong_type(name, expected, value)
    if np.ndim(value) != 1 or len(value) != length:
        raise BadValue(f"{name}: expected {expected}, got {len(value):,} entries")
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        found = value.astype(np.float64)
        if not np.isfinite(found).all():
            raise BadValue(f"{name}: expected {expected}, got NaN or an infinite number")
        return found
    return np.array([finite(name, entry, expected) for entry in value])


def _named_within(names: Sequence[str], positions: NDArray[np.float64], low: float, high: float) -> str:
    """Name the values whose positions lie from ``low`` up to ``high``, for a kind with few values."""
    found = [name for name, place in zip(names, positions.tolist(), strict=True) if low <= place < high]
    named = found if len(found) <= _MOST_NAMED else [*found[: _MOST_NAMED - 1], f"{len(found) - _MOST_NAMED + 1} more"]
    return " or ".join(named) or "nothing"


def _clock(name: str, value: str) -> float:
    hours, colon, minutes = value[:6].partition(":")
    ok = colon and all(part.isascii() and part.isdigit() and len(part) <= 2 for part in (hours, minutes))
    if not ok or int(minutes) > 59 or len(value) > 5 or 60 * int(hours) + int(minutes) > 24 * 60:
        raise BadValue(f"{name}: expected hours or HH:MM, got another text")
    return int(hours) + int(minutes) / 60


def _floats(name: str, values: object) -> NDArray[np.float64] | None:
    """The values as a float array; None if they are no float array."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim != 1:
        return None
    if np.isinf(values).any():
        raise BadValue(f"{name}: expected finite numbers, got an infinite one")
    return values.astype(np.float64)


def _is_missing(values: object, value: object) -> bool:
    """Whether a value of a float array is NaN: how data frames write that there is none."""
    return isinstance(values, np.ndarray) and values.dtype.kind == "f" and values.ndim == 1 and value != value
