"""Erases one user: writes a deletion request, at which the learner drops the user's state; says what stays and why;
rewrites exports.

The deletion request is a record on the topic of requests, in each partition that may hold records of the user
(`Erasure.homes`). So the erasure has a place in the log: a learner that replays the log drops the same state at the
same record, and `verify` can recompute the published records as long as retention keeps the inputs. Nothing here prints
the user's name.

If a counter is trusted with rewards in clear, the learner passes the deletion request on to it. The counter, or a
learner with counters, drops the user's data. It never releases again the sums that contained this data: under the same
noise, the difference of the sums with and without the data would show the data.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hushstream.agents.errors import AccessDenied
from hushstream.client.kafka import KafkaEventLog
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System, conversation_of, reader_of_requests
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.connection import Connection
from hushstream.ops.export import ExportRefused, export_copy, open_export
from hushstream.ops.log_copy import LogCopy, PartitionCopy, open_logs
from hushstream.privacy.amounts import count_text
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import MAX_ID_BYTES, id_fault
from hushstream.schemas.topics import Topic

ERASED = b""
"""The value of an erased record; its offset and log time stay."""

_LOOK_SECONDS = 10.0
_DAY_MS = 24 * 60 * 60 * 1000
_EVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The result of an erasure.

    Attributes:
        deployment: the name of the deployment.
        topic: the topic of the deletion requests.
        places: (partition, offset) of each deletion request: one in every partition that may hold records of the user.
        role: the role that reads them.
        folded: whether the role has folded them (False: not yet, as far as known); None if applications cannot see
            that.
        stays: what is not erased, and why.
        waits: what is deleted only later, and when.
        known: whether a record in the log names the user; None if nobody looked, or if this account may not look.
    """

    deployment: str
    topic: str
    places: tuple[tuple[int, int], ...]
    role: str
    folded: bool | None
    stays: tuple[str, ...]
    waits: tuple[str, ...]
    known: bool | None = None

    def as_text(self) -> str:
        """The facts, one in each line."""
        places = ", ".join(f"{self.topic}/{partition} offset {offset}" for partition, offset in self.places)
        lines = [f"forget {self.deployment}: deletion request at {places}; {self._done()}"]
        if self.known is False:
            lines.append(
                f"  no record on {self.topic} names this user: is the name spelled as the application spells it?"
            )
        lines += [f"  stays: {fact}" for fact in self.stays]
        lines += [f"  waits: {fact}" for fact in self.waits]
        return "\n".join(lines) + "\n"

    def _done(self) -> str:
        if self.folded is None:
            return f"only the zone of the {self.role} can see whether it has been folded"
        return f"the {self.role} has dropped the user's state" if self.folded else f"no {self.role} has folded it yet"


def forget(connection: Connection, system: System, user: str, wait_seconds: float = 10.0, party: str = "") -> Forgotten:
    """`forget_async` on a broker, for code without an event loop; needs the rights of the client."""
    _require_learners(system)
    topics = conversation_of(system, party)
    log = KafkaEventLog(connection.bootstrap, connection.prefix, security=connection.security, topics=topics)
    return asyncio.run(_forget_and_look(log, connection, system, user, wait_seconds, party))


async def _forget_and_look(
    log: EventLog, connection: Connection, system: System, user: str, wait_seconds: float, party: str
) -> Forgotten:
    """Write the deletion requests first, then look for records of the user: that may take long, or be forbidden."""
    done = await forget_async(log, system, user, wait_seconds, party)
    try:
        async with asyncio.timeout(max(wait_seconds, _LOOK_SECONDS)):
            return replace(done, known=await _is_known(connection, system, user, done))
    except (AccessDenied, TimeoutError):
        return done


async def _is_known(connection: Connection, system: System, user: str, done: Forgotten) -> bool:
    """Whether a record in the partitions of the deletion requests names the user."""
    async with open_logs(connection, {done.topic: system.partitions[done.topic]}) as logs:
        for partition, _ in done.places:
            async for portion in logs.records((done.topic, partition)):
                if any(_names(record, user, system) for record in portion):
                    return True
    return False


async def forget_async(log: EventLog, system: System, user: str, wait_seconds: float, party: str = "") -> Forgotten:
    """Append the deletion requests of a user, and wait until the role has folded them, if applications can see that.

    Args:
        log: the deployment's log, not started.
        system: the deployment.
        user: the account to erase, known or not.
        wait_seconds: how long to wait.
        party: the party of the account, if each party of the deployment has users of its own.

    Raises:
        HushstreamError: the user's name is not valid, or the log refuses the record.
    """
    _require_user(user)
    _require_learners(system)
    topics = conversation_of(system, party)
    waiting = _Waiting()

    def on_answers(partition: int, offset: int, value: bytes) -> None:
        waiting.note(partition, _read_to(value, topics.requests))

    await log.start(on_answers)
    try:
        value = codec.encode("Forget", {"user": user, "config_digest": system.digest})
        homes = system.erasure.homes(user, log.partitions())
        places = tuple([(home, await log.append(topics.requests, home, value)) for home in homes])
        waiting.begin(places)
        done = None if topics.answers is None else await _within(waiting.folded, wait_seconds)
    finally:
        await log.stop()
    role = reader_of_requests(system, topics.requests).name
    stays, waits = system.erasure.stays, what_waits(system, party)
    return Forgotten(system.config.deployment, topics.requests, places, role, done, stays, waits)


class _Waiting:
    """Waits for deletion requests to be folded: keeps how far each partition has read, and how far it must read."""

    def __init__(self) -> None:
        self.folded = asyncio.Event()
        self._seen: dict[int, int] = {}
        self._places: tuple[tuple[int, int], ...] = ()

    def begin(self, places: tuple[tuple[int, int], ...]) -> None:
        self._places = places
        self._look()

    def note(self, partition: int, read_to: int) -> None:
        self._seen[partition] = max(self._seen.get(partition, 0), read_to)
        self._look()

    def _look(self) -> None:
        if self._places and all(self._seen.get(partition, 0) > offset for partition, offset in self._places):
            self.folded.set()


def _require_learners(system: System) -> None:
    if system.device_service is not None:
        raise HushstreamError(
            "forget: expected a deployment with learner workers, got kind edge, where all of a user's state is on the "
            "user's device: the application drops the agent there"
        )


def what_waits(system: System, party: str = "") -> tuple[str, ...]:
    """The data of a user that is deleted only later."""
    kept = {topic.name: (topic.retention_ms or 0) / _DAY_MS for topic in _naming(system, party)}
    requests = conversation_of(system, party).requests
    return (
        *(
            f"their records on {name}: {count_text(days, 'day', 'g')} from when they were written"
            for name, days in kept.items()
        ),
        f"the deletion request itself, with their name: {count_text(kept[requests], 'day', 'g')}",
        *system.erasure.waits,
        "copies outside (exports, backups): `hushstream forget --export` rewrites an export",
    )


def _naming(system: System, party: str) -> list[Topic]:
    """The topics whose records name users; those of one party, if each party has users of its own."""
    return [topic for topic in system.topics if topic.names_users and topic.party == party]


def erase_export(directory: Path, system: System, user: str, party: str = "") -> int:
    """Erase every record of an export that names a user, also batches that contain the user; returns how many.

    Only records up to the log time of the user's last deletion request are erased: later records belong to an account
    that the user began again, and need a deletion request of their own. All published states are erased, too, as nobody
    can see whom they contain; they are not counted. The deletion request stays: by it `verify` tells an erasure from a
    change.

    Raises:
        DamagedExport: the folder is not a complete export.
        ExportRefused: the export holds no deletion request of this user, or cannot be written.
    """
    _require_user(user)
    logs = open_export(directory)
    asked = logs.records([conversation_of(system, party).requests])
    until_ms = max((record.timestamp_ms for record in asked if _is_deletion(record, user)), default=None)
    if until_ms is None:
        raise ExportRefused(
            f"{directory}: expected an export made after `hushstream forget`, it holds no deletion request of this user"
        )
    passed_on = system.erasure.passed_on
    named = [topic.name for topic in _naming(system, party)]
    last_of = {name: _EVER_MS if name in passed_on else until_ms for name in named}
    # A sealed state does not show whom it contains, so no state of the export is kept.
    states = {topic.name for topic in system.topics if topic.holds_state and topic.party in ("", party)}
    erased: dict[TopicPartition, PartitionCopy] = {}
    number = 0
    for source, part in logs.parts.items():
        last_ms = last_of.get(source[0], 0)
        records = [_without(r, user, system) if r.timestamp_ms <= last_ms else r for r in part.records]
        number += sum(new is not old and not new.value for new, old in zip(records, part.records, strict=True))
        if source[0] in states:
            records = [record._replace(value=ERASED) for record in part.records]
        erased[source] = PartitionCopy(part.low, part.high, records, part.keys)
    _replace(directory, LogCopy(erased, logs.consistent), system)
    return number


def _replace(directory: Path, logs: LogCopy, system: System) -> None:
    """Write the new export beside the old one, then replace the old one by it."""
    fresh, old = (directory.with_name(f"{directory.name}.{suffix}") for suffix in ("erasing", "erased"))
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        export_copy(logs, system, fresh)
        os.replace(directory, old)
        os.replace(fresh, directory)
        shutil.rmtree(old)
    except OSError as error:
        raise ExportRefused(f"{directory}: cannot be rewritten ({error.strerror})") from None


def _without(record: InputRecord, user: str, system: System) -> InputRecord:
    return record._replace(value=ERASED) if _names(record, user, system) else record


def _names(record: InputRecord, user: str, system: System) -> bool:
    """Whether a record names this user; a deletion request does not count."""
    try:
        name, fields = codec.decode(record.value)
    except CodecError:
        return False
    return name != "Forget" and system.erasure.names(name, fields, user)


def _is_deletion(record: InputRecord, user: str) -> bool:
    try:
        name, fields = codec.decode(record.value)
    except CodecError:
        return False
    return name == "Forget" and fields["user"] == user


def _read_to(value: bytes, topic: str) -> int:
    """The offset up to which a journal record covers a topic; 0 for any other record."""
    try:
        _, fields = codec.decode(value)
    except CodecError:
        return 0
    inputs: list[Mapping[str, Any]] = fields["head"]["inputs"] if "head" in fields else []
    return max((int(part["high"]) for part in inputs if part["topic"] == topic), default=0)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _require_user(user: str) -> None:
    if id_fault(user) is not None:
        raise HushstreamError(f"user: expected 1 to {MAX_ID_BYTES} bytes in one line, got {len(user.encode())}")
