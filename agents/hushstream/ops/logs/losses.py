"""Lists the losses that operators of a deployment have accepted (`--accept-loss`), and how they change its guarantee.

There are two kinds. Input may be deleted before it was folded: then a note in the role's journal says which input
(`hushstream.engine.journal.notes`). Nothing was released from it, so the guarantee does not change, but counts lack it.
Or a worker may go on with a refused journal: then a mark says so (`hushstream.engine.journal.marks`). The releases from
the lost records remain, so the persons in these records are charged once more, which the guarantee does not include.

*Plan.* What a repair would do to a deployment's logs: a plan, which is printed before it acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.losses import in_words
from hushstream.agents.settings import group_of
from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.marks import MarkUnreadable
from hushstream.engine.journal.notes import LOST, Note, read_without_key
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.log_copy import RoleLogs, lacking_zones, reading, roles_asked
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

Row = TypeVar("Row")

_TRIES, _PAUSE_SECONDS = 50, 0.3
"""How often, and how soon again, a new cluster is asked: it makes its coordinator of groups at the first question."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[Row]):
    """What would be done; making a plan writes and deletes nothing.

    Attributes:
        rows: the changes, one dataclass each, whose text is one line; without any, nothing is to be done.
        act: carries them out.
        remarks: what stays as it is and why, or what a change costs.
    """

    rows: tuple[Row, ...]
    act: Callable[[], Coroutine[Any, Any, None]]
    remarks: tuple[str, ...] = ()


class Appended(NamedTuple):
    """A record to append: logical topic, partition, value, and record key."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None = None


async def append(connection: Connection, doing: str, records: Sequence[Appended]) -> None:
    """Append records one after the other, without compression, as every writer of a deployment.

    Raises:
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    async with (
        client_errors(connection, doing),
        AIOKafkaProducer(**connection.cluster.client_options(), acks="all", enable_idempotence=True) as producer,
    ):
        for one in records:
            topic = physical(connection.prefix, one.topic)
            await producer.send_and_wait(topic, one.value, one.key, one.partition)


async def require_stopped(
    connection: Connection, system: System, roles: Iterable[Role], group: str | None = None
) -> None:
    """Refuse while workers of these roles are running: they would go on with what is repaired under their feet.

    Args:
        connection: where the deployment is.
        system: the deployment.
        roles: of the workers.
        group: the consumer group of all of them; None for the usual group of each role.

    Raises:
        HushstreamError: some are running.
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    groups = {group or group_of(system.config.deployment, role.name) for role in roles}
    async with connection.admin("look for workers") as admin:
        # One a request: of several groups aiokafka decodes the first alone as Kafka wrote it.
        for name in sorted(groups):
            (response,) = await _answered(admin, name)
            (described,) = response.to_object()["groups"]
            if described["members"]:
                raise HushstreamError(
                    f"logs repair: expected no worker of group {name}, found {len(described['members'])}; stop them "
                    "first"
                )


async def _answered(admin: AIOKafkaAdminClient, group: str) -> Sequence[Any]:
    for _ in range(_TRIES):
        try:
            found: Sequence[Any] = await admin.describe_consumer_groups([group])
            return found
        except GroupCoordinatorNotAvailableError as error:
            failure = error
            await asyncio.sleep(_PAUSE_SECONDS)
    raise failure


@dataclass(frozen=True, slots=True)
class LostInput:
    """Input whose loss an operator has accepted.

    Attributes:
        role, home: the role and home partition whose journal holds the note.
        note: the lost input.
        erasures_to_repeat: whether the topic is one to which deletion requests are written.
        checked: whether the note is known to be under a key of the zone; otherwise the key was not given.
    """

    role: str
    home: int
    note: Note
    erasures_to_repeat: bool
    checked: bool
    kind: str = "input"
    guarantee_changed: bool = False

    def as_text(self) -> str:
        """Say what is lost, and which results lack it."""
        again = " Erasures among them were not carried out: send them again (`hushstream forget`)."
        return (
            f"{self.role} {self.home} went on without {in_words(self.note)}. The privacy guarantee is unchanged: "
            f"nothing was released from them. Decisions, counts and releases of the {self.role} and the roles after "
            f"it, with the lift, lack them.{again * self.erasures_to_repeat}{_unchecked(self.checked)}"
        )


@dataclass(frozen=True, slots=True)
class LostJournal:
    """A journal that an operator has accepted although it was refused, or its marks were lost.

    Attributes:
        role, home: the role and home partition of the journal.
        generation: the number of acceptances for this journal, including this one.
        checked: whether the mark is known to be under a key of the zone; otherwise the key was not given.
    """

    role: str
    home: int
    generation: int
    checked: bool
    kind: str = "journal"
    guarantee_changed: bool = True

    def as_text(self) -> str:
        """Say what is lost, and what it costs."""
        return (
            f"{self.role} {self.home} went on with a journal that was refused, or whose marks were lost (word "
            f"{self.generation}). This changes the guarantee: releases from lost records remain, and the persons in "
            f"them may be charged the stated cost once more.{_unchecked(self.checked)}"
        )


@dataclass(frozen=True, slots=True)
class AcceptedLosses:
    """The accepted losses that the logs still show.

    Attributes:
        found: the losses in the order of roles and home partitions; journals before inputs.
        begun_later: journals whose first records, and the notes among them, were deleted (`logs trim`).
    """

    found: tuple[LostInput | LostJournal, ...]
    begun_later: tuple[str, ...] = ()

    def as_lines(self) -> list[str]:
        """One line for each loss; without any loss, one line that says so."""
        lines = [loss.as_text() for loss in self.found] or ["none was found"]
        if self.begun_later:
            lines.append(f"not completely searched, as their first records were deleted: {', '.join(self.begun_later)}")
        return lines


def _unchecked(checked: bool) -> str:
    return "" if checked else " (not checked: the key of its zone was not given)"


async def accepted_losses(
    connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None
) -> AcceptedLosses:
    """Look for accepted losses in the journals and marks of these roles (None: of all).

    A note or mark under none of the zone's keys is foreign, and left out. If the zone's key was not given, it is listed
    as not checked.

    Raises:
        HushstreamError: the topics cannot be read, or a key file cannot be used.
    """
    found: list[LostInput | LostJournal] = []
    begun_later, wanted = [], roles_asked(system, roles)
    logs = {topic for role in wanted for topic in (role.journal, role.marks) if topic is not None}
    async with reading(connection, logs) as reader:
        for role in wanted:
            for home in range(system.homes(role)):
                journal = (role.journal, home)
                begun_later += [f"{role.journal}/{home}"] if (await reader.first_offsets([journal]))[journal] else []
                found += await _journals(reader, role, home, system, keys)
                found += await _inputs(reader, role, home, system, keys)
    return AcceptedLosses(tuple(found), tuple(begun_later))


async def _inputs(reader: LogReader, role: Role, home: int, system: System, keys: KeySource) -> list[LostInput]:
    place = (system.config.deployment, role.name, home)
    seal = None if lacking_zones(role.key_zones, keys) else RoleLogs(role, system, keys).notes(home)
    all_keys = seal is not None and not lacking_zones([role.storage_zone], keys)
    notes = {}
    async for record in reader.all_records((role.journal, home)):
        note = None if seal is None else seal.unpack(record.value)
        checked = note is not None
        # A zone with a storage key seals notes under it: without its file we cannot say whether a note is forged.
        note = note if note is not None or all_keys else read_without_key(record.value, *place)
        # A retried send may have written the note twice: count the loss once.
        if note is not None and note.kind == LOST:
            notes[note] = LostInput(role.name, home, note, topic_of(system, note.source[0]).deletions, checked)
    return list(notes.values())


async def _journals(reader: LogReader, role: Role, home: int, system: System, keys: KeySource) -> list[LostJournal]:
    if role.marks is None:
        return []
    place = (system.config.deployment, role.name, home)
    seal = None if lacking_zones(role.key_zones, keys) else RoleLogs(role, system, keys).marks(home)
    generations = set()
    async for record in reader.all_records((role.marks, home)):
        try:
            _, fields = codec.decode(record.value, frozenset({"ReleaseMark"}))
            named = (fields["deployment"], fields["role"], fields["partition"])
            # A mark under a destroyed key cannot be opened; a later mark of its generation can.
            if fields["accepted"] and named == place and (seal is None or seal.unpack(record.value) is not None):
                generations.add(fields["generation"])
        except (CodecError, MarkUnreadable):
            continue
    return [LostJournal(role.name, home, generation, seal is not None) for generation in sorted(generations)]
