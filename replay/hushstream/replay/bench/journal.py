"""Runs one worker, or the bare agent that is the baseline of all, and reads the log times of its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.connection import Connection
from hushstream.replay.bench.load import append_all
from hushstream.replay.bench.processes import CpuMeter, Running, started
from hushstream.replay.experiments.rows import BenchFailed
from hushstream.schemas import codec
from hushstream.schemas.topics import LOG_TIME, common_name

POLL_SECONDS = 0.2

STALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Folded:
    """One decisions record: when it was appended, and which inputs it covers."""

    log_time_ms: int
    contexts: tuple[int, int]
    """Offsets of the contexts that it covers, low and high."""
    clicks: tuple[int, int]
    decided: int
    arms: bytes
    """The decided arms: int32, one for each decision."""

    @property
    def inputs(self) -> int:
        """How many input records it covers."""
        return sum(high - low for low, high in (self.contexts, self.clicks))


@dataclass(slots=True)
class DecisionsTail:
    """Reads one partition of a deployment's decisions, which only one worker writes."""

    settings: WorkerSettings
    partition: int = 0
    records: list[Folded] = field(default_factory=list)
    _offset: int = 0

    async def until(self, contexts: int, clicks: int, check: Callable[[], None]) -> None:
        """Read the decisions until the worker has folded both inputs up to these offsets.

        Args:
            contexts, clicks: the offsets.
            check: called repeatedly; it raises if the worker has ended.

        Raises:
            BenchFailed: nothing was folded for a minute.
        """
        if self._is_at(contexts, clicks):
            return
        source = "decisions", self.partition
        async with aclosing(_appended(self.settings, source, self._offset, check)) as parts:
            async for end, found in parts:
                self.records += [folded for record in found for folded in _folded(record.timestamp_ms, record.value)]
                self._offset = end
                if self._is_at(contexts, clicks):
                    return

    def _is_at(self, contexts: int, clicks: int) -> bool:
        return self.position("contexts") >= contexts and self.position("clicks") >= clicks

    def position(self, topic: str) -> int:
        """The offset of ``contexts`` or ``clicks`` up to which the worker has folded."""
        return max((getattr(record, topic)[1] for record in self.records), default=0)

    def arms(self) -> list[int]:
        """The decided arms, in the order of the contexts."""
        found: list[int] = np.frombuffer(b"".join(record.arms for record in self.records), "<i4").tolist()
        return found


def _folded(log_time_ms: int, value: bytes) -> list[Folded]:
    name, fields = codec.decode(value, frozenset({"Genesis", "Decisions"}))
    if name == "Genesis":
        return []
    ranges = {common_name(part["topic"]): (part["low"], part["high"]) for part in fields["head"]["inputs"]}
    nothing = (0, 0)
    return [
        Folded(
            log_time_ms,
            ranges.get("contexts", nothing),
            ranges.get("clicks", nothing),
            len(fields["event_ids"]),
            fields["arms"],
        )
    ]


def waits_ms(records: Sequence[Folded], first: int, log_times_ms: Sequence[int]) -> list[int]:
    """Milliseconds from a context's append to the append of its decision.

    Args:
        records: decisions, in log order.
        first: offset of the first context.
        log_times_ms: log times of the contexts from that offset on, one event a record.
    """
    return [
        record.log_time_ms - log_times_ms[offset - first]
        for record in records
        for offset in range(*record.contexts)
        if 0 <= offset - first < len(log_times_ms)
    ]


async def log_times(
    connection: Connection, source: TopicPartition, count: int, writer: Running, first: int = 0
) -> list[int]:
    """Wait for ``count`` records from the offset ``first`` on, and return their log times (Unix time, ms)."""
    found: list[int] = []
    async with aclosing(_appended(connection.settings(), source, first, writer.check)) as parts:
        async for _, part in parts:
            found += [record.timestamp_ms for record in part]
            if len(found) >= count:
                break
    return found


async def _appended(
    settings: WorkerSettings, source: TopicPartition, first: int, check: Callable[[], None]
) -> AsyncGenerator[tuple[int, list[InputRecord]], None]:
    """Yield what a process appends to a partition from an offset on, each time with the next offset.

    Raises:
        BenchFailed: the process has ended, or appends nothing for a minute.
    """
    read, idle = first, 0.0
    async with LogReader(settings) as reader:
        reader.open({source: first})
        while True:
            check()
            end = (await reader.end_offsets([source]))[source]
            if end > read:
                found = await reader.read(source, read, end)
                read, idle = end, 0.0
                yield end, found
                continue
            # Polls are counted, not the clock: on a busy machine a worker and a poll are slow alike.
            idle += POLL_SECONDS
            if idle > STALL_SECONDS:
                raise BenchFailed(f"{source[0]}: expected further records, got none for {STALL_SECONDS} s")
            await asyncio.sleep(POLL_SECONDS)


def paces(line: Sequence[tuple[int, float]], meter: CpuMeter) -> tuple[float, float]:
    """How much was done per second of the clock and per second of a worker's CPU time, after the first log time.

    Args:
        line: log times (ms), rising, each with how much was done since the one before.
        meter: of the worker.

    What has the first log time is not counted, because it was done before the measured time began.

    Raises:
        BenchFailed: all of it has one log time.
    """
    begun, ended = line[0][0], line[-1][0]
    if begun == ended:
        raise BenchFailed("expected answers at two log times at least, got all at one: the run is too short")
    counted = sum(count for moment, count in line if moment > begun)
    return counted * 1000 / (ended - begun), counted / meter.seconds(begun, ended)


async def baseline_paces(
    name: str, connection: Connection, producer: AIOKafkaProducer, values: Sequence[bytes], enough: int, folder: Path
) -> tuple[float, float]:
    """Records per second of the clock, and of its CPU time, that a baseline of streams reads.

    Args:
        name: one of `hushstream.replay.bench.baselines.STREAMS`.
        connection: the broker; the prefix is that of the topics, which are made.
        producer: appends the input.
        values: the input.
        enough: how many records the baseline answers them with.
        folder: for its files.

    Raises:
        BenchFailed: it ended, or made no more progress.
    """
    source, target = (f"{connection.prefix}{name}.{end}" for end in ("source", "target"))
    async with connection.admin("create topics") as admin:
        settings = {LOG_TIME: "LogAppendTime"}
        await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=settings) for topic in (source, target)])
    await append_all(producer, source, values)
    place = folder / name
    place.mkdir()
    arguments = ["-m", "hushstream.replay.bench.baselines", name, connection.bootstrap, source, target, str(place)]
    async with started(name, arguments, folder, kill=True) as baseline, CpuMeter([baseline]) as meter:
        times = await log_times(Connection(connection.bootstrap, ""), (target, 0), enough, baseline)
    wall, cpu = paces([(time, 1) for time in times], meter)
    return wall * len(values) / enough, cpu * len(values) / enough
