"""Bringing a machine to where its journal stands, and sending again what a crash may have left unsent.

Rule for sending again: a commit is made only after the outputs of everything it covers were acknowledged, and
it carries the sequence number of that record (`hushstream.agents.commits`). So exactly the records above the
committed mark are sent again, in order and with the same bytes; readers drop repeats by their deterministic
ids. They are sent only after the whole tail was replayed and compared (in portions, if the tail holds more
than `PORTION_OUTPUTS` outputs, so that memory stays bounded).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hushstream.agents.branches import holds, reach, sequence_of
from hushstream.agents.commits import journal_label, journal_name, read_mark
from hushstream.agents.errors import InputsDeleted, JournalTruncated, TopicsReplaced, replaced
from hushstream.agents.journal import Sender
from hushstream.agents.logs import LogReader
from hushstream.agents.marks import ReleaseMarks
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.snapshots import Snapshot, SnapshotStore
from hushstream.engine.epochs import DOUBT_BYTES
from hushstream.engine.machine import (
    Distrusts,
    InputRange,
    InputRecord,
    InputSlice,
    Machine,
    OffChain,
    Output,
    Reopens,
    ReplayMismatch,
    Step,
)
from hushstream.engine.marks import Standing
from hushstream.engine.packed import OtherVersion
from hushstream.engine.users_at_rest import KeepsUsers

logger = logging.getLogger(__name__)

PORTION_OUTPUTS = 4096
_TAIL_RECORDS = 256

MachineFactory = Callable[[int], Machine]
Observe = Callable[[str, int, int], None]


@runtime_checkable
class OfJournal(Protocol):
    """A machine factory that finds the key that a journal was begun with."""

    def of_journal(self, partition: int, genesis: bytes, resumed: bool = False) -> Machine:
        """The machine of a home partition whose journal begins with this record; ``resumed`` from a snapshot."""


class Superseded(Exception):
    """A newer rebalance began while this recovery ran; its result is of no use."""


@dataclass(slots=True)
class Held:
    """A machine whose state is that of its journal up to ``sequence``.

    Attributes:
        genesis: the journal's first record.
        journal_offset: where the journal goes on after that record.
        generation: of its marks (`hushstream.engine.marks`).
        released: the last record whose outputs are all known to be acknowledged.
        turned: the last record that put another key in force, as far as it is not known to be marked; 0 for none.
        replayed, resent: how many records the last recovery replayed, and outputs it sent again.
    """

    machine: Machine
    genesis: bytes
    sequence: int
    journal_offset: int
    generation: int = 0
    released: int = 0
    turned: int = 0
    replayed: int = 0
    resent: int = 0

    @property
    def journal(self) -> str:
        """The journal's name."""
        return journal_name(self.genesis)

    @property
    def label(self) -> str:
        """The journal as commits name it."""
        return journal_label(self.journal, self.generation)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovers one partition; the same object serves all partitions of a worker.

    Attributes:
        marks: how far journals have released; None for a role that needs none.
    """

    settings: WorkerSettings
    make_machine: MachineFactory
    sender: Sender
    snapshots: SnapshotStore
    still_owner: Callable[[], bool]
    marks: ReleaseMarks | None = None

    async def run(self, partition: int, commits: Collection[str], cached: Held | None = None) -> Held:
        """Bring the partition's machine to the end of its journal and send again what may be unsent.

        Args:
            partition: the home partition.
            commits: metadata of the group's commits for its inputs, asked for before.
            cached: the machine as this worker left it when it last gave the partition up.

        Raises:
            HushstreamError: the journal is another deployment's, does not fit its inputs, or they are gone.
            Superseded: the partition was taken away meanwhile.
        """
        await self.snapshots.settled(partition)
        async with LogReader(self.settings) as reader:
            if cached is not None and self.snapshots.behind(partition):
                cached = None
            # Before the journal's end: it holds every record that a mark names by then.
            standing = Standing() if self.marks is None else await self.marks.read(partition, reader, commits)
            if cached is not None and not await self._fits(cached, reader):
                logger.warning("partition %d: the journal went on without what this worker has in memory", partition)
                cached = None
            held = cached if cached is not None else await self._begin(partition, reader, standing)
            held.generation = standing.generation
            released = max((read_mark(found, held.label) for found in commits), default=0)
            held.released = max(held.released, min(released, held.sequence))
            mark = max(released, held.released)
            held.replayed = held.resent = 0
            unsent = await self._follow(held, reader, mark, standing)
            if self.marks is not None and held.sequence and not standing.knows(held.journal):
                # Another owner may have begun it since the marks were read; marks first, then the journal's end.
                standing = await self.marks.read(partition, reader, commits)
                unsent += await self._follow(held, reader, mark, standing)
            await self._hold_to_marks(held, standing)
            await self._send(held, unsent)
            held.released = held.sequence
        return held

    async def _hold_to_marks(self, held: Held, standing: Standing) -> None:
        """Refuse a journal that is not what was released from; from here on its marks are ours to raise."""
        if self.marks is None:
            return
        machine = held.machine
        partition = machine.journal[1]
        accepted = self.marks.require(standing, partition, held.journal, held.sequence)
        doubtful = held.sequence if accepted else standing.accepted_at(held.journal)
        held.generation = await self.marks.begin(partition, standing, held.journal, held.sequence, accepted)
        if doubtful is not None and isinstance(machine, Distrusts) and not machine.answers(doubtful):
            # An operator goes on only where what was lost had been released from: that branch has its price.
            lives = standing.lives(before=held.generation)
            machine.distrust(os.urandom(DOUBT_BYTES), forked=True, lives=lives)

    async def _fits(self, cached: Held, reader: LogReader) -> bool:
        """Whether a machine that was kept in memory stands on the journal as it is now."""
        journal = cached.machine.journal
        if (await reader.first_offsets([journal]))[journal] == 0:
            if (await reader.end_offsets([journal]))[journal] == 0:
                return False
            reader.open({journal: 0})
            if (await reader.read(journal, 0, 1))[0].value != cached.genesis:
                return False
        return await holds(reader, cached.machine, cached.sequence, cached.journal_offset)

    async def _begin(self, partition: int, reader: LogReader, standing: Standing) -> Held:
        """A machine at its genesis record, or at its snapshot."""
        machine = self.make_machine(partition)
        if isinstance(machine, KeepsUsers):
            machine.keep_users(self.snapshots.users(partition), self.settings.resident_users)
        journal = machine.journal
        snapshot = self.snapshots.load(partition)
        first = (await reader.first_offsets([journal]))[journal]
        end = (await reader.end_offsets([journal]))[journal]
        if end == 0:
            if snapshot is not None:
                raise TopicsReplaced(
                    f"{journal[0]}/{journal[1]}: the journal is empty, but {self.snapshots.path(partition)} "
                    f"continues one at offset {snapshot.journal_offset}; the topics were wiped or replaced "
                    f"(remove the data directory only if that was intended)"
                )
            if self.marks is not None:
                self.marks.require(standing, partition, None, 0)
            await (await self.sender.send(Output(*journal, machine.genesis(os.urandom(32)))))
        genesis = await self._genesis(reader, journal, first, snapshot)
        if isinstance(self.make_machine, OfJournal):
            machine = self.make_machine.of_journal(partition, genesis, resumed=snapshot is not None)
        machine.start(genesis)
        if snapshot is None:
            return Held(machine, genesis, sequence=0, journal_offset=1)
        _check_place(journal, first, genesis, snapshot)
        try:
            machine.restore(snapshot.state)
        except OtherVersion as error:
            return await self._without_snapshot(partition, reader, standing, str(error))
        if not await holds(reader, machine, snapshot.sequence, snapshot.journal_offset):
            await self._require_rebuilding(Held(machine, genesis, 0, 1), reader, standing, snapshot)
            why = f"snapshot: expected one that stands on {journal[0]}/{journal[1]} as it is, got one of a lost branch"
            return await self._without_snapshot(partition, reader, standing, why)
        # A snapshot is taken only when everything up to it was released.
        return Held(machine, genesis, snapshot.sequence, snapshot.journal_offset, released=snapshot.sequence)

    async def _without_snapshot(self, partition: int, reader: LogReader, standing: Standing, why: str) -> Held:
        """Put the snapshot aside and begin at the genesis record."""
        logger.warning(
            "%s; it is kept at %s, and the journal is read instead", why, self.snapshots.put_aside(partition)
        )
        return await self._begin(partition, reader, standing)

    async def _require_rebuilding(self, start: Held, reader: LogReader, standing: Standing, snapshot: Snapshot) -> None:
        """Leave a snapshot that the journal does not lead to where it is, unless the journal is to be gone on with.

        Raises:
            JournalTruncated: the journal no longer says what the state should be.
            OlderThanPaid: the zone's marks refuse the journal: the newer one, and this snapshot, may come back.
            TopicsReplaced: the journal ends before the snapshot, and no operator went on with it; or there are no marks
                that could tell whether something was released from what is lost.
        """
        journal = start.machine.journal
        where = f"{journal[0]}/{journal[1]}"
        first = (await reader.first_offsets([journal]))[journal]
        if first > 0:
            raise JournalTruncated(
                f"{where}: the journal begins at offset {first}, and holds no record {snapshot.sequence} as the "
                f"snapshot in the data directory ends with; bring the journal, or the data directory of the last owner"
            )
        if self.marks is None:
            raise TopicsReplaced(
                f"{where}: the snapshot in the data directory ends with a record {snapshot.sequence} that the journal "
                f"does not hold; the topics were replaced, or are an older copy (remove the data directory only if "
                f"that was intended)"
            )
        reader.open({journal: 1})
        found = await reach(reader, start.machine, start.sequence, start.journal_offset)
        accepted = self.marks.require(standing, journal[1], start.journal, found)
        if found < snapshot.sequence and not accepted and standing.accepted_at(start.journal) is None:
            # Nothing was released from what is lost, but answers may have been given: an operator has to know.
            raise TopicsReplaced(
                f"{where}: the journal ends with record {found}, but the snapshot in the data directory stands on "
                f"record {snapshot.sequence}; the topics were wiped or replaced, or are an older copy (remove the "
                f"data directory only if that was intended)"
            )

    async def _genesis(
        self, reader: LogReader, journal: tuple[str, int], first: int, snapshot: Snapshot | None
    ) -> bytes:
        """The first record of the journal: where two owners raced, whatever stands at offset 0 is the one."""
        if first > 0:
            if snapshot is None:
                raise JournalTruncated(
                    f"{journal[0]}/{journal[1]}: the journal begins at offset {first}, its first records "
                    f"were deleted, and there is no snapshot; bring the data directory of the last owner"
                )
            return snapshot.genesis
        reader.open({journal: 0})
        return (await reader.read(journal, 0, 1))[0].value

    async def _follow(self, held: Held, reader: LogReader, mark: int, standing: Standing) -> list[Output]:
        """Replay the journal's tail until its end, and give what lies above ``mark`` and was not sent again yet."""
        journal = held.machine.journal
        firsts = await self._open(held, reader)
        unsent: list[Output] = []
        place, whole = held.journal_offset, 0
        while place < (end := (await reader.end_offsets([journal]))[journal]):
            stop = min(end, place + _TAIL_RECORDS)
            for record in await reader.read(journal, place, stop):
                self._check_owner()
                step = await self._replay(held, reader, record, firsts)
                if step is not None and held.sequence > mark:
                    unsent.extend((*step.releases, *step.dead_letters))
                    if len(unsent) > PORTION_OUTPUTS:
                        whole = whole or await reach(reader, held.machine, held.sequence, held.journal_offset)
                        if await self._in_order(held, standing, whole):
                            await self._send(held, unsent)
                await asyncio.sleep(0)
            place = stop
        held.journal_offset = place
        self._check_owner()
        return unsent

    async def _in_order(self, held: Held, standing: Standing, whole: int) -> bool:
        """Whether no mark speaks against a journal of which not all was read yet; it goes up to record ``whole``."""
        if self.marks is None:
            return True
        journal = held.journal
        if standing.doubt(journal, whole) or not standing.knows(journal):
            return False
        await self.marks.begin(held.machine.journal[1], standing, journal, held.sequence, False)
        return True

    async def _open(self, held: Held, reader: LogReader) -> Mapping[tuple[str, int], int]:
        machine = held.machine
        positions = {source: machine.positions().get(source, 0) for source in (*machine.inputs, *machine.broadcasts)}
        firsts = await reader.first_offsets(list(positions))
        ends = await reader.end_offsets(list(positions))
        for source in machine.inputs:
            if positions[source] < firsts[source]:
                raise InputsDeleted(
                    f"{source[0]}/{source[1]}: must be read from offset {positions[source]}, but the log "
                    f"begins at {firsts[source]}; those records were deleted before they were folded"
                )
            if positions[source] > ends[source]:
                raise replaced(source, positions[source], ends[source])
        places = {source: max(position, firsts[source]) for source, position in positions.items()}
        reader.open({**places, machine.journal: held.journal_offset})
        # A model that retention removed is missed only if a journal record names it: then the digest tells.
        return {source: firsts[source] for source in machine.broadcasts}

    async def _replay(
        self, held: Held, reader: LogReader, record: InputRecord, firsts: Mapping[tuple[str, int], int]
    ) -> Step | None:
        """Apply one journal record if it continues the chain; None for every other."""
        machine = held.machine
        if sequence_of(machine, record.value) != held.sequence + 1:
            return None
        slices = [await self._slice(reader, part, firsts) for part in machine.recovery_ranges(record.value)]
        try:
            step = machine.replay(record.value, slices)
        except OffChain:
            return None
        except ReplayMismatch as error:
            if not isinstance(machine, Reopens):
                raise
            # What was released stands; it is not sent again, and the next release pays for noise of its own.
            logger.error("%s; a new epoch begins with the next release", error)
            step = machine.reopen(record.value, slices)
        held.sequence += 1
        held.replayed += 1
        if step.turns:
            held.turned = held.sequence
        held.journal_offset = record.offset + 1
        return step

    async def _slice(self, reader: LogReader, part: InputRange, firsts: Mapping[tuple[str, int], int]) -> InputSlice:
        source = (part.topic, part.partition)
        low = max(part.low, firsts.get(source, part.low))
        return InputSlice(*part, records=tuple(await reader.read(source, low, part.high)))

    async def _send(self, held: Held, unsent: list[Output]) -> None:
        """Send again what lies between the mark and the record that the machine has come to, noted before."""
        if (unsent or held.turned) and self.marks is not None:
            sequence = held.sequence if unsent else held.turned
            await self.marks.raise_to(held.machine.journal[1], held.journal, held.generation, sequence, unsent)
            held.turned = 0
        acknowledgements = [await self.sender.send(output) for output in unsent]
        await asyncio.gather(*acknowledgements)
        held.resent += len(acknowledgements)
        unsent.clear()

    def _check_owner(self) -> None:
        if not self.still_owner():
            raise Superseded


def _check_place(journal: tuple[str, int], first: int, genesis: bytes, snapshot: Snapshot) -> None:
    where = f"{journal[0]}/{journal[1]}"
    if snapshot.genesis != genesis:
        raise TopicsReplaced(
            f"{where}: the snapshot in the data directory belongs to another journal; the topics were wiped "
            f"or replaced (remove the data directory only if that was intended)"
        )
    if snapshot.journal_offset < first:
        raise JournalTruncated(
            f"{where}: the journal begins at offset {first}, but the snapshot ends at {snapshot.journal_offset}"
        )
