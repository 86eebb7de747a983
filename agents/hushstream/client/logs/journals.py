"""Reading a journal of answers from outside, by the chain rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.records import JournalHead

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
