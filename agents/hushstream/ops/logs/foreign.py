"""Finds foreign records in the topics that roles follow, and notes that they are known.

Readers skip foreign records (`hushstream.engine.journal.chain`), so nothing has to be removed. The operator has to find
out who can write there, and note the records as known. Until a note under the key of the zone names a foreign record of
a journal or among marks (`hushstream.engine.journal.notes`), `verify` reports it as *changed*. All notes of a role and
home partition lie in its journal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.marks import read_marks
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, role_of, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.chain import BEGINNING, CHAIN_BYTES, Digester
from hushstream.engine.journal.notes import FOREIGN, Note, is_noted, notes_in
from hushstream.engine.records import InputRecord
from hushstream.engine.state.published import StateUnreadable
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import RoleLogs, reading, roles_asked
from hushstream.ops.logs.losses import Appended, Plan, append
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError, fingerprint_of
from hushstream.schemas.rows import Reason

_NOT_OURS = "no record of the journal's chain"
_NO_MARK = "no mark of this place"


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

    @property
    def place(self) -> tuple[str, int, str, int]:
        """Role, home partition, topic and partition."""
        return self.role, self.home, self.topic, self.partition

    def __str__(self) -> str:
        """One line."""
        what = "STOPS READERS" if self.stops else "noted before" if self.noted else "skipped by readers"
        return f"{self.topic}/{self.partition} offset {self.offset} ({self.size} bytes): {what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at the roles' own topics found.

    Attributes:
        records: foreign records, and records that stop readers.
        read: the topics that were read.
        outputs: the topics that the same roles write for others. Their records are in no chain, and no note covers
            them: `verify` compares them with what the journals say.
    """

    records: tuple[Found, ...]
    read: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToNote:
    """Adjacent foreign records of one log that no note names yet: ``low <= offset < high``."""

    role: str
    home: int
    topic: str
    partition: int
    low: int
    high: int

    def __str__(self) -> str:
        """One line."""
        return (
            f"note in the journal of {self.role} {self.home}: {self.topic}/{self.partition} offsets {self.low} to "
            + (f"{self.high - 1} are foreign")
        )


async def check(
    connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None
) -> Checked:
    """Look for foreign records in the journals, marks and states of roles (None: of all).

    Raises:
        HushstreamError: the topics cannot be read, a key was not given, or the deployment has no such role.
    """
    wanted = roles_asked(system, roles)
    own = [topic for role in wanted for topic in role_topics(role, system).own]
    found: list[Found] = []
    async with reading(connection, own) as reader:
        for role in wanted:
            of = RoleLogs(role, system, keys)
            for home in of.homes:
                _, others = await journal_walk(reader, of, home)
                notes = notes_in([record for record, _ in others], of.notes(home))
                found += _of_journal(role, home, others, notes)
                found += await _of_marks(reader, of, home, notes.values())
                found += await _of_states(reader, of, home)
    written = [topic for role in wanted for topic in role_topics(role, system).writes if topic not in own]
    return Checked(tuple(found), tuple(dict.fromkeys(own)), tuple(dict.fromkeys(written)))


async def plan(
    connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None
) -> Plan[ToNote]:
    """Plan notes of the foreign records of journals and among marks that no note names; the arguments are of `check`.

    One that may have replaced a mark is not among them while nobody has accepted that loss: where a copy of the logs
    has no record keys, a note would hide it.

    Raises:
        HushstreamError: as `check`.
    """
    found = (await check(connection, system, keys, roles)).records
    foreign = [one for one in found if one.why in (_NOT_OURS, _NO_MARK) and not (one.noted or one.stops)]
    rows = tuple(_ranges(foreign))

    async def act() -> None:
        notes = []
        for row in rows:
            of = RoleLogs(role_of(system, row.role), system, keys)
            note = Note(FOREIGN, (row.topic, row.partition), row.low, row.high)
            notes.append(Appended(of.role.journal, row.home, of.notes(row.home).pack(note)))
        await append(connection, "write notes", notes)

    return Plan(rows, act, tuple(str(one) for one in found if one.stops))


def _ranges(found: Iterable[Found]) -> Iterator[ToNote]:
    """Join records at adjacent offsets: in a run, offset and number grow alike."""
    ordered = sorted(found, key=lambda one: (one.topic, one.partition, one.offset))
    for _, run in groupby(enumerate(ordered), lambda item: (*item[1].place, item[1].offset - item[0])):
        records = [one for _, one in run]
        yield ToNote(*records[0].place, records[0].offset, records[-1].offset + 1)


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


async def journal_walk(reader: LogReader, of: RoleLogs, home: int) -> tuple[ChainWalk, list[tuple[InputRecord, str]]]:
    """Walk through a whole journal; returns the walk, and the records that are not in its chain, with the reason."""
    journal = (of.role.journal, home)
    schemas = [name for name in topic_of(of.system, of.role.journal).schemas if name != "OperatorNote"]
    first = (await reader.first_offsets([journal]))[journal]
    chain, others = ChainWalk(schemas, of.digesters(), begins=first == 0), []
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


async def _of_marks(reader: LogReader, of: RoleLogs, home: int, notes: Collection[Note]) -> list[Found]:
    role = of.role
    if role.marks is None:
        return []
    place = (role.marks, home)
    read = await read_marks(place, reader, of.marks(home), role.name)
    lost = {offset for offset, _ in read.losses}
    found = [
        Found(role.name, home, *place, *met, _NO_MARK, met[0] in lost, is_noted(notes, place, met[0]))
        for met in read.foreign
    ]
    if read.missing:
        why = f"{read.missing}; `hushstream logs repair marks --role {role.name}`"
        found.append(Found(role.name, home, *place, 0, 0, why, stops=True))
    return found


async def _of_states(reader: LogReader, of: RoleLogs, home: int) -> list[Found]:
    role, place, seal = of.role, (of.role.state.name, home), of.states(home)
    found = []
    async for record in reader.all_records(place):
        try:
            if record.value:
                seal.unpack(record.value)
        except StateUnreadable as error:
            found.append(Found(role.name, home, *place, record.offset, len(record.value), str(error)))
    return found
