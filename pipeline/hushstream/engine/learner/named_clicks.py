"""Contexts and phase ends that name a click (``after_click``): which of them wait, for what, and how long.

Whoever names a click has seen its acknowledgement, so it was in its log before the record that names it. One that is
not there when a log that holds the naming record is found to end before it never was: nothing that names it waits any
longer, and the fold refuses it. The fold asks no clock and no broker: a record is refused if the clicks of its batch
end before the one that it names, and which clicks those are is in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge

from hushstream.engine.learner.intake import CLICK_CLOCK_MARGIN_MS, DecodedContexts, click_is_missing
from hushstream.engine.records import Awaited, InputSlice, TopicPartition


class NamedClicks:
    """Which records of one partition wait for a click.

    Attributes:
        awaited: what the first record waits for that was held back last; None where none is.
    """

    def __init__(self, clicks: TopicPartition) -> None:
        """Begin without knowing where the log of ``clicks`` ends."""
        self._clicks = clicks
        self.awaited: Awaited | None = None
        self._known_before = 0
        self._end = 0

    def ends_at(self, before: int, end: int) -> None:
        self._known_before, self._end = before, end
        self.awaited = None

    def still_holds(self, low: int, click_high: int, latest_ms: int) -> bool:
        """Whether the record at ``low`` is the one that was held back last, and waits on; asks for no decoding."""
        held = self.awaited
        if held is None or held.at != low:
            return False
        return held.offset >= click_high and latest_ms <= held.until_ms

    def ready_below(self, pieces: Sequence[DecodedContexts], part: InputSlice, click_high: int, latest_ms: int) -> int:
        """Up to which offset a slice may be folded now; its end when nothing in it has to wait.

        Args:
            pieces: the slice, decoded.
            part: the slice.
            click_high: the next offset of clicks that will not have been folded.
            latest_ms: log time of the youngest click below it.
        """
        waiting = (
            Awaited(offset, self._clicks, named, log_time_ms + CLICK_CLOCK_MARGIN_MS)
            for piece in pieces
            for offset, named, log_time_ms in _naming(piece, part, click_high)
            if self._waits(offset, named, log_time_ms, latest_ms)
        )
        self.awaited = next(waiting, None)
        return part.high if self.awaited is None else self.awaited.at

    def _waits(self, offset: int, named: int, log_time_ms: int, latest_ms: int) -> bool:
        known_missing = offset < self._known_before and named >= self._end
        return not known_missing and not click_is_missing(log_time_ms, latest_ms)


def _naming(piece: DecodedContexts, part: InputSlice, click_high: int) -> Iterator[tuple[int, int, int]]:
    """(offset, click, log time) of the records of a slice that name a click from ``click_high`` on, in log order."""
    columns = piece.columns
    rows = (
        (columns.offsets[row], columns.after_clicks[row], columns.timestamps_ms[row])
        for row in piece.rows_of(part)
        if columns.after_clicks[row] >= click_high
    )
    phase_ends = (
        (mark.offset, mark.after_click, mark.timestamp_ms)
        for mark in columns.phase_ends
        if part.low <= mark.offset < part.high and mark.after_click >= click_high
    )
    return merge(rows, phase_ends)
