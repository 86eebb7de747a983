"""Whose turn it is among the inputs of a batch: models and clicks, as far as they come before a context.

See `hushstream.roles.two_inputs_fold` for the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hushstream.feedback.memory import ParkedClick
from hushstream.roles.intake import CLICK_CLOCK_MARGIN_MS, clicks_of
from hushstream.roles.machine import InputRecord, InputSlice
from hushstream.roles.models import ModelReader, OnChain
from hushstream.schemas.columns import Reject, gather_feedback

NEVER_MS = 1 << 63
"""In place of the log time, or the offset, of what is not there: later than all that can be in a log."""

_NOTHING = InputSlice("clicks", 0, 0, 0, ())


class ClickTurns:
    """The click records of a batch, oldest first; each is taken as a whole.

    Attributes:
        part: where they lie.
        rejects: what in them is no feedback.
        next_ms: log time of the next one, or of a later-stamped one before it; `NEVER_MS` after the last.
        next_offset: its offset; `NEVER_MS` after the last.
    """

    __slots__ = ("_clicks", "_records", "_row", "_taken", "next_ms", "next_offset", "part", "rejects")

    def __init__(self, part: InputSlice | None, latest_ms: int) -> None:
        """Decode a slice of clicks (None: there are none) that follows on one of log time ``latest_ms``."""
        self.part = _NOTHING if part is None else part
        columns = gather_feedback(self.part.records)
        self.rejects: Sequence[Reject] = columns.rejects
        self._records: Sequence[InputRecord] = self.part.records
        self._clicks = list(clicks_of(columns))
        self._taken = self._row = 0
        self.next_ms = latest_ms
        self.next_offset = 0
        self._look()

    def precedes(self, log_time_ms: int, after_click: int) -> bool:
        """Whether the next record comes before a context of this log time that names this click (-1: none)."""
        if self.next_ms <= log_time_ms:
            return True
        return self.next_offset <= after_click and self.next_ms <= log_time_ms + CLICK_CLOCK_MARGIN_MS

    def take(self) -> Iterator[ParkedClick]:
        """The feedback in the next record, which is past from here on."""
        first, offset = self._row, self.next_offset
        while self._row < len(self._clicks) and self._clicks[self._row].offset == offset:
            self._row += 1
        self._taken += 1
        self._look()
        return iter(self._clicks[first : self._row])

    def _look(self) -> None:
        if self._taken == len(self._records):
            self.next_ms = self.next_offset = NEVER_MS
        else:
            record = self._records[self._taken]
            self.next_ms, self.next_offset = max(self.next_ms, record.timestamp_ms), record.offset


class ModelTurns:
    """The published models of a batch, by log time; `next_ms` is that of the next one, or `NEVER_MS`."""

    __slots__ = ("_models", "_taken", "next_ms")

    def __init__(self, published: Iterable[tuple[ModelReader, InputSlice]]) -> None:
        """Read every line's slice; what is not on a line's chain takes no turn."""
        models = [turn for reader, part in published for turn in _turns(reader, part)]
        self._models = sorted(models, key=lambda turn: turn[0])
        self._taken = 0
        self.next_ms = self._models[0][0] if models else NEVER_MS

    def take(self) -> tuple[ModelReader, OnChain, InputSlice]:
        """The next model, its line, and where it lies; it is past from here on."""
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
