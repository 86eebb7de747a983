"""Drives one home partition through the steps of the protocol, in one order for every role.

For each batch the driver takes the records that have arrived, folds them, and appends the journal record. It waits for
the acknowledgement at the expected offset, sends releases and dead letters, and waits for their acknowledgements. Only
then may the input offsets be committed. Several batches are in flight at once, but each stage takes them in order.

*Background snapshot.* Takes snapshots of a partition in the background: it begins one between two folds, packs it in
slices, and saves it.

A snapshot holds the state at the moment when it was begun. It is saved only when everything that was sent before is
acknowledged. So a recovery from a saved snapshot has to send nothing again that the snapshot contains.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiokafka.errors import KafkaError

from hushstream.agents.errors import JournalLost, from_client
from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.observe.metrics import Metrics
from hushstream.agents.partition.schedule import (
    EndOffsets,
    FixedSchedule,
    Linger,
    LiveSchedule,
    NamedWait,
    Schedule,
    wiped,
)
from hushstream.agents.recovery.journal import Append, JournalWriter, Sender, sequence_in_flight
from hushstream.agents.recovery.marks import ForeignRecords, ReleaseMarks
from hushstream.agents.recovery.recovery import Observe
from hushstream.agents.recovery.snapshots import RecoveredMachine, Snapshot, SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.machine import Machine
from hushstream.engine.records import Step, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.privacy.ledger import Exhausted

Clock = Callable[[], float]

StatePosition = tuple[int, Mapping[TopicPartition, int]]
"""The last journal record that a state contains, and the positions of its inputs."""

SLICE_SECONDS = 0.004
"""About how long packing blocks the event loop at a time. After that the folds get at least the same time."""

_RETRY_SECONDS = 2.0
"""The pause after a snapshot that could not be written, instead of the usual interval."""


@dataclass(slots=True)
class QueueMarker:
    """A marker in the queue of steps, which is reached when all steps before it are finished.

    Attributes:
        all_before: done when everything that was sent before is acknowledged; its value is the journal's next offset.
        journal_offset, record: set while the marker goes through the stages: the journal's next offset, and the
            `record_digest` of its last record.
    """

    all_before: asyncio.Future[int]
    journal_offset: int = 0
    record: bytes = b""


@dataclass(frozen=True, slots=True)
class BackgroundSnapshot:
    """A state that is being packed: the state after journal record ``sequence``, with its input positions."""

    sequence: int
    folded: int
    packing: Generator[None, None, bytes]
    reached: QueueMarker

    @classmethod
    def of(cls, machine: Machine, sequence: int) -> BackgroundSnapshot:
        """Begin a snapshot of the state now, between two folds; pack or close it before the next one begins."""
        packing = machine.snapshot_portions()
        next(packing)
        folded = sum(machine.positions().values())
        return cls(sequence, folded, packing, QueueMarker(asyncio.get_running_loop().create_future()))

    async def packed(self, genesis: bytes, in_a_hurry: Callable[[], bool], clock: Clock) -> Snapshot:
        """Pack the snapshot; return it when it may be saved. Folds get half of the time, unless ``in_a_hurry()``."""
        try:
            state = self._slice(clock)
            while state is None:
                await asyncio.sleep(0 if in_a_hurry() else SLICE_SECONDS)
                state = self._slice(clock)
        finally:
            self.packing.close()
        journal_offset = await self.reached.all_before
        return Snapshot(self.sequence, journal_offset, genesis, state, self.folded, self.reached.record)

    def _slice(self, clock: Clock) -> bytes | None:
        until = clock() + SLICE_SECONDS
        while True:
            try:
                next(self.packing)
            except StopIteration as end:
                packed: bytes = end.value
                return packed
            if clock() >= until:
                return None


class BackgroundSnapshots:
    """Decides when a background snapshot of one partition is due, and packs and saves one at a time.

    Attributes:
        idle: set while no snapshot is being made.
    """

    def __init__(
        self,
        recovered: RecoveredMachine,
        interval_seconds: float,
        save: Callable[[Snapshot], Awaitable[None]],
        in_a_hurry: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """Begin to count the interval, with the state that the machine has now.

        Args:
            recovered: the machine, and its journal.
            interval_seconds: the time from one snapshot to the next.
            save: saves a snapshot; raises OSError if that fails and is to be tried again.
            in_a_hurry: see `BackgroundSnapshot.packed`.
            clock: gives seconds; it may begin at any time.
        """
        self._recovered = recovered
        self._interval_seconds = interval_seconds
        self._save = save
        self._in_a_hurry = in_a_hurry
        self._clock = clock
        self._last = clock()
        self._position: StatePosition | None = self._position_at(recovered.sequence)
        if recovered.replayed:
            # Save a rebuilt state at once, so that the next recovery does not have to rebuild it again.
            self.again()
        self._begun: asyncio.Queue[BackgroundSnapshot] = asyncio.Queue()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def due(self) -> bool:
        """Whether a snapshot should begin before the next fold."""
        return self._clock() - self._last >= self._interval_seconds

    def again(self) -> None:
        """Make a snapshot due now, even if the state has been saved already."""
        self._last, self._position = -math.inf, None

    def begin(self, sequence: int) -> BackgroundSnapshot | None:
        """Begin a snapshot of the state after record ``sequence``; None if that is saved, or another is being made."""
        self._last = self._clock()
        position = self._position_at(sequence)
        if not self.idle.is_set() or self._position == position:
            return None
        cut = BackgroundSnapshot.of(self._recovered.machine, sequence)
        self._position = position
        self.idle.clear()
        self._begun.put_nowait(cut)
        return cut

    async def work(self) -> None:
        """Pack and save each snapshot that was begun, while folds go on."""
        while True:
            cut = await self._begun.get()
            try:
                await self._save(await cut.packed(self._recovered.genesis, self._in_a_hurry, self._clock))
            except OSError as error:
                logger.warning("partition %d: snapshot not written: %s", self._recovered.machine.journal[1], error)
                self._position = None
                self._last = self._clock() + _RETRY_SECONDS - self._interval_seconds
            finally:
                self.idle.set()

    def _position_at(self, sequence: int) -> StatePosition:
        """The position of the state, which may lie inside a window that no journal record has closed yet."""
        return sequence, dict(self._recovered.machine.positions())


logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""How often an owner asks for the end of its journal, to notice that somebody else has written there."""


@dataclass(slots=True)
class _Work:
    """One step that goes through the stages."""

    step: Step
    sequence: int
    append: Append | None
    commit: Mapping[TopicPartition, int] | None
    started: float
    acknowledgements: list[Awaitable[Any]] = field(default_factory=list)


class PartitionDriver:
    """Drives one machine until it is closed or fails."""

    def __init__(self, partition: int, recovered: RecoveredMachine, tools: Tools) -> None:
        """Take over a recovered machine; `start` begins the work."""
        self.partition = partition
        self._recovered = recovered
        self._machine = recovered.machine
        self._tools = tools
        self._settings = tools.settings
        self._clock = tools.clock
        self._arrived = asyncio.Event()
        self.inputs = self._make_buffers(recovered.machine.inputs)
        self.broadcasts = self._make_buffers(recovered.machine.broadcasts)
        self._schedule = self._make_schedule()
        self._linger = Linger(
            self.inputs[0], (*self.broadcasts, *self.inputs), self._settings.journal_linger_seconds, self._clock()
        )
        self._named = NamedWait(
            recovered.machine, self.inputs[0], self._settings.named_wait_seconds, tools.end_offsets, tools.metrics
        )
        self._writer = JournalWriter(
            tools.sender,
            self._machine.journal,
            recovered.journal_offset,
            self._read_tail,
            partial(sequence_in_flight, recovered.machine),
        )
        self._sequence = recovered.sequence
        self._journal_offset = recovered.journal_offset
        self._record = recovered.record
        self._confirm: asyncio.Queue[_Work | QueueMarker] = asyncio.Queue()
        self._release: asyncio.Queue[_Work | QueueMarker] = asyncio.Queue()
        self._finish: asyncio.Queue[_Work | QueueMarker] = asyncio.Queue()
        self._places = asyncio.Semaphore(self._settings.in_flight)
        self._outstanding = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._leaving_until: float | None = None
        """The deadline for publishing the last state; None while the worker is not ending."""
        self._failed = False
        self._background_snapshots = BackgroundSnapshots(
            recovered, self._settings.snapshot_interval_seconds, self._save, lambda: self._closing, self._clock
        )
        self._commit: Mapping[TopicPartition, int] = self._machine.committed()
        self._commit_mark = recovered.released
        self._committed: tuple[Mapping[TopicPartition, int], int] | None = None
        self._refused: Exhausted | None = None
        self._appended: deque[float] = deque()
        # Keep an earlier time: a recovery saves nothing, and a partition whose disk refuses writes recovers repeatedly.
        tools.saved.setdefault(partition, self._clock())
        self._looked = -_LOOK_SECONDS

    def start(self) -> None:
        """Begin to fold what arrives."""
        for work in (
            self._fold_loop,
            self._confirm_loop,
            self._release_loop,
            self._finish_loop,
            self._background_snapshots.work,
        ):
            self._tasks.append(asyncio.create_task(self._guarded(work), name=f"{work.__name__}-{self.partition}"))

    async def close(self, timeout_seconds: float, snapshot: bool = False) -> RecoveredMachine | None:
        """Stop folding, drop unfolded records, and wait until everything that was sent is acknowledged.

        Args:
            timeout_seconds: how long to wait; a snapshot that is still being written then is not waited for.
            snapshot: take a last snapshot, however long it takes, and publish it if there is time.

        Returns:
            The machine, which agrees with its journal and may be kept as a cache; None after a failure.
        """
        self._closing = True
        self._arrived.set()
        deadline = self._clock() + timeout_seconds
        await asyncio.wait(self._tasks[:1], timeout=timeout_seconds)
        if not await within(self._drained, deadline, self._clock) or not self._tasks[0].done():
            self._failed = True
        if snapshot and not self._failed:
            await self._guarded(partial(self._cut_last, deadline))
        await within(self._background_snapshots.idle, deadline, self._clock)
        await self._cancel()
        if snapshot and self._tools.states is not None:
            self._tools.states.warn_if_unpublished(self.partition, self._place)
        if self._failed:
            return None
        self._recovered.sequence = self._sequence
        self._recovered.journal_offset = self._writer.next_offset
        self._recovered.record = self._record
        self._recovered.released = self._sequence
        return self._recovered

    def committable(self, renew: bool = False) -> tuple[Mapping[TopicPartition, int], int] | None:
        """The offsets and the mark to commit; None if nothing has changed since the last commit, unless ``renew``."""
        found = (self._commit, self._commit_mark)
        return None if found == self._committed and not renew else found

    def committed(self, offsets: Mapping[TopicPartition, int], mark: int) -> None:
        """Note that this was committed."""
        before, self._committed = self._committed, (offsets, mark)
        if before != self._committed:
            self._tools.observe("committed", self.partition, mark)

    @property
    def label(self) -> str:
        """The name of this partition's journal in commits."""
        return self._recovered.label

    @property
    def machine(self) -> Any:
        """The machine, for gauges only."""
        return self._machine

    def _make_buffers(self, sources: tuple[TopicPartition, ...]) -> list[InputBuffer]:
        positions, settings = self._machine.positions(), self._settings
        buffers = []
        for source in sources:
            low = positions.get(source, 0)
            begins = max(low, self._recovered.begins.get(source, low))
            buffer = InputBuffer(source, low, settings.buffer_records, settings.buffer_bytes, begins)
            buffer.arrived = self._on_arrival
            buffer.failed = self._fail
            buffers.append(buffer)
        return buffers

    def _make_schedule(self) -> Schedule:
        buffers = [*self.broadcasts, *self.inputs]
        inputs, settings = self._machine.inputs, self._settings
        if settings.schedule == "fixed":
            return FixedSchedule(buffers, inputs[0], settings.fixed_records)
        return LiveSchedule(buffers, inputs, self._known_end, settings.batch_records, settings.batch_bytes)

    def _known_end(self, source: TopicPartition) -> int:
        """The end of an input log at the last fetch; before the first fetch, an offset that is never reached.

        Broadcasts have another reader: for them it is the end of what has arrived.
        """
        if source not in self._machine.inputs:
            return 0
        end = self._tools.fetched_end(source)
        return sys.maxsize if end is None else end

    async def check_inputs(self) -> None:
        """Stop this partition if one of its input logs was wiped while the worker was running."""
        reason = await wiped(self.inputs, self._tools.fetched_end, self._tools.end_offsets, self._settings.command)
        if reason is not None:
            self._fail(reason)

    async def check_journal(self) -> None:
        """Count foreign records in the journal and in the models that the machine follows.

        A record that may continue the chain is from another owner: the partition is then recovered again.
        """
        journal = self._machine.journal
        if self._failed or self._closing:
            return
        for models in self._machine.readers:
            for offset, size in models.foreign:
                self._tools.foreign.add(models.topic, offset, size, "a model")
        if (now := self._clock()) < self._looked + _LOOK_SECONDS:
            return
        self._looked = now
        try:
            if (await self._tools.end_offsets([journal]))[journal] <= self._writer.next_offset:
                return
            read = partial(self._tools.read_journal, journal)
            self._note_foreign(await self._writer.read_others(read, lambda: self._sequence + 1))
        except JournalLost as error:
            self._fail(error)
        except (KafkaError, ConnectionError, TimeoutError) as error:
            logger.warning("partition %d: cannot read the journal's end (%s)", self.partition, type(error).__name__)

    def _note_foreign(self, tail: Sequence[tuple[int, bytes]]) -> None:
        for offset, value in tail:
            if sequence_in_flight(self._machine, value) is None:
                self._tools.foreign.in_journal(self._machine.journal, offset, value)

    @property
    def append_wait(self) -> float:
        """Seconds for which the oldest append has waited for its acknowledgement; 0 if none waits."""
        return self._clock() - self._appended[0] if self._appended else 0.0

    def _on_arrival(self) -> None:
        self._linger.arrived(self._clock())
        self._arrived.set()

    async def _fold_loop(self) -> None:
        if self._sequence == 0:
            await self._catch_up()
        while not self._closing:
            self._arrived.clear()
            await self._linger.until_enough(self._arrived, self._clock)
            if not await self._fold_once():
                await self._wait_for_input()
            if self._background_snapshots.due:
                self._cut()
            await yield_to_loop()

    async def _catch_up(self) -> None:
        """Before the first fold, wait until the broadcasts published by now (a catalogue, models) have arrived.

        Otherwise contexts that wait already would be answered without a model, and refused if the catalogue is needed
        to read them. The wait is no longer than a context may be delayed anyway: broadcasts may be unreachable.
        """
        sources = [buffer.source for buffer in self.broadcasts]
        try:
            async with asyncio.timeout(self._settings.named_wait_seconds):
                ends = await self._tools.end_offsets(sources) if sources else {}
                while not self._closing and any(
                    one.next_offset < ends[one.source] and not one.full for one in self.broadcasts
                ):
                    self._arrived.clear()
                    await self._arrived.wait()
        except (KafkaError, ConnectionError, TimeoutError) as error:
            logger.warning(
                "partition %d: begins before all published records arrived (%s)", self.partition, type(error).__name__
            )

    async def _fold_once(self) -> bool:
        """Fold one batch and put its steps into the first stage; False if more input must arrive first."""
        if self._schedule.wants_ends:
            sources = [buffer.source for buffer in (*self.broadcasts, *self.inputs)]
            self._schedule.set_ends(await self._tools.end_offsets(sources))
        batch = self._schedule.next_batch()
        if not batch:
            return False
        ready = self._machine.ready(batch)
        now = self._clock()
        awaited = self._named.awaited(now)
        if await self._named.end(now):
            return True
        if not ready:
            return self._schedule.held_back(awaited)
        started = self._clock()
        observe, partition = self._tools.observe, self.partition
        observe("decoded", partition, self._sequence + 1)
        steps = self._machine.fold(ready)
        observe("folded", partition, self._sequence + 1)
        self._schedule.folded()
        self._forget_folded()
        committed = self._machine.committed()
        for index, step in enumerate(steps):
            await self._submit(step, committed if index == len(steps) - 1 else None, started)
        self._log_refused(steps)
        return True

    def _log_refused(self, steps: Sequence[Step]) -> None:
        """Log once why releases are withheld; the scope and the amounts depend only on the configuration."""
        if not any(Outcome.RELEASE_WITHHELD in step.counts for step in steps):
            return
        before, self._refused = self._refused, self._machine.refused
        if self._refused not in (None, before):
            logger.warning("partition %d: nothing is released any more: %s", self.partition, self._refused)

    def _forget_folded(self) -> None:
        positions = self._machine.positions()
        for buffer in (*self.broadcasts, *self.inputs):
            buffer.advance(positions.get(buffer.source, 0))
        self._linger.folded()
        self._tools.notify_capacity()

    async def _submit(self, step: Step, commit: Mapping[TopicPartition, int] | None, started: float) -> None:
        await self._places.acquire()
        append = None
        if step.journal is not None:
            # 1. Append the journal record, in the order of the folds: out of order, it would not be in the chain.
            self._sequence += 1
            self._appended.append(self._clock())
            append = await self._writer.append(step.journal, self._sequence)
            self._tools.observe("journal_sent", self.partition, self._sequence)
        self._outstanding += 1
        self._drained.clear()
        self._confirm.put_nowait(_Work(step, self._sequence, append, commit, started))

    async def _confirm_loop(self) -> None:
        """Wait until each journal record is acknowledged at the expected offset."""
        while True:
            work = await self._confirm.get()
            if isinstance(work, QueueMarker):
                work.journal_offset, work.record = self._journal_offset, self._record
            elif work.append is not None:
                # 2. Wait for the acknowledgement at the expected offset. Otherwise a worker that has lost the partition
                # could release its outputs besides those of the new owner, for the same input.
                self._journal_offset = await self._writer.confirm(work.append) + 1
                self._appended.popleft()
                self._record = record_digest(work.append.value)
                self._tools.metrics.journaled()
                self._tools.observe("journal_acked", self.partition, work.sequence)
            self._release.put_nowait(work)

    async def _release_loop(self) -> None:
        """Send the outputs of acknowledged journal records; one mark, written first, covers all that wait by then."""
        send = self._tools.sender.send
        while True:
            waiting = [await self._release.get()]
            while not self._release.empty():
                waiting.append(self._release.get_nowait())
            steps = [work for work in waiting if isinstance(work, _Work)]
            # 3. Raise the mark. If the journal lost these records after the outputs were sent, only the mark would show
            # it; without the mark the same windows would be released again over other data.
            await self._mark([work for work in steps if work.step.releases or work.step.key_rotated])
            for work in waiting:
                if isinstance(work, _Work):
                    # 4. Send the outputs.
                    outputs = (*work.step.releases, *work.step.dead_letters)
                    work.acknowledgements = [await send(output) for output in outputs]
                self._finish.put_nowait(work)

    async def _mark(self, releasing: Sequence[_Work]) -> None:
        if self._tools.marks is None or not releasing:
            return
        recovered, sequence = self._recovered, releasing[-1].sequence
        outputs = [output for work in releasing for output in work.step.releases]
        self._tools.observe("marking", self.partition, sequence)
        await self._tools.marks.raise_to(self.partition, recovered.journal, recovered.generation, sequence, outputs)
        self._tools.observe("marked", self.partition, sequence)

    async def _finish_loop(self) -> None:
        """Wait until all outputs of a step are acknowledged; then its input offsets may be committed."""
        while True:
            work = await self._finish.get()
            if isinstance(work, QueueMarker):
                # A recovery treats everything in a snapshot as released. So it may be saved only now: otherwise an
                # output that was not acknowledged would never be sent again.
                work.all_before.set_result(work.journal_offset)
                continue
            # 5. Commit after all acknowledgements. A recovery sends again only what lies above the committed mark, so
            # an output that was committed before its acknowledgement, and then lost, would never be sent again.
            await asyncio.gather(*work.acknowledgements)
            self._tools.observe("released", self.partition, work.sequence)
            if work.commit is not None:
                self._commit = work.commit
            self._commit_mark = work.sequence
            metrics = self._tools.metrics
            metrics.batch(work.step.counts, self._clock() - work.started)
            metrics.released(work.step.releases)
            metrics.dead_letters(work.step.dead_letters)
            self._places.release()
            self._outstanding -= 1
            if self._outstanding == 0:
                self._drained.set()

    async def _wait_for_input(self) -> None:
        limits = (self._settings.tick_interval_seconds, self._named.seconds_left(self._clock()))
        try:
            await asyncio.wait_for(self._arrived.wait(), min(limit for limit in limits if limit is not None))
        except TimeoutError:
            await self._tick(self._clock() - self._linger.last_arrival)

    async def _tick(self, idle_seconds: float) -> None:
        if self._closing or self._settings.schedule == "fixed":
            return
        record = self._machine.tick(int(idle_seconds * 1000))
        if record is not None:
            await (await self._tools.sender.send(record))

    @property
    def _place(self) -> tuple[int, int]:
        """The number of the last journal record, and how many input records are folded."""
        return self._sequence, sum(self._machine.positions().values())

    def _cut(self) -> None:
        """Begin a snapshot between two folds, if the state has changed and no other snapshot is being made."""
        states, last_one = self._tools.states, self._leaving_until is not None
        if states is not None and states.due(self.partition, self._place, last_one=last_one):
            self._background_snapshots.again()
        cut = self._background_snapshots.begin(self._sequence)
        if cut is not None:
            self._confirm.put_nowait(cut.reached)
        elif self._background_snapshots.idle.is_set():
            self._tools.saved[self.partition] = self._clock()

    async def _cut_last(self, deadline: float) -> None:
        await self._background_snapshots.idle.wait()
        self._leaving_until = deadline
        self._cut()
        await self._background_snapshots.idle.wait()

    async def _save(self, snapshot: Snapshot) -> None:
        await self._tools.snapshots.save_beside(self.partition, snapshot)
        self._tools.saved[self.partition] = self._clock()
        self._tools.observe("snapshot", self.partition, snapshot.sequence)
        states, until = self._tools.states, self._leaving_until
        left = None if until is None else max(0.0, until - self._clock())

        def wanted() -> bool:
            return left is not None or not self._closing

        if states is not None and await states.publish_if_due(self.partition, snapshot, wanted, left):
            self._tools.observe("published", self.partition, snapshot.sequence)

    async def _read_tail(self, offset: int) -> list[tuple[int, bytes]]:
        self._tools.metrics.reloaded()
        tail = await self._tools.read_journal(self._machine.journal, offset)
        self._note_foreign(tail)
        return tail

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (KafkaError, ConnectionError, TimeoutError) as error:
            self._fail(from_client(error, "sending"))
        except Exception as error:  # noqa: BLE001 - handed to the worker, which decides what it means
            self._fail(error)

    def _fail(self, reason: BaseException) -> None:
        if self._failed:
            return
        self._failed = True
        self._drained.set()
        self._background_snapshots.idle.set()
        self._arrived.set()
        self._closing = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._tools.lost(self.partition, reason)

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


_LOOP_ITERATIONS = 24
"""Iterations of the event loop between two folds. A record takes about four of them from its append to the socket, its
acknowledgement six from the socket to the coroutine that waits, and a fetch some twenty from the fetch thread through
Faust to its buffer. A fold holds the loop, so with fewer iterations each would wait for one or two further folds."""


async def within(event: asyncio.Event, deadline: float, clock: Callable[[], float]) -> bool:
    """Wait for an event until a deadline of this clock; returns whether the event happened."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, deadline - clock()))
    except TimeoutError:
        return False
    return True


async def yield_to_loop() -> None:
    """Let the event loop send records and handle acknowledgements, before the next fold holds the loop."""
    for _ in range(_LOOP_ITERATIONS):
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a driver needs from its worker.

    Attributes:
        marks: the store of release marks; None for a role without marks.
        states: the store of published states; None for a role that publishes none.
        observe: called as ``observe(stage, partition, sequence)`` at each step of the protocol.
        end_offsets: asks the broker for the current ends of input logs.
        fetched_end: gives the end of an input log at its last fetch; None if it is not known.
        read_journal: reads (offset, value) of a journal from an offset to its end.
        notify_capacity: tells the fetcher that a buffer was emptied.
        foreign: counts the records of the journal that belong to no chain.
        lost: called when the partition cannot go on, with the reason.
        saved: when the state of each partition was last saved, by `clock`; it outlives the partition's drivers.
        clock: gives seconds, which may begin at any time and only go forward.
    """

    settings: WorkerSettings
    sender: Sender
    snapshots: SnapshotStore
    marks: ReleaseMarks | None
    states: PublishedStates | None
    metrics: Metrics
    observe: Observe
    end_offsets: EndOffsets
    fetched_end: Callable[[TopicPartition], int | None]
    read_journal: Callable[[TopicPartition, int], Awaitable[list[tuple[int, bytes]]]]
    notify_capacity: Callable[[], None]
    lost: Callable[[int, BaseException], None]
    foreign: ForeignRecords = field(default_factory=ForeignRecords)
    saved: dict[int, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
