"""Limits how long one partition waits for a click that a context names.

A context may name a click, and waits for it. When the context has waited for a while, the end of the clicks' log is
asked for. If the log ends before the click, the click never existed: the context goes on without waiting, and the
machine refuses it. The partition asks only after a wait, because a broker that has just become the leader may not show
the last records yet. Contexts that arrived behind the first one by then do not wait for a while of their own.
"""

from __future__ import annotations

import logging

from aiokafka.errors import KafkaError

from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.observe.metrics import Metrics
from hushstream.agents.observe.rate_limited_log import RateLimitedLog
from hushstream.agents.partition.input_ends import EndOffsets
from hushstream.engine.machine import Machine, waiting
from hushstream.engine.records import Awaited

logger = logging.getLogger(__name__)


class NamedWait:
    """What the first record of one partition waits for, and since when.

    Moments are seconds on a clock that only goes forward; whoever calls reads it.
    """

    def __init__(
        self, machine: Machine, leading: InputBuffer, seconds: float, end_offsets: EndOffsets, metrics: Metrics
    ) -> None:
        """Wait for nothing.

        Args:
            machine: of the partition.
            leading: what has arrived of its first input.
            seconds: how long a record waits until the awaited log is asked where it ends.
            end_offsets: asks that.
            metrics: count the waits that were in vain.
        """
        self._waits = waiting(machine)
        self._leading = leading
        self._seconds = seconds
        self._end_offsets = end_offsets
        self._metrics = metrics
        self._awaited: Awaited | None = None
        self._since = 0.0
        self._limited_log = RateLimitedLog(logger)

    def awaited(self, now: float) -> Awaited | None:
        """What the machine waits for at this moment; called after each `Machine.ready`."""
        awaited = None if self._waits is None else self._waits.awaited
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now
        return awaited

    def seconds_left(self, now: float) -> float | None:
        """Until the log is to be asked; None where nothing waits."""
        return None if self._awaited is None else max(0.0, self._since + self._seconds - now)

    async def end(self, now: float) -> bool:
        """If it has waited long enough by now, ask; whether something need not wait any more."""
        awaited = self._awaited
        if self._waits is None or awaited is None or self.seconds_left(now):
            return False
        self._since = now
        arrived = self._leading.next_offset
        topic, partition = awaited.source
        try:
            end = (await self._end_offsets([awaited.source]))[awaited.source]
        except (KafkaError, ConnectionError, TimeoutError) as error:
            self._limited_log.warning("%s/%d: where it ends is not known (%s)", topic, partition, type(error).__name__)
            return False
        if awaited.offset < end:
            return False
        self._waits.ends_at(arrived, end)
        self._metrics.waited_in_vain()
        self._limited_log.warning(
            "partition %d: a record names one of %s that is not there; after %g s it is refused, with all others that "
            "do by now", partition, topic, self._seconds,
        )  # fmt: skip
        return True
