"""Deletes the beginning of journals, but only records that no worker, and no check from a checkpoint, needs any more.

A journal may begin where a published state ends: a worker recovers from there, and `verify --from checkpoint` begins
there. Only records before the one with which the *second newest* usable state ends are deleted, so that one damaged
state stops no worker. A state is usable if the zone's key opens it, it is complete, a machine accepts it, the journal
holds the record that it ends with, its checkpoint is there, and its inputs are still there.

Retention by time or size cannot do this: in an idle deployment it would delete records after the last state, and the
workers could never go on. So journals are declared to be kept, and this is the only way to shorten them. Nothing here
deletes from ledgers, marks and states.

A journal that other roles read (published models) keeps every record that the second newest usable state of each of
*their* partitions reads next or later. Their workers follow its chain, and could not go on after a gap. So their keys
must be given, too.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka import TopicPartition as BrokerPartition
from aiokafka.admin import RecordsToDelete

from hushstream.agents.recovery.state_topic import Found
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, readers, role_of, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.ops.check.checkpoints import Beginner, NoUse, PublishedCopy, Restored, needed
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import LiveLogs, RoleLogs, open_logs, roles_asked
from hushstream.ops.logs.losses import Plan
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_STATES = 2
"""How many usable states must be left."""


class TrimRefused(HushstreamError):
    """A journal cannot be shortened, because there are too few usable states for a worker to begin with."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The records at the beginning of one journal that can be deleted.

    Attributes:
        topic, partition: the journal.
        low: its current first offset.
        before: its first offset afterwards.
        sequence: the number of the record with which the state ends from which its own role can go on.
        records, size: how many records would be deleted, and the bytes of their values.
        held_by: the partition of another role that reads next at ``before``, and so keeps records that its own role no
            longer needs; or "".
    """

    topic: str
    partition: int
    low: int
    before: int
    sequence: int
    records: int
    size: int
    held_by: str = ""

    def __str__(self) -> str:
        """One line."""
        held = f", and {self.held_by} reads on at offset {self.before}" if self.held_by else ""
        return (
            f"delete {self.topic}/{self.partition}: {self.records} records, {self.size} bytes, from offset {self.low} "
            f"to {self.before - 1}; it goes on from the state of record {self.sequence}{held}"
        )


class _NeededByReader(NamedTuple):
    """The offset from which another role still needs a journal, and the role's partition that needs it."""

    offset: int
    by: str


_FREE = _NeededByReader(sys.maxsize, "")


@dataclass(slots=True)
class _RecordsBefore:
    """Counts the records, and their bytes, before some records of a journal."""

    records: int = 0
    size: int = 0
    places: dict[bytes, tuple[InputRecord, int, int]] = field(default_factory=dict)
    """By digest of a record with which a published state ends: the record, and the records and bytes before it."""
    free: tuple[int, int] = (0, 0)
    """The records and bytes before the record that another role reads next."""


@dataclass(frozen=True, slots=True)
class _RestartState:
    """The second newest usable state of a home partition.

    Attributes:
        sequence: the number of the journal record with which it ends.
        trimmed: the records of its own journal that can be deleted; None if there are none.
        needed: the next offset that it reads in each log.
    """

    sequence: int
    trimmed: Trimmed | None
    needed: Mapping[TopicPartition, int]


async def plan(
    connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None
) -> Plan[Trimmed]:
    """Find the records that can be deleted of the journals of these roles (None: of all); their keys must be given.

    The plan's remarks say why other journals are not shortened.

    Raises:
        TrimRefused: a partition has too few usable states.
        HushstreamError: the deployment has no such role; a key cannot be used; the topics cannot be read.
    """
    planner = _Planner(connection, system, keys)
    for role in roles_asked(system, roles):
        await planner.add(role)
    if planner.lacking:
        raise TrimRefused("\n".join(dict.fromkeys(planner.lacking)))
    found = tuple(planner.found)

    async def act() -> None:
        places = {
            BrokerPartition(physical(connection.prefix, topic), partition): RecordsToDelete(before)
            for (topic, partition), before in until(found).items()
        }
        async with connection.admin("delete records of journals") as admin:
            await admin.delete_records(places)

    return Plan(found, act, tuple(f"kept {topic}: {why}" for topic, why in planner.kept.items()))


def until(planned: Iterable[Trimmed]) -> Mapping[TopicPartition, int]:
    """The first offset of each of these journals afterwards."""
    return {(one.topic, one.partition): one.before for one in planned}


class _Planner:
    """Finds the records that can be deleted, role by role.

    Attributes:
        found: the records that can be deleted, for each journal.
        kept: why other journals are not shortened, by topic.
        lacking: the partitions without enough usable states, in words.
    """

    def __init__(self, connection: Connection, system: System, keys: KeySource) -> None:
        self._connection, self._system, self._keys = connection, system, keys
        self.found: list[Trimmed] = []
        self.kept: dict[str, str] = {}
        self.lacking: list[str] = []
        self._unheld: dict[str, list[_RestartState | None]] = {}
        """The usable states of each role, without other roles' needs. They may be large, so each is opened once."""

    async def add(self, role: Role) -> None:
        """Plan all partitions of a role's journal."""
        topic = topic_of(self._system, role.journal)
        held: dict[TopicPartition, _NeededByReader] = {}
        for name in readers(topic, self._system.roles):
            if name not in self._system.role_names or name == role.name:
                continue
            reader = role_of(self._system, name)
            try:
                RoleLogs(reader, self._system, self._keys).make.state_keys()
            except HushstreamError as error:
                self.kept[topic.name] = f"{name} reads it, and where it reads on is not known: {error}"
                return
            await self._hold(reader, topic.name, held)
        for stays in await (self._all_of(role, held) if held else self._alone(role)):
            self.found += [stays.trimmed] if stays is not None and stays.trimmed is not None else []
        idle = sorted({one.by for one in held.values() if not one.offset})
        if idle:
            self.kept[topic.name] = f"these have folded nothing yet, and need its first record: {', '.join(idle)}"

    async def _hold(self, reader: Role, journal: str, held: dict[TopicPartition, _NeededByReader]) -> None:
        """Note the next offset that each partition of another role reads in a journal."""
        for home, stays in enumerate(await self._alone(reader)):
            for partition in range(self._system.partitions[journal]):
                source = (journal, partition)
                offset = 0 if stays is None else stays.needed.get(source, sys.maxsize)
                held[source] = min(held.get(source, _FREE), _NeededByReader(offset, f"{reader.name}/{home}"))

    async def _alone(self, role: Role) -> list[_RestartState | None]:
        if role.name not in self._unheld:
            self._unheld[role.name] = await self._all_of(role, {})
        return self._unheld[role.name]

    async def _all_of(self, role: Role, held: Mapping[TopicPartition, _NeededByReader]) -> list[_RestartState | None]:
        topics = role_topics(role, self._system)
        wanted = {*topics.inputs, *topics.broadcasts, topics.journal, role.state.name}
        found = []
        async with open_logs(self._connection, self._system.partitions, wanted) as logs:
            for home in range(self._system.homes(role)):
                try:
                    found.append(await self._of_home(role, home, logs, held.get((role.journal, home), _FREE)))
                except TrimRefused as error:
                    self.lacking.append(str(error))
        return found

    async def _of_home(self, role: Role, home: int, logs: LiveLogs, held: _NeededByReader) -> _RestartState | None:
        """Find the state that stays for one journal; None if nothing was folded yet."""
        journal, source = (role.journal, home), (role.state.name, home)
        of = RoleLogs(role, self._system, self._keys)
        states = PublishedCopy(await logs.part(source), of.states(home))
        passed = await _passed(logs, journal, {found.head.record for found in states.found}, held.offset)
        whole = {*of.topics.inputs, *of.topics.followed}
        lows = {place: low for place, (low, _) in logs.cut.bounds.items() if place[0] in whole}
        stays = _second_newest(Beginner(home, of.make, states, lows), passed, journal, states)
        if stays is None:
            return None
        found, begun, (record, records, size) = stays
        low, sequence = logs.cut.bounds[journal][0], found.head.sequence
        trimmed = Trimmed(*journal, low, record.offset, sequence, records, size)
        if held.offset < record.offset:
            trimmed = Trimmed(*journal, low, held.offset, sequence, *passed.free, held.by)
        return _RestartState(sequence, trimmed if trimmed.records else None, needed(begun.machine))


def _second_newest(
    beginner: Beginner, passed: _RecordsBefore, journal: TopicPartition, states: PublishedCopy
) -> tuple[Found, Restored, tuple[InputRecord, int, int]] | None:
    """Find the second newest usable state, a machine with it, and the records before the record that it ends with.

    None for a journal that has only its first record.

    Raises:
        TrimRefused: there are too few usable states.
    """
    useful, why = [], list(states.ignored)
    for found in reversed(states.found):
        place = passed.places.get(found.head.record)
        try:
            if place is None:
                raise NoUse(f"offset {found.offset}: expected the journal to hold record {found.head.sequence}")
            begun = beginner.begin(found, place[0])
        except NoUse as error:
            why.append(str(error))
            continue
        useful.append((found, begun, place))
        if len(useful) == _STATES:
            return useful[-1]
    if passed.records <= 1:
        return None
    told = f": {'; '.join(why)}" if why else ""
    raise TrimRefused(
        f"{journal[0]}/{journal[1]}: expected {_STATES} published states from which a worker could go on, found "
        f"{len(useful)}; nothing is deleted of any journal{told}"
    )


async def _passed(logs: LiveLogs, journal: TopicPartition, wanted: Collection[bytes], until: int) -> _RecordsBefore:
    passed = _RecordsBefore()
    async for portion in logs.records(journal):
        for record in portion:
            digest = record_digest(record.value)
            if digest in wanted:
                passed.places[digest] = (record, passed.records, passed.size)
            passed.records += 1
            passed.size += len(record.value)
            if record.offset < until:
                passed.free = passed.records, passed.size
    return passed
