"""Reading the decisions journal from outside, by the chain rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, cast

import numpy as np

from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.records import Decisions, JournalHead

STALE_RECORDS = 64
"""A worker that lost its partition stops at the first record that is not acknowledged where it expects it, so
it leaves at most as many records off the chain as it may have on their way (`WorkerSettings.in_flight`)."""

_POLICIES: tuple[Literal["model", "baseline", "repeated"], ...] = ("model", "baseline", "repeated")


class Answer(NamedTuple):
    """One row of a decisions record."""

    event_id: str
    arm: int
    propensity: int
    policy: Literal["model", "baseline", "repeated"]
    model_version: int


class _Place(NamedTuple):
    """A sequence number and the input offsets up to which a chain has come."""

    sequence: int
    highs: Mapping[tuple[str, int], int]

    def continued_by(self, head: JournalHead) -> bool:
        known = self.highs
        return head["sequence"] == self.sequence + 1 and all(
            known.get(place, low) == low for place, low in _lows(head).items()
        )


class DecisionReader:
    """Follows one partition's decisions: a record counts only if it continues the chain.

    A reader that starts in the middle of the log, or meets a hole that retention left in it, takes the next
    record as its place. Between those, a record whose number or lows do not continue was written by a worker
    that no longer owned the partition. If the place itself was such a worker's, the true chain is told by its
    length: one that goes on for more than `STALE_RECORDS` records is adopted, with all the answers of these.
    """

    def __init__(self) -> None:
        """Start without a place."""
        self._place: _Place | None = None
        self._rival: _Place | None = None
        self._rival_records: list[Decisions] = []
        self._next_offset = -1

    def read(self, offset: int, value: bytes) -> Iterator[Answer]:
        """Yield the answers of the record at ``offset``; nothing when it is off the chain or no decisions."""
        if offset != self._next_offset:
            self._place = self._rival = None
        self._next_offset = offset + 1
        record = _decoded(value)
        if record is None:
            return
        for counted in self._counted(record):
            yield from _answers(counted)

    def _counted(self, record: Decisions) -> Sequence[Decisions]:
        """The records that are now known to be on the chain."""
        head = record["head"]
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


_COLUMNS: tuple[tuple[Literal["arms", "propensities", "model_versions"], str], ...] = (
    ("arms", "<i4"),
    ("propensities", "<u4"),
    ("model_versions", "<i4"),
)


def _decoded(value: bytes) -> Decisions | None:
    """The record, if it is one of decisions; anything else in the log is nobody's answer."""
    try:
        name, fields = codec.decode(value, frozenset({"Decisions", "Genesis"}))
    except CodecError:
        return None
    return cast(Decisions, fields) if name == "Decisions" else None


def _answers(record: Decisions) -> Iterator[Answer]:
    if not _sound(record):
        return
    columns = [np.frombuffer(record[name], kind).tolist() for name, kind in _COLUMNS]
    for event_id, policy, arm, propensity, version in zip(
        record["event_ids"], record["policies"], *columns, strict=True
    ):
        yield Answer(event_id, arm, propensity, _POLICIES[policy], version)


def _sound(record: Decisions) -> bool:
    """Whether the columns agree."""
    rows = len(record["event_ids"])
    lengths = (len(record["policies"]), *(len(record[name]) for name, _ in _COLUMNS))
    return lengths == (rows, 4 * rows, 4 * rows, 4 * rows) and max(record["policies"], default=0) < len(_POLICIES)


def _advanced(place: _Place | None, head: JournalHead) -> _Place:
    before = place.highs if place is not None else {}
    highs = {(part["topic"], part["partition"]): part["high"] for part in head["inputs"]}
    return _Place(head["sequence"], {**before, **highs})


def _lows(head: JournalHead) -> dict[tuple[str, int], int]:
    return {(part["topic"], part["partition"]): part["low"] for part in head["inputs"]}
