"""Before its first fold of all a partition waits for what others have published by then, and not for long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.partition.driver import PartitionDriver, Tools
from hushstream.agents.recovery.snapshots import RecoveredMachine, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import InputRecord, Output, TopicPartition
from patience import Patience
from storage import KEYS

PATIENCE_SECONDS = 60.0
RULES = ("rules", 0)

pytestmark = pytest.mark.asyncio


class Run:
    """A driver of one partition whose machine scales its events by the last rule that was published."""

    def __init__(
        self, machines: Any, folder: Path, published: int | Exception, seconds: float, sequence: int = 0
    ) -> None:
        settings = WorkerSettings(
            bootstrap="127.0.0.1:1", role="joining", group="g", datadir=folder, named_wait_seconds=seconds,
            tick_interval_seconds=0.02,
        )  # fmt: skip
        self.sent: list[Output] = []
        self.before = sequence
        self.lost: list[BaseException] = []
        machine = machines.joining()[0](0)
        genesis = machine.genesis(bytes(4))
        machine.start(genesis)

        async def ends(places: list[TopicPartition]) -> dict[TopicPartition, int]:
            if isinstance(published, Exception):
                raise published
            return dict.fromkeys(places, published)

        async def nothing(*_: Any) -> Any:
            return {}

        tools = Tools(
            settings=settings, sender=self, snapshots=SnapshotStore(settings, KEYS), marks=None, states=None,
            metrics=Metrics(Labels("joining", partitions=1)), observe=lambda *_: None, end_offsets=ends,
            fetched_end=lambda _: 1, read_journal=nothing, notify_capacity=lambda: None,
            lost=lambda _, reason: self.lost.append(reason),
        )  # fmt: skip
        self.driver = PartitionDriver(0, RecoveredMachine(machine, genesis, sequence, sequence + 1), tools)
        self.left, self.right = self.driver.inputs
        (self.rules,) = self.driver.broadcasts
        for buffer in (self.left, self.right, self.rules):
            buffer.sought()
        self.right.offer([InputRecord(0, 1_000, b"1")])
        self.left.offer([InputRecord(0, 1_000, b"[10, 0]")])

    async def send(self, output: Output) -> asyncio.Future[Any]:
        self.sent.append(output)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        journal = [one for one in self.sent if one.topic.startswith("journal")]
        future.set_result(SimpleNamespace(offset=self.before + len(journal)))
        return future

    async def folded(self) -> bytes:
        """What is joined, once it was."""
        waiting = Patience(PATIENCE_SECONDS)
        while not (found := [one.value for one in self.sent if one.topic == "joined"]):
            assert not waiting.over, self.lost
            await asyncio.sleep(0.002)
        return found[0]

    async def close(self) -> None:
        await self.driver.close(PATIENCE_SECONDS)


async def test_the_first_fold_waits_for_what_was_published(machines, tmp_path):
    run = Run(machines, tmp_path, published=2, seconds=PATIENCE_SECONDS)
    run.driver.start()
    run.rules.offer([InputRecord(0, 900, b"5")])
    for _ in range(50):
        await asyncio.sleep(0.002)
    assert not run.sent
    run.rules.offer([InputRecord(1, 901, b"7")])
    assert b"71" in await run.folded()
    await run.close()


@pytest.mark.parametrize("published", [1, ConnectionError("no broker")], ids=["out of reach", "unknown"])
async def test_what_is_out_of_reach_is_not_waited_for_long(published, machines, tmp_path, caplog):
    run = Run(machines, tmp_path, published, seconds=0.05)
    run.driver.start()
    assert b"11" in await run.folded()
    await run.close()
    assert "partition 0: begins before all published records arrived" in caplog.text
    assert not run.lost


async def test_a_partition_that_has_folded_before_waits_for_nothing(machines, tmp_path):
    run = Run(machines, tmp_path, published=1, seconds=PATIENCE_SECONDS, sequence=1)
    run.driver.start()
    assert b"11" in await run.folded()
    await run.close()


async def test_a_driver_that_is_closed_meanwhile_ends(machines, tmp_path):
    run = Run(machines, tmp_path, published=1, seconds=PATIENCE_SECONDS)
    run.driver.start()
    await asyncio.sleep(0.01)
    await asyncio.wait_for(run.close(), PATIENCE_SECONDS / 2)
    assert not run.sent
    assert not run.lost
