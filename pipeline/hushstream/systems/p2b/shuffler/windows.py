"""Windows of slots: when a window closes, and which slots it holds, follows from the log alone.

A window closes on public events only (PRIVACY rule 2): on a count of slots, on the ends of a phase from all learner
partitions, or on log time. No clock is read: time is the log time of the records, and only moves forward (a log time
below the highest one counts as the highest). An empty window does not close.

A report names its period, ``floor(log time / period)``. Reports of the current and the previous period are accepted, so
a late report can never join a window that was released (SYSTEMS, P2B trap d).

Only the first slot of an id ever counts, in whatever period others come: ids are remembered for the life of the
deployment (`hushstream.engine.state.known_ids`). An id is a function of a user's key and the number of the slot alone
(`hushstream.systems.p2b.edge.agent`), and determines its partition. So each number of each user puts at most one
content into at most one window. That holds even if an edge is restored from an older copy and sends the number again
with other content. If ids were remembered for two periods only, this second content could count, and the user's bound
would no longer hold.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.state.known_ids import ID_BYTES, KnownIds
from hushstream.systems.p2b.shuffler.errors import ShufflingError

_MAGIC = b"HWIN"
_VERSION = 3
_HEADER = struct.Struct("<4sBxxxqqqqIII")
_ORIGIN = struct.Struct("<iq")
_CATALOGUE = struct.Struct("<i")
_NEVER = -1


class SlotOutcome(StrEnum):
    """The outcome of a slot report; the names are fixed, so that metrics can use them as labels."""

    JOINED = "joined"
    REPEATED = "repeated"
    LATE = "late"
    EARLY = "early"


class ClosedBy(StrEnum):
    """Why a window closed."""

    SLOTS = "slots"
    SEAL = "seal"
    TIME = "time"


class ItemRows(NamedTuple):
    """The items that the rows of sums stand for, if items have names.

    Attributes:
        catalogue: version of the catalogue.
        entries: little-endian int32, the version at which each row's item entered; 0 for a row that never had one.
    """

    catalogue: int
    entries: bytes

    def current(self, arms: NDArray[np.int64], catalogues: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) which slots are about the items that the rows stand for now.

        A slot whose version is older than the entry of its row's item is about an earlier item of the row. If it
        counted, it would count for the new item. A version that is not known here yet may have given the row to another
        item, so such a slot does not count either.

        Args:
            arms: (n,) the rows that slots name, all below the number of rows.
            catalogues: (n,) the versions that slots name.
        """
        entered = np.frombuffer(self.entries, "<i4").astype(np.int64)[arms]
        return (entered > 0) & (entered <= catalogues) & (catalogues <= self.catalogue)


class ClosedWindow(NamedTuple):
    """A closed window; nothing is added to it any more.

    Attributes:
        window: its number: 0, 1, 2, ... without a gap.
        closed_by: the rule that closed it.
        contents: the contents of its slots, nulls included, in the order of their (keyed) ids. So a slot's coin depends
            on which slots the window holds, and not on the order in which they came.
        ids: the ids of its slots, in that order; empty if slots have none (audits of one release).
        item_rows: the items of the rows when it closed; None if items have no names.
    """

    window: int
    closed_by: ClosedBy
    contents: tuple[bytes, ...]
    ids: tuple[bytes, ...] = ()
    item_rows: ItemRows | None = None


class Offer(NamedTuple):
    """The outcome of a slot, and the window that it closed, if any."""

    outcome: SlotOutcome
    closed: ClosedWindow | None


@dataclass(frozen=True, slots=True)
class WindowRules:
    """When windows close; all public configuration.

    Attributes:
        slots: a window closes when it holds this many slots.
        origins: the learner partitions; a phase ends when all of them have ended it.
        period_ms: length of a report period in log time.
        open_ms: a window also closes this long (log time) after its first slot; None: time closes no window.
        content_bytes: the size of every slot's content.
        item_rows: the number of rows of items, if items have names; else 0.
    """

    slots: int
    origins: frozenset[int]
    period_ms: int
    open_ms: int | None = None
    content_bytes: int = 32
    item_rows: int = 0

    def __post_init__(self) -> None:
        """Refuse rules under which nothing could close."""
        if self.slots < 1 or self.period_ms < 1 or self.content_bytes < 1 or not self.origins:
            raise ShufflingError("expected at least one slot, origin, content byte and millisecond a period")
        if self.open_ms is not None and self.open_ms < 1:
            raise ShufflingError(f"expected a window to stay open at least 1 ms, got {self.open_ms}")


class Windows:
    """The state of one reports partition: the open window, the phase ends so far, and the remembered ids."""

    def __init__(self, rules: WindowRules) -> None:
        self.rules = rules
        self.window = 0
        """The number of the open window."""
        self.log_time_ms = 0
        """The highest log time seen."""
        self.ended_phase = _NEVER
        """The last phase that all origins have ended; -1 before the first."""
        self._opened_ms = 0
        self._slots: list[tuple[bytes, bytes]] = []
        self._phases: dict[int, int] = dict.fromkeys(sorted(rules.origins), _NEVER)
        self._ids = KnownIds()
        self.item_rows = ItemRows(0, bytes(4 * rules.item_rows)) if rules.item_rows else None
        """The items of the rows of sums, by the newest record of a learner; None if items have no names."""

    @property
    def slots(self) -> int:
        """How many slots the open window holds."""
        return len(self._slots)

    @property
    def period(self) -> int:
        """The current report period."""
        return self.log_time_ms // self.rules.period_ms

    @property
    def remembered(self) -> int:
        """How many report ids are remembered: as many as slots have ever joined."""
        return len(self._ids)

    def advance(self, log_time_ms: int) -> ClosedWindow | None:
        """Move log time forward (call it for every record, before what the record does).

        Returns:
            The window that log time has closed; the current record belongs to the next window.
        """
        self.log_time_ms = max(self.log_time_ms, log_time_ms)
        open_ms = self.rules.open_ms
        if open_ms is not None and self._slots and self.log_time_ms - self._opened_ms >= open_ms:
            return self._close(ClosedBy.TIME)
        return None

    def offer(self, report_id: bytes, period: int, content: bytes) -> Offer:
        """Let a slot report join the open window, once.

        Args:
            report_id: `ID_BYTES` opaque bytes.
            period: the period that the report names.
            content: opaque bytes of the fixed size.

        Raises:
            ShufflingError: an id or content of another size.
        """
        if len(report_id) != ID_BYTES or len(content) != self.rules.content_bytes:
            raise ShufflingError(
                f"expected an id of {ID_BYTES} and a content of {self.rules.content_bytes} bytes,"
                f" got {len(report_id)} and {len(content)}"
            )
        current = self.log_time_ms // self.rules.period_ms
        if not current - 1 <= period <= current:
            outside = SlotOutcome.EARLY if period > current else SlotOutcome.LATE
            return Offer(SlotOutcome.REPEATED if report_id in self._ids else outside, None)
        if not self._ids.add(report_id):
            return Offer(SlotOutcome.REPEATED, None)
        if not self._slots:
            self._opened_ms = self.log_time_ms
        self._slots.append((report_id, content))
        full = len(self._slots) >= self.rules.slots
        return Offer(SlotOutcome.JOINED, self._close(ClosedBy.SLOTS) if full else None)

    def follow(self, rows: ItemRows) -> None:
        """Take over the items that rows stand for from now on; an older version changes nothing.

        Raises:
            ShufflingError: items have no names here, or there is another number of rows.
        """
        if self.item_rows is None or len(rows.entries) != len(self.item_rows.entries) or rows.catalogue < 1:
            raise ShufflingError(f"expected {self.rules.item_rows} rows of a catalogue, got others")
        if rows.catalogue > self.item_rows.catalogue:
            self.item_rows = rows

    def end_phase(self, phase: int, origin: int) -> ClosedWindow | None:
        """Note that a learner partition has sent all slots of a phase, and of all phases before it.

        Returns:
            The open window, if this was the last origin that the phase waited for and it holds a slot.

        Raises:
            ShufflingError: an origin that is no learner partition, or a negative phase.
        """
        if origin not in self._phases or phase < 0:
            raise ShufflingError("expected the end of a phase of a known learner partition and phase, got another")
        self._phases[origin] = max(self._phases[origin], phase)
        complete = min(self._phases.values())
        if complete == self.ended_phase:
            return None
        self.ended_phase = complete
        return self._close(ClosedBy.SEAL) if self._slots else None

    def _close(self, closed_by: ClosedBy) -> ClosedWindow:
        ids, contents = zip(*sorted(self._slots), strict=True)
        closed = ClosedWindow(self.window, closed_by, contents, ids, self.item_rows)
        self.window += 1
        self._slots = []
        return closed

    def dump(self) -> bytes:
        """The state as bytes; equal states give equal bytes. The rules are not in it."""
        parts = [
            _HEADER.pack(
                _MAGIC,
                _VERSION,
                self.window,
                self.log_time_ms,
                self.ended_phase,
                self._opened_ms if self._slots else 0,
                self.rules.content_bytes,
                len(self._slots),
                len(self._phases),
            ),
            *(part for slot in self._slots for part in slot),
            *(_ORIGIN.pack(origin, phase) for origin, phase in sorted(self._phases.items())),
            *(() if self.item_rows is None else (_CATALOGUE.pack(self.item_rows.catalogue), self.item_rows.entries)),
            self._ids.dump(),
        ]
        return b"".join(parts)

    @classmethod
    def load(cls, rules: WindowRules, dumped: bytes) -> Windows:
        """The state that `dump` wrote under the same rules.

        Raises:
            ShufflingError: these are not such bytes, or they were written under other rules.
        """
        windows = cls(rules)
        try:
            header = _HEADER.unpack_from(dumped)
            magic, version, window, log_time_ms, ended_phase, opened_ms, size, slots, origins = header
            if magic != _MAGIC or version != _VERSION or size != rules.content_bytes:
                raise ShufflingError("expected windows of this version and content size, got others")
            position = _HEADER.size
            for _ in range(slots):
                content = position + ID_BYTES
                windows._slots.append((dumped[position:content], dumped[content : content + size]))
                position = content + size
            phases = [_ORIGIN.unpack_from(dumped, position + i * _ORIGIN.size) for i in range(origins)]
            position += origins * _ORIGIN.size
            if rules.item_rows:
                (catalogue,) = _CATALOGUE.unpack_from(dumped, position)
                entries = position + _CATALOGUE.size
                position = entries + 4 * rules.item_rows
                windows.item_rows = ItemRows(catalogue, dumped[entries:position])
        except struct.error:
            raise ShufflingError("expected dumped windows, got bytes that end too early") from None
        if {origin for origin, _ in phases} != rules.origins:
            raise ShufflingError("expected windows of these origins, got others")
        windows._ids = KnownIds.load(dumped[position:])
        windows._phases = dict(phases)
        windows.window, windows.log_time_ms = window, log_time_ms
        windows.ended_phase, windows._opened_ms = ended_phase, opened_ms
        return windows
