"""Reads the decisions journal without its key, by the chain rule.

*Journals.* Reading a journal of answers from outside, by the chain rule.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.engine.catalogue import ITEMS
from hushstream.engine.declare.requests import BadContext, UnknownArm
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import MAX_ID_BYTES, Decisions, JournalHead, Reason, id_fault
from hushstream.schemas.topics import common_name


def packed_of(context: ArrayLike) -> bytes:
    """A context as the bytes of float32 (d,), little-endian.

    Raises:
        BadContext: the context is not a vector of finite numbers.
    """
    if isinstance(context, list) and (packed := _packed(context)) is not None:
        return packed
    try:
        # A number beyond the range of float32 becomes infinite, and is then refused as not finite.
        with np.errstate(over="ignore"):
            vector = np.asarray(context, dtype="<f4")
    except (TypeError, ValueError):
        raise BadContext("context: expected a vector of numbers, got something else") from None
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise BadContext(f"context: expected a vector of finite numbers, got shape {vector.shape}")
    return vector.tobytes()


def vector_of(context: ArrayLike) -> NDArray[np.float32]:
    """A context as float32 (d,); raises as `packed_of`."""
    return np.frombuffer(packed_of(context), "<f4")


def _packed(numbers: list[Any]) -> bytes | None:
    """The bytes of a few numbers as float32, ten times as fast as with an array; None for other types."""
    try:
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        # A sum of so few float32 numbers does not overflow in float64: it is infinite or NaN only if one of them is.
        return packed if math.isfinite(sum(numbers)) else None
    except (struct.error, OverflowError, TypeError):
        return None


def require_id(name: str, text: str) -> None:
    """Refuse a name that no record may hold.

    Raises:
        HushstreamError: the name is not text in one line, is empty or too long.
    """
    if not isinstance(text, str):
        raise HushstreamError(f"{name}: expected text, got {type(text).__name__}")
    try:
        fault = id_fault(text)
    except UnicodeEncodeError:
        raise HushstreamError(f"{name}: expected text that UTF-8 can write, got half of a surrogate pair") from None
    if fault is Reason.ID_OF_LINES:
        raise HushstreamError(f"{name}: expected text in one line, got a control character")
    if fault is not None:
        came = f"{len(text.encode())}{' of blanks' * text.isspace()}"
        raise HushstreamError(f"{name}: expected 1 to {MAX_ID_BYTES} bytes, got {came}")


def mask_of(eligible: Sequence[int] | None) -> bytes:
    """A bitmask of arms: bit a of byte a // 8 is arm a; no bytes mean all arms.

    Raises:
        UnknownArm: no arm is eligible, or the number of one is negative.
    """
    if eligible is None:
        return b""
    if not len(eligible) or min(eligible) < 0:
        raise UnknownArm("eligible: expected at least one arm, numbered from 0; leave it out for all arms")
    mask = bytearray(max(eligible) // 8 + 1)
    for arm in eligible:
        mask[arm // 8] |= 1 << (arm % 8)
    return bytes(mask)


STALE_RECORDS = 64
"""Largest number of records that a worker may write off the chain. A worker that has lost its partition stops at the
first record that is acknowledged at another offset than it expects; until then it sends at most
`WorkerSettings.in_flight`."""


class _Place(NamedTuple):
    """A sequence number and the input offsets up to which a chain has come."""

    sequence: int
    highs: Mapping[tuple[str, int], int]

    def continued_by(self, head: JournalHead) -> bool:
        known = self.highs
        return head["sequence"] == self.sequence + 1 and all(
            known.get(place, low) == low for place, low in _lows(head).items()
        )


class JournalReader:
    """Follows one partition's journal: a record counts only if it continues the chain.

    At the start, and after a hole that retention left in the log, the reader takes the next record as its place. After
    that it skips each record whose sequence number or lowest input offsets do not continue from its place: a worker
    that no longer owned the partition wrote it. If the place itself is a record of such a worker, the reader finds the
    true chain by its length: it adopts a chain of more than `STALE_RECORDS` records, with all their answers.
    """

    def __init__(self, schema: str) -> None:
        """Start without a place, in a journal whose records have this schema."""
        self._schemas = frozenset({schema, "Genesis"})
        self._schema = schema
        self._place: _Place | None = None
        self._rival: _Place | None = None
        self._rival_records: list[dict[str, Any]] = []
        self._next_offset = -1

    def read(self, offset: int, value: bytes) -> Iterator[dict[str, Any]]:
        """Read the record at ``offset``; yield all records that are now known to be on the chain."""
        if offset != self._next_offset:
            self._place = self._rival = None
        self._next_offset = offset + 1
        try:
            name, fields = codec.decode(value, self._schemas)
        except CodecError:
            return
        if name == self._schema:
            yield from self._counted(fields)

    def _counted(self, record: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """The records that are now known to be on the chain."""
        head: JournalHead = record["head"]
        if self._place is None or self._place.continued_by(head):
            self._place = _advanced(self._place, head)
            return (record,)
        follows = self._rival is not None and self._rival.continued_by(head)
        self._rival_records = [*self._rival_records, record] if follows else [record]
        self._rival = _advanced(self._rival if follows else None, head)
        if len(self._rival_records) <= STALE_RECORDS:
            return ()
        self._place, self._rival = self._rival, None
        adopted, self._rival_records = self._rival_records, []
        return adopted


def _advanced(place: _Place | None, head: JournalHead) -> _Place:
    before = place.highs if place is not None else {}
    highs = {(part["topic"], part["partition"]): part["high"] for part in head["inputs"]}
    return _Place(head["sequence"], {**before, **highs})


def _lows(head: JournalHead) -> dict[tuple[str, int], int]:
    return {(part["topic"], part["partition"]): part["low"] for part in head["inputs"]}


_POLICIES: tuple[Literal["model", "baseline", "repeated"], ...] = ("model", "baseline", "repeated")


PolicyName = Literal["model", "baseline", "repeated", "shadow", "timeout", "no_learner", "refused"]

LEARNED = frozenset({"model", "baseline", "repeated", "shadow"})
"""Policies of answers that a learner made; these are in the log before an application gets them. In shadow mode the log
has such an answer too, beside the application's own choice."""

_WHOLE = 10**9
"""A propensity of 1 in records."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer.

    Attributes:
        event_id: the application's name for the decision.
        user: whose decision it is.
        arm: the arm to show.
        propensity: probability with which this arm was chosen, in [0, 1]; None if unknown.
        policy: who chose the arm. The learner did: "model"; "baseline" (the arm that everybody gets, for a user of the
            baseline group or over quota); "repeated" (this event id had been decided before). Or ``arm`` is the
            caller's own baseline: "shadow" (shadow mode: the learner's answer is only in the log), "timeout" (the
            learner did not answer in time), "no_learner" (no learner has answered for a while), "refused" (the learner
            refused the context).
        model_version: version of the shared model from which the user's own model started; 0 for none.
        item: the id of the item to show, where items have names; ``arm`` is then the row that it stands in.
        catalogue: the version of the catalogue that it was decided under; 0 where items have no names.
    """

    event_id: str
    user: str
    arm: int
    propensity: float | None
    policy: PolicyName
    model_version: int
    item: str | None = None
    catalogue: int = 0


def position_event(event_id: str, position: int) -> str:
    """The event id of a position of a slate: the slate's own id for position 1, then ``ID#2``, ``ID#3``."""
    return event_id if position == 1 else f"{event_id}#{position}"


class Answer(NamedTuple):
    """One row of a decisions record; its propensity is in units of 1e-9."""

    event_id: str
    arm: int
    propensity: int
    policy: Literal["model", "baseline", "repeated"]
    model_version: int

    def to(self, user: str, item: str | None = None, catalogue: int = 0) -> Decision:
        """Make the decision that the application gets: for this user, with the item that its row means."""
        propensity = self.propensity / _WHOLE
        return Decision(self.event_id, user, self.arm, propensity, self.policy, self.model_version, item, catalogue)


def items_read(head: JournalHead) -> int:
    """The next offset that the learner reads of the catalogue's changes, from its journal; 0 if items have no names."""
    return next((part["high"] for part in head["inputs"] if common_name(part["topic"]) == ITEMS), 0)


class DecisionReader:
    """Follows one partition's decisions: a record counts only if it continues the chain (`JournalReader`)."""

    def __init__(self) -> None:
        """Begin without a position."""
        self._journal = JournalReader("Decisions")

    def read(self, offset: int, value: bytes) -> Iterator[tuple[JournalHead, list[Answer]]]:
        """Read the record at ``offset``; yield head and answers of all that are now known to be on the chain."""
        for counted in self._journal.read(offset, value):
            record = cast(Decisions, counted)
            if _sound(record):
                yield record["head"], list(_answers(record))


_COLUMNS: tuple[tuple[Literal["arms", "propensities", "model_versions"], str], ...] = (
    ("arms", "<i4"),
    ("propensities", "<u4"),
    ("model_versions", "<i4"),
)


def _answers(record: Decisions) -> Iterator[Answer]:
    columns = [np.frombuffer(record[name], kind).tolist() for name, kind in _COLUMNS]
    for event_id, policy, arm, propensity, version in zip(
        record["event_ids"], record["policies"], *columns, strict=True
    ):
        yield Answer(event_id, arm, propensity, _POLICIES[policy], version)


def _sound(record: Decisions) -> bool:
    """Whether all columns of a record have the same length."""
    rows = len(record["event_ids"])
    lengths = (len(record["policies"]), *(len(record[name]) for name, _ in _COLUMNS))
    return lengths == (rows, 4 * rows, 4 * rows, 4 * rows) and max(record["policies"], default=0) < len(_POLICIES)
