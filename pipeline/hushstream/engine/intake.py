"""What the learner reads: slices decoded once into columns, bad rows set apart with their reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.machine import InputRecord, InputSlice
from hushstream.engine.requests import ContextRules
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


def decode_checked(part: InputSlice, rules: ContextRules) -> DecodedContexts:
    """Decode a slice of contexts, with the rules' refusal of the rows that are not good."""
    columns = gather_contexts(part.records, rules.width, rules.arms)
    decoded = DecodedContexts(part.low, part.high, columns)
    if len(columns.offsets) > MAX_ROWS:
        rows_of = Counter(columns.offsets)
        decoded.oversized = [offset for offset, rows in rows_of.items() if rows > MAX_ROWS]
    for row in np.flatnonzero(~rules.good(columns.contexts)):
        decoded.refused[int(row)] = rules.refusal
    return decoded


def ready_below(columns: ContextColumns, high: int, click_high: int, latest_click_ms: int) -> int:
    """Up to which offset a slice of contexts may be folded now; ``high`` when nothing in it has to wait.

    Args:
        columns: the decoded slice, which ends at ``high``.
        high: the next offset after the slice.
        click_high: the next offset of clicks that will not have been folded.
        latest_click_ms: log time of the youngest click below it.
    """
    for row, after in enumerate(columns.after_clicks):
        if after >= click_high and not click_is_missing(columns.timestamps_ms[row], latest_click_ms):
            high = columns.offsets[row]
            break
    for mark in columns.seals:
        if mark.after_click >= click_high and not click_is_missing(mark.timestamp_ms, latest_click_ms):
            high = min(high, mark.offset)
            break
    if len(columns.offsets) > MAX_ROWS:
        high = min(high, max(columns.offsets[MAX_ROWS], columns.offsets[0] + 1))
    return high


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
