"""The operations that a client needs on the log of a deployment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from hushstream.engine.records import InputRecord


class EventLog(Protocol):
    """Acknowledged appends, and delivery of answers."""

    async def start(self, on_answers: Callable[[int, int, bytes], None]) -> None:
        """Begin to deliver records of answers: ``on_answers(partition, offset, value)`` in log order."""

    def append(self, topic: str, partition: int, value: bytes) -> Awaitable[int]:
        """Append; gives the offset once the log has acknowledged it."""

    async def read(self, topic: str, partition: int, low: int) -> Sequence[InputRecord]:
        """All records of a public topic from offset ``low`` to its present end."""

    def partitions(self) -> int:
        """Number of partitions of requests and of answers."""

    async def stop(self) -> None:
        """Flush and close."""
