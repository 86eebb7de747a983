"""Joins several copies of one deployment's logs: archives of deleted parts, and the current logs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import overload

from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.schemas.errors import HushstreamError

_ERASED = b""


class NotOneLog(HushstreamError):
    """The copies do not continue one another, or differ where they overlap."""


def joined(copies: Sequence[LogCopy], compacted: Collection[str]) -> LogCopy:
    """Join copies into one; where two overlap, the records of the earlier copy are used.

    Args:
        copies: the copies, the oldest first.
        compacted: the compacted topics; of each, the last copy that has it is used.

    Raises:
        NotOneLog: two copies of a partition have a gap between them, or hold different records.
    """
    parts = dict(copies[0].parts)
    for copy in copies[1:]:
        for source, part in copy.parts.items():
            known = parts.get(source)
            parts[source] = part if known is None or source[0] in compacted else _continued(source, known, part)
    return LogCopy(parts, copies[-1].consistent)


def _continued(source: TopicPartition, known: PartitionCopy, later: PartitionCopy) -> PartitionCopy:
    name = f"{source[0]}/{source[1]}"
    if later.low > known.high:
        raise NotOneLog(f"{name}: expected a copy that goes on at offset {known.high}, got one from {later.low} on")
    there, again = known.read(later.low, later.high), later.read(known.low, known.high)
    if len(there) != len(again) or not all(map(_alike, there, again)):
        raise NotOneLog(f"{name}: expected copies of one log, got other records from offset {later.low} on")
    rest = later.read(known.high, later.high)
    return PartitionCopy(known.low, max(known.high, later.high), _Chained((known.records, rest)))


def _alike(one: InputRecord, other: InputRecord) -> bool:
    """Whether both are the same record; one of them may be erased."""
    erased = _ERASED in (one.value, other.value)
    return one[:2] == other[:2] and (erased or one.value == other.value)


class _Chained(Sequence[InputRecord]):
    """Several sequences of records as one, without copying."""

    def __init__(self, parts: Sequence[Sequence[InputRecord]]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[InputRecord]:
        for part in self._parts:
            yield from part

    @overload
    def __getitem__(self, index: int) -> InputRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[InputRecord]: ...

    def __getitem__(self, index: int | slice) -> InputRecord | Sequence[InputRecord]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        part = bisect_right(self._ends, place)
        return self._parts[part][place - (self._ends[part - 1] if part else 0)]
