"""The direct runner: the machines of every role in one process, over a log in memory.

It keeps the order of the protocol (first the journal, then the release) and moves bytes, nothing else. From the same
log it publishes what a worker on a broker publishes.

*Memory.* A log in memory, in place of a broker's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from hushstream.engine.declare.declaration import DECISIONS
from hushstream.engine.machine import Machine
from hushstream.engine.records import InputRecord, InputSlice, OffChain, Step, TopicPartition
from hushstream.schemas.codec import CodecError


class MemoryLog:
    """Append-only partitions of (offset, log time, value), by logical topic name."""

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        """Start empty; log time comes from ``clock_ms``, or counts one millisecond an append."""
        self._partitions: dict[TopicPartition, list[InputRecord]] = {}
        self._clock_ms = clock_ms
        self._appended = 0

    def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append one record; returns its offset."""
        self._appended += 1
        now = self._appended if self._clock_ms is None else self._clock_ms()
        records = self._partitions.setdefault((topic, partition), [])
        records.append(InputRecord(len(records), now, value))
        return len(records) - 1

    def load(self, topic: str, partition: int, records: list[InputRecord]) -> None:
        """Load a whole partition that was exported; its offsets must count from 0 without a gap.

        Where log time is counted, it continues after the latest time loaded.
        """
        self._partitions[topic, partition] = list(records)
        self._appended = max(self._appended + len(records), max((r.timestamp_ms for r in records), default=0))

    def end(self, topic: str, partition: int) -> int:
        """The offset that the next record will get."""
        return len(self._partitions.get((topic, partition), ()))

    def slice(self, topic: str, partition: int, low: int, high: int | None = None) -> InputSlice:
        """The records with ``low <= offset < high`` (to the end by default)."""
        records = self._partitions.get((topic, partition), [])
        top = len(records) if high is None else high
        return InputSlice(topic, partition, low, top, records[low:top])

    def partitions(self) -> Iterator[tuple[TopicPartition, list[InputRecord]]]:
        """Every partition that holds a record."""
        return iter(self._partitions.items())


class DirectDriver:
    """Drives machines over a memory log until nothing is left to fold."""

    def __init__(self, log: MemoryLog, machines: Sequence[Machine], nonce: bytes) -> None:
        """Start every machine on the journal in the log, or on a new journal whose nonce is the 32 bytes ``nonce``.

        Raises:
            HushstreamError: a journal in the log belongs to another deployment or role, or does not follow from its
                inputs.
        """
        self._log = log
        self._machines = machines
        self.steps: list[Step] = []
        for machine in machines:
            self._start(machine, nonce)

    def pump(self) -> None:
        """Fold until every machine has read all its inputs."""
        while any(self._advance(machine) for machine in self._machines):
            pass

    def _start(self, machine: Machine, nonce: bytes) -> None:
        topic, partition = machine.journal
        if not self._log.end(topic, partition):
            self._log.append(topic, partition, machine.genesis(nonce))
        journal = self._log.slice(topic, partition, 0).records
        machine.start(journal[0].value)
        for record in journal[1:]:
            self._replay(machine, record.value)

    def _replay(self, machine: Machine, value: bytes) -> None:
        """Replay one journal record; skip one off the chain, which a worker wrote after it had lost its partition."""
        try:
            ranges = machine.recovery_ranges(value)
            machine.replay(value, [self._log.slice(r.topic, r.partition, r.low, r.high) for r in ranges])
        except (OffChain, CodecError):
            return

    def _advance(self, machine: Machine) -> bool:
        arrived = [
            self._log.slice(topic, partition, position)
            for (topic, partition), position in machine.positions().items()
            if self._log.end(topic, partition) > position
        ]
        slices = [part for part in machine.ready(arrived) if part.high > part.low] if arrived else []
        if not slices:
            return self._wait_no_more(machine)
        for step in machine.fold(slices):
            self._release(machine, step)
        return True

    def _wait_no_more(self, machine: Machine) -> bool:
        """Tell a machine where its inputs end, so that it stops waiting for records that will never come.

        Nobody else writes into a log in memory. Returns whether the machine can go on.
        """
        awaited = machine.awaited
        if awaited is None:
            return False
        end = self._log.end(*awaited.source)
        machine.ends_at(self._log.end(*machine.inputs[0]), end)
        return awaited.offset >= end

    def _release(self, machine: Machine, step: Step) -> None:
        if step.journal is not None:
            self._log.append(*machine.journal, step.journal)
        for output in (*step.releases, *step.dead_letters):
            self._log.append(output.topic, output.partition, output.value)
        self.steps.append(step)


class DirectEventLog:
    """The client's log over a direct driver: it appends at once, and folds when every caller waits."""

    def __init__(
        self, log: MemoryLog, driver: DirectDriver, partitions: int, answers: str | None = DECISIONS.answers
    ) -> None:
        """Join a log and its driver.

        Args:
            log: the log.
            driver: drives the machines over that log.
            partitions: the number of partitions of the topic with applications' requests.
            answers: the topic with the answers to applications (`hushstream.engine.declare.declaration`); None without
                one.
        """
        self._log = log
        self._driver = driver
        self._partitions = partitions
        self._deliver: Callable[[int, int, bytes], None] | None = None
        self._answers = answers
        self._delivered = [] if answers is None else [log.end(answers, partition) for partition in range(partitions)]
        self._pumped: asyncio.Future[None] | None = None

    async def start(self, on_answers: Callable[[int, int, bytes], None]) -> None:
        self._deliver = on_answers

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        """See `EventLog.append`; an error of a machine is raised in every caller whose record was to be folded."""
        offset = self._log.append(topic, partition, value)
        if self._pumped is None:
            loop = asyncio.get_running_loop()
            self._pumped = loop.create_future()
            loop.call_soon(self._pump, self._pumped)
        await asyncio.shield(self._pumped)
        return offset

    async def read(self, topic: str, partition: int, low: int) -> Sequence[InputRecord]:
        """See `EventLog.read`."""
        return self._log.slice(topic, partition, low).records

    def partitions(self) -> int:
        return self._partitions

    async def stop(self) -> None:
        self._driver.pump()

    def _pump(self, pumped: asyncio.Future[None]) -> None:
        self._pumped = None
        try:
            self._driver.pump()
            self._deliver_decisions()
        except Exception as error:  # noqa: BLE001 - raised to the callers that wait
            pumped.set_exception(error)
        else:
            pumped.set_result(None)

    def _deliver_decisions(self) -> None:
        assert self._deliver is not None
        if self._answers is None:
            return
        for partition in range(self._partitions):
            part: InputSlice = self._log.slice(self._answers, partition, self._delivered[partition])
            for record in part.records:
                self._deliver(partition, record.offset, record.value)
            self._delivered[partition] = part.high
