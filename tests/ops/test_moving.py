"""A deployment moves from a closed broker to another one and is the same there; whatever ends a step, it is told."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.conn import AIOKafkaConnection

from hushstream.agents.errors import LogsMoved
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.preflight import check_topics
from hushstream.agents.worker.roles import role_topics
from hushstream.broker import BrokerSettings, EmbeddedBroker
from hushstream.client.kafka import KafkaEventLog
from hushstream.engine.declare.declaration import conversation_of
from hushstream.ops.budget import budget_topics, read
from hushstream.ops.connection import Connection
from hushstream.ops.export import DamagedExport, ExportRefused, export_copy, open_export
from hushstream.ops.log_copy import LogCopy, PartitionCopy, Pause, copy_async
from hushstream.ops.moving import export_closed, import_async, note_closing, note_export
from hushstream.ops.topics import apply_async, check_async
from hushstream.schemas.codec import COMPRESSED
from hushstream.schemas.errors import HushstreamError

pytestmark = pytest.mark.asyncio(loop_scope="function")
KILLS = int(os.environ.get("HUSHSTREAM_MOVE_KILLS", "3"))
PREFIX, GROUP = "m.", "m.learner"
QUICK = Pause(moment_seconds=0.02, within_seconds=1.0)


class Requests:
    """Counts the requests of all clients, and ends a command at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self._last, self._command = 0, 0, asyncio.current_task()
        send = AIOKafkaConnection.send

        def counted(connection: AIOKafkaConnection, *request: Any, **options: Any) -> Any:
            self.number += 1
            if self.number == self._last and self._command is not None:
                self._command.cancel()
            return send(connection, *request, **options)

        monkeypatch.setattr(AIOKafkaConnection, "send", counted)

    async def ended_at(self, request: int, command: Awaitable[Any]) -> bool:
        """Run a command that is ended at its n-th request; whether it was."""
        self._command, self._last = asyncio.ensure_future(command), self.number + request
        with suppress(asyncio.CancelledError):
            await self._command
            return False
        return True


def kept(folder: Path) -> EmbeddedBroker:
    return EmbeddedBroker(BrokerSettings(data=folder))


@asynccontextmanager
async def target(folder: Path) -> AsyncIterator[Connection]:
    """Where the deployment goes on: the Apache Kafka of the environment, or another durable broker."""
    if given := os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP"):
        yield Connection(given, f"m{uuid.uuid4().hex[:12]}.")
        return
    async with kept(folder) as broker:
        yield Connection(broker.bootstrap, PREFIX)


def keyed(logs: LogCopy, compacted: set[str]) -> LogCopy:
    """The logs as a broker holds them: marks and states under keys, one batch that nobody opens, journals trimmed."""
    parts = dict(logs.parts)
    for (topic, number), part in logs.parts.items():
        if topic in compacted:
            keys = [f"k/{number}/{place % 5}".encode() for place in range(len(part.records))]
            parts[topic, number] = PartitionCopy(part.low, part.high + 2, part.records, keys)
    letters = next(source for source in parts if source[0].startswith("dead-letters"))
    (first, *rest), high = parts[letters].records, parts[letters].high
    closed = first._replace(offset=high + 2, value=COMPRESSED)
    parts[letters] = PartitionCopy(0, high + 3, [first, *rest, closed])
    return LogCopy(parts)


def content(logs: LogCopy, compacted: set[str]) -> dict[Any, Any]:
    """What must be the same of each partition: marks and states in their order, all else at its offset and log time."""
    return {
        source: [(one.timestamp_ms, one.value) for one in part.records]
        if source[0] in compacted
        else (part.low, part.high, list(part.records))
        for source, part in logs.parts.items()
        if part.high
    }


def settings(connection: Connection, role: str, system: Any, folder: Path) -> WorkerSettings:
    return WorkerSettings(
        bootstrap=connection.bootstrap, role=role, group="g", deployment=system.config.deployment,
        topic_prefix=connection.prefix, datadir=folder, release_marks=folder, connect_timeout_seconds=5,
    )  # fmt: skip


async def test_a_moved_deployment_is_the_same_wherever_a_step_was_ended_and_the_source_refuses_for_ever(
    p2b, tmp_path, monkeypatch
):
    """Catches a source that goes on, an import that workers take for whole, and a log that is another one there.

    HUSHSTREAM_MOVE_KILLS says at how many drawn requests export and import are ended.
    """
    draw, system, marks = random.Random(KILLS), p2b.system, tmp_path / "marks"
    requests = Requests(monkeypatch)
    compacted = {topic.name for topic in system.topics if topic.cleanup == "compact"}
    logs = keyed(p2b.logs, compacted)
    first, source = tmp_path / "first", tmp_path / "source"
    export_copy(logs, system, first)
    with pytest.raises(DamagedExport, match="a second life of its keys"):
        await import_async(Connection("127.0.0.1:1", PREFIX), system, first, -1, None)
    commits = [[GROUP, "contexts", number, 3 + number, "hushstream/1 abc 5"] for number in (0, 1)]
    (first / "commits.json").write_text(json.dumps(commits), encoding="utf-8")
    another = shutil.copytree(first, tmp_path / "another") / "manifest.json"
    another.write_text(another.read_text(encoding="utf-8").replace(system.digest.hex(), "00"), encoding="utf-8")
    with pytest.raises(DamagedExport, match=rf"expected .* {system.digest.hex()}, got .* 00: give the --deployment"):
        await import_async(Connection("127.0.0.1:1", PREFIX), system, another.parent, -1, None)
    async with kept(source) as broker:
        at_source = Connection(broker.bootstrap, PREFIX)
        await import_async(at_source, system, first, -1, None)
        imported = requests.number
        before = await copy_async(at_source, system.partitions, pause=QUICK, keyed=compacted)
    assert content(before, compacted) == content(logs, compacted)
    shutil.copytree(source, tmp_path / "earlier")

    async def move_out(broker: EmbeddedBroker, to: Path) -> None:
        note_closing([marks], broker.cluster_id)
        await broker.close_for_ever()
        await export_closed(Connection(broker.bootstrap, PREFIX), system, to)

    for number in range(KILLS // 2):
        async with kept(source) as broker:
            half = tmp_path / f"half-{number}"
            if await requests.ended_at(draw.randrange(1, 60), move_out(broker, half)):
                with pytest.raises(DamagedExport):
                    await import_async(Connection("127.0.0.1:1", PREFIX), system, half, -1, None)
    moved = tmp_path / "moved"
    async with kept(source) as broker:
        await move_out(broker, moved)
        at_source = Connection(broker.bootstrap, PREFIX)
        for role in system.role_names:
            with pytest.raises(LogsMoved, match="its topics were moved and it is closed for ever; go on with"):
                await check_topics(settings(at_source, role, system, tmp_path), role_topics_of(role, system))
        for refused in (
            apply_async(at_source, system),
            KafkaEventLog(broker.bootstrap, PREFIX, topics=conversation_of(system)).start(lambda *_: None),
        ):
            with pytest.raises(LogsMoved):
                await refused
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, request_timeout_ms=500) as producer:
            with pytest.raises(Exception, match=r"Timeout|Incompatible|Disconnected|Connection"):
                await asyncio.wait_for(producer.send_and_wait(f"{PREFIX}contexts", b"x", partition=0), 3)
        after = await copy_async(at_source, system.partitions, pause=QUICK)
        assert content(after, compacted) == content(before, compacted)
    async with kept(tmp_path / "earlier") as broker:
        at_source = Connection(broker.bootstrap, PREFIX)
        with pytest.raises(LogsMoved):  # the copy does not know, the note beside the marks does
            await check_topics(settings(at_source, "shuffler", system, marks), role_topics_of("shuffler", system))
    assert content(open_export(moved), compacted) == content(before, compacted)

    compared = p2b.verify(before).totals
    left = KILLS
    while left > 0:
        copied = shutil.copytree(moved, tmp_path / f"moved-{left}")
        async with target(tmp_path / f"target-{left}") as connection:
            for _ in range(1 + draw.randrange(2)):
                left -= 1
                at = draw.randrange(1, imported)
                if await requests.ended_at(at, import_async(connection, system, copied, -1, None)):
                    for role in system.role_names:
                        with pytest.raises(
                            HushstreamError, match=r"import of the topics ended half-way|does not exist"
                        ):
                            await check_topics(
                                settings(connection, role, system, tmp_path), role_topics_of(role, system)
                            )
            await import_async(connection, system, copied, -1, None)
            assert not await check_async(connection, system)
            there = await copy_async(connection, system.partitions, pause=QUICK, keyed=compacted)
            assert content(there, compacted) == content(before, compacted)
            for name in compacted:
                assert [part.keys for _, part in there.of_topic(name)] == [p.keys for _, p in before.of_topic(name)]
            async with connection.admin("look") as admin:
                found = await admin.list_consumer_group_offsets(GROUP)
            own = {p: o for p, o in found.items() if p.topic == f"{connection.prefix}contexts"}
            assert sorted([GROUP, "contexts", p.partition, o.offset, o.metadata] for p, o in own.items()) == commits
            topics = budget_topics(system)
            spent = [
                read(LogCopy({s: p for s, p in one.parts.items() if s[0] in topics}), system) for one in (there, before)
            ]
            assert spent[0] == spent[1]
            assert p2b.verify(there).totals == compared
            with pytest.raises(HushstreamError, match="to which it was brought before"):
                async with kept(tmp_path / f"second-{left}") as second:
                    await import_async(Connection(second.bootstrap, PREFIX), system, copied, -1, None)
            async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap) as producer:
                await producer.send_and_wait(f"{connection.prefix}contexts", b"it goes on", partition=0)
            with pytest.raises(HushstreamError, match="holds other records than the export: nothing was changed"):
                await import_async(connection, system, copied, -1, None)


def test_a_second_export_is_refused_while_the_first_is_there(tmp_path):
    note_export(tmp_path, tmp_path)
    (tmp_path / "commits.json").touch()
    with pytest.raises(ExportRefused, match=f"found an export in {tmp_path}: import that one"):
        note_export(tmp_path, tmp_path / "second")


def role_topics_of(name: str, system: Any) -> Any:
    return role_topics(next(role for role in system.roles if role.name == name), system)
