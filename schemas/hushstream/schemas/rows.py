"""Rules for one row of a context or of feedback, the same for event records and batch rows.

*Reasons.* The fixed list of reasons for which the codec and the column readers refuse bytes, for dead letters and
metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple, TypedDict, TypeVar

SHOWN, REWARD, HARM = 0, 1, 2
"""The kinds of feedback, as in the columns of a batch record."""


class InputRange(TypedDict):
    """A range of one input log: low <= offset < high."""

    topic: str
    partition: int
    low: int
    high: int


class JournalHead(TypedDict):
    """The head of every journal record: its number, its inputs, and a digest of what is released after it."""

    sequence: int
    epoch: int
    inputs: list[InputRange]
    input_digest: bytes
    release_digest: bytes


class Debit(TypedDict):
    """The price of one release."""

    scope: str
    mechanism: str
    epsilon_micro: int
    delta_units: bytes
    relation: str
    unit: str


class Decisions(TypedDict):
    """The decisions of one folded batch of n contexts; it is also the learner's journal."""

    head: JournalHead
    log_time_ms: int
    event_ids: list[str]
    arms: bytes
    propensities: bytes
    policy: str
    policies: bytes
    model_versions: bytes
    slots: int
    debits: list[Debit]
    chain: bytes


class Reason(StrEnum):
    """A code, never a payload. It may be written into a dead letter, a log line or a metric label."""

    TOO_LARGE = "too_large"
    """More than `codec.MAX_VALUE_BYTES` bytes; nothing of it was decoded."""
    COMPRESSED = "compressed"
    """It came in a compressed batch. Readers decompress none, because no writer of a deployment compresses batches."""
    NOT_SINGLE_OBJECT = "not_single_object"
    """No Avro single-object header (C3 01 and eight bytes of fingerprint)."""
    UNKNOWN_FINGERPRINT = "unknown_fingerprint"
    """Written with a schema that this version of hushstream has never had."""
    UNEXPECTED_SCHEMA = "unexpected_schema"
    """A known record that does not belong here."""
    TRUNCATED = "truncated"
    """The bytes end before the record does."""
    MALFORMED = "malformed"
    """The bytes do not follow the schema: no UTF-8, an unknown enum symbol, an int beyond 32 bits."""
    TRAILING_BYTES = "trailing_bytes"
    """The record ends before the bytes do."""
    NOT_ENCODABLE = "not_encodable"
    """A record to be written lacks a field, has one too many, or one of another type."""

    COLUMNS_DISAGREE = "columns_disagree"
    """The columns of a batch record have different numbers of rows."""
    WRONG_DIMENSION = "wrong_dimension"
    """A context with another number of coordinates than the deployment's."""
    OTHER_FEATURES = "other_features"
    """A context under another declaration of features than the deployment's."""
    NOT_FINITE = "not_finite"
    """A context with NaN or infinity."""
    EMPTY_ID = "empty_id"
    """An event id or a user of no characters, or of blanks alone: many users would be one."""
    ID_TOO_LONG = "id_too_long"
    """An event id or a user of more than `MAX_ID_BYTES` bytes."""
    ID_OF_LINES = "id_of_lines"
    """An event id or a user with a character of `CONTROLS`."""
    BAD_TRACK = "bad_line"
    """The name of a model track is empty, of several lines or longer than `MAX_ID_BYTES` bytes."""
    UNKNOWN_ARM = "unknown_arm"
    """An arm, a baseline or a bit of the eligible mask beyond the deployment's arms."""
    NO_ELIGIBLE_ARM = "no_eligible_arm"
    """An eligible mask that allows nothing."""
    WRONG_MASK_LENGTH = "wrong_mask_length"
    """An eligible mask of a context with another number of bytes than the deployment's arms need."""
    BAD_AFTER_CLICK = "bad_after_click"
    """`after_click` is below -1."""
    UNKNOWN_KIND = "unknown_kind"
    """A feedback kind other than shown and reward."""
    REWARD_OUT_OF_RANGE = "reward_out_of_range"
    """A reward that is NaN or not in [0, 1]."""


MAX_ID_BYTES = 128
"""The longest event id, user or track, in bytes of UTF-8."""


CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060\u2066-\u2069\ufeff]")
"""Characters of no name: they end a line, steer whatever shows it, or have no width and stand in no word."""


LogRecord = tuple[int, int, bytes]
"""Offset, log time in milliseconds, value."""


class Reject(NamedTuple):
    """A record or a row that was refused; everything around it is kept."""

    offset: int
    row: int
    """Row of a batch record, 0 in a record of one event, -1 for a record as a whole."""
    reason: Reason


_CutT = TypeVar("_CutT")


def take_runs(
    records: Sequence[LogRecord],
    cuts: Sequence[_CutT | None],
    take_cut: Callable[[Sequence[LogRecord], Sequence[_CutT]], bool],
    take_decoded: Callable[[Sequence[LogRecord]], object],
) -> None:
    """Take records in runs: first as they were cut, and those that were not cut, or are refused so, decoded."""
    for whole, run in groupby(zip(records, cuts, strict=True), key=lambda item: item[1] is not None):
        some, found = zip(*run, strict=True)
        if not (whole and take_cut(some, found)):
            take_decoded(some)


def all_plain(texts: list[str]) -> bool:
    """Whether a cheap test shows that every id is valid; `id_fault` checks them one by one."""
    joined = "".join(texts)
    short = all(map(str.strip, texts)) and max(map(len, texts), default=0) <= MAX_ID_BYTES
    return short and joined.isascii() and joined.isprintable()


def id_fault(text: str) -> Reason | None:
    """Why an event id or a user is refused, if it is."""
    if not text or text.isspace():
        return Reason.EMPTY_ID
    if len(text) > MAX_ID_BYTES or (not text.isascii() and len(text.encode()) > MAX_ID_BYTES):
        return Reason.ID_TOO_LONG
    return None if text.isprintable() or CONTROLS.search(text) is None else Reason.ID_OF_LINES


def track_fault(track: str) -> Reason | None:
    """Why the name of a model track is refused, if it is."""
    return None if id_fault(track) is None else Reason.BAD_TRACK


def mask_fault(eligible: bytes, arms: int) -> Reason | None:
    """Why a mask of the right length is refused, if it is; the empty mask allows every arm."""
    if not eligible:
        return None
    bits = int.from_bytes(eligible, "little")
    if bits >> arms:
        return Reason.UNKNOWN_ARM
    return None if bits else Reason.NO_ELIGIBLE_ARM


def context_fault(
    event_id: str, user: str, eligible: bytes, baseline: int, after_click: int, *, arms: int
) -> Reason | None:
    """The first fault of one row of contexts, apart from its coordinates; None if it is valid."""
    fault = id_fault(event_id) or id_fault(user) or mask_fault(eligible, arms)
    if fault is not None:
        return fault
    if not -1 <= baseline < arms:
        return Reason.UNKNOWN_ARM
    return Reason.BAD_AFTER_CLICK if after_click < -1 else None


def feedback_fault(event_id: str, user: str, arm: int, reward: float) -> Reason | None:
    """The first fault of one row of feedback; None if it is valid."""
    fault = id_fault(event_id) or id_fault(user)
    if fault is not None:
        return fault
    if arm < 0:
        return Reason.UNKNOWN_ARM
    # This form of the comparison refuses NaN, for which every comparison is false.
    return None if 0.0 <= reward <= 1.0 else Reason.REWARD_OUT_OF_RANGE
