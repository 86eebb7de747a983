"""Converts the contexts of one partition, as events or in batches, to columns.

Rows come out in log order, and a position is (offset, row). A refused record or row becomes a `Reject`, and all others
are kept: no content of a record raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import compress
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas import batches
from hushstream.schemas.codec import HEADER_BYTES, CodecError, decode, encode
from hushstream.schemas.rows import (
    LogRecord,
    Reason,
    Reject,
    all_plain,
    context_fault,
    id_fault,
    take_runs,
    track_fault,
)

_BESIDE = frozenset({"Seal", "Forget"})
_NUMBERS = frozenset({"Context", "ContextBatch"}) | _BESIDE
_ROWS = frozenset({"FeatureContext", "FeatureContextBatch"}) | _BESIDE


class RowForm(NamedTuple):
    """The form of a context of declared features: size of a row in bytes, and digest of the declaration."""

    row_bytes: int
    digest: bytes


class PhaseEndMark(NamedTuple):
    """A phase end among contexts: ``position`` rows of the columns come before it."""

    position: int
    offset: int
    phase: int
    timestamp_ms: int
    origin: int
    config_digest: bytes
    after_click: int


class ForgetMark(NamedTuple):
    """The erasure of a user among contexts: ``position`` rows of the columns come before it. It waits for no click."""

    position: int
    offset: int
    user: str
    timestamp_ms: int
    config_digest: bytes
    after_click: int = -1


class ContextColumns(NamedTuple):
    """n accepted contexts in log order; every list has n items."""

    event_ids: list[str]
    users: list[str]
    tracks: list[str]
    contexts: NDArray[Any]
    """Float32 of shape (n, dimension), C-contiguous, finite, read-only; of declared features uint8 (n, row bytes)."""
    eligible: list[bytes]
    """Masks of ceil(arms/8) bytes; b"" if every arm is allowed (also in place of a full mask)."""
    baselines: list[int]
    after_clicks: list[int]
    offsets: list[int]
    rows: list[int]
    timestamps_ms: list[int]
    marks: list[PhaseEndMark | ForgetMark]
    """In log order."""
    rejects: list[Reject]
    """In log order."""


def gather_contexts(
    records: Sequence[LogRecord],
    dimension: int,
    arms: int,
    form: RowForm | None = None,
) -> ContextColumns:
    """Read contexts, batches of contexts, phase ends and erasures of one partition.

    Args:
        records: (offset, log time in milliseconds, value), in offset order.
        dimension: number of coordinates of a context; with a ``form``, number of bytes of a row.
        arms: number of arms; their ids are 0 to arms - 1.
        form: form of the rows of declared features; None if contexts are numbers.
    """
    gatherer = _ContextGatherer(dimension, arms) if form is None else _RowGatherer(form, arms)
    expected, usual = (_NUMBERS, _usual(4 * dimension, None)) if form is None else (_ROWS, _usual(*form))
    cuts = usual.cuts(records)
    if not records or None in cuts or not gatherer.events(records, cast(Sequence[_Cut], cuts)):
        take_runs(records, cuts, gatherer.events, partial(_take_decoded, gatherer, expected))
    return gatherer.columns()


def _take_decoded(gatherer: _ContextGatherer, expected: frozenset[str], records: Sequence[LogRecord]) -> None:
    for offset, timestamp_ms, value in records:
        try:
            name, fields = decode(value, expected)
        except CodecError as error:
            gatherer.rejects.append(Reject(offset, -1, error.reason))
            continue
        if name in ("Context", "FeatureContext"):
            gatherer.event(offset, timestamp_ms, fields)
        elif name in ("ContextBatch", "FeatureContextBatch"):
            gatherer.batch(offset, timestamp_ms, fields)
        elif name == "Seal":
            gatherer.end_phase(offset, timestamp_ms, fields)
        else:
            gatherer.forget(offset, timestamp_ms, fields)


# Most records differ in their ids, track, context, baseline and click alone: these are cut out, and all others decoded.

_Cut = tuple[str, str, str, bytes, int, int]
"""Event id, user, track, context, baseline and after_click of a record."""

_SHORT = 128
"""A byte below this is a whole number of Avro: twice the length of a text, or a number in zigzag form."""

_NEITHER = b"\x01\x01"
"""No baseline and no click, -1 each."""


class _Usual(NamedTuple):
    """What surrounds the parts of a record that are cut out: its head, what precedes the context, what follows it."""

    head: bytes
    before: bytes
    width: int
    after: bytes

    def cuts(self, records: Sequence[LogRecord]) -> list[_Cut | None]:
        """The parts of each record, which are not yet checked; None for one that deviates in anything else.

        Most records have the track of the one before, so what stands between user and context is compared at once.
        """
        head, before, width, after, start = self.head, self.before, self.width, self.after, HEADER_BYTES + 1
        front, track, found = b"", "", list[_Cut | None]()
        for _, _, value in records:
            found.append(None)
            size = len(value)
            if size <= start or not value.startswith(head):
                continue
            middle = start + (value[HEADER_BYTES] >> 1)
            if middle >= size:
                continue
            end = middle + 1 + (value[middle] >> 1)
            if end >= size or (value[HEADER_BYTES] | value[middle] | value[end]) & (_SHORT | 1):
                continue
            if not front or not value.startswith(front, end):
                stop = end + 1 + (value[end] >> 1)
                if not value.startswith(before, stop):
                    continue
                front, track = value[end : stop + len(before)], value[end + 1 : stop].decode("latin-1")
            context = end + len(front)
            last = context + width
            if not value.startswith(after, last):
                continue
            rest = value[last + len(after) :]
            baseline, click = (-1, -1) if rest == _NEITHER else _two_numbers(rest) or (-2, -2)
            if baseline > -2:
                names, at = value[start:end].decode("latin-1"), middle - start
                found[-1] = (names[:at], names[at + 1 :], track, value[context:last], baseline, click)
        return found


def _two_numbers(rest: bytes) -> tuple[int, int] | None:
    """The numbers that two fields of 63 bits at most hold; None if there are others, more or fewer."""
    found, number, shift = [], 0, 0
    for byte in rest[:11]:
        number |= (byte & 127) << shift
        shift += 7
        if byte < _SHORT:
            found.append((number >> 1) ^ -(number & 1))
            number = shift = 0
    whole = len(found) == 2 and rest[-1] < _SHORT and max(found) < 1 << 62
    return (found[0], found[1]) if whole and len(rest) <= 10 else None


@lru_cache(maxsize=64)
def _usual(width: int, digest: bytes | None) -> _Usual:
    """The usual record of contexts of ``width`` bytes, by the codec; of declared features with their digest."""
    name, beside = ("Context", {}) if digest is None else ("FeatureContext", {"features_digest": digest})
    column = "context" if digest is None else "row"
    value = encode(name, {"event_id": "", "user": "", column: bytes(width), "line": "", **beside})
    after = len(value) - len(_NEITHER) - len(digest or b"") - 1
    return _Usual(value[:HEADER_BYTES], value[HEADER_BYTES + 3 : after - width], width, value[after : -len(_NEITHER)])


class _ContextGatherer:
    """Collects the columns. The coordinates stay bytes until all of them are joined and checked together."""

    __slots__ = (
        "_after_clicks",
        "_arms",
        "_baselines",
        "_chunks",
        "_dimension",
        "_eligible",
        "_event_ids",
        "_full",
        "_marks",
        "_mask_bytes",
        "_offsets",
        "_rows",
        "_timestamps_ms",
        "_tracks",
        "_users",
        "_width",
        "rejects",
    )
    _entry: np.dtype[Any] = batches.FLOAT32
    """An entry of a context, as records hold it."""

    def __init__(self, dimension: int, arms: int) -> None:
        self._dimension = dimension
        self._width = 4 * dimension
        self._arms = arms
        self._mask_bytes = (arms + 7) // 8
        self._full = ((1 << arms) - 1).to_bytes(self._mask_bytes, "little")
        """The eligible mask that allows every arm. Readers return the empty mask instead, which means the same."""
        self._event_ids: list[str] = []
        self._users: list[str] = []
        self._tracks: list[str] = []
        self._chunks: list[bytes] = []
        self._eligible: list[bytes] = []
        self._baselines: list[int] = []
        self._after_clicks: list[int] = []
        self._offsets: list[int] = []
        self._rows: list[int] = []
        self._timestamps_ms: list[int] = []
        self._marks: list[PhaseEndMark | ForgetMark] = []
        self.rejects: list[Reject] = []

    def events(self, records: Sequence[LogRecord], cuts: Sequence[_Cut]) -> bool:
        """Take records that were cut, one event each; False, and nothing is taken, if one needs a closer look."""
        event_ids, users, tracks, chunks, baselines, after_clicks = map(list, zip(*cuts, strict=True))
        numbers = min(baselines) >= -1 and max(baselines) < self._arms and min(after_clicks) >= -1
        if not (numbers and all_plain(event_ids) and all_plain(users) and all_plain(list(set(tracks)))):
            return False
        n = len(cuts)
        offsets, times_ms, _ = zip(*records, strict=True)
        columns = (event_ids, users, [b""] * n, baselines, after_clicks)
        self._extend((offsets, times_ms), tracks, columns, b"".join(chunks), [0] * n)
        return True

    def event(self, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
        fault = self._event_fault(fields)
        if fault is not None:
            self.rejects.append(Reject(offset, 0, fault))
            return
        columns = tuple([fields[name]] for name in ("event_id", "user", "eligible", "baseline", "after_click"))
        self._extend(([offset], [timestamp_ms]), [fields["line"]], columns, fields["context"], [0])

    def _event_fault(self, fields: dict[str, Any]) -> Reason | None:
        if len(fields["context"]) != self._width:
            return Reason.WRONG_DIMENSION
        # A client that does not know the number of arms omits the trailing zero bytes of the mask.
        if len(fields["eligible"]) > self._mask_bytes:
            return Reason.WRONG_MASK_LENGTH
        return track_fault(fields["line"]) or context_fault(
            fields["event_id"],
            fields["user"],
            fields["eligible"],
            fields["baseline"],
            fields["after_click"],
            arms=self._arms,
        )

    def batch(self, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
        event_ids, users = fields["event_ids"], fields["users"]
        fault = self._batch_fault(fields)
        if fault is not None:
            self.rejects.append(Reject(offset, -1, fault))
            return
        n = len(event_ids)
        rows: Sequence[int] = range(n)
        baselines = batches.column(fields["baselines"], batches.INT32, n, -1)
        after_clicks = batches.column(fields["after_clicks"], batches.INT64, n, -1)
        columns: tuple[list[Any], ...] = (
            event_ids,
            users,
            self._masks(fields["eligible"], n),
            baselines.tolist(),
            after_clicks.tolist(),
        )
        chunk = fields["contexts"]
        if not (
            not fields["eligible"]
            and all_plain(event_ids)
            and all_plain(users)
            and bool(((baselines >= -1) & (baselines < self._arms) & (after_clicks >= -1)).all())
        ):
            faults = [context_fault(*row, arms=self._arms) for row in zip(*columns, strict=True)]
            keep = [fault is None for fault in faults]
            self.rejects.extend(Reject(offset, row, fault) for row, fault in enumerate(faults) if fault)
            if not all(keep):
                columns = tuple(list(compress(column, keep)) for column in columns)
                chunk = batches.take_rows(chunk, self._width, keep)
                rows = list(compress(rows, keep))
        n = len(rows)
        self._extend(([offset] * n, [timestamp_ms] * n), [fields["line"]] * n, columns, chunk, rows)

    def _extend(
        self,
        places: tuple[Sequence[int], Sequence[int]],
        tracks: list[str],
        columns: tuple[list[Any], ...],
        chunk: bytes,
        rows: Sequence[int],
    ) -> None:
        event_ids, users, masks, baselines, after_clicks = columns
        self._event_ids += event_ids
        self._users += users
        self._tracks += tracks
        self._chunks.append(chunk)
        self._eligible += [b"" if mask == self._full else mask for mask in masks] if any(masks) else masks
        self._baselines += baselines
        self._after_clicks += after_clicks
        self._offsets += places[0]
        self._rows += rows
        self._timestamps_ms += places[1]

    def _batch_fault(self, fields: dict[str, Any]) -> Reason | None:
        n = len(fields["event_ids"])
        if fields["dimension"] != self._dimension:
            return Reason.WRONG_DIMENSION
        agree = (
            len(fields["users"]) == n
            and len(fields["contexts"]) == n * self._width
            and len(fields["eligible"]) in (0, n * self._mask_bytes)
            and len(fields["baselines"]) in (0, 4 * n)
            and len(fields["after_clicks"]) in (0, 8 * n)
        )
        return track_fault(fields["line"]) if agree else Reason.COLUMNS_DISAGREE

    def _masks(self, eligible: bytes, n: int) -> list[bytes]:
        if not eligible:
            return [b""] * n
        stride = self._mask_bytes
        return [eligible[start : start + stride] for start in range(0, n * stride, stride)]

    def end_phase(self, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
        self._marks.append(
            PhaseEndMark(
                len(self._event_ids),
                offset,
                fields["phase"],
                timestamp_ms,
                fields["origin"],
                fields["config_digest"],
                fields["after_click"],
            )
        )

    def forget(self, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
        fault = id_fault(fields["user"])
        if fault is not None:
            self.rejects.append(Reject(offset, -1, fault))
            return
        place = (len(self._event_ids), offset, fields["user"], timestamp_ms)
        self._marks.append(ForgetMark(*place, fields["config_digest"]))

    def columns(self) -> ContextColumns:
        stored = np.frombuffer(b"".join(self._chunks), self._entry).reshape(-1, self._dimension)
        contexts = stored.astype(self._entry.newbyteorder("="), copy=False)
        if contexts.dtype.kind == "f" and not (finite := np.isfinite(contexts)).all():
            contexts = self._drop(contexts, np.logical_and.reduce(finite, axis=1))
        return ContextColumns(
            self._event_ids,
            self._users,
            self._tracks,
            contexts,
            self._eligible,
            self._baselines,
            self._after_clicks,
            self._offsets,
            self._rows,
            self._timestamps_ms,
            self._marks,
            sorted(self.rejects),
        )

    def _drop(self, contexts: NDArray[np.float32], keep: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Make rejects of the rows that are not kept; returns the contexts of the others."""
        self.rejects += [
            Reject(self._offsets[row], self._rows[row], Reason.NOT_FINITE) for row in np.flatnonzero(~keep)
        ]
        before = np.concatenate(([0], np.cumsum(keep))).tolist()
        self._marks = [mark._replace(position=before[mark.position]) for mark in self._marks]
        kept = keep.tolist()
        for name in _ROW_LISTS:
            setattr(self, name, list(compress(getattr(self, name), kept)))
        remaining = contexts[keep]
        remaining.flags.writeable = False
        return remaining


class _RowGatherer(_ContextGatherer):
    """Collects rows of declared features: bytes of one size under one digest. The caller's schema checks the values."""

    __slots__ = ("_digest",)
    _entry = np.dtype(np.uint8)

    def __init__(self, form: RowForm, arms: int) -> None:
        super().__init__(form.row_bytes, arms)
        self._width, self._digest = form.row_bytes, form.digest

    def event(self, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
        if fields["features_digest"] == self._digest:
            super().event(offset, timestamp_ms, {**fields, "context": fields["row"]})
        else:
            self.rejects.append(Reject(offset, 0, Reason.OTHER_FEATURES))

    def batch(self, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
        if fields["features_digest"] == self._digest:
            columns = {**fields, "contexts": fields["rows"], "dimension": self._dimension}
            super().batch(offset, timestamp_ms, columns)
        else:
            self.rejects.append(Reject(offset, -1, Reason.OTHER_FEATURES))


_ROW_LISTS = (
    "_event_ids",
    "_users",
    "_tracks",
    "_eligible",
    "_baselines",
    "_after_clicks",
    "_offsets",
    "_rows",
    "_timestamps_ms",
)
