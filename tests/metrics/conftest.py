"""A small deployment in this process, whose roles each feed the metrics that their worker would serve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.client import Client
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.systems.p2b.system import declare

ROUNDS = 3


class Played:
    """The metrics of every role after some users were played."""

    def __init__(self, system: Any) -> None:
        self.system = system
        self.log = MemoryLog()
        self.metrics: dict[str, Metrics] = {}
        machines = []
        for role in system.roles:
            count = system.homes(role)
            work = role_work(role.name, system, KeySource(seed=3))
            labels = Labels(
                role.name, work.reporting.outcomes, work.reporting.reasons, (*work.topics.inputs, *work.topics.writes),
                count, work.reporting.roles,
                work.reporting.private_work, work.reporting.private_lag, work.reporting.scope_classes,
            )  # fmt: skip
            self.metrics[role.name] = Metrics(labels, work.reporting.reason_of, work.reporting.figures_of)
            self.metrics[role.name].partitions(count, count, 0)
            for home in range(count):
                machine: Any = work.make_machine(home)
                machine.fold = self._observed(role.name, home, machine, work.reporting.gauges)
                machines.append(machine)
        self.driver = DirectDriver(self.log, machines, bytes(32))

    def _observed(self, role: str, home: int, machine: Any, gauges: Any) -> Callable[..., Any]:
        fold, metrics = machine.fold, self.metrics[role]

        def observed(slices: Any) -> Any:
            steps = fold(slices)
            for step in steps:
                if step.journal is not None:
                    metrics.journaled()
                metrics.batch(step.counts, 0.01)
                metrics.released(step.releases)
                metrics.dead_letters(step.dead_letters)
            for topic, partition in machine.inputs:
                metrics.lag(topic, partition, self.log.end(topic, partition) - machine.positions()[topic, partition])
            metrics.role_gauges(home, gauges(machine))
            return steps

        return observed

    def series(self, zone: bool) -> dict[tuple[str, str, tuple[tuple[str, str], ...]], float]:
        """Every sample of all roles on one kind of endpoint, without times of day."""
        return {
            (role, sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for role, metrics in self.metrics.items()
            for family in (metrics.zone if zone else metrics.public).collect()
            for sample in family.samples
            if not sample.name.endswith(("_created", "_age_seconds"))
        }


@pytest.fixture
def played(rigs: Any) -> Callable[..., Played]:
    """Play so many users who click, and one record that is refused."""

    async def live(deployment: Played, users: int) -> None:
        async def one(client: Client, user: int) -> None:
            for number in range(ROUNDS):
                name = f"user-{user}"
                decision = await client.decide(f"{name}:{number}", name, rigs.point(number), timeout=5)
                await client.reward(decision.event_id, name, decision.arm, 1.0)

        async with Client(DirectEventLog(deployment.log, deployment.driver, 1)) as client:
            for user in range(users):
                await one(client, user)
            await client.end_phase(0)
            deployment.log.append("contexts", 0, b"no record at all")

    def play(users: int, **system: Any) -> Played:
        deployment = Played(declare(rigs.make_system(**system)))
        asyncio.run(live(deployment, users))
        return deployment

    return play
