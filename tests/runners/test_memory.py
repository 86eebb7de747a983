"""The log in memory."""

from __future__ import annotations

from hushstream.engine.records import InputRecord
from hushstream.replay.runners.memory import MemoryLog


def test_offsets_count_from_zero_in_each_partition_and_log_time_never_goes_back():
    log = MemoryLog()
    assert [log.append("a", 0, b"1"), log.append("a", 1, b"2"), log.append("a", 0, b"3")] == [0, 0, 1]
    assert [record.offset for record in log.slice("a", 0, 0).records] == [0, 1]
    times = [record.timestamp_ms for _, records in log.partitions() for record in records]
    assert sorted(times) == [1, 2, 3]
    assert (log.end("a", 0), log.end("a", 1), log.end("b", 0)) == (2, 1, 0)


def test_log_time_may_come_from_a_clock():
    log = MemoryLog(iter([5, 9]).__next__)
    log.append("a", 0, b"")
    log.append("a", 0, b"")
    assert [record.timestamp_ms for record in log.slice("a", 0, 0).records] == [5, 9]


def test_a_slice_says_where_it_begins_and_ends():
    log = MemoryLog()
    for number in range(5):
        log.append("a", 0, bytes([number]))
    part = log.slice("a", 0, 1, 3)
    assert (part.low, part.high, [record.value for record in part.records]) == (1, 3, [b"\1", b"\2"])
    assert log.slice("a", 0, 5).records == []
    assert log.slice("b", 3, 0).high == 0


def test_an_exported_partition_is_taken_as_it_is():
    log = MemoryLog()
    records = [InputRecord(0, 70, b"x"), InputRecord(1, 80, b"y")]
    log.load("a", 0, records)
    assert log.append("a", 0, b"z") == 2
    assert log.slice("a", 0, 0, 2).records == records
    assert log.slice("a", 0, 2).records[0].timestamp_ms > 80
    assert len(records) == 2
