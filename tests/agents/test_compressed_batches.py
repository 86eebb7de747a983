"""A compressed batch stays closed: one record stands for it, is refused, and the log goes on behind it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from hushstream.agents.kafka.logs import LogReader
from hushstream.schemas.codec import COMPRESSED, CodecError, decode

BOMB_BYTES = 384 << 20
MEMORY_LIMIT_BYTES = 300 << 20


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    return int(Path(f"/proc/{pid}/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.asyncio(loop_scope="module")
async def test_a_gzip_record_that_would_fill_the_memory_is_a_dead_letter_and_its_partition_goes_on(
    bench, harness, machines, bombs
):
    bomb = await asyncio.to_thread(bombs.gzip_bomb, BOMB_BYTES)
    assert len(bomb) < 1 << 20
    events = [(1_000_000 + number, b"k%d" % number) for number in range(3)]
    run = harness.Deployment(
        bench, "bomb", f"{machines.__file__}:counting", {"targets": 1}, machines.counting(targets=1),
        {("events", 0): events}, 1, {"schedule": "live"},
    )  # fmt: skip
    async with run:
        await bombs.produce(bench.bootstrap, run.settings.physical("events"), 0, bomb)
        await run.append({("events", 0): events})
        worker = await run.start()
        await run.folded_all()
        peak = peak_bytes(worker.pid)
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0
        await run.audit()
        dead = [machines.json.loads(value) for value in await run.values_of(("dead", 0))]
        counted = [machines.json.loads(value) for value in await run.values_of(("counts", 0))]
    assert dead == [["counting", 0, 3, "not_a_key"]]
    assert sorted(counted)[-1] == [0, "k2", 2]
    assert peak < MEMORY_LIMIT_BYTES, f"{peak >> 20} MB at a value of {BOMB_BYTES >> 20} MB"


@pytest.mark.asyncio(loop_scope="module")
async def test_one_record_stands_for_a_closed_batch_at_its_last_offset_for_every_reader_of_ours_and_for_nobody_else(
    bench, harness, machines, bombs
):
    run = harness.Deployment(
        bench, "closed", f"{machines.__file__}:counting", {"targets": 1}, machines.counting(targets=1),
        {("events", 0): [(1_000_000, b"k0")]}, 1,
    )  # fmt: skip
    async with run:
        topic = run.settings.physical("events")
        builder = DefaultRecordBatchBuilder(2, 1, False, -1, -1, -1, 1 << 20)
        for number in range(3):
            builder.append(number, 1_000_001, None, b"k1", [])
        await bombs.produce(bench.bootstrap, topic, 0, bytes(builder.build()))
        await run.append({("events", 0): [(1_000_002, b"k2")]})
        async with LogReader(run.settings) as reader:
            for low in (0, 2):
                reader.open({("events", 0): low})
                found = [(r.offset, r.value) for r in await reader.read(("events", 0), low, 5)]
                assert found == [(0, b"k0")] * (low == 0) + [(3, COMPRESSED), (4, b"k2")]
        theirs = AIOKafkaConsumer(bootstrap_servers=bench.bootstrap)
        await theirs.start()
        theirs.assign([TopicPartition(topic, 0)])
        await theirs.seek_to_beginning()
        values = [(await theirs.getone()).value for _ in range(5)]
        await theirs.stop()
    assert values == [b"k0", b"k1", b"k1", b"k1", b"k2"]


def test_what_stands_for_a_closed_batch_is_refused_by_its_own_reason():
    with pytest.raises(CodecError) as refused:
        decode(COMPRESSED)
    assert refused.value.reason == "compressed"
