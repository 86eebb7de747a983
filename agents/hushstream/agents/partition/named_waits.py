"""Limits how long one partition waits for a click that a context names.

A context may name a click, and waits for it. When it has waited long enough, the partition asks the broker for the end
of the clicks' log. If the log ends before the click, the click does not exist: the context waits no longer, and the
machine refuses it. The partition asks only after a wait, because a broker that has just become the leader may not show
the last records yet. Contexts that have arrived behind the first one by then are decided with it, without own waits.
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
    """Holds what the first record of one partition waits for, and since when.

    Times are seconds on a clock that only goes forward; the caller reads it.
    """

    def __init__(
        self, machine: Machine, leading: InputBuffer, seconds: float, end_offsets: EndOffsets, metrics: Metrics
    ) -> None:
        """Begin without a wait.

        Args:
            machine: the partition's machine.
            leading: the buffer of its first input.
            seconds: how long a record waits before the broker is asked for the end of the awaited log.
            end_offsets: asks the broker.
            metrics: count the waits for clicks that do not exist.
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
        """What the machine waits for now; call this after each `Machine.ready`."""
        awaited = None if self._waits is None else self._waits.awaited
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now
        return awaited

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the broker is to be asked; None if no record waits."""
        return None if self._awaited is None else max(0.0, self._since + self._seconds - now)

    async def end(self, now: float) -> bool:
        """Ask the broker, if the wait was long enough; returns whether the record need not wait any longer."""
        awaited = self._awaited
        if self._waits is None or awaited is None or self.seconds_left(now):
            return False
        self._since = now
        arrived = self._leading.next_offset
        topic, partition = awaited.source
        try:
            end = (await self._end_offsets([awaited.source]))[awaited.source]
        except (KafkaError, ConnectionError, TimeoutError) as error:
            self._limited_log.warning("%s/%d: cannot read the log's end (%s)", topic, partition, type(error).__name__)
            return False
        if awaited.offset < end:
            return False
        self._waits.ends_at(arrived, end)
        self._metrics.waited_in_vain()
        self._limited_log.warning(
            "partition %d: a record names a record of %s that does not exist; after %g s it is refused, and so are all "
            "other waiting records that name missing ones", partition, topic, self._seconds,
        )  # fmt: skip
        return True
