"""Lists foreign records in the topics that roles follow, and marks them as known.

Readers skip foreign records (`hushstream.engine.journal.chain`), so nothing has to be removed. The operator has to find
out who can write there, and mark the records as known. Until a note under the key of the zone names a foreign record of
a journal or among marks (`hushstream.engine.journal.notes`), `verify` reports it as *changed*. All notes of a role and
home partition lie in its journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aiokafka import AIOKafkaProducer

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.marks import read_marks
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import MachineMaker, role_topics, role_work
from hushstream.engine.declare.declaration import System, role_of, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.chain import BEGINNING, CHAIN_BYTES, Digester, PublicDigester
from hushstream.engine.journal.marks import MarkSeal
from hushstream.engine.journal.notes import FOREIGN, Note, NoteSeal, is_noted, notes_in
from hushstream.engine.records import InputRecord
from hushstream.engine.state.published import StateSeal, StateUnreadable
from hushstream.ops.connection import Connection, client_errors
from hushstream.privacy.amounts import count_text
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError, fingerprint_of
from hushstream.schemas.reasons import Reason
from hushstream.schemas.topics import physical


@dataclass(frozen=True, slots=True)
class Found:
    """A foreign record, or a record that stops its readers.

    Attributes:
        role, home: the role and home partition of the topic.
        topic, partition, offset: the place of the record.
        size: the number of bytes of its value.
        why: what was expected, and what the operator has to do, if anything.
        stops: whether readers stop at this record.
        noted: whether a note names it.
    """

    role: str
    home: int
    topic: str
    partition: int
    offset: int
    size: int
    why: str
    stops: bool = False
    noted: bool = False

    def __str__(self) -> str:
        """One line."""
        what = "STOPS READERS" if self.stops else "noted before" if self.noted else "skipped by readers"
        return f"{self.topic}/{self.partition} offset {self.offset} ({self.size} bytes): {what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Repair:
    """All records that were found.

    Attributes:
        records: the records.
        read: the topics that were read.
        outputs: the topics that the same roles write for others. Their records are in no chain, and no note covers
            them: `verify` compares them with what the journals say.
    """

    records: tuple[Found, ...]
    read: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def to_note(self) -> tuple[Found, ...]:
        """The foreign records of journals and among marks that no note names.

        One that may have replaced a mark is not among them while nobody has accepted that loss: where a copy of the
        logs has no record keys, a note would hide it.
        """
        return tuple(one for one in self.records if one.why in (_NOT_OURS, _NO_MARK) and not (one.noted or one.stops))

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {"records": [asdict(one) for one in self.records], "read": self.read, "outputs": self.outputs}

    def as_text(self) -> str:
        """One line for each record, and what was read."""
        found = count_text(len(self.records), "record") if self.records else "nothing foreign is there"
        lines = [*map(str, self.records), f"Read {', '.join(self.read)}: {found}."]
        if self.outputs:
            lines.append(
                f"Not read: {', '.join(self.outputs)}. `hushstream verify` finds foreign records there, and no note "
                f"covers them: find out who may write there (`hushstream topics check`)."
            )
        return "\n".join(lines) + "\n"


_NOT_OURS = "no record of the journal's chain"
_NO_MARK = "no mark of this place"


class ChainWalk:
    """Walks through a journal, and tells records that were made with the zone's key from others.

    Nothing is recomputed: a record is authentic if its chain digest continues an authentic record.

    Attributes:
        sequence: the highest number of an authentic record; -1 before the first.
        genesis: the genesis record; None if it was deleted, or was not reached yet.
        newest: the last authentic record beside the genesis; None before the first.
    """

    def __init__(self, schemas: Collection[str], digesters: Sequence[Digester], begins: bool) -> None:
        """Begin at a journal's first record; if that was deleted (not ``begins``), trust the first readable one."""
        self._schemas = frozenset(schemas)
        self._digesters = digesters
        self._heads: dict[int, set[bytes]] = {-1: {BEGINNING}} if begins else {}
        self.sequence = -1
        self.genesis: bytes | None = None
        self.newest: InputRecord | None = None

    def judge(self, record: InputRecord) -> str:
        """Why a record does not belong to the chain; empty if it does."""
        value = record.value
        try:
            name, fields = codec.decode(value, self._schemas)
        except CodecError as error:
            newer = error.reason is Reason.UNKNOWN_FINGERPRINT and self._continues(value, self.sequence)
            return _newer(fingerprint_of(value)) if newer else _NOT_OURS
        sequence = 0 if name == "Genesis" else fields["head"]["sequence"]
        if self._heads and not self._continues(value, sequence - 1):
            return _NOT_OURS
        self._heads.setdefault(sequence, set()).add(value[-CHAIN_BYTES:])
        self._heads.pop(sequence - _KEPT, None)
        if sequence > max(0, self.sequence):
            self.newest = record
        self.sequence = max(self.sequence, sequence)
        if sequence == 0 and self.genesis is None:
            self.genesis = value
        return ""

    def _continues(self, value: bytes, sequence: int) -> bool:
        content, closing = value[:-CHAIN_BYTES], value[-CHAIN_BYTES:]
        heads = self._heads.get(sequence, set())
        return any(one.digest("chain", head, content) == closing for one in self._digesters for head in heads)


_KEPT = 4096
"""The digests of this many last records are kept. A record that continues an older one was written by a worker that had
been suspended."""


def _newer(fingerprint: bytes) -> str:
    return (
        f"it continues the journal, in schema {fingerprint.hex()}, which this release does not know: run the release "
        f"that wrote it, or a later one"
    )


def find(connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None) -> Repair:
    """Look for foreign records in the journals, marks and states of roles (None: of all).

    Raises:
        HushstreamError: the topics cannot be read, a key was not given, or the deployment has no such role.
    """
    return asyncio.run(_find(connection, system, keys, roles))


async def _find(connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None) -> Repair:
    wanted = system.roles if roles is None else [role_of(system, name) for name in roles]
    found: list[Found] = []
    async with client_errors(connection, "read logs"), LogReader(connection.settings()) as reader:
        for role in wanted:
            make = role_work(role.name, system, keys).make_machine
            for home in range(system.homes(role)):
                _, others = await journal_walk(reader, role, home, system, keys)
                seal = NoteSeal(system.config.deployment, role.name, home, make.state_keys())
                notes = notes_in([record for record, _ in others], seal)
                found += _of_journal(role, home, others, notes)
                found += await _of_marks(reader, role, home, system, make, notes.values())
                found += await _of_states(reader, role, home, system, make)
    own = [topic for role in wanted for topic in role_topics(role, system).own]
    written = [topic for role in wanted for topic in role_topics(role, system).writes]
    outputs = [topic for topic in dict.fromkeys(written) if topic not in own]
    return Repair(tuple(found), tuple(dict.fromkeys(own)), tuple(outputs))


async def journal_walk(
    reader: LogReader, role: Role, home: int, system: System, keys: KeySource
) -> tuple[ChainWalk, list[tuple[InputRecord, str]]]:
    """Walk through a whole journal; returns the walk, and the records that are not in its chain, with the reason."""
    journal = (role.journal, home)
    schemas = [name for name in topic_of(system, role.journal).schemas if name != "OperatorNote"]
    digesters: Sequence[Digester] = (
        (PublicDigester(),) if role.key_zone is None else (keys.key(role.key_zone), *keys.ring(role.key_zone).kept())
    )
    first = (await reader.first_offsets([journal]))[journal]
    chain, others = ChainWalk(schemas, digesters, begins=first == 0), []
    async for record in reader.all_records(journal):
        why = chain.judge(record)
        if why:
            others.append((record, why))
    return chain, others


def _of_journal(
    role: Role, home: int, others: Iterable[tuple[InputRecord, str]], notes: Mapping[int, Note]
) -> list[Found]:
    source = (role.journal, home)
    return [
        Found(
            role.name, home, *source, record.offset, len(record.value), why, why != _NOT_OURS,
            is_noted(notes.values(), source, record.offset),
        )
        for record, why in others
        if record.offset not in notes
    ]  # fmt: skip


async def _of_marks(
    reader: LogReader, role: Role, home: int, system: System, make: MachineMaker, notes: Collection[Note]
) -> list[Found]:
    if role.marks is None:
        return []
    place = (role.marks, home)
    read = await read_marks(
        place, reader, MarkSeal(system.config.deployment, role.name, home, make.mark_keys()), role.name
    )
    lost = {offset for offset, _ in read.losses}
    found = [
        Found(role.name, home, *place, *met, _NO_MARK, met[0] in lost, is_noted(notes, place, met[0]))
        for met in read.foreign
    ]
    if read.missing:
        why = f"{read.missing}; `hushstream marks rebuild --role {role.name}`"
        found.append(Found(role.name, home, *place, 0, 0, why, stops=True))
    return found


async def _of_states(reader: LogReader, role: Role, home: int, system: System, make: MachineMaker) -> list[Found]:
    place = (role.state.name, home)
    seal = StateSeal(system.config.deployment, role.name, home, make.state_keys())
    found = []
    async for record in reader.all_records(place):
        try:
            if record.value:
                seal.unpack(record.value)
        except StateUnreadable as error:
            found.append(Found(role.name, home, *place, record.offset, len(record.value), str(error)))
    return found


def note(connection: Connection, system: System, keys: KeySource, repair: Repair) -> int:
    """Write notes that name the foreign records of journals and among marks; returns how many.

    Raises:
        HushstreamError: the journals cannot be written, or a key was not given.
    """
    return asyncio.run(_note(connection, system, keys, repair.to_note))


async def _note(connection: Connection, system: System, keys: KeySource, found: Sequence[Found]) -> int:
    notes = list(_ranges(found))
    async with client_errors(connection, "write notes"):
        producer = AIOKafkaProducer(**connection.settings().client_options(), enable_idempotence=True)
        await producer.start()
        try:
            for first, high in notes:
                make = role_work(first.role, system, keys).make_machine
                seal = NoteSeal(system.config.deployment, first.role, first.home, make.state_keys())
                value = seal.pack(Note(FOREIGN, (first.topic, first.partition), first.offset, high))
                name = physical(connection.prefix, role_of(system, first.role).journal)
                await producer.send_and_wait(name, value, partition=first.home)
        finally:
            await producer.stop()
    return len(notes)


def _ranges(found: Iterable[Found]) -> Iterator[tuple[Found, int]]:
    """Yield the first record of each run of adjacent offsets, and the offset after its last."""
    first: Found | None = None
    high = 0
    for one in sorted(found, key=lambda one: (one.topic, one.partition, one.offset)):
        if first is not None and (one.topic, one.partition, one.offset) == (first.topic, first.partition, high):
            high += 1
            continue
        if first is not None:
            yield first, high
        first, high = one, one.offset + 1
    if first is not None:
        yield first, high
