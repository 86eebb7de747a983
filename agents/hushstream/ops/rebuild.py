"""Makes lost marks again from the journals, at the price of a new epoch (PRIVACY rule 7).

Without its marks nobody can tell whether a journal is what was released from, or an older copy of it. A journal says
how far it goes; that it went no further once, nothing does. So a mark of a new generation is written for each partition
whose marks are missing, as an operator's word that its journal is gone on with: what may have been released behind its
end stands, and whatever is released next is under noise of its own, which is charged once more, whatever it is about
(`hushstream.engine.machine.ReleasingMachine.request_epoch`). No mark is lowered: one of a lost generation is of no
journal any more.

No worker of the role may run meanwhile: its marks would go on in the generation before, which no longer counts.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict, dataclass
from typing import Any

from aiokafka import AIOKafkaProducer

from hushstream.agents.kafka.commits import committed_mark, committed_marks, journal_name
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.marks import mark_key, read_marks
from hushstream.agents.settings import group_of
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_topics, role_work
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.journal.marks import Mark, MarkSeal, Standing
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.repair import journal_walk
from hushstream.privacy.amounts import count_text
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_WRITER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The mark of one partition that is made again.

    Attributes:
        partition: the home partition.
        missing: what is missing.
        mark: from which its releases count.
    """

    partition: int
    missing: str
    mark: Mark

    def __str__(self) -> str:
        """One line."""
        return (
            f"partition {self.partition}: {self.missing}; its journal goes up to record {self.mark.sequence}, and is "
            f"gone on with as generation {self.mark.generation}: the next release pays for an epoch of its own"
        )


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What has to be made again of a role's marks."""

    role: str
    topic: str
    partitions: tuple[Rebuilt, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return asdict(self)

    def as_text(self, verb: str) -> str:
        """One line a partition."""
        lines = [f"{verb} {one}" for one in self.partitions]
        return "\n".join([*lines, f"{verb} {count_text(len(self.partitions), 'mark')} on {self.topic}"]) + "\n"


def plan(connection: Connection, system: System, keys: KeySource, role: str, group: str | None = None) -> Rebuild:
    """What is missing of a role's marks, and what would be written in its place; ``group`` None: the role's own.

    Raises:
        HushstreamError: the role has no marks, its workers run, or something cannot be read.
    """
    return asyncio.run(_plan(connection, system, keys, role, group or group_of(system.config.deployment, role)))


async def _plan(connection: Connection, system: System, keys: KeySource, name: str, group: str) -> Rebuild:
    role = role_of(system, name)
    if role.marks is None:
        raise HushstreamError(f"marks rebuild: expected a role with release marks, {name} has none")
    await _require_stopped(connection, group)
    make = role_work(name, system, keys).make_machine
    topics = role_topics(role, system)
    ledgers = [topic for topic in topics.writes if topic in system.ledgers]
    settings = connection.settings().model_copy(update={"group": group})
    found = []
    async with client_errors(connection, "read logs"), LogReader(settings) as reader:
        for home in range(system.homes(role)):
            place = (role.marks, home)
            read = await read_marks(
                place, reader, MarkSeal(system.config.deployment, name, home, make.mark_keys()), name
            )
            if not read.missing:
                continue
            chain, _ = await journal_walk(reader, role, home, system, keys)
            if chain.genesis is None:
                raise HushstreamError(
                    f"marks rebuild: {role.journal}/{home}: expected a journal from its first record on, that was "
                    f"deleted or never written; begin a deployment under another name"
                )
            commits = await committed_marks(settings, [(topic, home) for topic in topics.inputs])
            committed = [mark for text in commits.values() if (mark := committed_mark(text)) is not None]
            ends = await reader.end_offsets([(topic, home) for topic in ledgers])
            standing = Standing(read.marks, (), (), tuple(committed))
            journal = journal_name(chain.genesis)
            paid = standing.paid(journal) or any(ends.values())
            mark = Mark(journal, chain.sequence, standing.next_generation, True, paid)
            found.append(Rebuilt(home, read.missing, mark))
    return Rebuild(name, role.marks, tuple(found))


async def _require_stopped(connection: Connection, group: str) -> None:
    async with connection.admin("look for workers") as admin:
        for response in await admin.describe_consumer_groups([group]):
            for described in response.to_object()["groups"]:
                if described["members"]:
                    raise HushstreamError(
                        f"marks rebuild: expected no worker of group {group}, found {len(described['members'])}; "
                        f"stop them first, as their marks would not count any more"
                    )


def write(connection: Connection, system: System, keys: KeySource, planned: Rebuild) -> None:
    """Write what was planned.

    Raises:
        HushstreamError: the topic cannot be written, or a key is not at hand.
    """
    asyncio.run(_write(connection, system, keys, planned))


async def _write(connection: Connection, system: System, keys: KeySource, planned: Rebuild) -> None:
    make = role_work(planned.role, system, keys).make_machine
    writer = os.urandom(_WRITER_BYTES).hex()
    async with client_errors(connection, "write marks"):
        producer = AIOKafkaProducer(**connection.settings().client_options(), enable_idempotence=True)
        await producer.start()
        try:
            for one in planned.partitions:
                seal = MarkSeal(system.config.deployment, planned.role, one.partition, make.mark_keys())
                key = mark_key(planned.role, one.partition, one.mark, writer)
                name = physical(connection.prefix, planned.topic)
                await producer.send_and_wait(name, seal.pack(one.mark), key, one.partition)
        finally:
            await producer.stop()
