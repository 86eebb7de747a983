"""Dead letters: which records were refused and why, and how one is put on its topic again.

A dead letter points at a record and never holds it.

A refused record is put again when the reason for the refusal no longer holds: some reasons depend on a state that
changes, such as room for waiting clicks, or a quota period. A record that is wrong itself is refused again, with a new
dead letter.

The record is read from the place that the dead letter names, as long as retention keeps it, and must have the digest in
the dead letter. Of a batch only the refused row is put again, as a batch of one row: the other rows were accepted.

Requeuing twice has the effect of requeuing once. The log itself shows what was done: if an equal record comes after the
refused one, somebody (the operator, or the record's writer by a retry) has written it again already, and nothing is
written. A record names its event, report or window, so records with equal bytes are repeats. If two operators requeue
at the same moment, both may write; every role counts such a repeat once, as after any retry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.batch import WHOLE_RECORD
from hushstream.engine.declare.declaration import System
from hushstream.engine.journal.chain import DIGEST_BYTES, Digester, PublicDigester
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.log_copy import LogCopy, Pause, open_logs
from hushstream.ops.logs.losses import Appended, Plan, append
from hushstream.schemas import codec
from hushstream.schemas.batches import INT32
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import Reason


class UnknownDeadLetter(HushstreamError):
    """There is no dead letter for that record."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        zone, role: the zone of the refused record, and the role that refused it.
        reason: a code from the fixed lists of the codec and the roles.
        topic, partition, offset, row: the refused record; row -1 means the whole record.
        digest: the keyed digest of its bytes, in hexadecimal.
        filed_in, filed_partition, filed_offset: topic, partition and offset of the dead letter itself.
        filed_ms: the log time of the dead letter.
        times: how often the dead letter is in the topic (it is sent at least once).
    """

    zone: str
    role: str
    reason: str
    topic: str
    partition: int
    offset: int
    row: int
    digest: str
    filed_in: str
    filed_partition: int
    filed_offset: int
    filed_ms: int
    times: int = 1


Origin = tuple[str, str, str, int]
"""Zone, reason, topic and partition of refused records."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How many records of one partition were refused for one reason, and between which offsets."""

    zone: str
    reason: str
    topic: str
    partition: int
    count: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        """One line."""
        last = "" if self.first_offset == self.last_offset else f" to {self.last_offset}"
        offsets = f"offset{'s' * bool(last)} {self.first_offset}{last}"
        return f"{self.count:8} {self.reason:28} {self.topic}/{self.partition} {offsets}"


def letters_of(system: System, zone: str) -> str:
    """The topic of one zone's dead letters.

    Raises:
        HushstreamError: the deployment has no such zone.
    """
    found = {topic.zone: topic.name for topic in system.topics if topic.holds_dead_letters}
    if zone not in found:
        raise HushstreamError(f"dead letters: expected a zone of the deployment ({', '.join(found)}), got {zone!r}")
    return found[zone]


class _Origins:
    """Tells the origin of letters by their first bytes, which all of one origin share.

    So a million letters are counted in seconds: only the first one of each origin is decoded whole.
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions
        self._known: dict[int, dict[bytes, Origin]] = {}
        """The origins by the bytes before the offset, by their number."""

    def of(self, place: TopicPartition, record: InputRecord) -> tuple[Origin, bytes]:
        """The origin of a letter, and the encoded offset and row."""
        value = record.value
        for size, heads in self._known.items():
            origin = heads.get(value[:size])
            if origin is not None:
                return origin, value[size:-DIGEST_BYTES]
        fields = _decoded(place, record)
        first, second = (codec.encode("DeadLetter", {**fields, "offset": offset, "row": 0}) for offset in (0, 1))
        size = next(n for n, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
        partition = _partition(fields["topic"], fields["partition"], self._partitions)
        origin = (fields["zone"], fields["reason"], fields["topic"], partition)
        self._known.setdefault(size, {})[value[:size]] = origin
        return origin, value[size:-DIGEST_BYTES]


def _offset_of(encoded: bytes) -> int:
    """The first number of Avro's variable-length ones."""
    found = shift = 0
    for byte in encoded:
        found |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return (found >> 1) ^ -(found & 1)


def read(
    logs: LogCopy, topics: Iterable[str], partitions: Mapping[str, int], only: tuple[str, int, int] | None = None
) -> tuple[Letter, ...]:
    """Read the dead letters on some topics of a copy, by topic, partition and offset; a repeat only adds to ``times``.

    Args:
        logs: a copy that holds the topics.
        topics: of dead letters.
        partitions: how many partitions each topic of the deployment has (`System.partitions`).
        only: topic, partition and offset of a refused record, as `summarise` gives them; None for those of all records.
            For a batch there is one for each refused row.

    Raises:
        UnknownDeadLetter: there is none of this record.
        HushstreamError: a record on a dead-letter topic is no dead letter.
    """
    letters: dict[tuple[TopicPartition, bytes], Letter] = {}
    origins = _Origins(partitions)
    for place, record in _records(logs, topics):
        if only is not None:
            origin, numbers = origins.of(place, record)
            if (*origin[2:], _offset_of(numbers)) != only:
                continue
        known = letters.get((place, record.value))
        letter = _letter(place, record, partitions) if known is None else replace(known, times=known.times + 1)
        letters[place, record.value] = letter
    if only is not None and not letters:
        raise UnknownDeadLetter(f"dead letters: expected one of {only[0]}/{only[1]} offset {only[2]}, there is none")
    return tuple(letters.values())


def summarise(logs: LogCopy, topics: Iterable[str], partitions: Mapping[str, int]) -> tuple[Summary, ...]:
    """Counts by zone, reason and partition of the refused record, the largest first; arguments and errors as of `read`.

    A record that several partitions of a role read, and refused, counts once.
    """
    origins, groups = _Origins(partitions), dict[Origin, set[bytes]]()
    for place, record in _records(logs, topics):
        origin, numbers = origins.of(place, record)
        groups.setdefault(origin, set()).add(numbers)
    found = []
    for origin, refused in groups.items():
        offsets = [_offset_of(numbers) for numbers in refused]
        found.append(Summary(*origin, len(refused), min(offsets), max(offsets)))
    return tuple(sorted(found, key=lambda one: (-one.count, one.zone, one.reason, one.topic, one.partition)))


def _records(logs: LogCopy, topics: Iterable[str]) -> Iterator[tuple[TopicPartition, InputRecord]]:
    for topic in topics:
        for partition, part in logs.of_topic(topic):
            for record in part.records:
                yield (topic, partition), record


def _decoded(place: TopicPartition, record: InputRecord) -> dict[str, Any]:
    try:
        _, fields = codec.decode(record.value, frozenset({"DeadLetter"}))
    except CodecError as error:
        where = f"{place[0]}/{place[1]} offset {record.offset}"
        raise HushstreamError(f"{where}: expected a dead letter ({error.reason})") from None
    return fields


def _letter(place: TopicPartition, record: InputRecord, partitions: Mapping[str, int]) -> Letter:
    fields = _decoded(place, record)
    fields |= {
        "digest": fields["digest"].hex(),
        "partition": _partition(fields["topic"], fields["partition"], partitions),
    }
    return Letter(
        **fields, filed_in=place[0], filed_partition=place[1], filed_offset=record.offset, filed_ms=record.timestamp_ms
    )


def _partition(topic: str, named: int, partitions: Mapping[str, int]) -> int:
    """The partition of a refused record: a letter names that of the role's input, also for a topic that all read."""
    return 0 if partitions.get(topic) == 1 else named


# Putting one on its topic again.

_DOING = "logs repair letter"
_OFFSETS_AT_ONCE = 512
_NOW = Pause(moment_seconds=0.0, within_seconds=0.0)


class RecordGone(HushstreamError):
    """The refused record is no longer in its log, or another record is in its place."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """A refused record to be put on its topic again.

    Attributes:
        topic, partition, refused_offset, row: the refused record; row -1 means the whole record.
        size: the number of bytes of the record to append (for a row of a batch: of a batch with that row alone).
    """

    topic: str
    partition: int
    refused_offset: int
    row: int
    size: int

    def __str__(self) -> str:
        """One line."""
        return f"put {_named(self.topic, self.partition, self.refused_offset, self.row)} again, {self.size} bytes"


async def plan(connection: Connection, system: System, letters: Sequence[Letter], keys: KeySource) -> Plan[Requeued]:
    """Plan to put refused records (or rows) on their topic again, but for those that are there again already.

    This needs the rights to read and to write the topic. No role has both; the operator gives them to a principal for
    each zone (`hushstream.ops.access`).

    Args:
        connection: where the deployment is.
        system: the deployment.
        letters: dead letters (`read`).
        keys: give the zone's keys, one of which made the dead letters.

    Raises:
        RecordGone: retention deleted the record, or the topic was replaced.
        HushstreamError: the record's topic is a journal, which only its role may write.
        TopicMissing, PartitionCountWrong: the topics are not as the deployment's configuration says.
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    rows, records, remarks = list[Requeued](), list[Appended](), list[str]()
    for letter in letters:
        value, again = await _looked_up(connection, system, letter, keys)
        place = (letter.topic, letter.partition, letter.offset, letter.row)
        record = Appended(letter.topic, letter.partition, value)
        if again is None and record not in records:  # each partition that reads a record may have refused it
            rows.append(Requeued(*place, len(value)))
            records.append(record)
        elif again is not None:
            remarks.append(f"{_named(*place)}: it is there again already, at offset {again}")

    async def act() -> None:
        await append(connection, _DOING, records)

    return Plan(tuple(rows), act, tuple(remarks))


async def _looked_up(
    connection: Connection, system: System, letter: Letter, keys: KeySource
) -> tuple[bytes, int | None]:
    """The record to append for a letter, and the offset at which it is there again already."""
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
        value = _verified(letter, found, _digesters(letter, system, keys))
        value = value if letter.row == WHOLE_RECORD else row_alone(value, letter.row)
        for start in range(letter.offset + 1, high, _OFFSETS_AT_ONCE):
            for record in await reader.read(source, start, min(high, start + _OFFSETS_AT_ONCE)):
                if record.value == value:
                    return value, record.offset
    return value, None


def _named(topic: str, partition: int, offset: int, row: int) -> str:
    return f"{topic}/{partition} offset {offset}{'' if row == WHOLE_RECORD else f' row {row}'}"


def row_alone(value: bytes, row: int) -> bytes:
    """A batch of one row of a batch; a record of a single event is its own row 0.

    Raises:
        HushstreamError: the value has no such row.
    """
    try:
        name, fields = codec.decode(value)
    except CodecError as error:
        raise HushstreamError(f"{_DOING}: expected a record with row {row}, got none ({error.reason})") from None
    if not name.endswith("Batch"):
        return value
    rows = len(fields["event_ids"])
    if row >= rows:
        raise HushstreamError(f"{_DOING}: expected a record with row {row}, got none (it has {rows} rows)")
    features = np.frombuffer(fields.get("lengths", b""), INT32)
    low, high = (int(features[:end].sum()) * INT32.itemsize for end in (row, row + 1))

    def cut(column: str, content: Any) -> Any:
        if column in _OF_FEATURES:
            return content[low:high]
        if column in _OF_ALL_ROWS:
            return content
        size = len(content) // rows
        return content[row * size : (row + 1) * size]

    return codec.encode(name, {column: cut(column, content) for column, content in fields.items()})


_OF_ALL_ROWS = ("line", "dimension", "features_digest", "after_phase")
"""What a batch says once; every other column has the same size for each row, or is one of `_OF_FEATURES`."""
_OF_FEATURES = ("indices", "values")
"""Columns with a number for each feature of a row."""


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


def _digesters(letter: Letter, system: System, keys: KeySource) -> tuple[Digester, ...]:
    """The digesters of all keys that may have made the dead letter: it was made with the journal's key of that time."""
    keyed = letter.zone in [role.key_zone for role in system.roles]
    return keys.ring(letter.zone).kept() if keyed else (PublicDigester(),)
