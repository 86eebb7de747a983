"""A log in memory, in place of a broker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hushstream.engine.records import InputRecord, InputSlice, TopicPartition


class MemoryLog:
    """Append-only partitions of (offset, log time, value), by logical topic name."""

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        """Start empty; log time comes from ``clock_ms``, or counts one millisecond an append."""
        self._partitions: dict[TopicPartition, list[InputRecord]] = {}
        self._clock_ms = clock_ms
        self._appended = 0

    def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append one record; returns its offset."""
        self._appended += 1
        now = self._appended if self._clock_ms is None else self._clock_ms()
        records = self._partitions.setdefault((topic, partition), [])
        records.append(InputRecord(len(records), now, value))
        return len(records) - 1

    def load(self, topic: str, partition: int, records: list[InputRecord]) -> None:
        """Load a whole partition that was exported; its offsets must count from 0 without a gap.

        Where log time is counted, it continues after the latest time loaded.
        """
        self._partitions[topic, partition] = list(records)
        self._appended = max(self._appended + len(records), max((r.timestamp_ms for r in records), default=0))

    def end(self, topic: str, partition: int) -> int:
        """The offset that the next record will get."""
        return len(self._partitions.get((topic, partition), ()))

    def slice(self, topic: str, partition: int, low: int, high: int | None = None) -> InputSlice:
        """The records with ``low <= offset < high`` (to the end by default)."""
        records = self._partitions.get((topic, partition), [])
        top = len(records) if high is None else high
        return InputSlice(topic, partition, low, top, records[low:top])

    def partitions(self) -> Iterator[tuple[TopicPartition, list[InputRecord]]]:
        """Every partition that holds a record."""
        return iter(self._partitions.items())
