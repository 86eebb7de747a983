"""An auditor against a broker: equal to `verify`, alterations, restarts, and what is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError
from prometheus_client import generate_latest

from hushstream.agents.datadir import DatadirUnusable
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.settings import WorkerSettings
from hushstream.broker import EmbeddedBroker
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.check import follow as audit
from hushstream.ops.check.findings import Status
from hushstream.ops.check.follow import Auditor
from hushstream.ops.check.verify import verify
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.logs import trim
from hushstream.replay.runners.stream import free_port
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError

ROLES = ("learner", "shuffler", "aggregator")
GOOD = (Status.EQUAL, Status.FLOAT_TIE, Status.REPEATED, Status.NOTED, Status.OFF_CHAIN, Status.CHANGED)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Any]:
    async with EmbeddedBroker() as running:
        yield running


class Live:
    """A deployment whose logs are on a broker, as far as a test has put them there."""

    def __init__(self, system: Any, keys: Any, broker: Any, folder: Path) -> None:
        self.system, self.keys, self.folder = system, keys, folder
        self.connection = Connection(broker.bootstrap, "audited.")

    async def create(self) -> None:
        async with self.connection.admin("create topics") as admin:
            settings = {"message.timestamp.type": "CreateTime"}
            topics = self.system.partitions.items()
            named = [NewTopic(f"audited.{name}", n, 1, topic_configs=settings) for name, n in topics]
            await admin.create_topics(named)

    async def put(self, parts: Iterable[tuple[TopicPartition, Iterable[InputRecord]]]) -> None:
        options: Any = {"bootstrap_servers": self.connection.bootstrap, "enable_idempotence": True}
        async with AIOKafkaProducer(**options) as producer:
            sent = [
                await producer.send(f"audited.{topic}", r.value, partition=number, timestamp_ms=r.timestamp_ms)
                for (topic, number), records in parts
                for r in records
            ]
            await asyncio.gather(*sent)

    async def put_copy(self, copy: LogCopy) -> None:
        await self.create()
        await self.put((source, part.records) for source, part in copy.parts.items())

    def auditor(self, role: str) -> Auditor:
        settings = WorkerSettings(
            bootstrap=self.connection.bootstrap, role=f"auditor-{role}", group="none", topic_prefix="audited.",
            deployment=self.system.config.deployment, datadir=self.folder, snapshot_interval_seconds=0.01,
        )  # fmt: skip
        return Auditor(settings, self.system, role, self.keys)

    async def once(self, role: str) -> Auditor:
        auditor = self.auditor(role)
        await auditor.run(asyncio.Event(), once=True)
        return auditor


def shown(auditor: Auditor, name: str) -> float:
    text = (generate_latest(auditor.metrics.public) + generate_latest(auditor.metrics.zone)).decode()
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"hushstream_audit_{name}")
    )


@pytest.fixture
def live(deployment: Any, broker: Any, tmp_path: Path) -> Live:
    return Live(deployment.system, deployment.keys, broker, tmp_path)


@pytest.mark.parametrize("role", ROLES)
async def test_it_counts_what_verify_counts(deployment, live, role):
    await live.put_copy(deployment.copy)
    auditor = await live.once(role)
    expected = verify(deployment.copy, deployment.system, deployment.keys, [role])
    assert auditor.differences == 0
    assert {one: auditor.counts[one] for one in GOOD} == {one: expected.totals[one] for one in GOOD}
    assert shown(auditor, "differences") == 0
    assert shown(auditor, "lag_records") == 0


@pytest.mark.parametrize(
    ("role", "topic"),
    [("learner", "decisions"), ("learner", "reports"), ("learner", "dead-letters-edge"), ("shuffler", "window-sums"),
     ("shuffler", "journal-shuffler"), ("aggregator", "models")],
)  # fmt: skip
async def test_an_altered_record_is_found_and_told(editor, deployment, live, role, topic):
    source = editor.holding(topic, 3)[-1]
    altered = editor.byte_changed(source, 1, -1, 1)
    await live.put_copy(altered)
    auditor = live.auditor(role)
    assert await auditor.run(asyncio.Event(), once=True) == 1
    assert auditor.differences >= 1
    assert shown(auditor, "differences") == auditor.differences
    again = await live.once(role)
    assert again.differences >= auditor.differences, "a restart forgets no difference"


async def test_a_record_that_nothing_explains_is_found(deployment, editor, live):
    source = editor.holding("window-sums", 1)[0]
    await live.put_copy(editor.inserted(source, 1, b"nobody's"))
    assert (await live.once("shuffler")).differences == 1


async def test_a_restart_goes_on_from_its_checkpoint(deployment, live):
    copy, early = deployment.copy, {}
    for source, part in copy.parts.items():
        # Up to a journal record of the learner's: what came before it is there, as it was at that time.
        early[source] = [r for r in part.records if r.timestamp_ms <= _middle(copy)]
    await live.create()
    await live.put(early.items())
    first = await live.once("learner")
    assert first.differences == 0
    later = {source: part.records[len(early[source]) :] for source, part in copy.parts.items()}
    await live.put(later.items())
    second = live.auditor("learner")
    second._restore()
    assert {home: one.position for home, one in second._followers.items()} == {
        home: len(early["decisions", home]) for home in (0, 1)
    }
    whole = await live.once("learner")
    expected = verify(copy, deployment.system, deployment.keys, ["learner"])
    assert whole.differences == 0
    assert whole.counts[Status.EQUAL] == expected.totals[Status.EQUAL]


def _middle(copy: LogCopy) -> int:
    records = copy.part(("decisions", 0)).records
    return records[len(records) // 2].timestamp_ms


async def test_what_a_worker_has_not_sent_yet_is_no_difference(editor, deployment, live):
    """The last window's sums are missing, as behind a worker that ended before it sent them, and come later."""
    source = editor.holding("window-sums", 1)[-1]
    records = list(deployment.copy.part(source).records)
    await live.put_copy(editor.with_records(source, records[:-1]))
    assert (await live.once("shuffler")).differences == 0
    await live.put([(source, records[-1:])])
    auditor = await live.once("shuffler")
    assert (auditor.differences, auditor.counts[Status.UNCHECKABLE]) == (0, 0)


async def test_what_is_missing_before_what_came_later_is_a_difference(editor, deployment, live):
    source = editor.holding("window-sums", 3)[0]
    await live.put_copy(editor.closed_up(source, 0))
    auditor = live.auditor("shuffler")
    stop = asyncio.Event()

    async def until_found() -> None:
        for _ in range(100_000):
            if auditor.differences:
                break
            await asyncio.sleep(0.05)
        stop.set()

    code, _ = await asyncio.gather(auditor.run(stop), until_found())
    assert code == 1


@pytest.mark.parametrize("role", ["learner", "shuffler"])
async def test_a_trimmed_journal_is_followed_from_a_published_state(p2b, broker, tmp_path, role):
    live = Live(p2b.system, p2b.keys, broker, tmp_path)
    await live.put_copy(p2b.logs)
    whole = await live.once(role)
    assert whole.differences == 0
    planned = await trim.plan(live.connection, p2b.system, p2b.keys, [role])
    assert planned.rows
    await planned.act()
    live.folder = tmp_path / "anew"
    trimmed = await live.once(role)
    assert trimmed.differences == 0
    assert 0 < trimmed.counts[Status.EQUAL] < whole.counts[Status.EQUAL]


async def test_a_record_of_nobody_on_the_journal_is_found_and_ends_nothing(editor, deployment, live):
    """It names other topics, and more of an input than any batch covers."""
    source = editor.holding("decisions", 3)[0]
    records = deployment.copy.part(source).records
    name, fields = codec.decode(records[2].value)
    parts = [
        {"topic": "state-learner", "partition": 0, "low": 0, "high": 9},
        {"topic": "contexts", "partition": 0, "low": 0, "high": 1 << 40},
    ]
    forged = codec.encode(name, {**fields, "head": {**fields["head"], "inputs": parts}})
    await live.put_copy(editor.with_records(source, _put_in(records, 3, forged)))
    auditor = await live.once("learner")
    expected = verify(deployment.copy, deployment.system, deployment.keys, ["learner"])
    assert auditor.differences == 1
    assert auditor.counts[Status.EQUAL] == expected.totals[Status.EQUAL], "what is on the chain is checked as before"


def _put_in(records: Any, index: int, value: bytes) -> list[InputRecord]:
    values = [record[1:] for record in records]
    values.insert(index, (values[index][0], value))
    return [InputRecord(offset, *stored) for offset, stored in enumerate(values)]


async def test_two_auditors_on_one_state_folder_are_refused(live):
    await live.create()
    stop = asyncio.Event()
    first = asyncio.create_task(live.auditor("learner").run(stop))
    while not (live.folder / ".lock").exists():  # noqa: ASYNC110 - it is a file
        await asyncio.sleep(0.01)
    with pytest.raises(DatadirUnusable, match=r"one in which another auditor works; .*--state"):
        await live.auditor("shuffler").run(asyncio.Event(), once=True)
    stop.set()
    await first
    assert (await live.once("learner")).differences == 0, "its lock ends with it"


async def test_it_ends_when_it_is_told_though_no_broker_answers(deployment, live, monkeypatch):
    await live.put_copy(deployment.copy)
    reading, stop = asyncio.Event(), asyncio.Event()

    async def hangs(*_: Any) -> list[InputRecord]:
        reading.set()
        return await asyncio.Future()

    monkeypatch.setattr(LogReader, "read", hangs)
    monkeypatch.setattr(audit, "END_SECONDS", 0.1)
    running = asyncio.create_task(live.auditor("learner").run(stop))
    await reading.wait()
    stop.set()
    assert await running == 0


async def test_a_reader_that_finds_no_broker_leaves_nothing_open(live):
    settings = live.connection.settings().model_copy(update={"bootstrap": f"127.0.0.1:{free_port()}"})
    reader = LogReader(settings)
    with pytest.raises(KafkaError):
        await reader.__aenter__()
    assert reader._consumer._closed


async def test_without_the_zones_key_it_does_not_begin(deployment, live, tmp_path):
    live.keys = type(live.keys)(folder=tmp_path / "none")
    with pytest.raises(HushstreamError, match="expected the key of edge"):
        live.auditor("learner")
