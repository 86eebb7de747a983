"""Brings a machine to the end of its journal, and sends the outputs again that a crash may have left unsent.

A worker commits only after the outputs of everything that the commit covers were acknowledged, and the commit carries
the sequence number of that record (`hushstream.agents.kafka.administration`).
So exactly the outputs of the records above the
committed mark are sent again, in order and with the same bytes; readers drop repeats by their deterministic ids. They
are sent only after the whole tail was replayed and compared. If the tail has more than `PORTION_OUTPUTS` outputs, it is
replayed and sent in portions, so that memory stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from hushstream.agents.errors import DiskRefused, InputsDeleted, TopicsReplaced, ends_at, replaced
from hushstream.agents.kafka.administration import read_mark
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.beginning import Beginning, again
from hushstream.agents.recovery.journal import Sender, journaled, newest, published_ms, sequence_of
from hushstream.agents.recovery.losses import Losses, NeededWords
from hushstream.agents.recovery.marks import ForeignRecords, ReleaseMarks
from hushstream.agents.recovery.snapshots import MachineFactory, RecoveredMachine, Snapshot, SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.chain import OtherRelease
from hushstream.engine.journal.marks import ReleaseEvidence
from hushstream.engine.noise.epoch_budget import EPOCH_NONCE_BYTES
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
    """A newer rebalance began while this recovery ran; its result cannot be used."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovers the partitions of a worker, one with each call.

    Attributes:
        marks: the store of release marks; None for a role without marks.
        states: the store of published states; None for a role that publishes none.
        followed: broadcasts that a machine must read without a gap (`RoleTopics.followed`).
        foreign: counts the records of the journal that belong to no chain.
        words: notes which of the operator's words were needed.
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
    words: NeededWords = field(default_factory=NeededWords)
    losses: Losses = field(init=False)
    beginning: Beginning = field(init=False)

    def __post_init__(self) -> None:
        """Make a `Beginning` that uses the same objects."""
        tools = (self.settings, self.make_machine, self.sender, self.snapshots, self.marks, self.states)
        object.__setattr__(self, "beginning", Beginning(*tools))
        losses = Losses(self.settings, self.make_machine, self.sender, self._publish, self.words)
        object.__setattr__(self, "losses", losses)

    async def run(
        self, partition: int, commits: Collection[str], cached: RecoveredMachine | None = None
    ) -> RecoveredMachine:
        """Bring the partition's machine to the end of its journal, and send outputs again that may be unsent.

        Args:
            partition: the home partition.
            commits: metadata of the group's commits for its inputs, which were read before.
            cached: the machine from memory, if this worker owned the partition before.

        Raises:
            HushstreamError: the journal is another deployment's or does not fit its inputs, or inputs are missing.
            Superseded: the partition was revoked in the meantime.
        """
        await self.snapshots.settled(partition)
        async with LogReader(self.settings) as reader:
            if cached is not None and self.snapshots.behind(partition):
                cached = None
            # 1. Read the marks before the journal's end, so that the journal holds every record that they name. If they
            # were read later, a mark that another owner raised in the meantime would cause a false refusal.
            evidence = ReleaseEvidence() if self.marks is None else await self.marks.read(partition, reader, commits)
            # 2. Begin with a state of this journal: a state of a lost branch would skip all records of the journal.
            if cached is not None and not await self.beginning.keeps(cached, reader):
                logger.warning("partition %d: the machine in memory does not fit the journal", partition)
                cached = None
            recovered = cached if cached is not None else await self.beginning.begin(partition, reader, evidence)
            recovered.generation = evidence.generation
            released = max((read_mark(found, recovered.label) for found in commits), default=0)
            recovered.released = max(recovered.released, min(released, recovered.sequence))
            mark = max(released, recovered.released)
            recovered.replayed = recovered.resent = 0
            # 3. Replay the tail and compare each record: changed inputs must stop us before we send outputs of them.
            unsent = await self._follow(recovered, reader, mark, evidence)
            if self.marks is not None and recovered.sequence and not evidence.knows(recovered.journal):
                # Another owner may have begun the journal since we read the marks: read them again, then its end.
                evidence = await self.marks.read(partition, reader, commits)
                unsent += await self._follow(recovered, reader, mark, evidence)
            # 4. Compare with the marks, and only then send: an older copy of the journal would release the same windows
            # again over other data.
            await self._check_marks(recovered, evidence)
            await self._send(recovered, unsent)
            recovered.released = recovered.sequence
            for models in recovered.machine.readers:
                # The state does not hold when the model was published, and a restart does not read the model's record
                # again.
                models.published_ms = models.published_ms or await published_ms(reader, models)
        return recovered

    async def _check_marks(self, recovered: RecoveredMachine, evidence: ReleaseEvidence) -> None:
        """Refuse a journal that is behind its marks; otherwise begin to write its marks."""
        if self.marks is None:
            return
        machine = recovered.machine
        partition = machine.journal[1]
        accepted = self.marks.require(evidence, partition, recovered.journal, recovered.sequence)
        suspected_behind = recovered.sequence if accepted else evidence.accepted_at(recovered.journal)
        recovered.generation = await self.marks.begin(
            partition, evidence, recovered.journal, recovered.sequence, accepted
        )
        if suspected_behind is not None and not machine.opened_epoch_since(suspected_behind):
            # An operator's word is needed only if outputs of the lost branch were released, so that branch is charged.
            incarnations = evidence.incarnations(before=recovered.generation)
            machine.request_epoch(os.urandom(EPOCH_NONCE_BYTES), forked=True, incarnations=incarnations)

    async def _follow(
        self, recovered: RecoveredMachine, reader: LogReader, mark: int, evidence: ReleaseEvidence
    ) -> list[Output]:
        """Replay the journal's tail to its end, and return the outputs above ``mark`` that were not sent again yet."""
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
                        if not whole:
                            place_of = recovered.machine, recovered.sequence, recovered.journal_offset
                            whole, _ = await newest(reader, *place_of)
                        if await self._marks_accept(recovered, evidence, whole):
                            await self._send(recovered, unsent)
                await asyncio.sleep(0)
            place = stop
        recovered.journal_offset = place
        self._check_owner()
        return unsent

    async def _marks_accept(self, recovered: RecoveredMachine, evidence: ReleaseEvidence, whole: int) -> bool:
        """Whether the marks accept a journal that is not completely read yet, and that goes up to record ``whole``."""
        if self.marks is None:
            return True
        journal = recovered.journal
        if evidence.suspicion(journal, whole) or not evidence.knows(journal):
            return False
        await self.marks.begin(recovered.machine.journal[1], evidence, journal, recovered.sequence, False)
        return True

    async def _open(self, recovered: RecoveredMachine, reader: LogReader) -> Mapping[tuple[str, int], int]:
        machine = recovered.machine
        positions = {source: machine.positions().get(source, 0) for source in (*machine.inputs, *machine.broadcasts)}
        firsts = await reader.first_offsets(list(positions))
        ends = await reader.end_offsets(list(positions))
        lost: list[TopicPartition] = []
        refused: list[str] = []
        for source in positions:
            # Never begin in the middle of a chain of models: the reader would skip all later versions for ever.
            needed = source in machine.inputs or source[0] in self.followed
            if needed and positions[source] < firsts[source]:
                try:
                    await self._require_acceptance(recovered, reader, source, positions[source], firsts[source])
                except InputsDeleted as error:
                    refused.append(str(error))
                lost.append(source)
            if source in machine.inputs and positions[source] > ends[source]:
                folded = await journaled(reader, machine, recovered.sequence, recovered.journal_offset)
                raise replaced(self.settings.command, source, folded[source], ends_at(ends[source]))
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
        # Records of a broadcast that retention removed matter only if a journal record covers them: then the digest
        # shows it. The same holds for input whose loss an operator has accepted.
        return {source: firsts[source] for source in (*machine.broadcasts, *lost)}

    async def _require_acceptance(
        self, recovered: RecoveredMachine, reader: LogReader, source: TopicPartition, low: int, first: int
    ) -> None:
        """Check that an operator has accepted the loss of an input that begins too late.

        Raises:
            InputsDeleted: the lost records were never folded, and nobody has accepted the loss; or they were folded,
                but no state that contains them was found.
        """
        machine = recovered.machine
        reader.open({machine.journal: recovered.journal_offset})
        last, _ = await newest(reader, machine, recovered.sequence, recovered.journal_offset)
        if source in machine.inputs and await self.losses.accepted(recovered, reader, source, first, last):
            return
        needed = f"{source[0]}/{source[1]}: must be read from offset {low}, but the log begins at {first}"
        raise InputsDeleted(
            f"{needed}; those records were folded up to journal record {last}, but {self._way_back(recovered, source)}"
        )

    async def _publish(self, recovered: RecoveredMachine) -> None:
        """Save and publish the machine's current state, unless that was done, or outputs of its records may be unsent.

        Raises:
            DiskRefused: the state could not be written to disk.
            Superseded: the partition was revoked in the meantime.
        """
        partition, folded = recovered.machine.journal[1], sum(recovered.machine.positions().values())
        place = (recovered.sequence, folded)
        # A recovery treats everything in a state as released, so outputs that were not sent yet would never be sent.
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
            raise DiskRefused(f"the state could not be written to disk ({error.strerror or error})") from None
        if not published:
            raise Superseded

    async def _replay(
        self, recovered: RecoveredMachine, reader: LogReader, record: InputRecord, firsts: Mapping[tuple[str, int], int]
    ) -> Step | None:
        """Replay one journal record if it continues the chain; None for a record that does not."""
        machine = recovered.machine
        try:
            found = sequence_of(machine, record.value)
        except OtherRelease as error:
            raise error.at(record.offset) from None
        if found is None:
            self.foreign.in_journal(machine.journal, record.offset, record.value)
        if found != recovered.sequence + 1:
            return None
        slices = [await self._slice(recovered, reader, part, firsts) for part in machine.recovery_ranges(record.value)]
        try:
            step = machine.replay(record.value, slices)
        except OffChain:
            return None
        except ReplayMismatch as error:
            if not machine.reopens:
                raise
            step = machine.reopen(record.value, slices)
            # The old release remains. Nothing is sent again, and the next release draws new noise and is charged.
            logger.error("%s; a new epoch begins with the next release", error)
        recovered.sequence += 1
        recovered.replayed += 1
        if step.key_rotated:
            recovered.rotated_at = recovered.sequence
        recovered.journal_offset = record.offset + 1
        recovered.record = record_digest(record.value)
        return step

    async def _slice(
        self, recovered: RecoveredMachine, reader: LogReader, part: InputRange, firsts: Mapping[tuple[str, int], int]
    ) -> InputSlice:
        source = (part.topic, part.partition)
        low = max(part.low, firsts.get(source, part.low))
        try:
            return InputSlice(*part, records=tuple(await reader.read(source, low, part.high)))
        except TopicsReplaced as error:
            raise TopicsReplaced(f"{error}; {self._way_back(recovered, source)}, or the topic") from None

    def _way_back(self, recovered: RecoveredMachine, source: TopicPartition) -> str:
        """Say which state was found, and what brings back one that needs no lost input."""
        machine = recovered.machine
        models = again(self.settings) if source in [models.topic for models in machine.readers] else ""
        return (
            f"the newest state found ends with record {recovered.sequence}, and "
            f"{self.beginning.unread(machine.journal[1])}; bring the data directory of the last owner{models}"
        )

    async def _send(self, recovered: RecoveredMachine, unsent: list[Output]) -> None:
        """Raise the mark, then send the unsent outputs again."""
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
