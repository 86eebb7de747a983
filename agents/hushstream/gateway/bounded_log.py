"""Limits how many records of a client's log may wait for their acknowledgement; a further record is refused at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from hushstream.client.logs.event_log import EventLog
from hushstream.engine.records import InputRecord
from hushstream.gateway.listening import close_log
from hushstream.gateway.problems import LogBusy

SILENT_SECONDS = 5.0
"""How long the oldest record may wait for its acknowledgement before the log counts as unavailable."""


class BoundedLog:
    """Wraps an `EventLog` and limits its unacknowledged records, which pile up while no broker answers."""

    def __init__(self, log: EventLog, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow ``most`` records to wait for their acknowledgement."""
        self._log = log
        self._most = most
        self._clock = clock
        self._sending: dict[asyncio.Future[int], float] = {}

    @property
    def waiting(self) -> int:
        """How many records wait for their acknowledgement."""
        return len(self._sending)

    @property
    def answers(self) -> bool:
        """Whether the log answers: no record has waited too long for its acknowledgement."""
        oldest = next(iter(self._sending.values()), None)
        return oldest is None or self._clock() - oldest < SILENT_SECONDS

    async def start(self, on_answers: Callable[[int, int, bytes], None]) -> None:
        """See `EventLog.start`."""
        await self._log.start(on_answers)

    def append(self, topic: str, partition: int, value: bytes) -> asyncio.Future[int]:
        """See `EventLog.append`.

        Raises:
            LogBusy: too many records wait; this one was not sent.
            HushstreamError: the log refused the record.
        """
        if len(self._sending) >= self._most:
            raise LogBusy(f"log: expected fewer than {self._most} records that await their acknowledgement")
        sending = asyncio.ensure_future(self._log.append(topic, partition, value))
        self._sending[sending] = self._clock()
        sending.add_done_callback(self._sending.pop)
        return sending

    async def read(self, topic: str, partition: int, low: int) -> Sequence[InputRecord]:
        """See `EventLog.read`."""
        return await self._log.read(topic, partition, low)

    def partitions(self) -> int:
        """See `EventLog.partitions`."""
        return self._log.partitions()

    async def stop(self) -> None:
        """See `EventLog.stop`."""
        sending = list(self._sending)
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await close_log(self._log)
