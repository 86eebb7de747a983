"""One home partition at work: the order of the protocol, in one place for every role.

For each batch: take what arrived, fold it, append the journal record, wait for its acknowledgement at the
expected offset, send releases and dead letters, wait for theirs, and only then offer the input offsets for
commit. Several batches are on their way at once, but each of these stages runs in order.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiokafka.errors import KafkaError

from hushstream.agents.errors import JournalLost, from_client
from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.partition.background_snapshot import BackgroundSnapshots, Reached
from hushstream.agents.partition.input_ends import wiped
from hushstream.agents.partition.linger import Linger
from hushstream.agents.partition.named_waits import NamedWait
from hushstream.agents.partition.schedule import FixedSchedule, LiveSchedule, Schedule
from hushstream.agents.partition.tools import Tools
from hushstream.agents.recovery.journal import Append, JournalWriter
from hushstream.agents.recovery.journal_forks import sequence_in_flight
from hushstream.agents.recovery.recovered_machine import RecoveredMachine
from hushstream.agents.recovery.snapshots import Snapshot
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.machine import readers_of, releasing, ticking
from hushstream.engine.records import Step, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.privacy.ledger import Exhausted

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
"""How often an owner asks where its journal ends: so late at most it says that somebody else has written there."""


@dataclass(slots=True)
class _Work:
    """One step on its way through the stages."""

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
        self._releases, self._ticks = releasing(recovered.machine), ticking(recovered.machine)
        self._tools = tools
        self._settings = tools.settings
        self._clock = tools.clock
        self._arrived = asyncio.Event()
        self.inputs = self._make_buffers(recovered.machine.inputs)
        self.broadcasts = self._make_buffers(recovered.machine.broadcasts)
        self._schedule = self._make_schedule()
        self._linger = Linger(
            self.inputs[0], (*self.broadcasts, *self.inputs), self._settings.gather_seconds, self._clock()
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
        self._confirm: asyncio.Queue[_Work | Reached] = asyncio.Queue()
        self._release: asyncio.Queue[_Work | Reached] = asyncio.Queue()
        self._finish: asyncio.Queue[_Work | Reached] = asyncio.Queue()
        self._places = asyncio.Semaphore(self._settings.in_flight)
        self._outstanding = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._leaving_until: float | None = None
        """Until when the last state may be published, once the worker is ending."""
        self._failed = False
        self._background_snapshots = BackgroundSnapshots(
            recovered, self._settings.snapshot_interval_seconds, self._save, lambda: self._closing, self._clock
        )
        self._commit: Mapping[TopicPartition, int] = self._machine.committed()
        self._commit_mark = recovered.released
        self._committed: tuple[Mapping[TopicPartition, int], int] | None = None
        self._refused: Exhausted | None = None
        self._appended: deque[float] = deque()
        # A partition that is taken up again and again, as its disk refuses all, has not been saved by that.
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
        """Stop folding, drop what was not folded, and wait for all that is on its way.

        Args:
            timeout_seconds: how long that may take; a snapshot that is being written then is left to itself.
            snapshot: take a last one, however long it takes, and publish it if that can be done in time.

        Returns:
            The machine in step with its journal, to be kept as a cache; None when it is not (a failure).
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
            self._tools.states.left(self.partition, self._place)
        if self._failed:
            return None
        self._recovered.sequence = self._sequence
        self._recovered.journal_offset = self._writer.next_offset
        self._recovered.record = self._record
        self._recovered.released = self._sequence
        return self._recovered

    def committable(self) -> tuple[Mapping[TopicPartition, int], int] | None:
        """Offsets and mark to commit; None when nothing has changed since the last commit."""
        found = (self._commit, self._commit_mark)
        return None if found == self._committed else found

    def committed(self, offsets: Mapping[TopicPartition, int], mark: int) -> None:
        """Note that this was committed."""
        self._committed = (offsets, mark)
        self._tools.observe("committed", self.partition, mark)

    @property
    def label(self) -> str:
        """This partition's journal as commits name it."""
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
        """Where an input log ends, as far as is known; one that was never fetched may go on for ever.

        Broadcasts have another reader, and are few: what has arrived of them is all that is known.
        """
        if source not in self._machine.inputs:
            return 0
        end = self._tools.fetched_end(source)
        return sys.maxsize if end is None else end

    async def check_inputs(self) -> None:
        """Stop this partition if an input log was wiped while we were at work."""
        reason = await wiped(self.inputs, self._tools.fetched_end, self._tools.end_offsets, self._settings.command)
        if reason is not None:
            self._fail(reason)

    async def check_journal(self) -> None:
        """Note what somebody else put into the journal, or into the models that are followed.

        A record that may continue the chain is another owner's: the partition is taken up again then.
        """
        journal = self._machine.journal
        if self._failed or self._closing:
            return
        for models in readers_of(self._machine):
            for offset, size in models.foreign:
                self._tools.foreign.met(models.topic, offset, size, "a model")
        if (now := self._clock()) < self._looked + _LOOK_SECONDS:
            return
        self._looked = now
        try:
            if (await self._tools.end_offsets([journal]))[journal] <= self._writer.next_offset:
                return
            read = partial(self._tools.read_journal, journal)
            self._note_foreign(await self._writer.look(read, lambda: self._sequence + 1))
        except JournalLost as error:
            self._fail(error)
        except (KafkaError, ConnectionError, TimeoutError) as error:
            logger.warning("partition %d: the journal's end is not known (%s)", self.partition, type(error).__name__)

    def _note_foreign(self, tail: Sequence[tuple[int, bytes]]) -> None:
        for offset, value in tail:
            if sequence_in_flight(self._machine, value) is None:
                self._tools.foreign.in_journal(self._machine.journal, offset, value)

    @property
    def append_wait(self) -> float:
        """Seconds for which the oldest append has waited for its acknowledgement; 0 where none waits."""
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
        """Before the first fold of all, wait for what others have published by now: a catalogue, a model.

        Contexts that wait already would else be answered without it, and where items have names be refused. Only for as
        long as a context may be kept waiting anyway: what was published may be out of reach.
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
                "partition %d: begins without all that was published (%s)", self.partition, type(error).__name__
            )

    async def _fold_once(self) -> bool:
        """Fold one batch and send its steps on their way; False if more input must arrive first."""
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
        self._say_refused(steps)
        return True

    def _say_refused(self, steps: Sequence[Step]) -> None:
        """Say once why releases are withheld: scope, asked and left follow from the configuration alone."""
        if not any(Outcome.RELEASE_WITHHELD in step.counts for step in steps):
            return
        before, self._refused = self._refused, None if self._releases is None else self._releases.refused
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
            # 1. Write ahead, in the order of the folds: a record that overtook its predecessor would be off the chain.
            self._sequence += 1
            self._appended.append(self._clock())
            append = await self._writer.append(step.journal, self._sequence)
            self._tools.observe("journal_sent", self.partition, self._sequence)
        self._outstanding += 1
        self._drained.clear()
        self._confirm.put_nowait(_Work(step, self._sequence, append, commit, started))

    async def _confirm_loop(self) -> None:
        """Wait for each journal record to count."""
        while True:
            work = await self._confirm.get()
            if isinstance(work, Reached):
                work.journal_offset, work.record = self._journal_offset, self._record
            elif work.append is not None:
                # 2. Wait until it counts: released before, what a worker without the partition made would stand beside
                # what its new owner makes of the same input.
                self._journal_offset = await self._writer.confirm(work.append) + 1
                self._appended.popleft()
                self._record = record_digest(work.append.value)
                self._tools.metrics.journaled()
                self._tools.observe("journal_acked", self.partition, work.sequence)
            self._release.put_nowait(work)

    async def _release_loop(self) -> None:
        """Send what follows from records that count; one mark, raised before, covers all that wait by then."""
        send = self._tools.sender.send
        while True:
            waiting = [await self._release.get()]
            while not self._release.empty():
                waiting.append(self._release.get_nowait())
            steps = [work for work in waiting if isinstance(work, _Work)]
            # 3. Raise the mark: if the journal lost these records after the outputs left, nothing else would tell, and
            # the same windows would be released again over other data.
            await self._mark([work for work in steps if work.step.releases or work.step.key_rotated])
            for work in waiting:
                if isinstance(work, _Work):
                    # 4. Release.
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
        """Wait until all outputs of a step are acknowledged; then its input may be committed."""
        while True:
            work = await self._finish.get()
            if isinstance(work, Reached):
                # A recovery takes all that a snapshot contains as released: saved before, it would hide what was not.
                work.all_before.set_result(work.journal_offset)
                continue
            # 5. Commit when all of it is acknowledged: a recovery sends again what lies above the committed mark alone,
            # so what was committed and then lost on its way would never come.
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
        if self._ticks is None or self._closing or self._settings.schedule == "fixed":
            return
        record = self._ticks.tick(int(idle_seconds * 1000))
        if record is not None:
            await (await self._tools.sender.send(record))

    @property
    def _place(self) -> tuple[int, int]:
        """The last journal record, and how many input records are folded."""
        return self._sequence, sum(self._machine.positions().values())

    def _cut(self) -> None:
        """Begin a snapshot of the state as it is between two folds, if it has changed and none is under way."""
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

        if states is not None and await states.keep(self.partition, snapshot, wanted, left):
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


_LOOP_ITERATIONS = 8
"""Iterations of the event loop between two folds. A record takes about four from its append to the wire, and its
acknowledgement six from there to who waits for it; a fold holds the loop, so with fewer each would wait for another
fold or two (at half of the highest rate: 25 ms in place of 13 from the start of a fold to the acknowledgement)."""


async def within(event: asyncio.Event, deadline: float, clock: Callable[[], float]) -> bool:
    """Whether an event happens before a deadline of this clock."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, deadline - clock()))
    except TimeoutError:
        return False
    return True


async def yield_to_loop() -> None:
    """Let what was appended go out and what was acknowledged go on, before the next fold holds the loop."""
    for _ in range(_LOOP_ITERATIONS):
        await asyncio.sleep(0)
