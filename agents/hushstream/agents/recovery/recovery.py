"""Brings a machine to the end of its journal, and sends again what a crash may have left unsent.

A worker commits only after the outputs of everything that the commit covers were acknowledged, and the commit carries
the sequence number of that record (`hushstream.agents.kafka.commits`). So exactly the records above the committed mark
are sent again, in order and with the same bytes; readers drop repeats by their deterministic ids. They are sent only
after the whole tail was replayed and compared. If the tail holds more than `PORTION_OUTPUTS` outputs, that is done in
portions, so that memory stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from hushstream.agents.errors import DiskRefused, InputsDeleted, replaced
from hushstream.agents.kafka.commits import read_mark
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.beginning import Beginning
from hushstream.agents.recovery.foreign import ForeignRecords
from hushstream.agents.recovery.journal import Sender
from hushstream.agents.recovery.journal_forks import published_ms, reach, sequence_of
from hushstream.agents.recovery.losses import Losses
from hushstream.agents.recovery.marks import ReleaseMarks
from hushstream.agents.recovery.recovered_machine import MachineFactory, RecoveredMachine
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.chain import NewerJournal
from hushstream.engine.journal.marks import Standing
from hushstream.engine.machine import readers_of, releasing, reopening
from hushstream.engine.noise.epochs import EPOCH_NONCE_BYTES
from hushstream.engine.records import (
    InputRange,
    InputRecord,
    InputSlice,
    OffChain,
    Output,
    ReplayMismatch,
    Step,
    TopicPartition,
)
from hushstream.engine.state.published import record_digest

logger = logging.getLogger(__name__)

PORTION_OUTPUTS = 4096
_TAIL_RECORDS = 256

Observe = Callable[[str, int, int], None]


class Superseded(Exception):
    """A newer rebalance began while this recovery ran; its result is of no use."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovers one partition; the same object serves all partitions of a worker.

    Attributes:
        marks: how far journals have released; None for a role that needs none.
        states: where states are published; None where there is nowhere.
        followed: broadcasts that a machine must read without a gap (`RoleTopics.followed`).
        foreign: told of records of the journal that no chain holds.
    """

    settings: WorkerSettings
    make_machine: MachineFactory
    sender: Sender
    snapshots: SnapshotStore
    still_owner: Callable[[], bool]
    marks: ReleaseMarks | None = None
    states: PublishedStates | None = None
    followed: Collection[str] = ()
    foreign: ForeignRecords = field(default_factory=ForeignRecords)
    losses: Losses = field(init=False)
    beginning: Beginning = field(init=False)

    def __post_init__(self) -> None:
        """Begin machines with the same tools."""
        tools = (self.settings, self.make_machine, self.sender, self.snapshots, self.marks, self.states)
        object.__setattr__(self, "beginning", Beginning(*tools))
        object.__setattr__(self, "losses", Losses(self.settings, self.make_machine, self.sender, self._publish))

    async def run(
        self, partition: int, commits: Collection[str], cached: RecoveredMachine | None = None
    ) -> RecoveredMachine:
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
            # 1. Marks, before the journal's end: by then it holds every record that they name. Read after it, a mark
            # that another owner raised meanwhile would have a sound journal refused.
            standing = Standing() if self.marks is None else await self.marks.read(partition, reader, commits)
            # 2. A state that the journal leads to: one of a lost branch would go on where nobody else does.
            if cached is not None and not await self.beginning.keeps(cached, reader):
                logger.warning("partition %d: went on without what this worker has in memory", partition)
                cached = None
            recovered = cached if cached is not None else await self.beginning.begin(partition, reader, standing)
            recovered.generation = standing.generation
            released = max((read_mark(found, recovered.label) for found in commits), default=0)
            recovered.released = max(recovered.released, min(released, recovered.sequence))
            mark = max(released, recovered.released)
            recovered.replayed = recovered.resent = 0
            # 3. The tail, compared record by record: changed inputs must stop us before what follows from them is sent.
            unsent = await self._follow(recovered, reader, mark, standing)
            if self.marks is not None and recovered.sequence and not standing.knows(recovered.journal):
                # Another owner may have begun it since the marks were read; marks first, then the journal's end.
                standing = await self.marks.read(partition, reader, commits)
                unsent += await self._follow(recovered, reader, mark, standing)
            # 4. Only then send: from an older copy of the journal, what was released would leave again over other data.
            await self._hold_to_marks(recovered, standing)
            await self._send(recovered, unsent)
            recovered.released = recovered.sequence
            for models in readers_of(recovered.machine):
                # No part of the state, and what was read before this start is not read again.
                models.published_ms = models.published_ms or await published_ms(reader, models)
        return recovered

    async def _hold_to_marks(self, recovered: RecoveredMachine, standing: Standing) -> None:
        """Refuse a journal that is not what was released from; from here on its marks are ours to raise."""
        if self.marks is None:
            return
        machine = recovered.machine
        partition = machine.journal[1]
        accepted = self.marks.require(standing, partition, recovered.journal, recovered.sequence)
        suspected_behind = recovered.sequence if accepted else standing.accepted_at(recovered.journal)
        recovered.generation = await self.marks.begin(
            partition, standing, recovered.journal, recovered.sequence, accepted
        )
        releases = releasing(machine)
        if releases is not None and suspected_behind is not None and not releases.opened_epoch_since(suspected_behind):
            # An operator goes on only where what was lost had been released from: that branch has its price.
            incarnations = standing.incarnations(before=recovered.generation)
            releases.request_epoch(os.urandom(EPOCH_NONCE_BYTES), forked=True, incarnations=incarnations)

    async def _follow(
        self, recovered: RecoveredMachine, reader: LogReader, mark: int, standing: Standing
    ) -> list[Output]:
        """Replay the journal's tail until its end, and give what lies above ``mark`` and was not sent again yet."""
        journal = recovered.machine.journal
        firsts = await self._open(recovered, reader)
        unsent: list[Output] = []
        place, whole = recovered.journal_offset, 0
        while place < (end := (await reader.end_offsets([journal]))[journal]):
            stop = min(end, place + _TAIL_RECORDS)
            for record in await reader.read(journal, place, stop):
                self._check_owner()
                step = await self._replay(recovered, reader, record, firsts)
                if step is not None and recovered.sequence > mark:
                    unsent.extend((*step.releases, *step.dead_letters))
                    if len(unsent) > PORTION_OUTPUTS:
                        whole = whole or await reach(
                            reader, recovered.machine, recovered.sequence, recovered.journal_offset
                        )
                        if await self._in_order(recovered, standing, whole):
                            await self._send(recovered, unsent)
                await asyncio.sleep(0)
            place = stop
        recovered.journal_offset = place
        self._check_owner()
        return unsent

    async def _in_order(self, recovered: RecoveredMachine, standing: Standing, whole: int) -> bool:
        """Whether no mark speaks against a journal of which not all was read yet; it goes up to record ``whole``."""
        if self.marks is None:
            return True
        journal = recovered.journal
        if standing.suspicion(journal, whole) or not standing.knows(journal):
            return False
        await self.marks.begin(recovered.machine.journal[1], standing, journal, recovered.sequence, False)
        return True

    async def _open(self, recovered: RecoveredMachine, reader: LogReader) -> Mapping[tuple[str, int], int]:
        machine = recovered.machine
        positions = {source: machine.positions().get(source, 0) for source in (*machine.inputs, *machine.broadcasts)}
        firsts = await reader.first_offsets(list(positions))
        ends = await reader.end_offsets(list(positions))
        lost: list[TopicPartition] = []
        refused: list[str] = []
        for source in positions:
            # A chain that is entered in its middle is followed no further: what is published would be missed for good.
            needed = source in machine.inputs or source[0] in self.followed
            if needed and positions[source] < firsts[source]:
                try:
                    await self._require_acceptance(recovered, reader, source, positions[source], firsts[source])
                except InputsDeleted as error:
                    refused.append(str(error))
                lost.append(source)
            if source in machine.inputs and positions[source] > ends[source]:
                raise replaced(self.settings.command, source, positions[source], ends[source])
        if refused:
            raise InputsDeleted("; and ".join(refused))
        await self.losses.require_same_logs(
            recovered,
            reader,
            {source: firsts[source] for source in machine.inputs if firsts[source] < positions[source]},
        )
        places = {source: max(position, firsts[source]) for source, position in positions.items()}
        reader.open({**places, machine.journal: recovered.journal_offset})
        recovered.begins = {source: firsts[source] for source in lost}
        # What retention removed of a broadcast is missed only if a journal record names it: then the digest tells. So
        # it is where an operator went on without some of an input.
        return {source: firsts[source] for source in (*machine.broadcasts, *lost)}

    async def _require_acceptance(
        self, recovered: RecoveredMachine, reader: LogReader, source: TopicPartition, low: int, first: int
    ) -> None:
        """Go on without an input that begins too late, where that was accepted.

        Raises:
            InputsDeleted: it was never folded, and nobody accepted that; or the state that holds it is not here.
        """
        machine = recovered.machine
        reader.open({machine.journal: recovered.journal_offset})
        last = await reach(reader, machine, recovered.sequence, recovered.journal_offset)
        if source in machine.inputs and await self.losses.accepted(recovered, reader, source, first, last):
            return
        needed = f"{source[0]}/{source[1]}: must be read from offset {low}, but the log begins at {first}"
        raise InputsDeleted(
            f"{needed}; those records were folded up to journal record {last}, but the newest state at hand ends with "
            f"record {recovered.sequence}, and {self.beginning.unread(machine.journal[1])}; bring the data "
            f"directory of the last owner"
        )

    async def _publish(self, recovered: RecoveredMachine) -> None:
        """Save and publish the state that a machine has now, unless that was done.

        Raises:
            DiskRefused: it could not be kept on disk.
            Superseded: the partition was taken away meanwhile.
        """
        partition, folded = recovered.machine.journal[1], sum(recovered.machine.positions().values())
        place = (recovered.sequence, folded)
        # What was not sent yet would never be: who begins with a state takes all that it contains as released.
        released = recovered.released == recovered.sequence
        if self.states is None or not released or not self.states.due(partition, place, last_one=True):
            return
        state = recovered.machine.snapshot()
        snapshot = Snapshot(
            recovered.sequence, recovered.journal_offset, recovered.genesis, state, folded, recovered.record
        )
        try:
            await self.snapshots.save_beside(partition, snapshot)
            published = await self.states.publish(partition, snapshot, self.still_owner)
        except (ConnectionError, TimeoutError):
            raise  # of the broker
        except OSError as error:
            raise DiskRefused(f"the state could not be kept on disk ({error.strerror or error})") from None
        if not published:
            raise Superseded

    async def _replay(
        self, recovered: RecoveredMachine, reader: LogReader, record: InputRecord, firsts: Mapping[tuple[str, int], int]
    ) -> Step | None:
        """Apply one journal record if it continues the chain; None for every other."""
        machine = recovered.machine
        try:
            found = sequence_of(machine, record.value)
        except NewerJournal as error:
            raise error.at(record.offset) from None
        if found is None:
            self.foreign.in_journal(machine.journal, record.offset, record.value)
        if found != recovered.sequence + 1:
            return None
        slices = [await self._slice(reader, part, firsts) for part in machine.recovery_ranges(record.value)]
        try:
            step = machine.replay(record.value, slices)
        except OffChain:
            return None
        except ReplayMismatch as error:
            reopens = reopening(machine)
            if reopens is None:
                raise
            step = reopens.reopen(record.value, slices)
            # What was released stands; it is not sent again, and the next release pays for noise of its own.
            logger.error("%s; a new epoch begins with the next release", error)
        recovered.sequence += 1
        recovered.replayed += 1
        if step.key_rotated:
            recovered.rotated_at = recovered.sequence
        recovered.journal_offset = record.offset + 1
        recovered.record = record_digest(record.value)
        return step

    async def _slice(self, reader: LogReader, part: InputRange, firsts: Mapping[tuple[str, int], int]) -> InputSlice:
        source = (part.topic, part.partition)
        low = max(part.low, firsts.get(source, part.low))
        return InputSlice(*part, records=tuple(await reader.read(source, low, part.high)))

    async def _send(self, recovered: RecoveredMachine, unsent: list[Output]) -> None:
        """Send again the outputs between the mark and where the machine is now; the mark is raised before."""
        if (unsent or recovered.rotated_at) and self.marks is not None:
            sequence = recovered.sequence if unsent else recovered.rotated_at
            await self.marks.raise_to(
                recovered.machine.journal[1], recovered.journal, recovered.generation, sequence, unsent
            )
            recovered.rotated_at = 0
        acknowledgements = [await self.sender.send(output) for output in unsent]
        await asyncio.gather(*acknowledgements)
        recovered.resent += len(acknowledgements)
        unsent.clear()

    def _check_owner(self) -> None:
        if not self.still_owner():
            raise Superseded
