"""A log for the client over a learner's rig."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


class RigLog:
    """An event log over a learner's rig: records are acknowledged at once, folded when the test says so."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.journaled = 0
        self.deliver: Any = None
        self.refusal: Exception | None = None
        self.hang: asyncio.Event | None = None
        self.stopped = False

    async def start(self, on_answers: Any) -> None:
        self.deliver = on_answers
        self.tell(self.rig.genesis)

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        if self.hang is not None:
            await self.hang.wait()
        if self.refusal is not None:
            raise self.refusal
        return int(self.rig.put(topic, value, partition))

    def partitions(self) -> int:
        return 1

    async def stop(self) -> None:
        self.stopped = True

    def tell(self, value: bytes, skip: int = 0) -> None:
        """Put one record into the decisions log, where a reader finds it; ``skip`` leaves a hole before it."""
        self.journaled += skip
        self.deliver(0, self.journaled, value)
        self.journaled += 1

    def work(self) -> None:
        """Fold what arrived and let the client read the decisions."""
        for record in self.rig.fold().steps:
            self.tell(record.journal)

    @property
    def contexts(self) -> int:
        return len(self.rig.logs.get(("contexts", 0), ()))


@pytest.fixture
def log(rigs: Any) -> RigLog:
    return RigLog(rigs.LearnerRig())
