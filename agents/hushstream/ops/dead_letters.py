"""Reading dead letters: which records were refused and why. A dead letter points at a record and never holds it.

A learner's letter names the learner's own partition, also for a record of a topic that every partition reads (`items`).
Such a topic mostly has one partition, so `read` puts that one in its place. The bytes of letters stay as they are,
because `verify` compares them with those of earlier releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hushstream.engine.declare.declaration import System
from hushstream.ops.log_copy import LogCopy
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError


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

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def as_text(self) -> str:
        """One fact a line."""
        return "".join(f"{name}: {value}\n" for name, value in asdict(self).items())


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

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def letters_of(system: System, zone: str) -> str:
    """The topic of one zone's dead letters.

    Raises:
        HushstreamError: the deployment has no such zone.
    """
    found = {topic.zone: topic.name for topic in system.topics if topic.holds_dead_letters}
    if zone not in found:
        raise HushstreamError(f"dead letters: expected a zone of the deployment ({', '.join(found)}), got {zone!r}")
    return found[zone]


def read(logs: LogCopy, topics: Iterable[str], partitions: Mapping[str, int]) -> tuple[Letter, ...]:
    """Read all dead letters on some topics of a copy, by topic, partition and offset; a repeat only adds to ``times``.

    Args:
        logs: a copy that holds the topics.
        topics: of dead letters.
        partitions: how many partitions each topic of the deployment has (`System.partitions`).

    Raises:
        HushstreamError: a record on a dead-letter topic is no dead letter.
    """
    letters: dict[tuple[str, int, bytes], Letter] = {}
    times: dict[tuple[str, int, bytes], int] = {}
    for topic in topics:
        for partition, part in logs.of_topic(topic):
            for record in part.records:
                key = (topic, partition, record.value)
                times[key] = times.get(key, 0) + 1
                if key not in letters:
                    letters[key] = _letter(topic, partition, record.offset, record.timestamp_ms, record.value)
    return tuple(_placed(replace(letter, times=times[key]), partitions) for key, letter in letters.items())


def summarise(letters: Iterable[Letter]) -> tuple[Summary, ...]:
    """Counts by zone, reason and partition of the refused record; the largest first.

    A record that several partitions of a role read, and refused, counts once.
    """
    groups: dict[tuple[str, str, str, int], set[tuple[int, int]]] = {}
    for letter in letters:
        key = (letter.zone, letter.reason, letter.topic, letter.partition)
        groups.setdefault(key, set()).add((letter.offset, letter.row))
    found = [Summary(*key, len(group), min(group)[0], max(group)[0]) for key, group in groups.items()]
    return tuple(sorted(found, key=lambda one: (-one.count, one.zone, one.reason, one.topic, one.partition)))


def of_record(letters: Sequence[Letter], topic: str, partition: int, offset: int) -> tuple[Letter, ...]:
    """The dead letters of one refused record; for a batch there is one for each refused row.

    Args:
        letters: from `read`.
        topic, partition, offset: the place of the refused record, as `summarise` gives it.

    Raises:
        UnknownDeadLetter: there is none.
    """
    found = tuple(one for one in letters if (one.topic, one.partition, one.offset) == (topic, partition, offset))
    if not found:
        raise UnknownDeadLetter(f"dead letters: expected one of {topic}/{partition} offset {offset}, there is none")
    return found


def _letter(topic: str, partition: int, offset: int, timestamp_ms: int, value: bytes) -> Letter:
    try:
        _, fields = codec.decode(value, frozenset({"DeadLetter"}))
    except CodecError as error:
        raise HushstreamError(f"{topic}/{partition} offset {offset}: expected a dead letter ({error.reason})") from None
    return Letter(
        **{**fields, "digest": fields["digest"].hex()},
        filed_in=topic,
        filed_partition=partition,
        filed_offset=offset,
        filed_ms=timestamp_ms,
    )


def _placed(letter: Letter, partitions: Mapping[str, int]) -> Letter:
    return replace(letter, partition=0) if partitions.get(letter.topic) == 1 else letter
