"""The direct runner's deployment: a client's log for whoever plays a world, and afterwards the logs of every topic."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Self

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.client.logs.event_log import EventLog
from hushstream.engine.declare.conversation import conversation_of
from hushstream.engine.declare.declaration import System, asked_partitions
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog


class DirectSession:
    """The machines in this process."""

    def __init__(self, system: System, keys: KeySource) -> None:
        """Prepare a deployment under keys from files or, for experiments on public data only, from a seed."""
        self._system = system
        self._log = MemoryLog()
        self._driver = DirectDriver(self._log, all_machines(system, keys), os.urandom(32))

    async def __aenter__(self) -> Self:
        """Nothing is to be started."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is to be stopped."""

    def event_log(self, party: str = "") -> EventLog:
        """A log for one client, of a party where each has topics of its own."""
        answers = conversation_of(self._system, party).answers
        return DirectEventLog(self._log, self._driver, asked_partitions(self._system), answers)

    async def logs(self) -> LogCopy:
        """All topics as they are now, for export and verify."""
        return LogCopy.of(self._log)

    def counts(self) -> Mapping[str, int]:
        """Events by outcome, over all roles."""
        total: Counter[str] = Counter()
        for step in self._driver.steps:
            total.update(step.counts)
        return {str(name): number for name, number in sorted(total.items())}
