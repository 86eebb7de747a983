"""Record batches as they lie in a segment: every field that a broker keeps, read without a client library.

Layout: Apache Kafka documentation, sections "Record Batch" and "Record" (magic 2). A client library would hide what
matters here: with LogAppendTime a consumer is shown the broker's time, while the producer's own times stay in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PLACEMENT_BYTES = 12
LOG_APPEND_TIME = 0x08


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record with all that its batch says of it.

    Attributes:
        topic, partition, offset: where it lies.
        batch: offset of the batch's first record: records of one request share it.
        batch_attributes: compression (bits 0 to 2), time type (3), transaction (4), control (5).
        attributes: of the record itself; no bit has a meaning.
        created_ms: the producer's time.
        appended_ms: the broker's time.
        producer: id, epoch and sequence number.
        key, value, headers: as written.
    """

    topic: str
    partition: int
    offset: int
    batch: int
    batch_attributes: int
    attributes: int
    created_ms: int
    appended_ms: int
    producer: tuple[int, int, int]
    key: bytes | None
    value: bytes
    headers: tuple[tuple[bytes, bytes | None], ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def varint(self) -> int:
        shift = number = 0
        while True:
            byte = self.data[self.place]
            self.place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return (number >> 1) ^ -(number & 1)

    def take(self, count: int) -> bytes:
        found = self.data[self.place : self.place + count]
        assert len(found) == count, "the record ends before its length says"
        self.place += count
        return found

    def sized(self) -> bytes | None:
        length = self.varint()
        return None if length < 0 else self.take(length)


def records(topic: str, partition: int, segments: Sequence[bytes]) -> Iterator[RawRecord]:
    """Every record of a partition's segments, in order."""
    for segment in segments:
        place = 0
        while place + _HEADER.size <= len(segment):
            base, length, *_ = _HEADER.unpack_from(segment, place)
            if not length:
                break  # a segment file is made with zeros at its end
            batch = segment[place : place + _PLACEMENT_BYTES + length]
            if len(batch) < _PLACEMENT_BYTES + length:
                break  # it is being written
            yield from _batch(topic, partition, base, batch)
            place += len(batch)


def _batch(topic: str, partition: int, base: int, batch: bytes) -> Iterator[RawRecord]:
    _, _, _, magic, _, attributes, _, base_ms, max_ms, *producer, count = _HEADER.unpack_from(batch)
    assert magic == 2
    assert not attributes & 7, "a compressed batch: its size would follow from content"
    reader = _Reader(batch[_HEADER.size :])
    for _ in range(count):
        end = reader.varint()
        end += reader.place
        own = reader.take(1)[0]
        created = base_ms + reader.varint()
        offset = base + reader.varint()
        key, value = reader.sized(), reader.sized()
        headers = tuple((reader.sized() or b"", reader.sized()) for _ in range(reader.varint()))
        assert reader.place == end, "a record of another length than it says"
        appended = max_ms if attributes & LOG_APPEND_TIME else created
        yield RawRecord(
            topic, partition, offset, base, attributes, own, created, appended,
            (producer[0], producer[1], producer[2]), key, value or b"", headers,
        )  # fmt: skip


def of_topic(logs: Mapping[tuple[str, int], Sequence[bytes]], topic: str) -> list[RawRecord]:
    """All records of a topic over its partitions."""
    return [
        record
        for (name, number), segments in sorted(logs.items())
        if name == topic
        for record in records(name, number, segments)
    ]
