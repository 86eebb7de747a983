"""Decodes the input of a learner once, and decides how much of it may be folded now.

Contexts and phase ends may name a click (``after_click``). Their writer has seen that click acknowledged, so the click
was in its log before the record that names it. If the log of clicks ends before this click, the click never existed:
then the record waits no longer, and the fold refuses it. The fold reads no clock and no broker. It refuses a record if
the clicks of its batch end before the named click, and the journal says which clicks belong to the batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.records import Awaited, InputRecord, InputSlice, TopicPartition
from hushstream.schemas.context_columns import ContextColumns, RowForm, gather_contexts

MAX_ROWS = 4096
"""Largest number of contexts in one fold, so that its journal record stays within the broker's record size. A batch
record with more rows is refused, because it could be decided but not journaled."""

CLICK_CLOCK_MARGIN_MS = 30_000
"""A context names a click that was acknowledged before it was sent. If clicks have arrived that are younger than the
context by this margin, and the named one has not, it does not exist. The margin covers different clocks of two
brokers."""


@dataclass(slots=True)
class DecodedContexts:
    """A slice of contexts as columns, with the reason for each row that is refused.

    Attributes:
        named: the largest offset of a click that a row or mark names; -1 if none does.
    """

    low: int
    high: int
    columns: ContextColumns
    named: int
    refused: dict[int, str] = field(default_factory=dict)
    oversized: list[int] = field(default_factory=list)
    """Offsets of batch records with more than `MAX_ROWS` rows; their rows are skipped."""
    losses: list[tuple[int, int]] = field(default_factory=list)
    """Values of each row that are missing, and that are at an end of their range, if features are declared
    (`CompiledRows.checked`)."""


Pieces: TypeAlias = Sequence[tuple[DecodedContexts, range]]
"""Decoded contexts in log order, each with the range of the rows that are meant."""


class Arrivals:
    """The input of one partition that has arrived and is not folded yet.

    Some records of it wait for a click. Contexts are decoded in pieces, each record once, even if it is offered several
    times.

    Attributes:
        awaited: what the first waiting record waits for, at the last `ready`; None if none waits.
    """

    def __init__(
        self, contexts: TopicPartition, clicks: TopicPartition, decode: Callable[[InputSlice], DecodedContexts]
    ) -> None:
        """Begin without records. The end of the log of ``clicks`` is unknown; ``decode`` decodes a slice."""
        self._contexts, self._clicks = contexts, clicks
        self._decode = decode
        self._pieces: list[DecodedContexts] = []
        self.awaited: Awaited | None = None
        self._known_before = 0
        self._end = 0

    def over(self, part: InputSlice) -> Pieces:
        """The decoded pieces that cover a slice of contexts, each with those of its rows that belong to the slice."""
        if self._pieces and not self._pieces[0].low <= part.low < self._pieces[0].high:
            # The machine was restored to another place.
            self._pieces.clear()
        reached = self._pieces[-1].high if self._pieces else part.low
        if reached < part.high:
            fresh = part.records[bisect_left(part.records, reached, key=attrgetter("offset")) :]
            self._pieces.append(self._decode(part._replace(low=reached, records=fresh)))
        low, high = part.low, part.high
        covering = [(piece, piece.columns.offsets) for piece in self._pieces if piece.low < high]
        return [(piece, range(bisect_left(offsets, low), bisect_left(offsets, high))) for piece, offsets in covering]

    def take(self, part: InputSlice) -> Pieces:
        """See `over`, of a slice that is folded now: the pieces that end with it are not kept."""
        found = self.over(part) if part.records else ()
        self._pieces = [piece for piece in self._pieces if piece.high > part.high]
        return found

    def ends_at(self, before: int, end: int) -> None:
        """See `Machine.ends_at`."""
        self._known_before, self._end = before, end
        self.awaited = None

    def ready(
        self, slices: Sequence[InputSlice], click_high: int, latest_ms: int, now_ms: int, left: bool = False
    ) -> Sequence[InputSlice]:
        """The part of what has arrived that may be folded now.

        Contexts wait for the click that they name, and a fold has at most `MAX_ROWS`. If rows are left for the next
        fold, clicks and models of a later log time are left, too.

        Args:
            slices: the input that has arrived.
            click_high: next offset of clicks.
            latest_ms: log time of the youngest folded click.
            now_ms: log time that contexts have reached.
            left: whether other contexts have arrived that ``slices`` do not contain.
        """
        asked = next((part for part in slices if part.topic == self._contexts[0]), None)
        if asked is None:
            return slices
        clicks = next((part for part in slices if part.topic == self._clicks[0]), None)
        if clicks is not None and clicks.records:
            latest_ms = max(latest_ms, clicks.records[-1].timestamp_ms)
        contexts, full = self._ready_contexts(asked, click_high if clicks is None else clicks.high, latest_ms)
        parts = [contexts if part is asked else part for part in slices]
        if full or (left and contexts.high == asked.high):
            parts = [part if part is contexts else self._not_beyond(contexts, part, now_ms) for part in parts]
        return [part for part in parts if part.high > part.low]

    def _ready_contexts(self, part: InputSlice, click_high: int, latest_ms: int) -> tuple[InputSlice, bool]:
        """The contexts that may be folded, and whether rows are left only because of `MAX_ROWS`."""
        held = self.awaited
        if held is not None and held.at == part.low and held.offset >= click_high and latest_ms <= held.until_ms:
            # The first record still waits for the same click. This is known without decoding.
            return cut(part, part.low), False
        pieces = self.over(part)
        self.awaited = next(self._waiting(pieces, part, click_high, latest_ms), None)
        high = part.high if self.awaited is None else self.awaited.at
        offsets = list[int]()
        if sum(len(rows) for _, rows in pieces) > MAX_ROWS:
            offsets = [piece.columns.offsets[row] for piece, rows in pieces for row in rows]
            high = min(high, max(offsets[MAX_ROWS], offsets[0] + 1))
        if high == part.high:
            return part, False
        return cut(part, high), bisect_left(offsets, high) >= MAX_ROWS

    def _waiting(self, pieces: Pieces, part: InputSlice, click_high: int, latest_ms: int) -> Iterator[Awaited]:
        """The records of a slice that wait for a click from ``click_high`` on, in log order."""
        for piece, rows in pieces:
            columns = piece.columns
            if piece.named < click_high:
                continue
            contexts = (
                (columns.offsets[row], columns.after_clicks[row], columns.timestamps_ms[row])
                for row in rows
                if columns.after_clicks[row] >= click_high
            )
            marks = (
                (mark.offset, mark.after_click, mark.timestamp_ms)
                for mark in columns.marks
                if part.low <= mark.offset < part.high and mark.after_click >= click_high
            )
            for offset, named, log_time_ms in merge(contexts, marks):
                known_missing = offset < self._known_before and named >= self._end
                until_ms = log_time_ms + CLICK_CLOCK_MARGIN_MS
                if not known_missing and until_ms >= latest_ms:
                    yield Awaited(offset, self._clicks, named, until_ms)

    def _not_beyond(self, contexts: InputSlice, part: InputSlice, now_ms: int) -> InputSlice:
        """The part of a slice that comes before the end of a slice of contexts."""
        until_ms = max(now_ms, *(record.timestamp_ms for record in contexts.records))
        named = -1
        if part.topic == self._clicks[0]:
            pieces = self.over(contexts)
            after = [piece.columns.after_clicks[row] for piece, rows in pieces for row in rows]
            marks = (mark for piece, _ in pieces for mark in piece.columns.marks if mark.offset < contexts.high)
            named = max([named, *after, *(mark.after_click for mark in marks)])
        later = (r.offset for r in part.records if r.timestamp_ms > until_ms and r.offset > named)
        return cut(part, next(later, part.high))


def decode_checked(part: InputSlice, rules: ContextRules) -> DecodedContexts:
    """Decode a slice of contexts, and refuse invalid rows by the rules."""
    schema = rules.features
    form = None if schema is None else RowForm(schema.row_bytes, schema.digest)
    columns = gather_contexts(part.records, rules.width, rules.arms, form)
    named = max(max(columns.after_clicks, default=-1), max((mark.after_click for mark in columns.marks), default=-1))
    decoded = DecodedContexts(part.low, part.high, columns, named)
    if schema is None:
        good = rules.good(columns.contexts)
    else:
        good, missing, at_end = schema.compiled.checked(columns.contexts.tobytes())
        decoded.losses = list(zip(missing.tolist(), at_end.tolist(), strict=True))
    if len(columns.offsets) > MAX_ROWS:
        rows_of = Counter(columns.offsets)
        decoded.oversized = [offset for offset, rows in rows_of.items() if rows > MAX_ROWS]
    if not good.all():
        decoded.refused.update(dict.fromkeys(np.flatnonzero(~good).tolist(), rules.refusal))
    return decoded


def cut(part: InputSlice, high: int) -> InputSlice:
    """The part of a slice below offset ``high``."""
    kept: Sequence[InputRecord] = [record for record in part.records if record.offset < high]
    return part._replace(high=high, records=kept)
