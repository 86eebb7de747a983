"""A broker with a folder keeps what it has acknowledged, whatever ends it; what it cannot keep it refuses, and says."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from hushstream.broker import BrokerSettings, BrokerStartError, EmbeddedBroker, ErrorCode
from hushstream.broker.disk import FILE, Change, Disk
from hushstream.broker.store import clean

pytestmark = pytest.mark.asyncio(loop_scope="function")
KILLS = int(os.environ.get("HUSHSTREAM_BROKER_KILLS", "6"))
WRITERS = 4


def kept(folder: Path, **settings: Any) -> EmbeddedBroker:
    return EmbeddedBroker(BrokerSettings(data=folder, **settings))


async def topics(bootstrap: str, settings: dict[str, str], **partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, n, 1, topic_configs=settings) for name, n in partitions.items()])
    await admin.close()


async def values(bootstrap: str, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    place = TopicPartition(topic, partition)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False) as reader:
        reader.assign([place])
        await reader.seek_to_beginning(place)
        end, found = (await reader.end_offsets([place]))[place], []
        while await reader.position(place) < end:
            for records in (await reader.getmany(timeout_ms=200, max_records=5000)).values():
                found += [(one.offset, one.value) for one in records]
        return found


async def described(bootstrap: str, delete: Sequence[str] = ()) -> tuple[object, str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics(list(delete))
    found = (await admin.describe_cluster(), str(await admin.describe_consumer_groups(["g"])))
    await admin.close()
    return found


class Process:
    """A broker as a process, which can be killed."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "hushstream.broker", "--port", str(self.port), "--data", str(self.folder)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        assert self.process.stdout is not None
        assert "listening" in self.process.stdout.readline()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def tear(folder: Path, draw: random.Random) -> None:
    """Leave the end of the log of writes as a machine does that lost its power within one: half of it is noise."""
    log = folder / f"{FILE}-wal"
    with log.open("ab") as file:
        file.write(draw.randbytes(draw.randrange(1, 10_000)))


async def test_killed_at_any_moment_it_has_lost_nothing_that_it_acknowledged_and_has_nothing_twice(tmp_path):
    """Catches an answer before the write is on disk, and sequence numbers that a kill forgets (a retry twice).

    Producers go on over all kills: what was on its way they send again, under the same sequence number.
    """
    draw, broker = random.Random(7), Process(tmp_path / "data")
    await topics(broker.bootstrap, {}, t=WRITERS)
    acknowledged: list[dict[int, bytes]] = [{} for _ in range(WRITERS)]
    done = asyncio.Event()

    async def writes(partition: int) -> None:
        number = 0
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, enable_idempotence=True, request_timeout_ms=60_000, linger_ms=2
        ) as producer:
            while not done.is_set():
                sent = [f"{partition}/{number + n}".encode() for n in range(5)]
                number += 5
                futures = [await producer.send("t", value, partition=partition) for value in sent]
                for value, met in zip(sent, await asyncio.gather(*futures), strict=True):
                    acknowledged[partition][met.offset] = value

    async with asyncio.TaskGroup() as group:
        for partition in range(WRITERS):
            group.create_task(writes(partition))
        for _ in range(KILLS):
            await asyncio.sleep(draw.uniform(0.2, 0.8))
            broker.kill()
            if draw.random() < 0.5:
                tear(broker.folder, draw)
            broker.start()
        await asyncio.sleep(0.5)
        done.set()
    for partition, met in enumerate(acknowledged):
        found = await values(broker.bootstrap, "t", partition)
        assert dict(found).items() >= met.items(), "an acknowledged record is lost"
        assert len({value for _, value in found}) == len(found), "a record is there twice"
        assert len(met) > 10 * KILLS
    broker.kill()


async def test_topics_positions_groups_and_times_are_those_of_before(tmp_path):
    """Catches a table that is written and not read: members go on in their generation, and nobody joins again."""
    broker = Process(tmp_path / "data")
    await topics(broker.bootstrap, {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}, t=2, u=1)
    async with (
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
        AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap, group_id="g", enable_auto_commit=False) as member,
    ):
        for number in range(50):
            await producer.send_and_wait("t", f"{number}".encode(), partition=0)
        await member.commit({TopicPartition("t", 0): (7, "as far as this")})
        before = await described(broker.bootstrap, delete=["u"])
        broker.kill()
        broker.start()
        assert await described(broker.bootstrap) == before
        place = TopicPartition("t", 0)
        assert await member.committed(place) == 7
        await member.commit({place: (8, "of the same generation")})
        assert await member.committed(place) == 8
        found = await values(broker.bootstrap, "t")
        assert found == [(number, f"{number}".encode()) for number in range(50)]
        assert await member.topics() == {"t"}
        assert (await producer.send_and_wait("t", b"next", partition=0)).offset == 50
        # Its connection was cut in a fetch: aiokafka ends one in order that has fetched since.
        async for record in member:
            if record.value == b"next":
                break
    broker.kill()


async def test_a_full_disk_refuses_records_with_the_code_that_clients_retry_and_goes_on_reading(
    tmp_path, make_batch, make_produce, connect
):
    """Catches a half-written group whose offsets readers see, and a broker that stays refused when there is room."""
    broker = kept(tmp_path / "data")
    async with broker:
        await topics(broker.bootstrap, {}, t=1)
        writer = broker._node.storage._writer  # type: ignore[union-attr]
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count={pages + 8}").fetchone()
        client = await asyncio.to_thread(connect, broker.bootstrap)

        async def produced(size: int) -> Any:
            request = make_produce("t", make_batch([b"x" * size]))
            answer = await asyncio.to_thread(client.ask, request, 8)
            return answer.responses[0].partition_responses[0]

        codes = [(await produced(8_000)).error_code for _ in range(20)]
        last = await produced(8_000)
        assert codes[0] == 0
        assert last.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "make room" in last.error_message
        taken = codes.count(0)
        assert await values(broker.bootstrap, "t") == [(n, b"x" * 8_000) for n in range(taken)]
        writer.execute("PRAGMA max_page_count=100000").fetchone()
        assert (await produced(8_000)).base_offset == taken


async def test_a_disk_that_is_full_at_the_start_is_named_as_that(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(BrokerStartError, match=r"the disk refuses what is written .*; make room on it"):
            await kept(tmp_path).start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_one_broker_works_on_a_folder_and_only_on_data_of_its_version(tmp_path):
    folder = tmp_path / "data"
    async with kept(folder):
        with pytest.raises(BrokerStartError, match="another broker keeps its data there"):
            await kept(folder).start()
    with sqlite3.connect(folder / FILE) as file:
        file.execute("PRAGMA user_version=3")
    with pytest.raises(BrokerStartError, match="expected data of version 2, got version 3; start the release"):
        await kept(folder).start()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE).write_bytes(b"no data of a broker " * 100)
    with pytest.raises(BrokerStartError, match="expected a broker's data, got"):
        await kept(tmp_path / "other").start()


async def test_a_clock_behind_the_newest_record_is_refused(tmp_path, monkeypatch):
    async with kept(tmp_path) as broker:
        await topics(broker.bootstrap, {"message.timestamp.type": "LogAppendTime"}, t=1)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            await producer.send_and_wait("t", b"x")
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 3600 * 1_000_000_000)
    with pytest.raises(BrokerStartError, match=r"clock is 3[56].. s behind the newest record of .* set the clock"):
        await kept(tmp_path).start()


async def test_retention_and_compaction_are_as_the_topics_declare_them_and_outlive_the_broker(tmp_path):
    """Catches a compaction that drops the last record of a key, or an offset that moves."""
    now_ms = time.time_ns() // 1_000_000
    async with kept(tmp_path) as broker:
        await topics(broker.bootstrap, {"retention.ms": "60000"}, old=1, gone=1)
        await topics(broker.bootstrap, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}, marks=1)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(30):
                age = 3_600_000 if number < 10 else 0
                await producer.send_and_wait("old", b"%d" % number, timestamp_ms=now_ms - age)
                await producer.send_and_wait("gone", b"%d" % number, timestamp_ms=now_ms - 3_600_000)
                await producer.send_and_wait("marks", b"%d" % number, b"key %d" % (number % 3))
        await clean(broker._node.store, now_ms)
    async with kept(tmp_path) as broker:
        assert [offset for offset, _ in await values(broker.bootstrap, "old")] == list(range(10, 30))
        assert await values(broker.bootstrap, "marks") == [(n, b"%d" % n) for n in (27, 28, 29)]
        assert broker._node.store.partition("marks", 0).start_offset == 0
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            assert (await producer.send_and_wait("gone", b"next")).offset == 30


async def test_what_is_on_disk_alone_is_read_as_it_was(tmp_path):
    """More than the memory keeps of a log: a reader from the start gets all of it, across the boundary."""
    async with kept(tmp_path) as broker:
        await topics(broker.bootstrap, {}, t=1)
        sent = [os.urandom(40_000) for _ in range(120)]
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for value in sent:
                await producer.send_and_wait("t", value)
        log = broker._node.store.partition("t", 0)
        assert 0 < len(log._batches) < 60
        assert [value for _, value in await values(broker.bootstrap, "t")] == sent
        assert len(log._batches) == len(log.batches_after(0, 1000)[0]) - (120 - len(log._batches))


async def test_after_a_fault_nothing_more_is_taken_and_that_is_said(tmp_path, caplog):
    """Catches a queue that waits for ever, and one that goes on with a log of which memory lacks a part."""

    def faulty() -> None:
        raise KeyError("of a test")

    disk = Disk(tmp_path / "data")
    disk.open()
    assert await disk.put(Change(())) == ""
    disk.put(Change((), faulty))
    with pytest.raises(KeyError):
        await disk.close()
    assert "start it again" in await disk.put(Change(()))
    assert "start it again" in caplog.text
