"""Measures a run from its logs: how many records were folded at which time, by the broker's log times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.settings import WorkerSettings
from hushstream.replay.bench.errors import BenchFailed
from hushstream.schemas import codec
from hushstream.schemas.topics import common_name, of_party

POLL_SECONDS = 0.2

_COLUMNS = ("arms", "propensities", "policies", "model_versions")
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
    models: tuple[int, int] = (0, 0)
    """Offsets of the models that it adopts, low and high."""
    slots: int = 0
    """How many slots left with it."""
    size: int = 0
    """How many bytes its value has."""
    rows_size: int = 0
    """How many of these bytes hold rows: ids with their lengths, and columns."""


@dataclass(slots=True)
class DecisionsTail:
    """Reads one partition of a deployment's decisions, which only one worker writes."""

    settings: WorkerSettings
    partition: int = 0
    party: str = ""
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
        source = (of_party("decisions", self.party), self.partition)
        progressed = time.monotonic()
        async with LogReader(self.settings) as reader:
            reader.open({source: self._offset})
            while self.position("contexts") < contexts or self.position("clicks") < clicks:
                check()
                end = (await reader.end_offsets([source]))[source]
                if end == self._offset:
                    if time.monotonic() - progressed > STALL_SECONDS:
                        raise BenchFailed(f"expected the learner to fold records, got none for {STALL_SECONDS} s")
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                progressed = time.monotonic()
                found = await reader.read(source, self._offset, end)
                self.records += [folded for record in found for folded in _folded(record.timestamp_ms, record.value)]
                self._offset = end

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
            ranges.get("models", nothing),
            fields["slots"],
            len(value),
            sum(1 + len(identity.encode()) for identity in fields["event_ids"]) + sum(len(fields[n]) for n in _COLUMNS),
        )
    ]


@dataclass(frozen=True, slots=True)
class Timed:
    """How many events were folded between two moments of the log's clock (Unix time, ms)."""

    begun_ms: int
    ended_ms: int
    events: float

    @property
    def per_second(self) -> float:
        """Events a second."""
        return self.events * 1000 / (self.ended_ms - self.begun_ms)


def timed(records: Sequence[Folded], events_per_record: float) -> Timed:
    """Count the events that were folded between the first and the last append.

    Events in records of the first log time are not counted, because they were folded before the measured time began.

    Args:
        records: the decisions, in log order.
        events_per_record: how many events an input record has.

    Raises:
        BenchFailed: all decisions have the same log time.
    """
    begun, ended = records[0].log_time_ms, records[-1].log_time_ms
    if begun == ended:
        raise BenchFailed("expected decisions at two log times at least, got all at one: the run is too short")
    return Timed(begun, ended, inputs_between(records, begun, ended) * events_per_record)


def inputs_between(records: Sequence[Folded], begun_ms: float, ended_ms: float) -> int:
    """The number of input records that were folded after ``begun_ms``, up to ``ended_ms``."""
    counted = [record for record in records if begun_ms < record.log_time_ms <= ended_ms]
    return sum(part[1] - part[0] for record in counted for part in (record.contexts, record.clicks))


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
