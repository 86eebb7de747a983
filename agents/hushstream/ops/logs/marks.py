"""Writes lost release marks again, from the journals, at the price of a new epoch (PRIVACY rule 7).

Without marks nobody can tell whether a journal is complete, or an older copy: the journal shows how far it goes, but
not whether it once went further. So a mark of a new generation is written for each partition whose marks are missing.
With it an operator says that the role goes on with this journal. Releases after the journal's end, if there were any,
remain. The next release, of whatever data, draws new noise in a new epoch, and is charged once more
(`hushstream.engine.machine.Abilities.request_epoch`). No mark is lowered: marks of the lost generation no longer
count.

No worker of the role may run in the meantime: it would go on writing marks of the earlier generation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hushstream.agents.kafka.administration import committed_mark, committed_marks, journal_name
from hushstream.agents.recovery.marks import mark_key, price_of_going_on, read_marks
from hushstream.agents.settings import group_of
from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.journal.marks import Mark, ReleaseEvidence
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import RoleLogs, reading
from hushstream.ops.logs.foreign import journal_walk
from hushstream.ops.logs.losses import Appended, Plan, append, require_stopped
from hushstream.schemas.errors import HushstreamError

_DOING = "logs repair marks"
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


async def plan(
    connection: Connection, system: System, keys: KeySource, name: str, group: str | None = None
) -> Plan[NewMark]:
    """Find the missing marks of a role, and plan the marks to write. ``group`` None: that of the role's workers.

    Raises:
        HushstreamError: the role has no marks, its workers are running, or a topic cannot be read.
    """
    role, group = role_of(system, name), group or group_of(system.config.deployment, name)
    if role.marks is None:
        raise HushstreamError(f"{_DOING}: expected a role with release marks, {name} has none")
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
            chain, _ = await journal_walk(reader, of, home)
            if chain.genesis is None:
                raise HushstreamError(
                    f"{_DOING}: {role.journal}/{home}: expected the journal's first record, but it was deleted or "
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

    return Plan(tuple(rows), act, () if rows else (_MADE_AGAIN,))
