"""BGTplanner's records as values: ratings, rounds, slots, sums, and models.

*Stated.* The signed statement of a version: its model, and the round that it asks for.

Devices, gateways and the collector read both from it, after they have checked the aggregator's signature.

Slots: the records that users send, one padded record of each kind, in whole numbers. Many slots are held as columns.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.devices import envelope
from hushstream.engine.devices.kept import BadModel
from hushstream.engine.devices.signing import SigningKeys
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


MAX_PREDICTED = 1 << 15
"""Largest number of items to predict in one fold, or for one question, so that the journal record fits the broker's
record size."""

NONE = "none"
"""In place of a kind of slots in a record: no further round follows."""


def item_column(packed: bytes, what: str) -> Int64:
    """Items from their column, int64 (n,); the stage checks whether they are known.

    Raises:
        BadRatings: it ends within a number.
    """
    if len(packed) % 4:
        raise BadRatings(f"{what}: expected items of 4 bytes each, got part of one")
    return np.frombuffer(packed, "<i4").astype(np.int64)


def rating_columns(fields: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Items and values of a `Ratings` record.

    Raises:
        BadRatings: columns of different lengths.
    """
    items, values = item_column(fields["items"], "ratings"), fields["values"]
    if len(values) != 8 * len(items):
        raise BadRatings("ratings: expected a value of 8 bytes for each item, got others")
    return items.tolist(), np.frombuffer(values, "<f8").tolist()


def round_fields(asked: Round | None, number: int, digest: bytes) -> dict[str, Any]:
    """The fields of a `RatingRound`.

    Args:
        asked: the round; None says that no further round follows.
        number: of the round, or of the one that does not follow.
        digest: of the deployment.
    """
    top, gains = (asked.top, asked.gains) if asked is not None else (np.zeros(0), np.zeros(0))
    return {
        "config_digest": digest,
        "number": number,
        "kind": NONE if asked is None else asked.kind,
        "kept": 0 if asked is None else asked.model.factors.shape[1],
        "top": top.astype("<i4").tobytes(),
        "gains": gains.astype("<f8").tobytes(),
    }


def parse_round(fields: Mapping[str, Any], model: Model, config: BgtConfig) -> Round | None:
    """The round in a record; None if the record says that there is none.

    Args:
        fields: of a `RatingRound`.
        model: the model for its slots.
        config: of the deployment.

    Raises:
        BgtError: it is invalid in this deployment.
    """
    number, kind, kept = fields["number"], fields["kind"], fields["kept"]
    if kind == NONE:
        return None
    possible = KINDS[number] == kind or (number == ROUNDS - 1 and kind == "items") if 0 <= number < ROUNDS else False
    if not possible or kept != model.factors.shape[1] or bool(kept) != (kind == "factors"):
        raise BgtError(f"round {number}: expected a kind of this round and its model's factors, got {kind} and {kept}")
    if len(fields["top"]) % 4 or len(fields["gains"]) != 2 * len(fields["top"]):
        raise BgtError(f"round {number}: expected a gain for each of its items, got others")
    top = np.frombuffer(fields["top"], "<i4").astype(np.int64)
    gains = np.frombuffer(fields["gains"], "<f8").astype(np.float64)
    known = not len(top) or (top.min() >= 0 and top.max() < config.items)
    if len(top) != (config.top if kind == "pairs" else 0) or not known or len(np.unique(top)) != len(top):
        raise BgtError(f"round {number}: expected {config.top} known items for pairs, each once, got others")
    if not (np.isfinite(gains).all() and (gains > 0).all()):
        raise BgtError(f"round {number}: expected gains above 0, got others")
    return Round(number, kind, model, top, gains)


def blank_model(config: BgtConfig, factors: int) -> Model:
    """A model of zeros: the collector only needs its number of factors.

    Raises:
        BgtError: too many factors.
    """
    if not 0 <= factors <= config.release.factors:
        raise BgtError(f"round: expected at most {config.release.factors} factors, got {factors}")
    return Model(np.zeros(config.items), np.zeros((config.items, factors)))


def parse_slots(contents: Sequence[bytes], config: BgtConfig) -> Slots:
    """Slots from their contents, of `hushstream.systems.bgt.records.slot_bytes` each; `admit` checks the numbers."""
    rows, pairs = np.frombuffer(b"".join(contents), "<i4").astype(np.int32), config.release.pairs
    rows = rows.reshape(len(contents), -1)
    return Slots(rows[:, :pairs], rows[:, pairs : 2 * pairs], rows[:, 2 * pairs], rows[:, 2 * pairs + 1 :])


def parse_release(fields: Mapping[str, Any], asked: Round, config: BgtConfig) -> Release:
    """The release in a `RatingSums` record.

    Args:
        fields: of the record.
        asked: the open round.
        config: of the deployment.

    Raises:
        BadRelease: it is of another round, or its sums have another size.
    """
    top, kept = len(asked.top), asked.model.factors.shape[1]
    shape = {"items": (2, config.items), "pairs": (top * (top - 1) // 2,), "factors": (config.items, kept)}[asked.kind]
    if (fields["round"], fields["kind"]) != (asked.number, asked.kind) or fields["slots"] < 0:
        raise BadRelease(f"release: expected round {asked.number} ({asked.kind}), got another")
    if len(fields["sums"]) != 8 * int(np.prod(shape)):
        raise BadRelease(f"release: expected sums of shape {shape}, got {len(fields['sums'])} bytes")
    sums = np.frombuffer(fields["sums"], "<i8").astype(np.int64).reshape(shape)
    return Release(asked.number, asked.kind, fields["slots"], sums)


def model_columns(model: Model) -> dict[str, bytes]:
    """Biases and factors as a `RatingModel` has them."""
    return {"biases": model.biases.astype("<f8").tobytes(), "factors": model.factors.astype("<f8").tobytes()}


def parse_model(fields: Mapping[str, Any], config: BgtConfig) -> Model:
    """The model that a `RatingModel` holds.

    Raises:
        BgtError: columns of other sizes, or numbers that are not finite.
    """
    biases, factors = _floats(fields["biases"]), _floats(fields["factors"])
    whole = len(biases) == config.items and len(factors) % config.items == 0
    if not whole or not (np.isfinite(biases).all() and np.isfinite(factors).all()):
        raise BgtError(f"model: expected finite biases and factors of {config.items} items, got others")
    return Model(biases, factors.reshape(config.items, len(factors) // config.items))


def _floats(packed: bytes) -> Float64:
    if len(packed) % 8:
        raise BgtError("model: expected numbers of 8 bytes each, got part of one")
    return np.frombuffer(packed, "<f8").astype(np.float64)


_COLUMNS = ("biases", "factors", "top", "gains")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(envelope.Statement):
    """What the aggregator states of one version; the number of the round that it asks for is the version.

    Attributes:
        kind: kind of the slots that are asked for, or "none".
        factors: how many factors each item has.
        top: M, if pairs are asked for; else 0.
    """

    kind: str
    factors: int
    top: int


def content_of(fields: Mapping[str, Any]) -> bytes:
    """The content of a version: the biases and factors, and the round's items and their gains."""
    return b"".join(fields[name] for name in _COLUMNS)


def version_of(
    statement: Statement, content: bytes, config: BgtConfig
) -> tuple[Model, Round | None, Mapping[str, Any]]:
    """The model of a version, the round that it asks for (None for no more), and the fields of its `RatingRound`.

    Raises:
        BadModel: the content is not the one that the statement describes, or is not possible in this deployment.
    """
    if not (0 <= statement.factors <= config.release.factors and statement.top in (0, config.top)):
        raise BadModel("model: expected factors and items as the configuration has them, got others")
    sizes = 8 * config.items, 8 * config.items * statement.factors, 4 * statement.top, 8 * statement.top
    statement.require_content(content, sum(sizes))
    ends = np.cumsum(sizes).tolist()
    columns = {name: content[end - size : end] for name, size, end in zip(_COLUMNS, sizes, ends, strict=True)}
    asked = {
        "config_digest": bytes.fromhex(statement.configuration),
        "number": statement.version,
        "kind": statement.kind,
        "kept": statement.factors if statement.kind == "factors" else 0,
        "top": columns["top"],
        "gains": columns["gains"],
    }
    try:
        model = parse_model(columns, config)
        return model, parse_round(asked, model, config), asked
    except BgtError as error:
        raise BadModel(f"model: {error}") from None


def signed_round(
    fields: Mapping[str, Any], config: BgtConfig, digest: bytes, keys: SigningKeys
) -> tuple[Round | None, Mapping[str, Any]]:
    """The round that a signed version asks for (None for no more), and the fields of its `RatingRound`.

    Args:
        fields: of the record that the aggregator has signed.
        config, digest: of the deployment.
        keys: the aggregator's public keys.

    Raises:
        BadModel: it is not signed, or not of this deployment.
    """
    stated = Statement.signed_in(fields, keys, digest)
    return version_of(stated, fields["content"], config)[1:]
