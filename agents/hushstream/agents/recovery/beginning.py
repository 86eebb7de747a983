"""Chooses what a machine begins with: its first journal record, the snapshot on this worker's disk, or a published
state.

A worker's disk is a cache: if a newer state was published (`hushstream.agents.recovery.state_topic`), that state is
fetched first. A state is used only if the journal holds the very record that the state ends with. A state of a lost
branch, on disk or published, shows that the journal was rolled back. The partition is then refused; if an operator has
accepted the loss, the state is moved aside instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import aclosing
from dataclasses import dataclass, field

from hushstream.agents.errors import DiskRefused, JournalTruncated, TopicsReplaced
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.journal import Sender, genesis_of, holds, last_record, newest
from hushstream.agents.recovery.marks import ReleaseMarks
from hushstream.agents.recovery.snapshots import MachineFactory, RecoveredMachine, Snapshot, SnapshotStore
from hushstream.agents.recovery.state_topic import Found, PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.chain import IF_INTENDED
from hushstream.engine.journal.marks import ReleaseEvidence
from hushstream.engine.records import Output, TopicPartition
from hushstream.engine.state.packed import OtherForm
from hushstream.engine.state.published import Head, record_digest

logger = logging.getLogger(__name__)

_FAR_BEHIND = 256
"""If a published state is this many journal records ahead of a machine in memory, reading the state is cheaper."""

_ON_DISK = "the data directory"


@dataclass(frozen=True, slots=True)
class Beginning:
    """Makes the machines with which one worker's recoveries begin; its attributes are those of
    `hushstream.agents.recovery.recovery.Recovery`.
    """

    settings: WorkerSettings
    make_machine: MachineFactory
    sender: Sender
    snapshots: SnapshotStore
    marks: ReleaseMarks | None
    states: PublishedStates | None
    _unread: dict[int, list[str]] = field(default_factory=dict)
    _of_no_use: set[bytes] = field(default_factory=set)
    """The names of publications that cannot be used, because another release wrote them in another form."""

    async def keeps(self, cached: RecoveredMachine, reader: LogReader) -> bool:
        """Whether recovery may go on from a machine that was kept in memory, with the journal as it is now."""
        machine = cached.machine
        journal = machine.journal
        if (await reader.first_offsets([journal]))[journal] == 0:
            found = await genesis_of(reader, self.make_machine, journal, cached.journal_offset)
            if found is None or found.value != cached.genesis:
                return False
        if cached.sequence and await last_record(reader, machine, cached.sequence, cached.journal_offset) is None:
            return False
        newest = await self._newest(journal[1], reader)
        if newest is None:
            return True
        positions = machine.positions()
        if not await self._fits(newest, cached, reader) or newest.head.sequence > cached.sequence + _FAR_BEHIND:
            return False
        if newest.head.place <= (cached.sequence, sum(positions.values())):
            return True
        # Check broadcasts, too: a machine that must read one without a gap cannot go on if its next record was deleted.
        firsts = await reader.first_offsets([*machine.inputs, *machine.broadcasts])
        return all(positions.get(source, 0) >= first for source, first in firsts.items())

    async def begin(self, partition: int, reader: LogReader, evidence: ReleaseEvidence) -> RecoveredMachine:
        """Make a machine from the newest state that there is, or from the genesis record if there is none.

        Raises:
            HushstreamError: the journal is another deployment's, or a state does not belong to it.
        """
        machine = self.make_machine(partition)
        journal = machine.journal
        # Open the users' file only once. Until this worker folds, another owner may still save a snapshot; the loaded
        # state must not be used with the users of that snapshot.
        users = await asyncio.to_thread(self.snapshots.users, partition) if machine.spills_users else None
        local, newest = self.snapshots.load(partition), await self._newest(partition, reader)
        first = (await reader.first_offsets([journal]))[journal]
        if first == 0 and await genesis_of(reader, self.make_machine, journal) is None:
            # Write a genesis only if there is no state and no mark of an earlier journal. Otherwise every budget and
            # every allowance would be full again, for the same users.
            self._require_new(journal, local, newest)
            if self.marks is not None:
                self.marks.require(evidence, partition, None, 0)
            await (await self.sender.send(Output(*journal, machine.genesis(os.urandom(32)))))
        known = local if local is not None else None if newest is None else newest.head
        genesis, behind = await self._genesis(reader, journal, first, known)
        machine = self.make_machine.of_journal(partition, genesis, resumed=known is not None)
        machine.start(genesis)
        start = RecoveredMachine(machine, genesis, 0, behind, record_digest(genesis))
        fetched = await self._cache_newest(start, reader, evidence, local)
        if fetched is not None:
            local = self.snapshots.load(partition)
        if users is not None:
            machine.keep_users(users, self.settings.resident_users)
        if local is None and first > start.journal_offset:
            raise self._truncated(journal, first)
        if local is None:
            return start
        self._check_place(journal, first, genesis, local, _ON_DISK)
        return await self._restored(start, reader, evidence, local, fetched)

    def unread(self, partition: int) -> str:
        """Say, for an error message, which published states exist besides the one that a machine began with."""
        if self.states is None:
            return "states are published nowhere"
        found = self._unread.get(partition)
        if not found:
            return f"topic {self.states.name} holds no newer state"
        return f"topic {self.states.name} holds states that are of no use: {'; '.join(dict.fromkeys(found))}"

    async def _restored(
        self,
        start: RecoveredMachine,
        reader: LogReader,
        evidence: ReleaseEvidence,
        snapshot: Snapshot,
        fetched: Found | None,
    ) -> RecoveredMachine:
        machine, partition = start.machine, start.machine.journal[1]
        try:
            machine.restore(snapshot.state)
        except OtherForm as error:
            if fetched is None:
                return await self._without_snapshot(partition, reader, evidence, str(error))
            self._of_no_use.add(fetched.publication)
            self.snapshots.drop(partition)
            logger.warning("partition %d: topic %s: %s; it is skipped", partition, self._topic, error)
            return await self.begin(partition, reader, evidence)
        value: bytes | None = start.genesis
        if snapshot.sequence:
            value = await last_record(reader, machine, snapshot.sequence, snapshot.journal_offset)
        if value is None:
            await self._require_rebuilding(start, reader, evidence, snapshot, _ON_DISK)
            why = self._lost(machine.journal)
            return await self._without_snapshot(partition, reader, evidence, f"snapshot: {why}")
        # A snapshot is saved only when everything up to it was released.
        recovered = RecoveredMachine(
            machine, start.genesis, snapshot.sequence, snapshot.journal_offset, record_digest(value)
        )
        recovered.released = snapshot.sequence
        return recovered

    async def _newest(self, partition: int, reader: LogReader) -> Found | None:
        """The newest publication whose head can be read."""
        if self.states is None:
            return None
        self._unread[partition] = []
        async with aclosing(self.states.candidates(partition, reader, self._unread[partition])) as candidates:
            async for found in candidates:
                if found.publication not in self._of_no_use:
                    return found
        return None

    async def _cache_newest(
        self, start: RecoveredMachine, reader: LogReader, evidence: ReleaseEvidence, local: Snapshot | None
    ) -> Found | None:
        """Copy the newest published state to this worker's disk, if it is newer than the snapshot there."""
        if self.states is None:
            return None
        journal = start.machine.journal
        partition = journal[1]
        unread = self._unread[partition] = []
        first = (await reader.first_offsets([journal]))[journal]
        where = f"topic {self.states.name}"
        async with aclosing(self.states.candidates(partition, reader, unread)) as candidates:
            async for found in candidates:
                head = found.head
                if found.publication in self._of_no_use:
                    continue
                self._check_place(journal, first, start.genesis, head, where)
                if not await self._fits(found, start, reader):
                    await self._require_rebuilding(start, reader, evidence, head, where)
                    self.states.disregard(partition)
                    logger.warning("partition %d: %s: %s; it is skipped", partition, where, self._lost(journal))
                    continue
                if local is not None and head.place <= local.place:
                    return None
                try:
                    why = await self.states.fetch(partition, found, reader)
                except OSError as error:
                    raise DiskRefused(
                        f"{where}: the state could not be kept on disk ({error.strerror or error})"
                    ) from None
                if not why:
                    return found
                unread.append(why)
        for why in unread:
            logger.warning("partition %d: %s: a state was skipped: %s", partition, where, why)
        return None

    async def _fits(self, found: Found, start: RecoveredMachine, reader: LogReader) -> bool:
        """Whether a published state belongs to the journal as it is now."""
        head = found.head
        if head.genesis != start.genesis:
            return False
        return await holds(reader, start.machine, head.sequence, head.journal_offset, head.record)

    async def _without_snapshot(
        self, partition: int, reader: LogReader, evidence: ReleaseEvidence, why: str
    ) -> RecoveredMachine:
        """Move the snapshot aside and begin with another state, or with the genesis record."""
        logger.warning("%s; it was moved to %s and is not used", why, self.snapshots.put_aside(partition))
        return await self.begin(partition, reader, evidence)

    def _require_new(self, journal: tuple[str, int], local: Snapshot | None, newest: Found | None) -> None:
        """Refuse to begin a new journal if there is a state of an earlier one."""
        state = local if local is not None else None if newest is None else newest.head
        if state is None:
            return
        where = str(self.snapshots.path(journal[1])) if local is not None else f"topic {self._topic}"
        raise TopicsReplaced(
            f"{journal[0]}/{journal[1]}: the journal is empty, but {where} continues one at offset "
            f"{state.journal_offset}; the topics were wiped or replaced: {IF_INTENDED}"
            f"{self._again()}"
        )

    async def _require_rebuilding(
        self, start: RecoveredMachine, reader: LogReader, evidence: ReleaseEvidence, state: Snapshot | Head, where: str
    ) -> None:
        """Check that a state which does not belong to the journal may be given up; otherwise refuse the partition.

        Raises:
            JournalTruncated: the journal's first records are deleted, so the state cannot be computed again.
            OlderThanReleased: the zone's marks refuse the journal: an operator may restore a newer one, for this state.
            TopicsReplaced: the journal ends before the state and no operator has accepted that; or there are no marks
                that could show whether the lost records were released.
        """
        journal = start.machine.journal
        place = f"{journal[0]}/{journal[1]}"
        first = (await reader.first_offsets([journal]))[journal]
        if first > 0:
            raise JournalTruncated(
                f"{place}: the journal begins at offset {first}, and does not hold record {state.sequence}, with "
                f"which the snapshot in {where} ends; bring the journal, or the data directory of the last owner"
                f"{self._again()}"
            )
        if self.marks is None:
            raise TopicsReplaced(
                f"{place}: the snapshot in {where} ends with a record {state.sequence} that the journal "
                f"does not hold; the topics were replaced, or are an older copy; {IF_INTENDED}{self._again()}"
            )
        reader.open({journal: 1})
        found, _ = await newest(reader, start.machine, 0, 1)
        accepted = self.marks.require(evidence, journal[1], start.journal, found)
        if found < state.sequence and not accepted and evidence.accepted_at(start.journal) is None:
            # Nothing was released from the lost records, but they may have answered users: an operator has to know
            # that.
            raise TopicsReplaced(
                f"{place}: the journal ends with record {found}, but the snapshot in {where} ends with "
                f"record {state.sequence}; the topics were wiped or replaced, or are an older copy; {IF_INTENDED}"
            )

    async def _genesis(
        self, reader: LogReader, journal: TopicPartition, first: int, known: Snapshot | Head | None
    ) -> tuple[bytes, int]:
        """The journal's first record, and the offset after it; if two owners wrote one each, the earlier one."""
        found = await genesis_of(reader, self.make_machine, journal) if first == 0 else None
        if found is not None:
            return found.value, found.offset + 1
        if known is None:
            raise self._truncated(journal, first)
        return known.genesis, 1

    def _check_place(
        self, journal: tuple[str, int], first: int, genesis: bytes, state: Snapshot | Head, where: str
    ) -> None:
        place = f"{journal[0]}/{journal[1]}"
        if state.genesis != genesis:
            raise TopicsReplaced(
                f"{place}: the snapshot in {where} belongs to another journal; the topics were wiped "
                f"or replaced; {IF_INTENDED}{self._again()}"
            )
        if state.journal_offset < first:
            raise JournalTruncated(
                f"{place}: the journal begins at offset {first}, but the snapshot ends at {state.journal_offset}"
                f"{self._again()}"
            )

    def _truncated(self, journal: tuple[str, int], first: int) -> JournalTruncated:
        return JournalTruncated(
            f"{journal[0]}/{journal[1]}: the journal begins at offset {first}, its first records were deleted, and "
            f"there is no state to begin with: none is in the data directory, and {self.unread(journal[1])}; bring the "
            f"data directory of the last owner{self._again()}"
        )

    def _again(self) -> str:
        """What computes a lost journal again, if it is of published models: their role has no marks."""
        return again(self.settings) if self.marks is None else ""

    @staticmethod
    def _lost(journal: tuple[str, int]) -> str:
        return f"expected a state that belongs to {journal[0]}/{journal[1]} as it is, got one of a lost branch"

    @property
    def _topic(self) -> str:
        return "" if self.states is None else self.states.name


def again(settings: WorkerSettings) -> str:
    """The command that computes published models again, as the end of a message."""
    return f"; published models are computed again by `{settings.command('logs repair models --write')}`"
