"""Topics and their partition logs, in memory."""

import asyncio
import re
import time
import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hushstream.broker.batches import NO_PRODUCER_ID, BatchHeader, first_record_from, read_header, stamp
from hushstream.broker.errors import ErrorCode, RequestRefused
from hushstream.broker.settings import BrokerSettings
from hushstream.broker.topic_config import TopicConfig, topic_config

# Kafka remembers as many batches for each producer; a client has at most five requests in flight.
_REMEMBERED_BATCHES = 5
_SEQUENCE_MODULUS = 1 << 31


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch was stored; `append_time_ms` is -1 unless the topic stamps LogAppendTime."""

    base_offset: int
    append_time_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    next_sequence: int = 0
    recent: deque[tuple[int, int, Appended]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))


class ProducerSequences:
    """Tells a new batch of a producer from a repeated one, and from one out of order."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def check(self, header: BatchHeader) -> Appended | None:
        """The earlier result if this batch was stored already; None if it must be stored now.

        A producer that the partition does not know may begin at any sequence number, as with Kafka: its
        earlier batches may have been deleted.

        Raises:
            RequestRefused: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return None
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise RequestRefused(ErrorCode.INVALID_RECORD, "a producer id without epoch or sequence number")
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise RequestRefused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the producer's epoch is {producer.epoch}, got {header.producer_epoch}",
            )
        expected = producer.next_sequence if header.producer_epoch == producer.epoch else 0
        if header.producer_epoch == producer.epoch:
            for base_sequence, count, appended in producer.recent:
                if base_sequence == header.base_sequence and count == header.record_count:
                    return appended
        if header.base_sequence != expected:
            raise RequestRefused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"expected sequence number {expected}, got {header.base_sequence}",
            )
        return None

    def record(self, header: BatchHeader, appended: Appended) -> None:
        """Remember a batch that was stored."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        producer.next_sequence = (header.base_sequence + header.record_count) % _SEQUENCE_MODULUS
        producer.recent.append((header.base_sequence, header.record_count, appended))


_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class PartitionLog:
    """One partition: record batches in order, with indexes over offsets, bytes and time.

    The indexes are arrays of integers, so that a long log adds no objects for the garbage collector to visit.
    """

    __slots__ = (
        "_batches",
        "_dropped_bytes",
        "_ends",
        "_last_offsets",
        "_max_timestamps",
        "next_offset",
        "sequences",
        "start_offset",
        "waiting",
    )

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._last_offsets = array("q")
        self._ends = array("q")
        # A running maximum, so that bisection finds the first batch that reaches a time.
        self._max_timestamps = array("q")
        self._dropped_bytes = 0
        self.start_offset = 0
        self.next_offset = 0
        self.sequences = ProducerSequences()
        self.waiting: set[asyncio.Future[None]] = set()

    @property
    def stored_bytes(self) -> int:
        """Sum of the batches' sizes."""
        return self._ends[-1] - self._dropped_bytes if self._ends else 0

    def append(self, batch: bytes, record_count: int, max_timestamp_ms: int) -> None:
        """Store a stamped batch, and wake the fetches that wait for one."""
        self._batches.append(batch)
        self.next_offset += record_count
        self._last_offsets.append(self.next_offset - 1)
        self._ends.append(self._start_of(len(self._ends)) + len(batch))
        earlier = self._max_timestamps[-1] if self._max_timestamps else max_timestamp_ms
        self._max_timestamps.append(max(earlier, max_timestamp_ms))
        self.wake()

    def wake(self) -> None:
        """Let every waiting fetch check its logs again."""
        for future in self.waiting:
            if not future.done():
                future.set_result(None)
        self.waiting.clear()

    def delete_before(self, offset: int) -> int:
        """Begin the log at `offset`; returns how many bytes were deleted (only whole batches are)."""
        self.start_offset = max(self.start_offset, offset)
        gone = bisect_left(self._last_offsets, self.start_offset)
        freed = self._start_of(gone) - self._dropped_bytes
        self._dropped_bytes += freed
        del self._batches[:gone]
        for index in (self._last_offsets, self._ends, self._max_timestamps):
            del index[:gone]
        if not self._ends:
            self._dropped_bytes = 0
        return freed

    def available_bytes(self, offset: int) -> int:
        """The number of bytes from the batch that holds `offset` to the end."""
        index = bisect_left(self._last_offsets, offset)
        return self._start_of(len(self._ends)) - self._start_of(index)

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> bytes:
        """Give whole batches from the one that holds `offset`, up to `max_bytes`, or one batch if `at_least_one`."""
        first = bisect_left(self._last_offsets, offset)
        end = bisect_right(self._ends, self._start_of(first) + max_bytes)
        if end <= first and at_least_one:
            end = first + 1
        return b"".join(self._batches[first:end])

    def find_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, time) of the first record that is not older than a time; None if all are older.

        Raises:
            RequestRefused: see `first_record_from`.
        """
        index = bisect_left(self._max_timestamps, timestamp_ms)
        if index == len(self._batches):
            return None
        return first_record_from(self._batches[index], timestamp_ms)

    def _start_of(self, index: int) -> int:
        return self._ends[index - 1] if index else self._dropped_bytes


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `id` differs from that of any other topic, also from that of a deleted topic with the same name."""

    name: str
    id: uuid.UUID
    config: TopicConfig
    partitions: list[PartitionLog]


class TopicStore:
    """All topics of a broker, with the caps on what they may hold."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._topics: dict[str, Topic] = {}
        self._names_by_id: dict[uuid.UUID, str] = {}
        self._stored_bytes = 0

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Topics by name."""
        return self._topics

    def topic(self, name: str) -> Topic:
        """Raises: RequestRefused, UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._topics.get(name)
        if topic is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic:
        """Raises: RequestRefused, UNKNOWN_TOPIC_ID."""
        name = self._names_by_id.get(topic_id)
        if name is None:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return self._topics[name]

    def partition(self, name: str, index: int) -> PartitionLog:
        """Raises: RequestRefused, UNKNOWN_TOPIC_OR_PARTITION."""
        partitions = self.topic(name).partitions
        if not 0 <= index < len(partitions):
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has {len(partitions)} partitions")
        return partitions[index]

    def create(self, name: str, partitions: int, given: Mapping[str, str | None], validate_only: bool = False) -> None:
        """Create a topic, or only check whether it could be created.

        Raises:
            RequestRefused: a name, count or setting is wrong, the topic exists, or there are too many.
        """
        if not valid_topic_name(name):
            raise RequestRefused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "topic names have 1 to 249 letters, digits, '.', '_' and '-'",
            )
        if name in self._topics:
            raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, "the topic exists")
        if partitions < 1:
            raise RequestRefused(ErrorCode.INVALID_PARTITIONS, f"expected at least 1 partition, got {partitions}")
        config = topic_config(given, self._settings.max_message_bytes)
        self._check_room(partitions)
        if validate_only:
            return
        topic = Topic(name, uuid.uuid4(), config, [PartitionLog() for _ in range(partitions)])
        self._topics[name] = topic
        self._names_by_id[topic.id] = name

    def grow(self, name: str, partitions: int, validate_only: bool = False) -> None:
        """Raise a topic's partition count to `partitions`.

        Raises:
            RequestRefused: no such topic, not more than now, or too many.
        """
        logs = self.topic(name).partitions
        if partitions <= len(logs):
            raise RequestRefused(
                ErrorCode.INVALID_PARTITIONS, f"the topic has {len(logs)} partitions, asked for {partitions}"
            )
        self._check_room(partitions - len(logs))
        if not validate_only:
            logs.extend(PartitionLog() for _ in range(partitions - len(logs)))

    def _check_room(self, more_partitions: int) -> None:
        limit = self._settings.max_partitions_total
        if sum(len(topic.partitions) for topic in self._topics.values()) + more_partitions > limit:
            raise RequestRefused(ErrorCode.INVALID_PARTITIONS, f"the embedded broker holds at most {limit} partitions")

    def delete(self, name: str) -> None:
        """Raises: RequestRefused, UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topic(name)
        del self._topics[name]
        del self._names_by_id[topic.id]
        for log in topic.partitions:
            self._stored_bytes -= log.stored_bytes
            log.wake()

    def append(self, name: str, index: int, batch: bytes) -> Appended:
        """Store one produced record batch; a batch stored before is not stored again.

        Above a limit of bytes the batch is refused with POLICY_VIOLATION. Room does not come back by itself, so with an
        error that clients retry (such as KAFKA_STORAGE_ERROR) they would see the reason only after their timeout.

        Raises:
            RequestRefused: the batch is corrupt, too large or out of sequence, or there is no room.
        """
        log = self.partition(name, index)
        config = self._topics[name].config
        if len(batch) > config.max_message_bytes:
            raise RequestRefused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"record batch of {len(batch)} bytes, the topic takes {config.max_message_bytes}",
            )
        header = read_header(batch)
        earlier = log.sequences.check(header)
        if earlier is not None:
            return earlier
        self._refuse_when_full(log, len(batch))
        append_time_ms = time.time_ns() // 1_000_000 if config.log_append_time else None
        appended = Appended(log.next_offset, -1 if append_time_ms is None else append_time_ms)
        stamped = stamp(batch, log.next_offset, append_time_ms)
        log.append(
            stamped,
            header.record_count,
            header.max_timestamp_ms if append_time_ms is None else append_time_ms,
        )
        log.sequences.record(header, appended)
        self._stored_bytes += len(stamped)
        return appended

    def delete_before(self, name: str, index: int, offset: int) -> int:
        """Delete a partition's records before `offset` (-1: all records); returns its new first offset.

        Raises:
            RequestRefused: no such partition, or an offset beyond its end.
        """
        log = self.partition(name, index)
        offset = log.next_offset if offset == -1 else offset
        if not 0 <= offset <= log.next_offset:
            raise RequestRefused(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log ends at {log.next_offset}")
        self._stored_bytes -= log.delete_before(offset)
        return log.start_offset

    def _refuse_when_full(self, log: PartitionLog, more_bytes: int) -> None:
        settings = self._settings
        for held, cap, where in (
            (log.stored_bytes, settings.max_bytes_per_partition, "partition"),
            (self._stored_bytes, settings.max_bytes_total, "embedded broker"),
        ):
            if held + more_bytes > cap:
                raise RequestRefused(
                    ErrorCode.POLICY_VIOLATION,
                    f"the {where} holds {held} of {cap} bytes in memory, no room for {more_bytes} more",
                )


def valid_topic_name(name: str) -> bool:
    """Whether Kafka would accept this name."""
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None
