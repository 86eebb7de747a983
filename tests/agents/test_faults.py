"""Workers that are ended and moved lose nothing and repeat nothing; `tests/chaos` kills and stops them."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from hushstream.agents.kafka.logs import LogReader
from hushstream.schemas.codec import COMPRESSED, CodecError, decode

PARTITIONS = 3


def pack(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def logs_of(kind: str, records: int, seed: int = 1) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Frozen input logs of one machine: (log time, value) by topic and partition."""
    draw = random.Random(seed)
    logs: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for partition in range(PARTITIONS):
        times = [1_000_000 + 10 * i for i in range(records)]
        if kind == "window":
            names = [pack([f"n{draw.randrange(records)}", draw.randrange(5)]) for _ in times]
            logs["slots", partition] = list(zip(times, names, strict=True))
        else:
            # A left record names a right record that was logged before it; one in fifty waits for a later one.
            near = [draw.randrange(40) * (1 if draw.random() < 0.02 else -1) for _ in range(records)]
            named = [min(max(i // 2 + offset, 0), records // 2 - 1) for i, offset in enumerate(near)]
            left = [pack([draw.randrange(9), right]) for right in named]
            logs["left", partition] = list(zip(times, left, strict=True))
            logs["right", partition] = [(t + 5, pack(draw.randrange(3))) for t in times[::2]]
    if kind == "joining":
        logs["rules", 0] = [(1_000_003 + 400 * i, pack(i + 1)) for i in range(records // 40)]
    return logs


def deployment(bench: Any, harness: Any, machines: Any, kind: str, name: str, records: int, **settings: Any) -> Any:
    arguments = {"window": {"size": 7}, "joining": {}}[kind]
    return harness.Deployment(
        bench,
        name,
        f"{machines.__file__}:{kind}",
        arguments,
        getattr(machines, kind)(**arguments),
        logs_of(kind, records),
        PARTITIONS,
        settings,
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_an_end_by_sigterm_loses_nothing_repeats_nothing_and_flushes_no_window(bench, harness, machines):
    records = 4000
    async with deployment(
        bench,
        harness,
        machines,
        "window",
        "ended",
        records,
        schedule="live",
        batch_records=40,
        buffer_records=40,
        **harness.CALM,
    ) as run:
        run.pace_seconds = 0.004
        for _ in range(3):
            worker = await run.start()
            await worker.logged("at journal record")
            await asyncio.sleep(0.15)
            worker.kill(signal.SIGTERM)
            assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        await run.finish()
        audit = await run.audit()
    assert audit.repeats == 0
    assert audit.off_chain == 0
    for partition, values in audit.journals.items():
        assert len(values) > 1, partition


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.process
async def test_partitions_move_from_one_worker_to_two_and_back(bench, harness, machines):
    records = 6000
    async with deployment(
        bench,
        harness,
        machines,
        "joining",
        "moved",
        records,
        schedule="live",
        batch_records=50,
        buffer_records=50,
    ) as run:
        run.pace_seconds = 0.01
        first = await run.start()
        await first.logged("at journal record")
        second = await run.start()
        await second.logged("at journal record")
        assert "at journal record 0 " not in second.log.read_text(encoding="utf-8"), "it took over in the middle"
        second.kill(signal.SIGTERM)
        assert await second.exit_code() == 0, second.log.read_text(encoding="utf-8")[-3000:]
        await run.folded_all()
        first.kill(signal.SIGTERM)
        assert await first.exit_code() == 0, first.log.read_text(encoding="utf-8")[-3000:]
        audit = await run.audit()
    # Every input was folded once: the chain's ranges run without a gap to the end of each log.
    for partition, positions in audit.positions.items():
        for (topic, place), offset in positions.items():
            expected = {"rules": records // 40, "right": (records + 1) // 2}.get(topic, records)
            assert offset == expected, (partition, topic, place)
    assert audit.off_chain == 0
    assert audit.repeats == 0


# A compressed batch stays closed: one record stands for it, is refused, and the log goes on behind it.

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
