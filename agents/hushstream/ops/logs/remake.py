"""Makes a topic again that has partitions too many, or that lost the models that were published on it.

Kafka takes no partition away, and writes nothing at an offset whose record it has deleted. So the topic is deleted and
created as declared, and its records are written again at their offsets, as journals, states and `verify` name them, and
if they were read before it, with their log times. Models are computed again from their input. They follow from it
alone, so their bytes are those of before; the newest published state says what the last one of them was. Nothing holds
their log times, which journals of their readers cover.

Whoever is ended in between runs the command again: a topic that holds the first of the records gets the others.

Writes lost release marks again, from the journals, at the price of a new epoch (PRIVACY rule 7).

Without marks nobody can tell whether a journal is complete, or an older copy: the journal shows how far it goes, but
not whether it once went further. So a mark of a new generation is written for each partition whose marks are missing.
With it an operator says that the role goes on with this journal. Releases after the journal's end, if there were any,
remain. The next release, of whatever data, draws new noise in a new epoch, and is charged once more
(`hushstream.engine.machine.Abilities.request_epoch`). No mark is lowered: marks of the lost generation no longer
count.

No worker of the role may run in the meantime: it would go on writing marks of the earlier generation.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import UnknownTopicOrPartitionError, for_code
from aiokafka.structs import TopicPartition as BrokerPartition

from hushstream.agents.kafka.administration import committed_mark, committed_marks, journal_name
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.marks import mark_key, never_anew, price_of_going_on, read_marks
from hushstream.agents.recovery.state_topic import Found
from hushstream.agents.settings import group_of
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, role_of, topic_of
from hushstream.engine.journal.marks import Mark, ReleaseEvidence
from hushstream.engine.records import InputRecord, InputSlice, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.ops.check.checkpoints import PublishedCopy
from hushstream.ops.connection import Connection, client_errors, guard_code
from hushstream.ops.export import export_async, open_export
from hushstream.ops.log_copy import LiveLogs, PartitionCopy, RoleLogs, open_logs, reading
from hushstream.ops.logs.foreign import journal_walk
from hushstream.ops.logs.inputs import fill
from hushstream.ops.logs.losses import Appended, Plan, append, require_stopped
from hushstream.ops.topics import FILLED, Existing, apply_async, describe_async
from hushstream.privacy.amounts import count_text
from hushstream.schemas.codec import COMPRESSED
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import LOG_TIME, MIN_IN_SYNC, Topic, physical

_DOING = "make a topic again"
_WAITING = 1000
"""How many records are on their way at once."""
_TRIES, _PAUSE_SECONDS = 100, 0.3
"""How often, and how soon again, a topic that was deleted is created: Kafka deletes it some time after it said so."""
_NEW_TIMES = (
    "offsets and bytes are those of before, log times are new: end its readers by SIGTERM first, so that their states "
    "hold what they read; `verify` calls what they journaled before that changed"
)
_LATER = -1
"""The log time of a record that gets that of its new append."""


@dataclass(frozen=True, slots=True)
class Remade:
    """A partition whose records are written again, with ``low <= offset < high``."""

    topic: str
    partition: int
    low: int
    high: int

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.topic}/{self.partition}: delete it with its topic, and write {self.high - self.low} records again "
            f"from offset {self.low} on"
        )


async def plan_partitions(connection: Connection, system: System, topic: str, copy: Path) -> Plan[Remade]:
    """Plan to take away the partitions that were added to a topic; the others keep their records.

    Args:
        connection: where the deployment is.
        system: the deployment.
        topic: the logical name of the topic.
        copy: a new folder, for an export of the topic that is made before it is deleted; or that of a run that ended
            before all was written.

    Raises:
        HushstreamError: workers that use the topic are running, it is compacted, it cannot be read, or it holds what
            the copy does not.
    """
    count, declared = system.partitions[topic], topic_of(system, topic)
    there = (await describe_async(connection, system)).get(topic, Existing(0))
    goes_on = there.partitions == count and await asyncio.to_thread(copy.exists)
    if there.partitions <= count and not goes_on:
        raise HushstreamError(
            f"{_DOING}: expected a topic to which partitions were added, got {topic}; if it is gone and {copy} has its "
            f"records, run `hushstream topics apply` first"
        )
    if declared.cleanup == "compact":
        raise HushstreamError(
            f"{_DOING}: expected a topic that keeps all records, {topic} is compacted: delete it, then run `hushstream "
            f"topics apply`; workers fill states again, and `hushstream logs repair marks` marks"
        )
    users = [role for role in system.roles if topic in role_topics(role, system).all]
    await require_stopped(connection, system, users)
    async with open_logs(connection, system.partitions, {topic}) as logs:
        bounds = {partition: logs.cut.bounds[topic, partition] for partition in range(count)}
    added = {(topic, number): 0 for number in range(count, there.partitions)}
    if goes_on:
        parts = _copied(copy, topic, count)
        if await _missing(connection, system, topic, parts) is None:
            raise HushstreamError(f"{_DOING}: {topic} holds records that {copy} does not: nothing was written")
        bounds = {partition: (part.low, part.high) for partition, part in parts.items()}
    else:
        async with LogReader(connection.settings()) as reader:
            added = dict(await reader.end_offsets(list(added)))
    left_out = f"{count_text(sum(added.values()), 'record')} in the partitions that were added are left out"

    async def act() -> None:
        if not goes_on:
            await export_async(connection, system, copy, {topic})
        await _remake(connection, system, declared, _copied(copy, topic, count))

    return Plan(
        tuple(Remade(topic, partition, *bounds[partition]) for partition in range(count)),
        act,
        (left_out, f"The topic is first copied to {copy}, in clear: delete that folder when all is well."),
    )


def _copied(copy: Path, topic: str, count: int) -> Mapping[int, PartitionCopy]:
    """The partitions of a topic in an export that holds each of their records."""
    parts = {partition: part for (name, partition), part in open_export(copy).parts.items() if name == topic}
    if len(parts) != count or any(len(part.records) != part.high - part.low for part in parts.values()):
        raise HushstreamError(f"{_DOING}: expected a record at each offset of {topic} in {copy}: nothing was deleted")
    return parts


async def plan_models(connection: Connection, system: System, keys: KeySource) -> Plan[Remade]:
    """Plan to compute lost versions of models again; topics that were never written are left as they are.

    Raises:
        HushstreamError: their inputs or states are gone too, a worker that publishes models is running, or a topic
            cannot be read.
    """
    rows, remarks, lost = list[Remade](), list[str](), dict[str, dict[int, PartitionCopy]]()
    for role in (role for role in system.roles if role.key_zone is None):
        of = RoleLogs(role, system, keys)
        async with open_logs(connection, system.partitions, {*of.topics.inputs, role.journal, role.state.name}) as logs:
            states = {home: await _states(logs, of, home) for home in of.homes}
            if all(_holds(*logs.cut.bounds[role.journal, home], found) for home, found in states.items()):
                remarks.append(f"{role.journal}: it holds its versions")
                continue
            await require_stopped(connection, system, [role])
            parts = {home: await _computed(logs, of, home, found) for home, found in states.items()}
        if any(part.records for part in parts.values()):
            lost[role.journal] = parts
            rows += [Remade(role.journal, home, part.low, part.high) for home, part in parts.items()]
            remarks.append(f"{role.journal}: {_NEW_TIMES}")

    async def act() -> None:
        for journal, parts in lost.items():
            await _remake(connection, system, topic_of(system, journal), parts)

    return Plan(tuple(rows), act, tuple(remarks))


async def _states(logs: LiveLogs, of: RoleLogs, home: int) -> Sequence[Found]:
    """The published states of a publishing role, the newest last."""
    return PublishedCopy(await logs.part((of.role.state.name, home)), of.states(home)).found


def _holds(low: int, high: int, states: Sequence[Found]) -> bool:
    """Whether a journal with these ends holds what its newest published state covers."""
    return low < high and (not states or high >= states[-1].head.journal_offset)


async def _computed(logs: LiveLogs, of: RoleLogs, home: int, states: Sequence[Found]) -> PartitionCopy:
    """All records of the journal of a publishing role, as they follow from its input."""
    role, make = of.role, of.make
    if not states:
        if any(logs.cut.bounds[source][1] for source in make(home).inputs):
            raise HushstreamError(
                f"{role.journal}/{home}: expected a state of {role.name} on {role.state.name}, which holds the first "
                f"record of the journal, found none; begin a deployment under another name"
            )
        return PartitionCopy(0, 0, ())
    head = states[-1].head
    machine = make.of_journal(home, head.genesis)
    machine.start(head.genesis)
    (source,) = machine.inputs
    if logs.cut.bounds[source][0]:
        raise HushstreamError(
            f"{source[0]}/{source[1]}: expected all records since the first, found those from offset "
            f"{logs.cut.bounds[source][0]} on: older versions of {role.journal} cannot be computed again"
        )
    values = [head.genesis]
    async for portion in logs.records(source):
        if portion:
            part = InputSlice(*source, machine.positions()[source], portion[-1].offset + 1, tuple(portion))
            values += [step.journal for step in machine.fold([part]) if step.journal is not None]
    computed = values[head.sequence] if head.sequence < len(values) else b""
    if head.journal_offset != head.sequence + 1 or record_digest(computed) != head.record:
        raise HushstreamError(
            f"{role.journal}/{home}: expected the record {head.sequence} that the published state names at offset "
            f"{head.journal_offset - 1}, computed another one: nothing was written"
        )
    return PartitionCopy(0, len(values), [InputRecord(n, _LATER, value) for n, value in enumerate(values)])


async def _remake(connection: Connection, system: System, topic: Topic, parts: Mapping[int, PartitionCopy]) -> None:
    """Write the records that a topic lacks; unless it holds the first ones, delete it before, and create it anew."""
    before = (await describe_async(connection, system))[topic.name]
    name, least = physical(connection.prefix, topic.name), before.settings.get(MIN_IN_SYNC)
    missing = None
    if before.partitions == len(parts):
        missing = await _missing(connection, system, topic.name, parts)
    if missing is None:
        await _created_anew(connection, system, topic, before)
        missing = parts
    settings = {**topic.settings(), **({} if least is None else {MIN_IN_SYNC: least})}
    # Log times are those of before: digests of journals cover them.
    await configure(connection, name, {**settings, LOG_TIME: FILLED})
    for partition, part in missing.items():
        await write(connection, (topic.name, partition), parts[partition].low, part)
    await configure(connection, name, settings)


async def _missing(
    connection: Connection, system: System, topic: str, parts: Mapping[int, PartitionCopy]
) -> Mapping[int, PartitionCopy] | None:
    """What a topic lacks of these records, behind those that it holds; None if it holds others."""
    found = {}
    async with open_logs(connection, system.partitions, {topic}) as logs:
        for partition, part in parts.items():
            done = await written(logs, (topic, partition), part)
            if done is None:
                return None
            found[partition] = part.behind(done)
    return found


async def written(logs: LiveLogs, source: TopicPartition, part: PartitionCopy) -> int | None:
    """How many of the records of a copy are written again on a partition; None if it holds others."""
    if logs.cut.bounds[source][0] > part.low:
        return None
    done = 0
    async for portion in logs.records(source):
        own = [one.value for one in portion if one.offset >= part.low]
        if own != [one.value for one in part.records[done : done + len(own)]]:
            return None
        done += len(own)
    return done


async def _created_anew(connection: Connection, system: System, topic: Topic, before: Existing) -> None:
    least = before.settings.get(MIN_IN_SYNC)
    async with connection.admin(_DOING) as admin:
        answer = await admin.delete_topics([physical(connection.prefix, topic.name)])
        for deleted, code in answer.topic_error_codes:
            guard_code(f"delete {deleted}", code * (code != UnknownTopicOrPartitionError.errno), None, for_code)
    for _ in range(_TRIES):
        created = await apply_async(connection, system, before.copies, None if least is None else int(least))
        if topic.name in [one.topic for one in created]:
            break
        await asyncio.sleep(_PAUSE_SECONDS)


async def configure(connection: Connection, name: str, settings: Mapping[str, str]) -> None:
    """Replace the settings of a topic, by its name on the broker."""
    async with connection.admin(_DOING) as admin:
        for answer in await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, dict(settings))]):
            for code, message, *_ in answer.resources:
                guard_code(f"set {name}", code, message, for_code)


async def write(connection: Connection, source: TopicPartition, low: int, part: PartitionCopy) -> None:
    """Append the records of a copy, each at its offset and with its key; nothing is kept before the offset ``low``.

    Raises:
        HushstreamError: a record has got another offset, or the broker refuses.
    """
    name, waiting = physical(connection.prefix, source[0]), list[tuple[int, Awaitable[Any]]]()

    async def settle() -> None:
        for offset, sent in waiting:
            if (met := (await sent).offset) != offset:
                raise HushstreamError(
                    f"{_DOING}: {name}/{source[1]}: expected offset {offset}, got {met}: others write"
                )
        waiting.clear()

    await fill(connection, source, low)
    async with (
        client_errors(connection, _DOING),
        AIOKafkaProducer(**connection.cluster.client_options(), acks="all", enable_idempotence=True) as producer,
    ):
        for one, key in zip(part.records, part.keys or repeat(None), strict=False):
            if one.value == COMPRESSED:  # a batch that nobody opens: one of its size is as good
                await settle()
                await fill(connection, source, one.offset + 1, one.timestamp_ms)
                continue
            time_ms = None if one.timestamp_ms == _LATER else one.timestamp_ms
            # A record without a value deletes its key: readers of copies get it as an empty one.
            value = one.value if one.value or key is None else None
            waiting.append((one.offset, await producer.send(name, value, key, source[1], time_ms)))
            if len(waiting) == _WAITING:
                await settle()
        await settle()
    if low:
        async with connection.admin(_DOING) as admin:
            await admin.delete_records({BrokerPartition(name, source[1]): RecordsToDelete(low)})


_REBUILDING = "logs repair marks"
_WRITER_BYTES = 8
_MADE_AGAIN = "A topic of marks that was made again shows no loss: start the worker, it names a word for --accept-loss."


@dataclass(frozen=True, slots=True)
class NewMark:
    """The mark to write for one partition.

    Attributes:
        topic, partition: of the marks; the partition is the home partition.
        missing: why marks may be missing.
        mark: the new mark.
        price: what the next release pays, in words.
    """

    topic: str
    partition: int
    missing: str
    mark: Mark
    price: str

    def __str__(self) -> str:
        """One line."""
        return (
            f"mark on {self.topic}/{self.partition}: {self.missing}; its journal goes up to record "
            f"{self.mark.sequence}, and continues as generation {self.mark.generation}: {self.price}"
        )


async def plan_marks(
    connection: Connection, system: System, keys: KeySource, name: str, group: str | None = None
) -> Plan[NewMark]:
    """Find the missing marks of a role, and plan the marks to write. ``group`` None: that of the role's workers.

    Raises:
        HushstreamError: the role has no marks, its workers are running, a topic cannot be read, or marks are missing
            of a journal without which nobody may go on (`hushstream.engine.declare.role.Role.irreplaceable`).
    """
    role, group = role_of(system, name), group or group_of(system.config.deployment, name)
    if role.marks is None:
        raise HushstreamError(f"{_REBUILDING}: expected a role with release marks, {name} has none")
    await require_stopped(connection, system, [role], group)
    of = RoleLogs(role, system, keys)
    ledgers = [topic for topic in of.topics.writes if topic in system.ledgers]
    settings = connection.settings().model_copy(update={"group": group})
    rows = []
    async with reading(connection, (role.journal, role.marks), settings) as reader:
        for home in of.homes:
            read = await read_marks((role.marks, home), reader, of.marks(home), name)
            if not read.missing:
                continue
            if role.irreplaceable:
                raise HushstreamError(never_anew(f"{role.marks}/{home}: {read.missing}", role.irreplaceable))
            chain, _ = await journal_walk(reader, of, home)
            if chain.genesis is None:
                raise HushstreamError(
                    f"{_REBUILDING}: {role.journal}/{home}: expected the journal's first record, but it was deleted or "
                    f"never written; begin a deployment under another name"
                )
            commits = await committed_marks(settings, [(topic, home) for topic in of.topics.inputs])
            committed = [mark for text in commits.values() if (mark := committed_mark(text)) is not None]
            ends = await reader.end_offsets([(topic, home) for topic in ledgers])
            evidence = ReleaseEvidence(read.marks, (), (), tuple(committed))
            journal = journal_name(chain.genesis)
            paid = evidence.paid(journal) or any(ends.values())
            mark = Mark(journal, chain.sequence, evidence.next_generation, True, paid)
            price = price_of_going_on(of.make.spending_terms, evidence)
            rows.append(NewMark(role.marks, home, read.missing, mark, price))

    async def act() -> None:
        writer = os.urandom(_WRITER_BYTES).hex()
        marks = [
            Appended(
                row.topic, row.partition, of.marks(row.partition).pack(row.mark),
                mark_key(name, row.partition, row.mark, writer),
            )
            for row in rows
        ]  # fmt: skip
        await append(connection, "write marks", marks)

    return Plan(tuple(rows), act, () if rows or role.irreplaceable else (_MADE_AGAIN,))
