"""What is wrong around a worker is told before it joins its group: topics, broker, disk; each with its remedy."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from full_disk import no_room

from hushstream.agents.datadir import DatadirUnusable, check_datadir
from hushstream.agents.errors import BrokerVersionWrong, TopicSettingsWrong, WorkerError
from hushstream.agents.kafka.administration import administering
from hushstream.agents.security import Security
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker import preflight, worker
from hushstream.agents.worker.preflight import RoleTopics, check_declared, check_topics
from hushstream.agents.worker.worker import RoleWorker
from hushstream.broker import EmbeddedBroker
from hushstream.ops.connection import Connection
from hushstream.ops.topics import describe_async
from hushstream.replay.runners.stream import free_port
from hushstream.systems.p2b.system import declare
from hushstream.systems.p2b.topics import TOPICS
from patience import Patience

pytestmark = pytest.mark.asyncio(loop_scope="module")

DECLARED = {topic.name: topic for topic in TOPICS if topic.name in ("reports", "journal-shuffler", "ledger")}


def test_no_port_is_given_twice_before_its_process_listens():
    """Of 1,000 that were drawn alone, some two dozen would come twice."""
    assert len({free_port() for _ in range(1000)}) == 1000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as made:
        yield made


def settings(bootstrap: str, prefix: str = "") -> WorkerSettings:
    return WorkerSettings(
        bootstrap=bootstrap, role="shuffler", group="g", topic_prefix=prefix, datadir=Path("unused"),
        connect_timeout_seconds=2.0,
    )  # fmt: skip


async def created(broker: EmbeddedBroker, prefix: str, **changes: dict[str, str]) -> WorkerSettings:
    """The shuffler's topics as declared, with changes by logical name (dashes for underscores)."""
    made = settings(broker.bootstrap, prefix)
    admin = AIOKafkaAdminClient(**made.client_options())
    await admin.start()
    try:
        for name, topic in DECLARED.items():
            config = {**topic.settings(), **changes.get(name.replace("-", "_"), {})}
            await admin.create_topics([NewTopic(prefix + name, 1, 1, topic_configs=config)])
    finally:
        await admin.close()
    return made


@pytest.mark.parametrize(
    ("topic", "setting", "value"),
    [
        ("reports", "retention.ms", "1000"),
        ("ledger", "retention.ms", "604800000"),
        ("journal-shuffler", "retention.ms", "86400000"),
        ("reports", "retention.bytes", "1000000"),
        ("journal-shuffler", "max.message.bytes", "1000"),
    ],
)
async def test_a_topic_that_loses_records_too_early_or_takes_too_small_ones_is_named_with_the_command_that_mends_it(
    broker, topic, setting, value
):
    prefix = f"{topic}-{setting}."
    made = await created(broker, prefix, **{topic.replace("-", "_"): {setting: value}})
    declared = DECLARED[topic].settings()[setting]
    with pytest.raises(TopicSettingsWrong) as caught:
        await check_declared(made, DECLARED)
    assert f"topic {prefix}{topic}: expected {setting} {declared}, found {value}" in str(caught.value)
    assert f"--add-config {setting}={declared}" in str(caught.value)


async def test_topics_as_declared_or_kept_longer_are_accepted(broker):
    made = await created(broker, "good.", reports={"retention.ms": "-1"})
    await check_declared(made, DECLARED)


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the project itself logged; clients of other tests may log beside it."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("hushstream")]


async def test_too_few_copies_of_what_lasts_are_warned_of_beyond_this_machine_and_not_on_it(broker, caplog):
    made = await created(broker, "few.")
    with caplog.at_level("WARNING", logger="hushstream.agents.worker.preflight"):
        await check_declared(made, DECLARED)
        assert not own_messages(caplog)
        # By this name it may as well be another machine: no address of loopback, and it leads here.
        beyond = made.bootstrap.replace("127.0.0.1", "0.0.0.0")
        security = Security(allow_plaintext=True)
        await check_declared(made.model_copy(update={"bootstrap": beyond, "security": security}), DECLARED)
    (warning,) = own_messages(caplog)
    assert warning.startswith("topics few.journal-shuffler, few.ledger: expected 3 copies or more and")
    assert "found 1 and 1" in warning


async def test_log_times_that_writers_choose_are_refused_beyond_this_machine(broker):
    reports = {"reports": DECLARED["reports"]}
    made = await created(broker, "chosen.", reports={"message.timestamp.type": "CreateTime"})
    await check_declared(made, reports)
    beyond = {"bootstrap": made.bootstrap.replace("127.0.0.1", "0.0.0.0"), "security": Security(allow_plaintext=True)}
    with pytest.raises(
        TopicSettingsWrong, match=r"chosen\.reports: expected message\.timestamp\.type LogAppendTime, found CreateTime"
    ):
        await check_declared(made.model_copy(update=beyond), reports)


class OtherBroker:
    """A broker that answers nothing but which requests it takes, as a much older or newer one would."""

    def __init__(self, versions: dict[int, tuple[int, int]]) -> None:
        self._versions = versions
        self.bootstrap = ""
        self.asked: list[int] = []

    async def __aenter__(self) -> OtherBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.bootstrap = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = struct.unpack(">i", await reader.readexactly(4))[0]
                request = await reader.readexactly(size)
                api, _, correlation = struct.unpack(">hhi", request[:8])
                self.asked.append(api)
                body = struct.pack(">hi", 0, len(self._versions))
                if api == 3:  # metadata, version 0: itself, and no topics
                    port = int(self.bootstrap.rpartition(":")[2])
                    body = struct.pack(">iih", 1, 1, 9) + b"127.0.0.1" + struct.pack(">ii", port, 0)
                else:
                    body += b"".join(struct.pack(">hhh", key, *span) for key, span in self._versions.items())
                writer.write(struct.pack(">ii", len(body) + 4, correlation) + body)
        except asyncio.IncompleteReadError:
            writer.close()


OLD = {0: (0, 2), 1: (0, 3), 2: (0, 1), 3: (0, 0), 8: (0, 2), 9: (0, 1), 10: (0, 0), 11: (0, 1), 12: (0, 0),
       13: (0, 0), 14: (0, 0), 18: (0, 0)}  # fmt: skip
"""What Apache Kafka 0.10 took: no idempotent producers."""

NEW = dict.fromkeys((1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 18, 22, 32), (0, 20)) | {0: (40, 50)}
"""A broker that takes only forms of produce requests that nobody has thought of yet."""


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        (OLD, "InitProducerIdRequest in one of the versions 0 to 0, it accepts no version"),
        ({**NEW, 3: (0, 0)}, r"ProduceRequest in one of the versions 0 to \d+, it accepts versions 40 to 50"),
    ],
    ids=["older", "newer"],
)
async def test_a_broker_of_another_version_is_named_with_what_to_run(versions, says, rigs):
    async with OtherBroker(versions) as other:
        with pytest.raises(BrokerVersionWrong, match=says) as caught:
            await check_topics(settings(other.bootstrap), RoleTopics(("reports",), "journal-shuffler"))
        assert "run Apache Kafka 4 (4.3 is tested)" in str(caught.value)
        with pytest.raises(BrokerVersionWrong, match=says):
            await describe_async(Connection(other.bootstrap, "", timeout_seconds=2), declare(rigs.make_system()))
        assert not {0, 22} & set(other.asked)


CHANGES = {("journal-counting", "cleanup.policy"), ("events", "retention.ms"), ("events", "partitions")}


async def test_what_is_changed_under_a_running_worker_is_shown_within_a_minute_with_the_command_that_mends_it(
    broker, tmp_path, machines, monkeypatch, caplog
):
    """Unseen, each of these is an outage at the next restart, or has deleted a journal by then."""
    assert worker._DRIFT_SECONDS <= 60
    monkeypatch.setattr(worker, "_DRIFT_SECONDS", 0.2)
    make, topics = machines.counting()
    port = free_port()
    made = settings(broker.bootstrap, "drift.").model_copy(
        update={"datadir": tmp_path, "role": "counting", "deployment": "test", "metrics_port": port}
    )
    async with administering(made.cluster) as admin:
        for name, topic in topics.declared.items():
            await admin.create_topics([NewTopic(f"drift.{name}", 1, 1, topic_configs=topic.settings())])
        running = RoleWorker(made, make, topics)
        task = asyncio.create_task(running.run())
        with caplog.at_level("ERROR", logger="hushstream.agents.worker.worker"):
            await until(lambda: held(port), 1)
            given = {name: cast("dict[str, str]", store(broker, f"drift.{name}")) for name in topics.declared}
            given["journal-counting"]["cleanup.policy"] = "compact"
            given["events"]["retention.ms"] = "60000"
            await admin.create_partitions({"drift.events": NewPartitions(2)})
            await until(lambda: shown(port), CHANGES)
            given["journal-counting"]["cleanup.policy"] = "delete"
            await until(lambda: shown(port), CHANGES - {("journal-counting", "cleanup.policy")})
        running.request_stop()
        await task
    (compacted,) = [said for said in own_messages(caplog) if "cleanup.policy" in said]
    assert "topic drift.journal-counting: expected cleanup.policy delete, found compact; set it with" in compacted
    assert "--alter --topic drift.journal-counting --add-config cleanup.policy=delete" in compacted
    (added,) = [said for said in own_messages(caplog) if "partitions 1, found 2" in said]
    assert "`hushstream logs repair partitions events --write`" in added


async def test_rights_that_were_withdrawn_are_a_difference_and_hide_no_other_one(broker, monkeypatch):
    async def lacking(*_: object) -> dict[str, str]:
        return {"rights.ledger": "Write"}

    monkeypatch.setattr(preflight, "missing_rights", lacking)
    made = await created(broker, "rights.", reports={"retention.ms": "1000"})
    topics = RoleTopics(("reports",), "journal-shuffler", ("ledger",), declared=DECLARED)
    found = await preflight.drift(made, topics, 1)
    assert [(one.topic, one.what, one.expected) for one in found] == [
        ("ledger", "rights", "Write"),
        ("reports", "retention.ms", "604800000"),
    ]
    assert "found none for User:ANONYMOUS" in str(found[0])
    assert "hushstream topics apply" in str(found[0])


async def test_a_topic_that_takes_no_record_and_added_partitions_of_any_topic_are_differences(broker):
    made = await created(broker, "stuck.")
    store(broker, "stuck.journal-shuffler")["min.insync.replicas"] = "2"
    topics = RoleTopics(("reports",), "journal-shuffler", ("ledger",), declared=DECLARED, counts={"ledger": 1})
    async with administering(made.cluster) as admin:
        await admin.create_partitions({"stuck.ledger": NewPartitions(2)})
    found = await preflight.drift(made, topics, 1)
    assert {(one.topic, one.what, one.expected, one.found) for one in found} == {
        ("journal-shuffler", "min.insync.replicas", "1 or less", "2"),
        ("ledger", "partitions", "1", "2"),
    }


def store(broker: EmbeddedBroker, name: str) -> Any:
    """What a topic of the embedded broker was created with: only Kafka has a request that changes it."""
    return broker._node.store.topic(name).config.given


async def metrics(port: int) -> str:
    """The metrics of a worker; none while it serves none."""
    try:
        return await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode())
    except OSError:
        return ""


async def held(port: int) -> int:
    """How many partitions a worker runs."""
    return 'hushstream_partitions_held{role="counting"} 1.0' in await metrics(port)


async def shown(port: int) -> set[tuple[str, str]]:
    """Topics and settings that a worker's gauge shows now."""
    text = await metrics(port)
    found = re.findall(r'hushstream_topic_drift{role="counting",setting="(.+)",topic="(.+)"} 1.0', text)
    return {(topic, setting) for setting, topic in found}


async def until(read: Callable[[], Awaitable[Any]], expected: Any) -> None:
    waiting = Patience(20.0)
    while (found := await read()) != expected:
        assert not waiting.over, f"expected {expected}, found {found}"
        await asyncio.sleep(0.05)


async def test_a_full_disk_is_told_before_the_worker_asks_the_broker_anything(tmp_path, machines):
    check_datadir(tmp_path / "state")
    assert list((tmp_path / "state").iterdir()) == []
    # Nobody listens there: had the worker asked the broker first, that would be its complaint.
    values = settings("127.0.0.1:1").model_copy(update={"datadir": tmp_path / "state"})
    with no_room(), pytest.raises(DatadirUnusable, match=r"state: expected room for .* free some space$"):
        await RoleWorker(values, *machines.counting()).run()
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_worker_that_is_cancelled_ends_cleanly_only_if_it_was_asked_to(signal_first, machines, monkeypatch):
    """Catches a supervisor's taking for a clean end that a library cancelled the worker's tasks."""

    async def cancelled(role_worker):
        if signal_first:
            role_worker.request_stop()
        raise asyncio.CancelledError

    monkeypatch.setattr(RoleWorker, "run", cancelled)
    with nullcontext() if signal_first else pytest.raises(WorkerError, match="the stream client ended"):
        await worker._run_until_signal(settings("127.0.0.1:1"), *machines.counting(), worker.observe_nothing, None)


async def test_a_data_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "state").write_text("", encoding="utf-8")
    with pytest.raises(DatadirUnusable, match="state: expected room"):
        check_datadir(tmp_path / "state")
