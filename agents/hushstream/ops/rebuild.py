"""Rebuilds lost release marks from the journals, at the price of a new epoch (rule 7 of PRIVACY.md).

Without marks nobody can tell whether a journal is complete, or an older copy: the journal shows how far it goes, but
not whether it once went further. So a mark of a new generation is written for each partition whose marks are missing.
With it an operator says that the role goes on with this journal. Releases after the journal's end, if there were any,
remain. The next release, of whatever data, draws new noise in a new epoch, and is charged once more
(`hushstream.engine.machine.ReleasingMachine.request_epoch`). No mark is lowered: marks of the lost generation no longer
count.

No worker of the role may run in the meantime: it would go on writing marks of the earlier generation.
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
from hushstream.engine.journal.marks import Mark, MarkSeal, ReleaseEvidence
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.repair import journal_walk
from hushstream.privacy.amounts import count_text
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_WRITER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The new mark of one partition.

    Attributes:
        partition: the home partition.
        missing: why marks may be missing.
        mark: the new mark.
    """

    partition: int
    missing: str
    mark: Mark

    def __str__(self) -> str:
        """One line."""
        return (
            f"partition {self.partition}: {self.missing}; its journal goes up to record {self.mark.sequence}, and "
            f"continues as generation {self.mark.generation}: the next release pays for an epoch of its own"
        )


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The marks of a role that have to be rebuilt."""

    role: str
    topic: str
    partitions: tuple[Rebuilt, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return asdict(self)

    def as_text(self, verb: str) -> str:
        """One line for each partition."""
        lines = [f"{verb} {one}" for one in self.partitions]
        return "\n".join([*lines, f"{verb} {count_text(len(self.partitions), 'mark')} on {self.topic}"]) + "\n"


def plan(connection: Connection, system: System, keys: KeySource, role: str, group: str | None = None) -> Rebuild:
    """Find the missing marks of a role, and the marks to write; nothing is written. ``group`` None: the role's own.

    Raises:
        HushstreamError: the role has no marks, its workers are running, or a topic cannot be read.
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
                    f"marks rebuild: {role.journal}/{home}: expected the journal's first record, but it was deleted or "
                    f"never written; begin a deployment under another name"
                )
            commits = await committed_marks(settings, [(topic, home) for topic in topics.inputs])
            committed = [mark for text in commits.values() if (mark := committed_mark(text)) is not None]
            ends = await reader.end_offsets([(topic, home) for topic in ledgers])
            evidence = ReleaseEvidence(read.marks, (), (), tuple(committed))
            journal = journal_name(chain.genesis)
            paid = evidence.paid(journal) or any(ends.values())
            mark = Mark(journal, chain.sequence, evidence.next_generation, True, paid)
            found.append(Rebuilt(home, read.missing, mark))
    return Rebuild(name, role.marks, tuple(found))


async def _require_stopped(connection: Connection, group: str) -> None:
    async with connection.admin("look for workers") as admin:
        for response in await admin.describe_consumer_groups([group]):
            for described in response.to_object()["groups"]:
                if described["members"]:
                    raise HushstreamError(
                        f"marks rebuild: expected no worker of group {group}, found {len(described['members'])}; "
                        f"stop them first, because their marks would no longer count"
                    )


def write(connection: Connection, system: System, keys: KeySource, planned: Rebuild) -> None:
    """Write the planned marks.

    Raises:
        HushstreamError: the topic cannot be written, or a key was not given.
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
