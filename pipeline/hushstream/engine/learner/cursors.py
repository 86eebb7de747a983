"""Whose turn it is among the inputs of a batch: models and clicks, as far as they come before a context.

See `hushstream.engine.deciding_fold` for the order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from hushstream.engine.learner.intake import CLICK_CLOCK_MARGIN_MS, clicks_of
from hushstream.engine.learner.models import ModelReader, OnChain
from hushstream.engine.records import InputSlice
from hushstream.feedback.memory import FeedbackRow
from hushstream.schemas.columns import Reject, gather_feedback

NEVER_MS = 1 << 63
"""In place of the log time, or the offset, of what is not there: later than all that can be in a log."""


class ClickTurns:
    """The click records of a batch, oldest first; each is taken as a whole.

    Attributes:
        part: where they lie.
        rejects: what in them is no feedback.
        next_ms: log time of the next one, or of a later-stamped one before it; `NEVER_MS` after the last.
        next_offset: its offset; `NEVER_MS` after the last.
        latest_ms: log time of the last one that was taken.
        read_to: the offset after it.
    """

    __slots__ = ("_clicks", "_offsets", "_places", "_row", "_taken", "_times_ms", "latest_ms", "next_ms", "next_offset",
                 "part", "read_to", "rejects")  # fmt: skip

    def __init__(self, part: InputSlice, latest_ms: int) -> None:
        """Decode a slice of clicks that follows on one of log time ``latest_ms``."""
        self.part = part
        columns = gather_feedback(part.records)
        self.rejects: Sequence[Reject] = columns.rejects
        self.latest_ms, self.read_to = latest_ms, part.low
        times_ms = [max(latest_ms, record.timestamp_ms) for record in part.records]
        self._times_ms = [*accumulate(times_ms, max), NEVER_MS]
        self._offsets = [*(record.offset for record in part.records), NEVER_MS]
        self._clicks = list(clicks_of(columns))
        self._places = columns.offsets
        self._taken = self._row = 0
        self.next_ms, self.next_offset = self._times_ms[0], self._offsets[0]

    def take(self, log_time_ms: int, after_click: int = -1) -> Sequence[FeedbackRow]:
        """The feedback in all that comes before a context of this log time that names this click; it is past then."""
        taken = bisect_right(self._times_ms, log_time_ms, self._taken)
        if after_click >= 0:
            in_time = bisect_right(self._times_ms, log_time_ms + CLICK_CLOCK_MARGIN_MS, self._taken)
            taken = max(taken, min(in_time, bisect_right(self._offsets, after_click, self._taken)))
        if taken == self._taken:
            return ()
        self.latest_ms, self.read_to = self._times_ms[taken - 1], self._offsets[taken - 1] + 1
        self.next_ms, self.next_offset = self._times_ms[taken], self._offsets[taken]
        first, self._taken, self._row = self._row, taken, bisect_left(self._places, self.read_to, self._row)
        return self._clicks[first : self._row]


class ModelTurns:
    """The published models of a batch, by log time; `next_ms` is that of the next one, or `NEVER_MS`."""

    __slots__ = ("_models", "_taken", "next_ms")

    def __init__(self, published: Iterable[tuple[ModelReader, InputSlice]]) -> None:
        """Read every track's slice; what is not on a track's chain takes no turn."""
        models = [turn for reader, part in published for turn in _turns(reader, part)]
        self._models = sorted(models, key=lambda turn: turn[0])
        self._taken = 0
        self.next_ms = self._models[0][0] if models else NEVER_MS

    def take(self) -> tuple[ModelReader, OnChain, InputSlice]:
        """The next model, its track, and where it lies; it is past from here on."""
        _, reader, record, part = self._models[self._taken]
        self._taken += 1
        self.next_ms = self._models[self._taken][0] if self._taken < len(self._models) else NEVER_MS
        return reader, record, part


def _turns(reader: ModelReader, part: InputSlice) -> Iterator[tuple[int, ModelReader, OnChain, InputSlice]]:
    times_ms = {record.offset: record.timestamp_ms for record in part.records}
    latest_ms = 0
    for record in reader.read(part):
        latest_ms = max(latest_ms, times_ms[record.offset])
        yield latest_ms, reader, record, part
