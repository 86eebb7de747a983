"""A copy of a deployment's logs, which verify, the budget and the tools for dead letters read.

A copy may come from a log in memory, from an export, or from a broker; readers cannot tell which.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hushstream.engine.records import InputRecord, TopicPartition


class HoldsPartitions(Protocol):
    """A log in memory, such as the direct runner's."""

    def partitions(self) -> Iterable[tuple[TopicPartition, Sequence[InputRecord]]]:
        """Every partition with all of its records, by logical topic name."""


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """A copy of one partition: its records with ``low <= offset < high``.

    Attributes:
        low: the first offset of the log (above 0 if retention has deleted earlier records).
        high: the offset that the next record would have got.
        records: the records in offset order; offsets may have gaps.
        keys: the record key of each; None if keys were not kept.
    """

    low: int
    high: int
    records: Sequence[InputRecord]
    keys: Sequence[bytes | None] | None = None

    def read(self, low: int, high: int) -> Sequence[InputRecord]:
        """The records with ``low <= offset < high``."""
        return self.records[self.place(low) : self.place(high)]

    def place(self, offset: int) -> int:
        """The number of records below an offset."""
        return bisect_left(self.records, offset, key=_offset)


_EMPTY = PartitionCopy(0, 0, ())


@dataclass(frozen=True, slots=True)
class LogCopy:
    """All partitions of a copy, by logical topic name.

    Attributes:
        parts: the partitions that were copied; one that never held a record may be missing.
        consistent: whether nothing was written while the ends of the logs were read, so that they belong to one moment.
            In a copy of a busy deployment a journal may name inputs beyond the copy's end, or outputs may still be in
            flight.
    """

    parts: Mapping[TopicPartition, PartitionCopy]
    consistent: bool = True

    def part(self, source: TopicPartition) -> PartitionCopy:
        """One partition; an empty one if the copy does not have it."""
        return self.parts.get(source, _EMPTY)

    def of_topic(self, topic: str) -> list[tuple[int, PartitionCopy]]:
        """The partitions of one topic, by number."""
        return sorted((number, part) for (name, number), part in self.parts.items() if name == topic)

    def records(self, topics: Iterable[str]) -> Iterator[InputRecord]:
        """The records of some topics, partition by partition."""
        return (record for topic in topics for _, part in self.of_topic(topic) for record in part.records)

    @classmethod
    def of(cls, log: HoldsPartitions) -> LogCopy:
        """Make a view of a log in memory; the records are shared, not copied."""
        return cls({source: whole(records) for source, records in log.partitions()})


def whole(records: Sequence[InputRecord]) -> PartitionCopy:
    """Make a complete partition: it begins at offset 0 and ends after its last record."""
    return PartitionCopy(0, records[-1].offset + 1 if records else 0, records)


def _offset(record: InputRecord) -> int:
    return record.offset
