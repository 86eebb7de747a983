"""Real Faust workers on the embedded broker: start, rebalance, kill -9 and take-over, restart."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from hushstream.broker import BrokerSettings, EmbeddedBroker
from patience import patience

APP = Path(__file__).with_name("faust_app.py")


class Copier:
    """Workers of the application, what was sent to them, and what they have copied."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.sent: set[bytes] = set()
        self.copied: set[bytes] = set()

    def start_worker(self) -> subprocess.Popen[bytes]:
        datadir = self.folder / str(len(self.workers))
        environment = os.environ | {"COPIER_BOOTSTRAP": self.broker.bootstrap, "COPIER_DATADIR": str(datadir)}
        command = [sys.executable, str(APP), "worker", "--without-web", "-l", "info"]
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    async def wait_for_members(self, count: int) -> None:
        """Until the group is stable with `count` members that all hold partitions."""
        async with asyncio.timeout(patience(30)):
            while True:
                group = self.broker._node.coordinator.find("copier")
                if group is not None and group.state.value == "Stable" and len(group.members) == count:
                    return
                await asyncio.sleep(0.05)

    async def send(self, producer: AIOKafkaProducer, count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(self.sent)
            await producer.send("numbers", value, partition=len(self.sent) % 4)
            self.sent.add(value)
        await producer.flush()

    async def read_until_all_copied(self, consumer: AIOKafkaConsumer, seconds: float) -> None:
        """Wait until every number sent has been copied."""
        async with asyncio.timeout(patience(seconds)):
            while self.copied != self.sent:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    self.copied.update(record.value for record in records)

    async def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            await asyncio.to_thread(worker.wait, patience(10))


@pytest.fixture
async def copier(tmp_path: Path, make_topics) -> AsyncIterator[Copier]:
    async with EmbeddedBroker(BrokerSettings(group_min_session_timeout_ms=500)) as broker:
        await make_topics(broker.bootstrap, numbers=4, copies=4)
        running = Copier(broker, tmp_path)
        yield running
        await running.stop()


async def test_faust_workers_rebalance_take_over_after_kill_and_restart(copier):
    address = {"bootstrap_servers": copier.broker.bootstrap}
    consumer = AIOKafkaConsumer("copies", auto_offset_reset="earliest", **address)
    await consumer.start()
    async with AIOKafkaProducer(**address) as producer:
        first = copier.start_worker()
        await copier.send(producer, 200)
        await copier.read_until_all_copied(consumer, 30)

        second = copier.start_worker()
        await copier.wait_for_members(2)
        await copier.send(producer, 200)
        await copier.read_until_all_copied(consumer, 10)

        first.kill()
        await copier.send(producer, 200)
        # The session of 2 s, then a rejoin at the survivor's next heartbeat.
        await copier.read_until_all_copied(consumer, 20)

        copier.start_worker()
        await copier.wait_for_members(2)
        second.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(second.wait, patience(15)) == 0
        await copier.send(producer, 200)
        await copier.read_until_all_copied(consumer, 15)
    await consumer.stop()
    committed = copier.broker._node.coordinator.committed("copier")
    assert {partition for topic, partition in committed if topic == "numbers"} == {0, 1, 2, 3}
