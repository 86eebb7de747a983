"""Puts a refused record on its topic again, when the reason for the refusal no longer holds.

Some reasons depend on a state that changes: there is room for waiting clicks again, or a new quota period has begun. A
record that is wrong itself is refused again, with a new dead letter.

The record is read from the place that the dead letter names, as long as retention keeps it, and must have the digest in
the dead letter. Of a batch only the refused row is put again, as the record of one event: the other rows were accepted.

Requeuing twice has the effect of requeuing once. The log itself shows what was done: if an equal record comes after the
refused one, somebody (the operator, or the record's writer by a retry) has written it again already, and nothing is
written. A record names its event, report or window, so records with equal bytes are repeats. If two operators requeue
at the same moment, both may write; every role counts such a repeat once, as after any retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from aiokafka import AIOKafkaProducer

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.engine.journal.chain import Digester, PublicDigester
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.engine.refusals import WHOLE_RECORD
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.dead_letters import Letter
from hushstream.ops.live import Pause, open_logs
from hushstream.schemas import codec
from hushstream.schemas.batches import FLOAT32, FLOAT64, INT8, INT32, INT64
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason
from hushstream.schemas.topics import physical

_DOING = "requeue"
_OFFSETS_AT_ONCE = 512
_NOW = Pause(moment_seconds=0.0, within_seconds=0.0)
_KINDS: tuple[Literal["shown", "reward"], ...] = ("shown", "reward")


class RecordGone(HushstreamError):
    """The refused record is no longer in its log, or another record is in its place."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The place where a refused record is in its topic again.

    Attributes:
        topic, partition, refused_offset, row: the refused record; row -1 means the whole record.
        offset: the offset of the equal record (for a row of a batch: of the record of that one event).
        written: whether it was written now; False if it was there already.
    """

    topic: str
    partition: int
    refused_offset: int
    row: int
    offset: int
    written: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """One line."""
        row = "" if self.row == WHOLE_RECORD else f" row {self.row}"
        end = "put again" if self.written else "it is there again already"
        return f"{self.topic}/{self.partition} offset {self.refused_offset}{row}: {end}, at offset {self.offset}"


async def requeue_async(connection: Connection, system: System, letter: Letter, keys: KeySource) -> Requeued:
    """Put one refused record (or row) on its topic again, unless it is there again already.

    This needs the rights to read and to write the topic. No role has both; the operator gives them to a principal for
    each zone (`hushstream.ops.access.grants`).

    Args:
        connection: where the deployment is.
        system: the deployment.
        letter: its dead letter (`hushstream.ops.dead_letters.read`).
        keys: give the zone's keys, one of which made the dead letter.

    Raises:
        RecordGone: retention deleted the record, or the topic was replaced.
        HushstreamError: the record's topic is a journal, which only its role may write.
        TopicMissing, PartitionCountWrong: the topics are not as the deployment's configuration says.
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    if letter.reason == Reason.COMPRESSED:
        raise HushstreamError(
            f"{_DOING}: expected a record without compression, got a compressed one, which is never unpacked; let its "
            f"writer send it again without compression"
        )
    known = {topic.name: topic for topic in system.topics}
    if letter.topic not in known or known[letter.topic].is_journal:
        raise HushstreamError(
            f"{_DOING}: expected a record of an input, got one of {letter.topic}, which its role alone writes"
        )
    source: TopicPartition = (letter.topic, letter.partition)
    async with open_logs(connection, system.partitions, {letter.topic}, _NOW) as logs:
        low, high = logs.cut.bounds[source]
    require_there(letter, low, high)
    async with client_errors(connection, _DOING), LogReader(connection.settings()) as reader:
        reader.open({source: letter.offset})
        found = await reader.read(source, letter.offset, letter.offset + 1)
        value = _wanted(letter, _verified(letter, found, _digesters(letter, system, keys)))
        for start in range(letter.offset + 1, high, _OFFSETS_AT_ONCE):
            for record in await reader.read(source, start, min(high, start + _OFFSETS_AT_ONCE)):
                if record.value == value:
                    return _requeued(letter, record.offset, written=False)
    return _requeued(letter, await _append(connection, source, value), written=True)


def requeue(connection: Connection, system: System, letter: Letter, keys: KeySource) -> Requeued:
    """`requeue_async`, for code without an event loop."""
    return asyncio.run(requeue_async(connection, system, letter, keys))


def one_event(value: bytes, row: int) -> bytes:
    """Make one row of a batch a record of one event, in the batch's schema generation; a single event is its own row 0.

    Raises:
        HushstreamError: the value has no such row.
    """
    try:
        name, fields = codec.decode(value)
        schema_generation = codec.generation_of(value)
        if name == "ContextBatch":
            return codec.encode("Context", _context(fields, row), schema_generation)
        if name == "FeatureContextBatch":
            return codec.encode("FeatureContext", _feature_context(fields, row), schema_generation)
        if name == "FeedbackBatch":
            return codec.encode("Feedback", _feedback(fields, row), schema_generation)
        if name == "RecordBatch":
            return codec.encode("Record", _record(fields, row), schema_generation)
        if name == "LabelBatch":
            return codec.encode("Label", _label(fields, row), schema_generation)
    except (CodecError, IndexError) as error:
        reason = error.reason if isinstance(error, CodecError) else "it has fewer rows"
        raise HushstreamError(f"{_DOING}: expected a record with row {row}, got none ({reason})") from None
    return value


def require_there(letter: Letter, low: int, high: int) -> None:
    """Refuse a dead letter whose record is not in the log, which holds the offsets from ``low`` to below ``high``.

    Raises:
        RecordGone: the record is gone; says why, and what can still be done.
    """
    place = f"{_DOING}: {letter.topic}/{letter.partition} offset {letter.offset}"
    if letter.offset < low:
        raise RecordGone(f"{place}: retention has deleted it, the log begins at {low}; ask its writer to send it again")
    if letter.offset >= high:
        raise RecordGone(f"{place}: the log ends at {high}; the topic was wiped or replaced since")


def _context(fields: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {**_asked(fields, row), "context": _row(fields["contexts"], fields["dimension"] * FLOAT32.itemsize, row)}


def _feature_context(fields: Mapping[str, Any], row: int) -> dict[str, Any]:
    size = len(fields["rows"]) // len(fields["event_ids"])
    return {
        **_asked(fields, row),
        "row": _row(fields["rows"], size, row),
        "features_digest": fields["features_digest"],
    }


def _asked(fields: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The fields of a row that both kinds of batches have."""
    rows = len(fields["event_ids"])
    return {
        "event_id": fields["event_ids"][row],
        "user": fields["users"][row],
        "line": fields["line"],
        "eligible": _row(fields["eligible"], len(fields["eligible"]) // rows, row),
        "baseline": _number(fields["baselines"], INT32, row, -1),
        "after_click": _number(fields["after_clicks"], INT64, row, -1),
    }


def _feedback(fields: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {
        "kind": _KINDS[fields["kinds"][row]],
        "event_id": fields["event_ids"][row],
        "user": fields["users"][row],
        "arm": _number(fields["arms"], INT32, row, -1),
        "reward": float(np.frombuffer(fields["rewards"], FLOAT64)[row]),
    }


def _record(fields: Mapping[str, Any], row: int) -> dict[str, Any]:
    lengths = np.frombuffer(fields["lengths"], INT32)
    low = int(lengths[:row].sum()) * INT32.itemsize
    high = low + int(lengths[row]) * INT32.itemsize
    return {
        "event_id": fields["event_ids"][row],
        "user": fields["users"][row],
        "node": _number(fields["nodes"], INT32, row, -1),
        "indices": fields["indices"][low:high],
        "values": fields["values"][low:high],
        "after_phase": fields["after_phase"],
    }


def _label(fields: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {
        "event_id": fields["event_ids"][row],
        "user": fields["users"][row],
        "label": int(np.frombuffer(fields["labels"], INT8)[row]),
    }


def _row(packed: bytes, row_bytes: int, row: int) -> bytes:
    return packed[row * row_bytes : (row + 1) * row_bytes]


def _number(packed: bytes, dtype: np.dtype[Any], row: int, default: int) -> int:
    return int(np.frombuffer(packed, dtype)[row]) if packed else default


def _verified(letter: Letter, found: list[InputRecord], digesters: Collection[Digester]) -> bytes:
    """The refused record's value, checked by its digest; the dead letter of a click that waited has no digest."""
    place = f"{_DOING}: {letter.topic}/{letter.partition} offset {letter.offset}"
    if not found:
        raise RecordGone(f"{place}: the record is no longer there")
    digests = {one.digest("dead-letter", value).hex() for one in digesters for value in (found[0].value, b"")}
    if letter.digest not in digests:
        raise RecordGone(
            f"{place}: the record there has another digest than the refused one: the topic was replaced, or the key "
            f"of that time was not given"
        )
    return found[0].value


def _wanted(letter: Letter, value: bytes) -> bytes:
    return value if letter.row == WHOLE_RECORD else one_event(value, letter.row)


def _digesters(letter: Letter, system: System, keys: KeySource) -> tuple[Digester, ...]:
    """The digesters of all keys that may have made the dead letter: it was made with the journal's key of that time."""
    keyed = letter.zone in [role.key_zone for role in system.roles]
    return keys.ring(letter.zone).kept() if keyed else (PublicDigester(),)


async def _append(connection: Connection, source: TopicPartition, value: bytes) -> int:
    topic, partition = source
    async with client_errors(connection, _DOING):
        producer = AIOKafkaProducer(**connection.cluster.client_options(), acks="all", enable_idempotence=True)
        await producer.start()
        try:
            metadata = await producer.send_and_wait(physical(connection.prefix, topic), value, partition=partition)
        finally:
            await producer.stop()
    return int(metadata.offset)


def _requeued(letter: Letter, offset: int, *, written: bool) -> Requeued:
    return Requeued(letter.topic, letter.partition, letter.offset, letter.row, offset, written)
