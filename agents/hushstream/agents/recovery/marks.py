"""Keeps the release marks that a zone's workers share in a compacted topic: raised before releases, read by recoveries.

The order of the protocol matters:

1. A new journal gets mark 0 before its first fold. So a journal that has records and no mark has lost its marks.
2. Record n is acknowledged in the journal; then mark n is acknowledged here, and on disk (see
   *High water*); then the outputs of record n are sent. One mark covers all records before it.
3. A recovery reads the marks before it asks for the journal's end, so a journal that was not rolled back holds every
   record that a mark names.

**A suspended owner cannot lower a mark.** Compaction keeps at least the last record of each key. The key of a mark
holds the journal, the generation and a random name of the process that wrote it. A process never writes a lower mark
under a key than it wrote before (`_Written`; its producer keeps the order). So the last record of a key is its highest,
and compaction never removes the maximum over all keys. An owner that was suspended before its append, and resumes after
others have gone on, appends under its own key: readers take the maximum, which does not change. Marks are never
deleted: over time the topic grows by one small record for each process that has ever owned a partition.

**A foreign record cannot lower a mark.** Anybody with write access to the topic can put anything there, and compaction
may remove a mark in favour of a later foreign record under the same key. So a record that is no mark of the partition
is skipped only in two cases: no mark of the partition can have its key, or a later mark has the same key, which is at
least as high as all marks before it under that key. In both cases the reader finds the same maximum as without the
foreign record. If a foreign record (or a tombstone) is the last one under the key of a mark, the removed mark may have
been the highest, and the partition is refused. It is also refused if the topic does not begin at offset 0. An operator
can end both refusals, at a price: `hushstream logs repair marks` writes a mark of a newer generation after the loss,
which also requests a new epoch (never for a role whose journal is `irreplaceable`).

*Foreign.* Counts the foreign records in a worker's own topics, and logs each once.

A foreign record is in no chain and under no key of the zone: anybody with write access to a topic can put it there.
Readers skip it, so nothing stops. But it shows that somebody has a right that they should not have, so the owner of the
topic counts it, and an alert fires.

*High water.* Keeps release marks on a worker's own disk, beside those in the zone's topic.

A mark's file is on disk before anything that it covers is sent. Each higher mark is a new file; lower ones are deleted
afterwards, and the highest counts. So an owner that was suspended cannot lower the mark of the next owner, and no owner
waits for a suspended one. Files lie in the data directory unless the settings name another folder. Another folder is
better: a backup of the data then brings back no old mark, and a lost topic of marks is noticed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aiokafka.errors import KafkaError

from hushstream.agents.datadir import owner_only
from hushstream.agents.errors import DiskRefused, PartitionError, from_client
from hushstream.agents.kafka.administration import committed_mark
from hushstream.agents.kafka.logs import LogReader, partition_counts
from hushstream.agents.recovery.journal import Sender
from hushstream.agents.recovery.losses import ALL_AT_ONCE, NeededWords, journal_word
from hushstream.agents.recovery.snapshots import HoldsMarkKeys
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.marks import NEW, Mark, MarkSeal, MarkUnreadable, ReleaseEvidence
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.records import Output, TopicPartition
from hushstream.privacy.key_files import sync_folder
from hushstream.schemas.topics import PartitionRule, Topic

_DIGEST_CHARACTERS = 32


class OlderThanReleased(PartitionError):
    """By the marks, the journal is older than what was released from it; or the marks are damaged or missing."""


@dataclass(frozen=True, slots=True)
class HighWater:
    """Keeps the mark files of one worker.

    Attributes:
        settings: name the folder of the files, the role and the deployment.
        raised: the last mark of each journal that this object wrote; only the first one needs a search of the folder.
    """

    settings: WorkerSettings
    raised: dict[str, tuple[int, int]] = field(default_factory=dict)

    def noted(self, partition: int) -> tuple[Mark, ...]:
        """The highest mark of each journal of a home partition.

        Raises:
            OlderThanReleased: a mark is damaged.
        """
        marks = []
        for start in sorted({name.rpartition(".")[0] + "." for name in self._stems(self._place(partition))}):
            mark = self._highest(start)
            if mark is not None:
                marks.append(mark)
        return tuple(marks)

    def raise_to(self, partition: int, mark: Mark) -> None:
        """Write a mark to disk, unless there is a higher one of the same journal.

        Raises:
            DiskRefused: the disk refused the write: nothing may be released, and the partition is tried again.
            OlderThanReleased: the existing mark is damaged.
        """
        start = f"{self._place(partition)}{mark.journal}."
        first, place = start not in self.raised, (mark.generation, mark.sequence)
        there = self._highest(start) if first else None
        known = self.raised.get(start, (-1, -1)) if there is None else (there.generation, there.sequence)
        if known >= place:
            return
        path = self._path(start, place)
        try:
            self._write(path, mark, first)
            for lower in [_place_of(stem) for stem in self._stems(start)] if first else [known]:
                if lower < place:
                    self._path(start, lower).unlink(missing_ok=True)
        except OSError as error:
            raise DiskRefused(f"{path}: the mark could not be written ({error.strerror}); not released") from None
        self.raised[start] = place

    def _write(self, path: Path, mark: Mark, first: bool) -> None:
        body = json.dumps(
            {"journal": mark.journal, "generation": mark.generation, "sequence": mark.sequence}, sort_keys=True
        )
        fresh = path.with_suffix(f".{os.getpid()}.new")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Only the owner may read the file: how far a journal has released is private to the zone (its topic is sealed).
        with open(fresh, "w", encoding="ascii", opener=owner_only) as file:
            file.write(f"{_digest(body)} {body}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(self.settings.marks_folder)
        if first:
            sync_folder(self.settings.marks_folder.parent)

    def _highest(self, start: str) -> Mark | None:
        """The highest mark among the files whose names begin with ``start``."""
        while stems := self._stems(start):
            place = max(map(_place_of, stems))
            path = self._path(start, place)
            try:
                digest, _, body = path.read_text(encoding="ascii").rstrip("\n").partition(" ")
            except FileNotFoundError:
                continue  # another process has written a higher one, and deleted this
            except (OSError, UnicodeDecodeError) as error:
                raise OlderThanReleased(f"{path}: expected a readable mark, got {type(error).__name__}") from None
            found = json.loads(body) if digest == _digest(body) else {}
            if (found.get("generation"), found.get("sequence")) != place:
                raise OlderThanReleased(f"{path}: expected a release mark, got damaged content")
            return Mark(found["journal"], found["sequence"], found["generation"])
        return None

    def _stems(self, start: str) -> list[str]:
        return [path.stem for path in self.settings.marks_folder.glob("*.json") if path.name.startswith(start)]

    def _path(self, start: str, place: tuple[int, int]) -> Path:
        return self.settings.marks_folder / f"{start}{place[0]}-{place[1]}.json"

    def _place(self, partition: int) -> str:
        return f"{self.settings.deployment}.{self.settings.role}.{partition}."


def _place_of(stem: str) -> tuple[int, int]:
    generation, _, sequence = stem.rpartition(".")[2].partition("-")
    if not (generation.isdecimal() and sequence.isdecimal()):
        raise OlderThanReleased(f"{stem}.json: expected the name of a mark to end with GENERATION-RECORD, got another")
    return int(generation), int(sequence)


def _digest(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=_DIGEST_CHARACTERS // 2, person=b"hush-paid").hexdigest()


_REMEMBERED = 4096


@dataclass(slots=True)
class ForeignRecords:
    """Counts the foreign records that one worker has read.

    Attributes:
        count: called with the topic, for each foreign record that was not read before.
        is_note: whether a record in a home partition's journal is an operator's note.
        remedy: the command that lists foreign records.
    """

    count: Callable[[str], None] = lambda topic: None
    is_note: Callable[[int, bytes], bool] = lambda partition, value: False
    remedy: str = "hushstream logs check"
    _met: dict[TopicPartition, set[int]] = field(default_factory=dict)

    def in_journal(self, journal: TopicPartition, offset: int, value: bytes) -> None:
        """Count a record of a journal that is not in its chain, unless it is an operator's note."""
        if not self.is_note(journal[1], value):
            self.add(journal, offset, len(value), "a journal record")

    def add(self, place: TopicPartition, offset: int, size: int, why: str) -> None:
        """Count a foreign record. Each recovery reads it again, but it counts only once.

        Args:
            place: logical topic and partition.
            offset: the record's offset.
            size: the number of bytes of its value.
            why: what was expected instead of it.
        """
        known = self._met.setdefault(place, set())
        if offset in known:
            return
        if len(known) >= _REMEMBERED:
            known.discard(min(known))  # otherwise endless foreign records would fill this worker's memory
        known.add(offset)
        self.count(place[0])
        logger.warning(
            "%s/%d offset %d: skipped a record of %d bytes that is not of this deployment (%s); "
            "`%s` lists them", *place, offset, size, why, self.remedy,
        )  # fmt: skip


logger = logging.getLogger(__name__)

_PRICE = (
    "releases made from the lost records remain, perhaps without a charge in any ledger; whoever they were about pays "
    "once more for later ones (one more epsilon, one more allowance): this role's ledger charges every incarnation "
    "that marks know of, and one more; a role that counts this role's records again under other names charges nothing "
    "for them, so there each accepted loss lets the whole budget be spent once more"
)
"""What it costs to accept a refused journal, for the message."""
_KEYLESS = "this copy of the log has no record keys, so ask the deployment itself"
_READ_AT_ONCE = 4096
_WRITER_BYTES = 8


NOTHING_MORE = "the budget pays for no further epoch, so nothing is released here any more, in whatever epoch"
"""What a lost incarnation costs where the budget has room for no other."""


def price_of_going_on(terms: SpendingTerms | None, evidence: ReleaseEvidence) -> str:
    """What the next release pays, in words, if an operator goes on with what is here."""
    if terms is None or terms.pays_again(evidence.incarnations(before=evidence.next_generation)):
        return "the next release pays for an epoch of its own"
    return NOTHING_MORE


def never_anew(missing: str, never: str) -> str:
    """Why lost marks are not written again beside a journal that may be an older copy: ``never`` would follow."""
    return (
        f"{missing}. Bring the topic back; or begin a deployment under another name, and add up the costs of both. "
        f"No mark is written anew, as nothing tells whether the journal is the newest: if it is not, {never}"
    )


@dataclass(slots=True)
class _Written:
    """The last mark of one journal and generation that this process has written and the broker has acknowledged."""

    sent: Mark
    acknowledged: Mark


@dataclass(slots=True)
class ReleaseMarks:
    """Reads and writes the marks of one worker's home partitions.

    Attributes:
        settings: the worker's.
        topic: the topic of its zone's marks.
        evidence: topics outside the zone that only this role writes (`hushstream.agents.worker.preflight.RoleTopics`).
        declared: the declaration of the role's topics, by name.
        keys: give the zone's keys.
        sender: sends the marks.
        files: the marks on this worker's disk.
        foreign: counts records that are no marks of their partition.
        words: notes which of the operator's words were needed.
    """

    settings: WorkerSettings
    topic: str
    evidence: Collection[str]
    declared: Mapping[str, Topic]
    keys: HoldsMarkKeys
    sender: Sender
    files: HighWater
    foreign: ForeignRecords = field(default_factory=ForeignRecords)
    words: NeededWords = field(default_factory=NeededWords)
    _writer: str = field(default_factory=lambda: os.urandom(_WRITER_BYTES).hex())
    _written: dict[tuple[int, str, int], _Written] = field(default_factory=dict)
    _seals: dict[int, MarkSeal] = field(default_factory=dict)

    async def read(self, partition: int, reader: LogReader, commits: Collection[str]) -> ReleaseEvidence:
        """Read what is known about the releases of a home partition; call this before reading its journal.

        Args:
            partition: the home partition.
            reader: an opened reader, which forgets the partitions that it had open.
            commits: metadata of the group's commits for the partition, which were read before.

        Raises:
            OlderThanReleased: a mark cannot be read, or some were deleted.
        """
        committed = tuple(mark for mark in map(committed_mark, commits) if mark is not None)
        signs = [*self._commit_signs(committed), *await self._topic_signs(partition, reader)]
        noted = await asyncio.to_thread(self.files.noted, partition)
        return ReleaseEvidence(await self._shared(partition, reader), noted, tuple(signs), committed)

    def seal(self, partition: int) -> MarkSeal:
        """The seal for the marks of a home partition, with the keys that the zone's key file holds now."""
        seal = MarkSeal(self.settings.deployment, self.settings.role, partition, self.keys.mark_keys())
        self._seals[partition] = seal
        return seal

    def require(self, evidence: ReleaseEvidence, partition: int, journal: str | None, sequence: int) -> bool:
        """Refuse a journal that is behind its marks, unless an operator has accepted this very refusal.

        Returns:
            Whether the journal was accepted only because an operator has accepted the loss.

        Raises:
            OlderThanReleased: the journal is refused; says why, and what an operator can do.
        """
        suspicion = evidence.suspicion(journal, sequence)
        if not suspicion:
            return False
        name = journal if journal is not None and sequence else NEW
        word = journal_word(partition, name, evidence.next_generation)
        never = self.keys.irreplaceable
        if not never and self.words.accepts(word, self.settings.accept_loss):
            return True
        price = price_of_going_on(self.keys.spending_terms, evidence)
        where = f"topic {self.settings.physical(self.topic)}, folder {self.settings.marks_folder}"
        refused = (
            f"partition {partition}: the journal is refused: {suspicion} (marks: {where}). Bring the newer topics "
            f"back, all of one moment; or begin a deployment under another name, and add up the costs of both"
        )
        if never:
            raise OlderThanReleased(f"{refused}. No --accept-loss goes on with what is here: {never}")
        raise OlderThanReleased(
            f"{refused}. To go on with what is here, start this worker with --accept-loss {word} ({_PRICE}; {price}). "
            f"If other partitions are refused too, {ALL_AT_ONCE}"
        )

    async def begin(
        self, partition: int, evidence: ReleaseEvidence, journal: str, sequence: int, accepted: bool
    ) -> int:
        """Prepare to raise a journal's marks. Write a mark if it has none, or was accepted against its marks.

        Args:
            partition: the home partition.
            evidence: what was known before.
            journal: the journal's name.
            sequence: the number of its last record.
            accepted: whether an operator has accepted it against its marks.

        Returns:
            The generation of the marks that this worker writes.
        """
        if not accepted and evidence.knows(journal):
            mark = Mark(journal, evidence.highest_shared(journal), evidence.generation, paid=evidence.paid(journal))
            self._written.setdefault((partition, journal, mark.generation), _Written(mark, mark))
            return mark.generation
        generation = evidence.next_generation if accepted else evidence.generation
        mark = Mark(journal, sequence, generation, accepted, evidence.paid(journal))
        await self._append(partition, mark)
        if accepted:
            logger.warning("partition %d: went on with a refused journal by the operator's word", partition)
            await asyncio.to_thread(self.files.raise_to, partition, mark)
        mark = replace(mark, accepted=False)
        self._written[partition, journal, generation] = _Written(mark, mark)
        return generation

    async def raise_to(
        self, partition: int, journal: str, generation: int, sequence: int, outputs: Sequence[Output]
    ) -> None:
        """Write a mark that the outputs of a journal's records up to ``sequence`` are about to be sent.

        Args:
            partition: the home partition, for which `begin` was called.
            journal: the journal's name.
            generation: the generation of its marks.
            sequence: the number of an acknowledged record.
            outputs: the outputs that will be sent; the mark notes whether a debit is among them.

        Raises:
            JournalLost: broker or disk refused the mark: nothing may be released, and the partition is tried again.
        """
        known = self._written[partition, journal, generation]
        paid = known.sent.paid or any(self.declared[output.topic].is_ledger for output in outputs)
        mark = replace(known.sent, sequence=max(sequence, known.sent.sequence), paid=paid)
        noting = asyncio.to_thread(self.files.raise_to, partition, mark)
        if known.acknowledged == mark:
            await noting
            return
        known.sent = mark
        await asyncio.gather(self._append(partition, mark), noting)
        known.acknowledged = mark

    async def _append(self, partition: int, mark: Mark) -> None:
        key = mark_key(self.settings.role, partition, mark, self._writer)
        value = self._seals[partition].pack(mark)
        try:
            await (await self.sender.send(Output(self.topic, partition, value, key)))
        except (KafkaError, ConnectionError, TimeoutError) as error:
            raise from_client(error, "writing a release mark") from error

    async def _shared(self, partition: int, reader: LogReader) -> tuple[Mark, ...]:
        """The marks in the topic: the highest of each journal and generation, and operators' words.

        Raises:
            OlderThanReleased: a mark may be missing, and no operator has accepted that.
        """
        read = await read_marks((self.topic, partition), reader, self.seal(partition), self.settings.role)
        for offset, size in read.foreign:
            self.foreign.add((self.topic, partition), offset, size, "a release mark")
        if read.missing:
            where, role = f"{self.settings.physical(self.topic)}/{partition}", self.settings.role
            if self.keys.irreplaceable:
                raise OlderThanReleased(never_anew(f"{where}: {read.missing}", self.keys.irreplaceable))
            rebuild = self.settings.command(f"logs repair marks --role {role} --write")
            price = price_of_going_on(self.keys.spending_terms, ReleaseEvidence(read.marks))
            raise OlderThanReleased(
                f"{where}: {read.missing}. Bring the topic back; or stop the workers of role {role} and go on with "
                f"what the journals say: `{rebuild}` ({price})"
            )
        return read.marks

    async def _topic_signs(self, partition: int, reader: LogReader) -> list[str]:
        """Signs of earlier releases: topics that hold outputs of this partition, or of a zone that has no mark yet."""
        if not self.evidence:
            return []
        own = {t for t in self.evidence if self.declared[t].partition_rule is PartitionRule.HOME}
        counts = await partition_counts(self.settings, {*self.evidence, self.topic} - own)
        siblings = await reader.end_offsets([(self.topic, p) for p in range(counts[self.topic])])
        places = [(topic, partition) for topic in own]
        if not any(siblings.values()):
            places += [(topic, p) for topic in {*self.evidence} - own for p in range(counts[topic])]
        ends = await reader.end_offsets(places)
        return [
            f"topic {self.settings.physical(topic)} is not empty, and a new journal has released nothing"
            for topic in sorted({topic for (topic, _), end in ends.items() if end})
        ]

    def _commit_signs(self, committed: Collection[Mark]) -> list[str]:
        found = {mark.journal for mark in committed}
        return [f"the group {self.settings.group} has committed work on journal {name}" for name in sorted(found)]


@dataclass(frozen=True, slots=True)
class ReadMarks:
    """The content of one partition of a topic of marks.

    Attributes:
        marks: the highest mark of each journal and generation, and operators' words.
        foreign: (offset, bytes) of each foreign record that cannot have replaced a mark.
        losses: (offset, why) of each place where marks may be missing, if no operator has accepted that; the offset is
            -1 for marks before the first record.
        lost: whether marks may be missing, accepted or not.
    """

    marks: tuple[Mark, ...]
    foreign: tuple[tuple[int, int], ...]
    losses: tuple[tuple[int, str], ...]
    lost: bool

    @property
    def missing(self) -> str:
        """Why marks may be missing, if no operator has accepted that; otherwise empty."""
        return "; ".join(why if offset < 0 else f"offset {offset}: {why}" for offset, why in self.losses)


class MarkWalk:
    """Goes through the records of one partition of a topic of marks, and tells marks from foreign records."""

    def __init__(self, unpack: Callable[[bytes], Mark | None], role: str, partition: int) -> None:
        """Begin with the first record.

        Args:
            unpack: opens the record of a mark as `MarkSeal.unpack` does.
            role: the role that writes the marks.
            partition: its home partition.
        """
        self._unpack = unpack
        self._place = role, partition
        self._found: dict[tuple[str, int, bool], Mark] = {}
        self._unread: dict[bytes | None, tuple[int, int, str]] = {}
        self._keyless: list[tuple[int, int, str]] = []
        self._passed: list[tuple[int, int]] = []
        self._accepted = (-1, -1)

    def take(self, offset: int, value: bytes, key: bytes | None) -> None:
        """Judge the next record by its value and its record key."""
        unreadable = self._judge(offset, value)
        if unreadable and is_mark_key(key, *self._place):
            self._unread[key] = (offset, len(value), f"{unreadable}, under the key of a mark")
        elif unreadable:
            self._passed.append((offset, len(value)))
        elif unreadable is not None and key in self._unread:
            # This mark is at least as high as one that an earlier foreign record of the same key may have replaced.
            self._passed.append(self._unread.pop(key)[:2])

    def take_without_key(self, offset: int, value: bytes) -> None:
        """Judge the next record where its key was not kept: a foreign one may have had the key of a mark."""
        unreadable = self._judge(offset, value)
        if unreadable:
            self._keyless.append((offset, len(value), f"{unreadable}, perhaps under the key of a mark: {_KEYLESS}"))

    def _judge(self, offset: int, value: bytes) -> str | None:
        """Why the record is no mark of the partition; empty for a mark, None for one under a destroyed key."""
        try:
            mark = self._unpack(value)
        except MarkUnreadable as error:
            return str(error)
        if mark is None:
            return None
        _keep(self._found, mark)
        if mark.accepted:
            self._accepted = max(self._accepted, (mark.generation, offset))
        return ""

    def end(self, first: int) -> ReadMarks:
        """What was found in a log that begins at offset ``first``."""
        unread = [*self._unread.values(), *self._keyless]
        losses = [(offset, why) for offset, _, why in unread]
        if first > 0:
            losses.append((-1, f"expected every mark from offset 0 on, the log begins at {first}: marks were deleted"))
        # An operator has seen all marks only if the acceptance is in the newest generation.
        newest = max((mark.generation for mark in self._found.values()), default=0)
        generation, at = self._accepted
        still_open = tuple(one for one in sorted(losses) if generation < newest or one[0] > at)
        passed = sorted([*self._passed, *((offset, size) for offset, size, _ in unread)])
        return ReadMarks(tuple(self._found.values()), tuple(passed), still_open, bool(losses))


async def read_marks(place: TopicPartition, reader: LogReader, seal: MarkSeal, role: str) -> ReadMarks:
    """Read a partition of a topic of marks from its beginning to its end.

    Args:
        place: topic and partition.
        reader: an opened reader, which forgets the partitions that it had open.
        seal: the seal of the partition's marks.
        role: the role that writes the marks.
    """
    first, end = (await reader.first_offsets([place]))[place], (await reader.end_offsets([place]))[place]
    reader.open({place: first})
    walk = MarkWalk(seal.unpack, role, place[1])
    for low in range(first, end, _READ_AT_ONCE):
        for record in await reader.fetched(place, low, min(end, low + _READ_AT_ONCE)):
            walk.take(record.offset, record.value or b"", record.key)
    return walk.end(first)


def mark_key(role: str, partition: int, mark: Mark, writer: str) -> bytes:
    """The record key of a mark; ``writer`` is the random name of the process."""
    parts = (role, partition, mark.journal, mark.generation, writer)
    return "/".join(map(str, (*parts, *(["accepted"] if mark.accepted else [])))).encode()


def is_mark_key(key: bytes | None, role: str, partition: int) -> bool:
    """Whether a mark of this role and partition may have this record key."""
    return key is not None and key.startswith(f"{role}/{partition}/".encode())


def _keep(found: dict[tuple[str, int, bool], Mark], mark: Mark) -> None:
    place = (mark.journal, mark.generation, mark.accepted)
    known = found.get(place)
    if known is not None:
        mark = replace(mark, sequence=max(mark.sequence, known.sequence), paid=mark.paid or known.paid)
    found[place] = mark
