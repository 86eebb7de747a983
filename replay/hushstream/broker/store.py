"""Topics and their partition logs: their indexes and newest batches in memory, the rest where `disk.Storage` keeps it.

*Settings.* The settings of an embedded broker.

Checks topic settings: an unknown one, or a value that this broker cannot honour, is refused and not ignored.

Retention and compaction, as the topics' settings ask for them; only where a disk keeps the data.

*Retention* deletes whole batches from the front of a log: older than `retention.ms`, or with `retention.bytes` behind.

*Compaction* deletes whole batches each of whose records has a later one under its key. A batch of several records stays
as long as one of them counts, so batches are never rewritten. The last batch of a log stays, and the last one of each
producer: its sequence number is read from there. Tombstones stay too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import struct
import time
import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from aiokafka.record.memory_records import MemoryRecords

from hushstream.broker.batches import NO_PRODUCER_ID, BatchHeader, first_record_from, read_header, stamp
from hushstream.broker.disk import Change, Statement, Storage, log_and_offset, place_of
from hushstream.broker.errors import BrokerStartError, ErrorCode, RequestRefused

_Check = Callable[[str], str | None]


def _integer(minimum: int) -> _Check:
    def check(value: str) -> str | None:
        try:
            number = int(value)
        except ValueError:
            return f"expected an integer, got {value!r}"
        return None if number >= minimum else f"expected at least {minimum}, got {number}"

    return check


def _share(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return f"expected a number, got {value!r}"
    return None if 0 <= number <= 1 else f"expected 0 to 1, got {value}"


def _only(*accepted: str, why: str = "") -> _Check:
    def check(value: str) -> str | None:
        if value in accepted:
            return None
        return f"expected {' or '.join(accepted)}, got {value!r}{why}"

    return check


@dataclass(frozen=True, slots=True)
class _Setting:
    default: str
    check: _Check


_HERE = "; the embedded broker does not do that, use Apache Kafka"

# Retention and compaction are applied where a disk keeps the data. In memory nothing is deleted before the process
# ends: a full partition refuses new records instead, and a compacted topic keeps the older records of a key; every
# reader of such a topic must handle them anyway. There are no segments, so their settings change nothing.
_SETTINGS: dict[str, _Setting] = {
    "cleanup.policy": _Setting("delete", _only("delete", "compact", why=_HERE)),
    "compression.type": _Setting("producer", _only("producer", why=_HERE)),
    "max.compaction.lag.ms": _Setting("9223372036854775807", _integer(1)),
    "max.message.bytes": _Setting("1048588", _integer(0)),
    "message.timestamp.type": _Setting("CreateTime", _only("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": _Setting("0.5", _share),
    "min.insync.replicas": _Setting("1", _only("1", why=": there is one broker")),
    "retention.bytes": _Setting("-1", _integer(-1)),
    "retention.ms": _Setting("604800000", _integer(-1)),
    "segment.bytes": _Setting("1073741824", _integer(14)),
    "segment.ms": _Setting("604800000", _integer(1)),
    "unclean.leader.election.enable": _Setting("false", _only("false", why=": there is one broker")),
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic: those given at its creation, otherwise the defaults."""

    given: Mapping[str, str]
    defaults: Mapping[str, str]

    @property
    def max_message_bytes(self) -> int:
        """Largest record batch accepted."""
        return int(self._value("max.message.bytes"))

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's time replaces the producer's."""
        return self._value("message.timestamp.type") == "LogAppendTime"

    @property
    def compacted(self) -> bool:
        """Whether only the last record of a key has to stay."""
        return self._value("cleanup.policy") == "compact"

    @property
    def retention(self) -> tuple[int, int]:
        """How many milliseconds and bytes of records have to stay; -1: all."""
        return int(self._value("retention.ms")), int(self._value("retention.bytes"))

    @property
    def compaction(self) -> tuple[float, int]:
        """The share of bytes, and the age in milliseconds, of what compaction has not seen, from which on it is due."""
        return float(self._value("min.cleanable.dirty.ratio")), int(self._value("max.compaction.lag.ms"))

    def described(self) -> list[tuple[str, str, bool]]:
        """(name, value, is_default) of every setting, by name."""
        return [(name, self._value(name), name not in self.given) for name in sorted(_SETTINGS)]

    def _value(self, name: str) -> str:
        return self.given.get(name, self.defaults[name])


def topic_config(given: Mapping[str, str | None], max_message_bytes: int) -> TopicConfig:
    """Check the settings of a topic that is to be created; null means the default.

    Raises:
        RequestRefused: INVALID_CONFIG for an unknown name or a value that is wrong or not supported here.
    """
    accepted: dict[str, str] = {}
    for name, value in given.items():
        setting = _SETTINGS.get(name)
        if setting is None:
            raise RequestRefused(ErrorCode.INVALID_CONFIG, f"unknown topic setting {name!r}")
        if value is None:
            continue
        complaint = setting.check(value)
        if complaint is not None:
            raise RequestRefused(ErrorCode.INVALID_CONFIG, f"{name}: {complaint}")
        accepted[name] = value
    defaults = {name: setting.default for name, setting in _SETTINGS.items()}
    defaults["max.message.bytes"] = str(max_message_bytes)
    return TopicConfig(accepted, defaults)


_MIB = 1 << 20
_HOT_BYTES = _MIB
"""How much of a log stays in memory where a disk keeps all of it: what readers that keep up ask for."""
_CLOCK_TOLERANCE_MS = 60_000
"""Log times may run back so far: as much as a clock that is set right moves by."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Limits and addresses; the defaults follow Apache Kafka where it has the same setting.

    Args:
        host: address to listen on; anything but loopback needs `allow_non_loopback`.
        port: 0 lets the system choose.
        data: folder that keeps all of it; None: in memory.
        max_bytes_per_partition: stored record bytes after which produce requests to a partition are refused; only in
            memory.
        max_bytes_total: the same over all partitions.
        max_message_bytes: default of the topic setting `max.message.bytes` (one record batch).
        max_request_bytes: larger requests close their connection.
        max_partitions_total: topics that would exceed it are refused.
        default_partitions: for topics created with -1 partitions.
        group_min_session_timeout_ms: shorter sessions get INVALID_SESSION_TIMEOUT.
        group_max_session_timeout_ms: longer ones too.
        group_initial_rebalance_delay_ms: how long an empty group waits for more members.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allow_non_loopback: bool = False
    data: Path | None = None
    max_bytes_per_partition: int = 512 * _MIB
    max_bytes_total: int = 1024 * _MIB
    max_message_bytes: int = 1_048_588
    max_request_bytes: int = 32 * _MIB
    max_partitions_total: int = 4096
    default_partitions: int = 1
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0

    def is_loopback(self) -> bool:
        """Whether `host` can be reached from this machine alone."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


# Kafka remembers as many batches for each producer; a client has at most five requests in flight.
_REMEMBERED_BATCHES = 5
_SEQUENCE_MODULUS = 1 << 31


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch was stored; `append_time_ms` is -1 unless the topic stamps LogAppendTime."""

    base_offset: int
    append_time_ms: int


NOWHERE = Appended(-1, -1)


@dataclass(frozen=True, slots=True)
class _Producer:
    epoch: int
    next_sequence: int
    recent: tuple[tuple[int, int, Appended], ...]


class ProducerSequences:
    """Tells a new batch of a producer from a repeated one, and from one out of order."""

    __slots__ = ("_producers", "_staged")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._staged: dict[int, _Producer] = {}

    def check(self, header: BatchHeader) -> Appended | None:
        """The earlier result if this batch came before; None if it must be stored now.

        A producer that the partition does not know may begin at any sequence number, as with Kafka: its
        earlier batches may have been deleted.

        Raises:
            RequestRefused: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if header.producer_id == NO_PRODUCER_ID:
            return None
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise RequestRefused(ErrorCode.INVALID_RECORD, "a producer id without epoch or sequence number")
        producer = self._newest(header.producer_id)
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

    def stage(self, header: BatchHeader, appended: Appended) -> None:
        """Remember a batch that is on its way to the disk."""
        if header.producer_id != NO_PRODUCER_ID:
            self._staged[header.producer_id] = _followed(self._newest(header.producer_id), header, appended)

    def keep(self, header: BatchHeader, appended: Appended) -> None:
        """Remember a batch that is stored."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        kept = _followed(self._producers.get(header.producer_id), header, appended)
        self._producers[header.producer_id] = kept
        if self._staged.get(header.producer_id) == kept:
            del self._staged[header.producer_id]

    def drop_staged(self) -> None:
        """Forget what was on its way: it was not stored."""
        self._staged.clear()

    def _newest(self, producer_id: int) -> _Producer | None:
        return self._staged.get(producer_id) or self._producers.get(producer_id)


def _followed(before: _Producer | None, header: BatchHeader, appended: Appended) -> _Producer:
    """A producer after one more batch."""
    recent = before.recent if before is not None and before.epoch == header.producer_epoch else ()
    recent = (*recent, (header.base_sequence, header.record_count, appended))[-_REMEMBERED_BATCHES:]
    following = (header.base_sequence + header.record_count) % _SEQUENCE_MODULUS
    return _Producer(header.producer_epoch, following, recent)


_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is on its way into a log.

    Attributes:
        header: as its producer sent it.
        appended: where it will be.
        body: its bytes with its offset and time; empty if they are on disk alone.
        size: how many bytes it has.
        max_timestamp_ms: of its records.
    """

    header: BatchHeader
    appended: Appended
    body: bytes
    size: int
    max_timestamp_ms: int


_BODIES = "SELECT body FROM batches WHERE place BETWEEN ? AND ? ORDER BY place"


class PartitionLog:
    """One partition: record batches in order, with indexes over offsets, bytes and time.

    The indexes are arrays of integers, so that a long log adds no objects for the garbage collector to visit. Where a
    disk keeps the batches, only the newest are in memory too.

    Attributes:
        id: its number in the storage.
        start_offset, next_offset: what readers see lies between them.
        reserved_offset: where the next batch will be: behind those that are on their way to the disk.
        cleaned_offset: before it, compaction has been.
    """

    __slots__ = (
        "_batches",
        "_dropped_bytes",
        "_ends",
        "_hot_bytes",
        "_last_offsets",
        "_max_timestamps",
        "_storage",
        "cleaned_offset",
        "id",
        "next_offset",
        "reserved_offset",
        "sequences",
        "start_offset",
        "waiting",
    )

    def __init__(self, log_id: int, storage: Storage, start_offset: int = 0, next_offset: int = 0) -> None:
        self.id, self._storage = log_id, storage
        self._batches: list[bytes] = []
        self._hot_bytes = 0
        self._last_offsets = array("q")
        self._ends = array("q")
        # A running maximum, so that bisection finds the first batch that reaches a time.
        self._max_timestamps = array("q")
        self._dropped_bytes = 0
        self.start_offset = self.cleaned_offset = start_offset
        self.next_offset = self.reserved_offset = next_offset
        self.sequences = ProducerSequences()
        self.waiting: set[asyncio.Future[None]] = set()

    @property
    def stored_bytes(self) -> int:
        """Sum of the batches' sizes."""
        return self._ends[-1] - self._dropped_bytes if self._ends else 0

    @property
    def newest_ms(self) -> int:
        """The largest time of a record; 0 if there is none."""
        return self._max_timestamps[-1] if self._max_timestamps else 0

    def stage(self, batch: Batch) -> None:
        """Give a batch its place; no reader sees it yet."""
        self.reserved_offset += batch.header.record_count
        self.sequences.stage(batch.header, batch.appended)

    def drop_staged(self) -> None:
        """Forget the batches that were on their way: they are not stored."""
        self.reserved_offset = self.next_offset
        self.sequences.drop_staged()

    def keep(self, batch: Batch) -> None:
        """Show readers a batch that is stored, and wake the fetches that wait for one."""
        self.next_offset = batch.appended.base_offset + batch.header.record_count
        self.reserved_offset = max(self.reserved_offset, self.next_offset)
        self._last_offsets.append(self.next_offset - 1)
        self._ends.append(self._start_of(len(self._ends)) + batch.size)
        self._max_timestamps.append(max(self.newest_ms, batch.max_timestamp_ms))
        self.sequences.keep(batch.header, batch.appended)
        if batch.body:
            self._batches.append(batch.body)
            self._hot_bytes += batch.size
            if self._storage.durable and self._hot_bytes > 2 * _HOT_BYTES:
                self._cool()
        self.wake()

    def _cool(self) -> None:
        """Leave older batches to the disk."""
        cold = len(self._ends) - len(self._batches)
        index = bisect_right(self._ends, self._ends[-1] - _HOT_BYTES)
        del self._batches[: index - cold]
        self._hot_bytes = self._ends[-1] - self._start_of(index)

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
        cold = len(self._ends) - len(self._batches)
        hot = max(0, gone - cold)
        self._hot_bytes -= sum(map(len, self._batches[:hot]))
        del self._batches[:hot]
        for index in (self._last_offsets, self._ends, self._max_timestamps):
            del index[:gone]
        if not self._ends:
            self._dropped_bytes = 0
        return freed

    def whole_batches_before(self, offset: int) -> int:
        """Where the last batch ends that lies wholly before an offset."""
        gone = bisect_left(self._last_offsets, offset)
        return self._last_offsets[gone - 1] + 1 if gone else 0

    def drop(self, last_offsets: Collection[int]) -> None:
        """Take batches out of the log, wherever they lie; the last one stays."""
        cold = len(self._ends) - len(self._batches)
        left = [index for index, last in enumerate(self._last_offsets) if last not in last_offsets]
        sizes = [self._ends[index] - self._start_of(index) for index in left]
        self._batches = [self._batches[index - cold] for index in left if index >= cold]
        self._last_offsets = array("q", (self._last_offsets[index] for index in left))
        self._max_timestamps = array("q", (self._max_timestamps[index] for index in left))
        self._ends, self._dropped_bytes = array("q", accumulate(sizes)), 0
        self._hot_bytes = sum(map(len, self._batches))

    def due_for_compaction(self, now_ms: int, dirty_share: float, lag_ms: int) -> bool:
        """Whether the share of bytes that compaction has not seen is so large, or the oldest of them so old."""
        first = bisect_left(self._last_offsets, self.cleaned_offset)
        dirty = self.available_bytes(self.cleaned_offset)
        return dirty > 0 and (
            dirty >= dirty_share * self.stored_bytes or now_ms - self._max_timestamps[first] >= lag_ms
        )

    def expired_before(self, now_ms: int, retention_ms: int, retention_bytes: int) -> int:
        """Before which offset records may go: they are older, or there are more bytes behind them; -1: no limit."""
        gone = 0
        if retention_ms >= 0:
            gone = bisect_left(self._max_timestamps, now_ms - retention_ms)
        if retention_bytes >= 0 and self._ends:
            gone = max(gone, bisect_right(self._ends, self._ends[-1] - retention_bytes))
        return self._last_offsets[gone - 1] + 1 if gone else self.start_offset

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
        return b"".join(self._bodies(first, end))

    def find_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, time) of the first record that is not older than a time; None if all are older.

        Raises:
            RequestRefused: see `first_record_from`.
        """
        index = bisect_left(self._max_timestamps, timestamp_ms)
        if index == len(self._ends):
            return None
        return first_record_from(self._bodies(index, index + 1)[0], timestamp_ms)

    def batches_after(self, offset: int, most: int) -> tuple[list[bytes], int]:
        """Up to so many batches from the one that holds `offset` on, and the offset behind them."""
        first = bisect_left(self._last_offsets, offset)
        end = min(first + most, len(self._ends))
        return self._bodies(first, end), self._last_offsets[end - 1] + 1 if end > first else offset

    def _bodies(self, first: int, end: int) -> list[bytes]:
        cold, end = len(self._ends) - len(self._batches), min(end, len(self._ends))
        if first >= end:
            return []
        if first >= cold:
            return self._batches[first - cold : end - cold]
        low = self._last_offsets[first - 1] + 1 if first else 0
        last = min(end, cold) - 1
        found = self._storage.rows(_BODIES, place_of(self.id, low), place_of(self.id, self._last_offsets[last]))
        return [body for (body,) in found] + self._batches[: max(0, end - cold)]

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
    """All topics of a broker, with the caps on what they may hold in memory."""

    def __init__(self, settings: BrokerSettings, storage: Storage) -> None:
        self._settings = settings
        self._storage = storage
        self._topics: dict[str, Topic] = {}
        self._names_by_id: dict[uuid.UUID, str] = {}
        self._stored_bytes = 0
        self._last_log_id = 0
        # One at a time: each checks what is there, and changes it when the disk has taken the change.
        self._administration = asyncio.Lock()

    def load(self) -> None:
        """Read what the storage keeps.

        Raises:
            BrokerStartError: the newest record is later than this machine's clock.
        """
        rows, logs = self._storage.rows, {}
        # A number is given once: rows that came for a log while it was deleted belong to nobody.
        self._last_log_id = max(
            (last for (last,) in rows("SELECT seq FROM sqlite_sequence WHERE name = 'logs'")), default=0
        )
        for name, topic_id, settings in list(rows("SELECT name, id, settings FROM topics")):
            config = topic_config(json.loads(settings), self._settings.max_message_bytes)
            topic = Topic(name, uuid.UUID(bytes=topic_id), config, [])
            self._topics[name] = topic
            self._names_by_id[topic.id] = name
        for log_id, name, start, following in rows(
            "SELECT id, topic, start_offset, next_offset FROM logs ORDER BY number"
        ):
            log = PartitionLog(log_id, self._storage, start, following)
            self._topics[name].partitions.append(log)
            logs[log_id] = (log, self._topics[name].config.log_append_time)
        for place, *columns in rows(
            "SELECT place, records, max_timestamp_ms, size, producer_id, producer_epoch, base_sequence FROM batches "
            "ORDER BY place"
        ):
            log_id, offset = log_and_offset(place)
            if log_id in logs:
                count, max_ms, size, *producer = columns
                log, stamped = logs[log_id]
                header = BatchHeader(0, count, max_ms, *producer)
                log.keep(Batch(header, Appended(offset, max_ms if stamped else -1), b"", size, max_ms))
        newest_ms = max((log.newest_ms for log, stamped in logs.values() if stamped), default=0)
        if newest_ms - _now_ms() > _CLOCK_TOLERANCE_MS:
            newest = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(newest_ms / 1000))
            raise BrokerStartError(
                f"this machine's clock is {(newest_ms - _now_ms()) // 1000} s behind the newest record of "
                f"{self._settings.data}; set the clock right. If it is right now and was ahead then: log time never "
                f"goes back, so wait until {newest}, or begin anew in another folder (--data)"
            )

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

    async def create(
        self, name: str, partitions: int, given: Mapping[str, str | None], validate_only: bool = False
    ) -> None:
        """Create a topic, or only check whether it could be created.

        Raises:
            RequestRefused: a name, count or setting is wrong, the topic exists, or there are too many.
        """
        async with self._administration:
            if not valid_topic_name(name):
                raise RequestRefused(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, "topic names have 1 to 249 letters, digits, '.', '_' and '-'"
                )
            if name in self._topics:
                raise RequestRefused(ErrorCode.TOPIC_ALREADY_EXISTS, "the topic exists")
            if partitions < 1:
                raise RequestRefused(ErrorCode.INVALID_PARTITIONS, f"expected at least 1 partition, got {partitions}")
            config = topic_config(given, self._settings.max_message_bytes)
            self._check_room(partitions)
            if validate_only:
                return
            topic = Topic(name, uuid.uuid4(), config, self._new_logs(partitions))
            made = ("INSERT INTO topics VALUES (?, ?, ?)", (name, topic.id.bytes, json.dumps(dict(config.given))))
            await self._write([made, *_inserted(name, 0, topic.partitions)])
            self._topics[name] = topic
            self._names_by_id[topic.id] = name

    async def grow(self, name: str, partitions: int, validate_only: bool = False) -> None:
        """Raise a topic's partition count to `partitions`.

        Raises:
            RequestRefused: no such topic, not more than now, or too many.
        """
        async with self._administration:
            logs = self.topic(name).partitions
            if partitions <= len(logs):
                raise RequestRefused(
                    ErrorCode.INVALID_PARTITIONS, f"the topic has {len(logs)} partitions, asked for {partitions}"
                )
            self._check_room(partitions - len(logs))
            if not validate_only:
                more = self._new_logs(partitions - len(logs))
                await self._write(_inserted(name, len(logs), more))
                logs.extend(more)

    async def configure(self, name: str, given: Mapping[str, str | None], validate_only: bool = False) -> None:
        """Replace a topic's settings.

        Raises:
            RequestRefused: no such topic, or a setting is wrong.
        """
        async with self._administration:
            config = topic_config(given, self._settings.max_message_bytes)
            topic = replace(self.topic(name), config=config)
            if not validate_only:
                settings = json.dumps(dict(config.given))
                await self._write([("UPDATE topics SET settings = ? WHERE name = ?", (settings, name))])
                self._topics[name] = topic

    def _new_logs(self, number: int) -> list[PartitionLog]:
        first = self._last_log_id + 1
        self._last_log_id += number
        return [PartitionLog(log_id, self._storage) for log_id in range(first, first + number)]

    def _check_room(self, more_partitions: int) -> None:
        limit = self._settings.max_partitions_total
        if sum(len(topic.partitions) for topic in self._topics.values()) + more_partitions > limit:
            raise RequestRefused(ErrorCode.INVALID_PARTITIONS, f"the embedded broker holds at most {limit} partitions")

    async def delete(self, name: str) -> None:
        """Delete a topic, and all positions in it. Raises: RequestRefused, UNKNOWN_TOPIC_OR_PARTITION."""
        async with self._administration:
            topic = self.topic(name)
            ranges = [(place_of(log.id, 0), place_of(log.id + 1, 0) - 1) for log in topic.partitions]
            deleted: list[Statement] = [("DELETE FROM batches WHERE place BETWEEN ? AND ?", one) for one in ranges]
            deleted += [(f"DELETE FROM {table} WHERE topic = ?", (name,)) for table in ("logs", "offsets")]
            await self._write([*deleted, ("DELETE FROM topics WHERE name = ?", (name,))])
            del self._topics[name]
            del self._names_by_id[topic.id]
            for log in topic.partitions:
                self._stored_bytes -= log.stored_bytes
                log.wake()

    def append(self, name: str, index: int, batch: bytes) -> tuple[Appended, asyncio.Future[str]]:
        """Store one produced record batch; a batch stored before is not stored again.

        It counts, and may be answered, once the future is there: why the storage refused it, empty if it is kept.

        Above a limit of bytes in memory the batch is refused with POLICY_VIOLATION. Room does not come back by itself,
        so with an error that clients retry they would see the reason only after their timeout.

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
            return earlier, self._storage.put(Change(()))  # it may be on its way to the disk still
        self._refuse_when_full(log, len(batch))
        time_ms = _now_ms() if config.log_append_time else None
        body = stamp(batch, log.reserved_offset, time_ms)
        appended = Appended(log.reserved_offset, -1 if time_ms is None else time_ms)
        staged = Batch(header, appended, body, len(body), header.max_timestamp_ms if time_ms is None else time_ms)
        log.stage(staged)
        change = Change([_stored(log, staged)], partial(self._keep, log, staged), log.drop_staged)
        return appended, self._storage.put(change)

    def _keep(self, log: PartitionLog, staged: Batch) -> None:
        log.keep(staged)
        self._stored_bytes += staged.size

    async def delete_before(self, name: str, index: int, offset: int) -> int:
        """Delete a partition's records before `offset` (-1: all records); returns its new first offset.

        Raises:
            RequestRefused: no such partition, or an offset beyond its end.
        """
        async with self._administration:
            log = self.partition(name, index)
            offset = log.next_offset if offset == -1 else offset
            if not 0 <= offset <= log.next_offset:
                raise RequestRefused(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log ends at {log.next_offset}")
            first = max(log.start_offset, offset)
            gone = (place_of(log.id, 0), place_of(log.id, log.whole_batches_before(first)))
            began = ("UPDATE logs SET start_offset = ?, next_offset = ? WHERE id = ?", (first, log.next_offset, log.id))
            await self._write([began, ("DELETE FROM batches WHERE place >= ? AND place < ?", gone)])
            self._stored_bytes -= log.delete_before(offset)
            return log.start_offset

    async def drop(self, name: str, index: int, batches: Mapping[int, int]) -> None:
        """Take batches out of a partition, given by their last offsets, each with its first.

        Raises:
            RequestRefused: no such partition, or the disk refuses.
        """
        async with self._administration:
            log = self.partition(name, index)
            places = [place_of(log.id, first) for first in batches.values()]
            await self._write([("DELETE FROM batches WHERE place = ?", (place,)) for place in places])
            log.drop(batches)

    async def _write(self, statements: Sequence[Statement]) -> None:
        refused = await self._storage.put(Change(statements))
        if refused:
            raise RequestRefused(ErrorCode.KAFKA_STORAGE_ERROR, refused)

    def _refuse_when_full(self, log: PartitionLog, more_bytes: int) -> None:
        settings = self._settings
        if self._storage.durable:
            return
        for held, cap, where in (
            (log.stored_bytes, settings.max_bytes_per_partition, "partition"),
            (self._stored_bytes, settings.max_bytes_total, "embedded broker"),
        ):
            if held + more_bytes > cap:
                raise RequestRefused(
                    ErrorCode.POLICY_VIOLATION,
                    f"the {where} holds {held} of {cap} bytes in memory, no room for {more_bytes} more",
                )


def _stored(log: PartitionLog, batch: Batch) -> Statement:
    header, place = batch.header, place_of(log.id, batch.appended.base_offset)
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    values = (place, header.record_count, batch.max_timestamp_ms, batch.size, *producer, batch.body)
    return "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values


def _inserted(topic: str, first: int, logs: Sequence[PartitionLog]) -> list[Statement]:
    sql = "INSERT INTO logs VALUES (?, ?, ?, 0, 0)"
    return [(sql, (log.id, topic, number)) for number, log in enumerate(logs, first)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def valid_topic_name(name: str) -> bool:
    """Whether Kafka would accept this name."""
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


log = logging.getLogger(__name__)

CLEAN_SECONDS = 60.0
_AT_ONCE = 16
_OFFSET = struct.Struct(">q")


async def clean_repeatedly(store: TopicStore) -> None:
    """Clean all logs at intervals, until cancelled; what the disk refuses is tried again."""
    while True:
        await asyncio.sleep(CLEAN_SECONDS)
        try:
            await clean(store, time.time_ns() // 1_000_000)
        except RequestRefused as refused:
            log.warning("retention and compaction wait: %s", refused.message)


async def clean(store: TopicStore, now_ms: int) -> None:
    """Delete from all logs what their topics' settings do not keep.

    Raises:
        RequestRefused: the disk refuses, or a topic was deleted meanwhile.
    """
    for topic in list(store.topics.values()):
        for number, kept in enumerate(topic.partitions):
            if not topic.config.compacted:
                first = kept.expired_before(now_ms, *topic.config.retention)
                if first > kept.start_offset:
                    await store.delete_before(topic.name, number, first)
            elif kept.due_for_compaction(now_ms, *topic.config.compaction):
                end = kept.next_offset
                await store.drop(topic.name, number, await _superseded(kept, end))
                kept.cleaned_offset = end


async def _superseded(kept: PartitionLog, end: int) -> dict[int, int]:
    """The batches before an offset of which no record counts any more: their last offsets, each with its first."""
    keys: dict[int, tuple[int, list[bytes | None]]] = {}
    newest: dict[bytes | None, int] = {}
    of_producers: dict[int, int] = {}
    async for batch in _batches(kept, end):
        header, first = read_header(batch), _OFFSET.unpack_from(batch)[0]
        last = first + header.record_count - 1
        of_producers[header.producer_id] = last
        keys[last] = (first, _keys(batch))
        newest.update(dict.fromkeys(keys[last][1], last))
    stays = {*of_producers.values(), *list(keys)[-1:]}
    return {
        last: first
        for last, (first, found) in keys.items()
        if last not in stays and found and None not in found and all(newest[key] > last for key in found)
    }


async def _batches(kept: PartitionLog, end: int) -> AsyncIterator[bytes]:
    offset = kept.start_offset
    while offset < end:
        batches, following = kept.batches_after(offset, _AT_ONCE)
        if following == offset:
            return
        offset = following
        for batch in batches:
            yield batch
        await asyncio.sleep(0)  # clients wait meanwhile


def _keys(batch: bytes) -> list[bytes | None]:
    """The keys of a batch's records; none if it cannot be opened, so that it stays."""
    try:
        opened = MemoryRecords(batch).next_batch()
        return [] if opened is None else [None if one.key is None else bytes(one.key) for one in opened]
    except (RuntimeError, ValueError, struct.error, IndexError):
        return []
