"""Frozen input logs of a deployment's roles: what was played through them, bad records included.

The logs are a function of the seeds alone. Log time goes on by `CLOCK_STEP_MS` an append.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.replay.runners.direct import DirectDriver, MemoryLog

KEY_SEED = 7
START_MS = 1_700_000_000_000
CLOCK_STEP_MS = 100

Log = list[tuple[int, bytes]]
"""(log time in milliseconds, value) of each record of one partition."""


class FrozenLogs:
    """The logs, and what is true of them.

    Attributes:
        folder, system: of the deployment.
        logs: every input partition of every role.
        events: by learner partition, the event ids that must be decided, each once.
        dead: by learner partition, how many rows must be refused at least.
    """

    def __init__(self, folder: Path, system: System, inputs: Mapping[str, Sequence[str]], learners: int = 0) -> None:
        """No logs yet; ``inputs`` names the topics that each role reads."""
        self.folder, self.system, self._inputs = folder, system, inputs
        self.logs: dict[TopicPartition, Log] = {}
        self.events: dict[int, list[str]] = {home: [] for home in range(learners)}
        self.dead = dict.fromkeys(range(learners), 0)

    def of(self, role: str) -> dict[TopicPartition, Log]:
        """The inputs of one role."""
        return {place: log for place, log in self.logs.items() if place[0] in self._inputs[role]}

    def records_of(self, topic: str, partition: int) -> list[InputRecord]:
        """One partition as a machine reads it."""
        log = self.logs[topic, partition]
        return [InputRecord(offset, time_ms, value) for offset, (time_ms, value) in enumerate(log)]

    def play(self, act: Callable[[MemoryLog, DirectDriver], None]) -> None:
        """Let the machines of all roles wait at an empty log, act on it, and keep what each partition holds then."""
        ticks = count(START_MS, CLOCK_STEP_MS)
        log = MemoryLog(lambda: next(ticks))
        act(log, DirectDriver(log, all_machines(self.system, KeySource(seed=KEY_SEED)), bytes(32)))
        for place, records in log.partitions():
            self.logs[place] = [(record.timestamp_ms, record.value) for record in records]

    def spoil(self, seed: int, bad_values: Callable[[str, Sequence[bytes]], Iterable[bytes]]) -> None:
        """Put repeats and bad records into the logs that lie between the roles, at drawn places."""
        draw = random.Random(seed)
        for (topic, _), log in sorted(self.logs.items()):
            for value in bad_values(topic, [value for _, value in log]):
                place = draw.randrange(2, len(log))
                log.insert(place, (log[place][0], value))
