"""What the learner reads: slices decoded once into columns, bad rows set apart with their reason."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.feedback.memory import FeedbackRow
from hushstream.schemas.columns import REWARD, ContextColumns, FeedbackColumns, gather_contexts

MAX_ROWS = 4096
"""Contexts in one fold, so that its journal record stays within the broker's record size; no batch record of
more rows is taken, because it could be decided but not journaled."""

FLOAT_TIE_MARGIN = 1e-4
"""On replay a journaled arm may differ from the recomputed one only if their scores are this close (another
CPU's rounding); it is counted. Anything more is a change."""

CLICK_CLOCK_MARGIN_MS = 30_000
"""A context names a click that was acknowledged before it was sent. When clicks this much younger than the
context have arrived and that one has not, no such click exists; the margin covers clocks of two brokers."""


@dataclass(slots=True)
class DecodedContexts:
    """A contexts slice as columns, with the refusal of every row that is not to be decided."""

    low: int
    high: int
    columns: ContextColumns
    refused: dict[int, str] = field(default_factory=dict)
    oversized: list[int] = field(default_factory=list)
    """Offsets of batch records with more than `MAX_ROWS` rows; their rows are to be passed over."""

    def rows_of(self, part: InputSlice) -> range:
        """Which of the rows are of records of a slice."""
        offsets = self.columns.offsets
        return range(bisect_left(offsets, part.low), bisect_left(offsets, part.high))


class DecodedOnce:
    """What has arrived of a log, decoded piece by piece: each record once, however often it is offered."""

    def __init__(self, decode: Callable[[InputSlice], DecodedContexts]) -> None:
        """Begin with nothing; ``decode`` makes a piece."""
        self._decode = decode
        self._pieces: list[DecodedContexts] = []

    def over(self, part: InputSlice) -> Sequence[DecodedContexts]:
        """The pieces that a slice lies in, in log order; the first and the last may reach beyond it."""
        self.forget(part.low)
        if self._pieces and self._pieces[0].low > part.low:
            self._pieces.clear()
        reached = self._pieces[-1].high if self._pieces else part.low
        if reached < part.high:
            fresh = part.records[bisect_left(part.records, reached, key=lambda record: record.offset) :]
            self._pieces.append(self._decode(part._replace(low=reached, records=fresh)))
        return [piece for piece in self._pieces if piece.low < part.high]

    def forget(self, position: int) -> None:
        """Drop the pieces below an offset: they were folded."""
        self._pieces = [piece for piece in self._pieces if piece.high > position]


def decode_checked(part: InputSlice, rules: ContextRules, own: frozenset[str] = frozenset()) -> DecodedContexts:
    """Decode a slice of contexts, and records of ``own`` schemas; with the rules' refusal of rows that are not good."""
    columns = gather_contexts(part.records, rules.width, rules.arms, own)
    decoded = DecodedContexts(part.low, part.high, columns)
    if len(columns.offsets) > MAX_ROWS:
        rows_of = Counter(columns.offsets)
        decoded.oversized = [offset for offset, rows in rows_of.items() if rows > MAX_ROWS]
    for row in np.flatnonzero(~rules.good(columns.contexts)):
        decoded.refused[int(row)] = rules.refusal
    return decoded


def click_is_missing(log_time_ms: int, latest_click_ms: int) -> bool:
    """Whether a click that a record of this log time names, and that has not come, never will."""
    return log_time_ms + CLICK_CLOCK_MARGIN_MS < latest_click_ms


def cut(part: InputSlice, high: int) -> InputSlice:
    """The part of a slice below offset ``high``."""
    kept: Sequence[InputRecord] = [record for record in part.records if record.offset < high]
    return part._replace(high=high, records=kept)


def eligible_mask(mask: bytes, arms: int) -> NDArray[np.bool_]:
    """Unpack a bitmask (bit a of byte a // 8) into bool (arms,)."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:arms]
    eligible = np.zeros(arms, dtype=np.bool_)
    eligible[: len(bits)] = bits.astype(np.bool_)
    return eligible


def clicks_of(columns: FeedbackColumns) -> Iterator[FeedbackRow]:
    """The rows of feedback, one by one."""
    return map(
        FeedbackRow,
        [kind == REWARD for kind in columns.kinds],
        columns.event_ids,
        columns.users,
        columns.arms,
        columns.rewards,
        columns.offsets,
        columns.rows,
        columns.timestamps_ms,
    )
