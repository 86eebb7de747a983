"""Deleting the beginning of journals: only what no worker, and no check from a checkpoint, needs any more.

A journal may begin where a published state ends: from there a worker recovers, and `verify --from checkpoint` begins.
What is deleted lies before the record on which the *second newest* state of use stands, so that one that is damaged
stops nobody. Of use is a state as it is for a worker and a check: opened with the zone's key, whole, taken by a
machine, standing on a record that the journal holds, with its checkpoint, and with its inputs still there.

Retention by time or size can do none of this: on a deployment that stands still it would delete beyond the last state,
and its workers could never go on. So journals are declared to be kept, and this is the one way to shorten them.
Ledgers, marks and states are no journals, and nothing here deletes from them. Nor from a journal that another role
reads: a worker of that one may have to read it from the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aiokafka import TopicPartition as BrokerPartition
from aiokafka.admin import RecordsToDelete

from hushstream.agents.deployment import KeySource
from hushstream.agents.roles import role_topics, role_work
from hushstream.agents.state_topic import Found
from hushstream.engine.declaration import System, role_of, topic_of
from hushstream.engine.flows import readers
from hushstream.engine.machine import InputRecord, TopicPartition
from hushstream.engine.published_state import StateSeal, record_digest
from hushstream.engine.role import Role
from hushstream.ops.checkpoints import Beginner, NoUse, PublishedCopy
from hushstream.ops.connection import Connection
from hushstream.ops.live import LiveLogs, open_logs
from hushstream.ops.log_copy import PartitionCopy
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_STATES = 2
"""How many states of use must be left."""


class TrimRefused(HushstreamError):
    """A journal cannot be shortened: a worker would have nothing to begin with."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The beginning of one journal.

    Attributes:
        topic, partition: which journal.
        low: where it begins.
        before: where it would begin: the record there is the first that stays.
        sequence: of that record.
        records, size: what would go, in records and bytes of their values.
    """

    topic: str
    partition: int
    low: int
    before: int
    sequence: int
    records: int
    size: int

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.topic}/{self.partition}: {self.records} records, {self.size} bytes, from offset {self.low} to "
            f"{self.before - 1}; it goes on from the state of record {self.sequence}"
        )


@dataclass(frozen=True, slots=True)
class Trim:
    """What can be deleted of a deployment.

    Attributes:
        journals: where something can be.
        kept: journals that are kept whole, and why, in words.
    """

    journals: tuple[Trimmed, ...]
    kept: Mapping[str, str]

    @property
    def until(self) -> Mapping[TopicPartition, int]:
        """Where each of these journals would begin."""
        return {(one.topic, one.partition): one.before for one in self.journals}

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {"journals": [asdict(one) for one in self.journals], "kept": dict(self.kept)}

    def as_text(self, verb: str) -> str:
        """One line a journal, and what it comes to."""
        records, size = (sum(getattr(one, name) for one in self.journals) for name in ("records", "size"))
        lines = [f"{verb} {one}" for one in self.journals]
        lines += [f"kept {topic}: {why}" for topic, why in self.kept.items()]
        return "\n".join([*lines, f"{verb} {records} records, {size} bytes in all"]) + "\n"


@dataclass(slots=True)
class _Passed:
    """What lies before the records of a journal on which published states stand."""

    records: int = 0
    size: int = 0
    places: dict[bytes, tuple[InputRecord, int, int]] = field(default_factory=dict)
    """By digest of the record: it, and records and bytes before it."""


def plan(connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None) -> Trim:
    """`plan_async`, for code without an event loop."""
    return asyncio.run(plan_async(connection, system, keys, roles))


async def plan_async(
    connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None
) -> Trim:
    """What can be deleted of the journals of these roles, or of all (None); their keys must be at hand.

    Raises:
        TrimRefused: of a partition there are too few states of use.
        HushstreamError: the deployment has no such role; a key cannot be used; the topics cannot be read.
    """
    found: list[Trimmed] = []
    kept: dict[str, str] = {}
    lacking: list[str] = []
    for role in [role for role in system.roles if roles is None or role in [role_of(system, name) for name in roles]]:
        others = set(readers(topic_of(system, role.journal), system.roles)) & set(system.role_names) - {role.name}
        if others:
            kept[role.journal] = f"{', '.join(sorted(others))} may have to read it from its beginning"
            continue
        topics = role_topics(role, system)
        wanted = {*topics.inputs, *topics.broadcasts, topics.journal, role.state.name}
        async with open_logs(connection, system.partitions, wanted) as logs:
            for home in range(system.homes(role)):
                try:
                    found += await _of_home(role, home, system, keys, logs)
                except TrimRefused as error:
                    lacking.append(str(error))
    if lacking:
        raise TrimRefused("\n".join(lacking))
    return Trim(tuple(found), kept)


def trim(connection: Connection, planned: Trim) -> None:
    """`trim_async`, for code without an event loop."""
    asyncio.run(trim_async(connection, planned))


async def trim_async(connection: Connection, planned: Trim) -> None:
    """Delete what was planned.

    Raises:
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.told`.
    """
    places = {
        BrokerPartition(physical(connection.prefix, topic), partition): RecordsToDelete(before)
        for (topic, partition), before in planned.until.items()
    }
    if not places:
        return
    async with connection.admin("delete records of journals") as admin:
        await admin.delete_records(places)


async def _of_home(role: Role, home: int, system: System, keys: KeySource, logs: LiveLogs) -> Sequence[Trimmed]:
    """The beginning of one journal, if there is one to delete."""
    journal, source = (role.journal, home), (role.state.name, home)
    make = role_work(role.name, system, keys).make_machine
    seal = StateSeal(system.config.deployment, role.name, home, make.state_keys())
    states = PublishedCopy(await _copied(logs, source), seal)
    passed = await _passed(logs, journal, {found.head.record for found in states.found})
    lows = {place: low for place, (low, _) in logs.cut.bounds.items()}
    stays = _second_of_use(Beginner(home, make, states, lows), passed, journal, states)
    if stays is None:
        return ()
    found, (record, records, size) = stays
    low = lows[journal]
    return [Trimmed(*journal, low, record.offset, found.head.sequence, records, size)] if records else ()


def _second_of_use(
    beginner: Beginner, passed: _Passed, journal: TopicPartition, states: PublishedCopy
) -> tuple[Found, tuple[InputRecord, int, int]] | None:
    """The state that stays, with what lies before its record; None for a journal without a record behind its first.

    Raises:
        TrimRefused: there are too few.
    """
    useful, why = [], list(states.ignored)
    for found in reversed(states.found):
        place = passed.places.get(found.head.record)
        try:
            if place is None:
                raise NoUse(f"offset {found.offset}: expected the journal to hold record {found.head.sequence}")
            beginner.begin(found, place[0])
        except NoUse as error:
            why.append(str(error))
            continue
        useful.append((found, place))
        if len(useful) == _STATES:
            return useful[-1]
    if passed.records <= 1:
        return None
    told = f": {'; '.join(why)}" if why else ""
    raise TrimRefused(
        f"{journal[0]}/{journal[1]}: expected {_STATES} published states from which a worker could go on, found "
        f"{len(useful)}; nothing is deleted of any journal{told}"
    )


async def _copied(logs: LiveLogs, source: TopicPartition) -> PartitionCopy:
    low, high = logs.cut.bounds[source]
    return PartitionCopy(low, high, [record async for portion in logs.records(source) for record in portion])


async def _passed(logs: LiveLogs, journal: TopicPartition, wanted: Collection[bytes]) -> _Passed:
    passed = _Passed()
    async for portion in logs.records(journal):
        for record in portion:
            digest = record_digest(record.value)
            if digest in wanted:
                passed.places[digest] = (record, passed.records, passed.size)
            passed.records += 1
            passed.size += len(record.value)
    return passed
