"""Whether a deployment may run live, and whether its topics are as they are declared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.errors import for_code

from hushstream.agents.errors import AccessDenied, PartitionCountWrong, TopicMissing
from hushstream.agents.security import Security
from hushstream.agents.worker.preflight import Kept, loss_warnings
from hushstream.broker import EmbeddedBroker
from hushstream.ops import topics
from hushstream.ops.budget import budget_topics
from hushstream.ops.budget import read as read_budget
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verified_topics, verify, verify_export, verify_live
from hushstream.ops.connection import BrokerRefused, Connection, guard_code
from hushstream.ops.export import export_async, open_export
from hushstream.ops.log_copy import Pause, copy_async
from hushstream.ops.topics import Existing, differences, plan
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.system import KIND as COLIN
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.system import KIND as P2B
from hushstream.systems.p2b.system import declare

QUICK = Pause(moment_seconds=0.05, within_seconds=1.0)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Any]:
    async with EmbeddedBroker() as running:
        yield running


async def published(deployment: Any, connection: Connection) -> None:
    """Put a finished run on a broker, with its log times (which a real deployment takes from the broker)."""
    async with connection.admin("create topics") as admin:
        settings = {"message.timestamp.type": "CreateTime"}
        await admin.create_topics(
            [
                NewTopic(connection.prefix + name, n, 1, topic_configs=settings)
                for name, n in deployment.system.partitions.items()
            ]
        )
    async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap, enable_idempotence=True) as producer:
        sent = [
            await producer.send(
                connection.prefix + topic, record.value, partition=number, timestamp_ms=record.timestamp_ms
            )
            for (topic, number), records in deployment.log.partitions()
            for record in records
        ]
        await asyncio.gather(*sent)


async def test_topics_are_created_once_and_then_are_as_declared(deployment, broker):
    connection = Connection(broker.bootstrap, "mine.")
    counts = deployment.system.partitions
    missing = await topics.check_async(connection, deployment.system)
    assert [(one.topic, one.what) for one in missing] == [(name, "topic") for name in counts]
    created = await topics.apply_async(connection, deployment.system)
    assert [new.topic for new in created] == list(counts)
    assert await topics.apply_async(connection, deployment.system) == ()
    assert await topics.check_async(connection, deployment.system) == ()
    existing = await topics.describe_async(connection, deployment.system)
    assert {name: found.partitions for name, found in existing.items()} == counts


async def test_applying_adds_what_is_missing_and_leaves_the_rest_as_it_is(deployment, broker):
    connection = Connection(broker.bootstrap, "mine.")
    counts = deployment.system.partitions
    async with connection.admin("create topics") as admin:
        await admin.create_topics([NewTopic("mine.ledger", 5, 1)])
    created = await topics.apply_async(connection, deployment.system)
    assert {new.topic for new in created} == set(counts) - {"ledger"}
    found = {
        one.what: (one.topic, one.expected, one.found)
        for one in await topics.check_async(connection, deployment.system)
    }
    assert found["partitions"] == ("ledger", "2", "5")
    assert found["message.timestamp.type"] == ("ledger", "LogAppendTime", "CreateTime")
    assert found["retention.ms"] == ("ledger", "-1", "604800000")


async def test_a_broker_that_refuses_says_why_in_one_line(deployment, broker):
    connection = Connection(broker.bootstrap, "mine.")
    with pytest.raises(BrokerRefused, match=r"create topic mine\.\S+: InvalidReplicationFactorError") as refused:
        await topics.apply_async(connection, deployment.system, replication=3)
    assert "\n" not in str(refused.value)


async def test_how_many_copies_must_have_a_record_is_set_where_it_is_asked_for(deployment, broker):
    connection = Connection(broker.bootstrap, "insync.")
    with pytest.raises(HushstreamError, match=r"at most as many copies in sync as there are \(1\), got 2"):
        await topics.apply_async(connection, deployment.system, replication=1, min_in_sync=2)
    with pytest.raises(BrokerRefused, match="InvalidConfig"):
        await topics.apply_async(connection, deployment.system, min_in_sync=2)
    assert await topics.apply_async(connection, deployment.system, min_in_sync=1)
    existing = await topics.describe_async(connection, deployment.system)
    assert {(one.copies, one.settings["min.insync.replicas"]) for one in existing.values()} == {(1, "1")}
    assert await topics.check_async(connection, deployment.system) == ()


async def test_logs_that_the_loss_of_a_broker_could_take_are_warned_of_beyond_this_machine(deployment, broker):
    await topics.apply_async(Connection(broker.bootstrap, "copies."), deployment.system)
    assert await topics.warnings_async(Connection(broker.bootstrap, "copies."), deployment.system) == ()
    # By this name it may as well be another machine: no address of loopback, and it leads here.
    beyond = broker.bootstrap.replace("127.0.0.1", "0.0.0.0")
    connection = Connection(beyond, "copies.", Security(allow_plaintext=True))
    (warning,) = await topics.warnings_async(connection, deployment.system)
    assert warning.startswith(
        "topics copies.decisions, copies.journal-shuffler, copies.ledger, copies.ledger-edge, copies.lift, "
        "copies.marks-edge, copies.marks-shuffler, copies.models, copies.state-aggregator, copies.state-learner, "
        "copies.state-shuffler: expected 3 copies or more "
        "and min.insync.replicas 2 or more, found 1 and 1"
    )
    assert await topics.check_async(connection, deployment.system) == ()


async def test_what_is_on_a_broker_is_exported_and_verified(deployment, broker, tmp_path):
    connection = Connection(broker.bootstrap, "copy.")
    await published(deployment, connection)
    manifest = await export_async(connection, deployment.system, tmp_path / "export", pause=QUICK)
    exported = open_export(tmp_path / "export")
    for source, records in deployment.log.partitions():
        assert list(exported.part(source).records) == records
    assert manifest.quiet
    assert verify(exported, deployment.system, deployment.keys).ok

    told: list[tuple[int, int, str]] = []
    live = await asyncio.to_thread(
        verify_live, connection, deployment.system, deployment.keys, progress=lambda *one: told.append(one)
    )
    assert live.ok
    recomputed = verified_topics(deployment.system)
    offsets = sum(part.high - part.low for (topic, _), part in exported.parts.items() if topic in recomputed)
    read = [(done, total) for done, total, what in told if what == "reading the logs"]
    assert (read[0], read[-1]) == ((0, offsets), (offsets, offsets))
    assert told[-1] == (told[-1][1], told[-1][1], "recomputing journal records")
    assert live.totals[Status.UNCHECKABLE] == 0

    counts = deployment.system.partitions
    ledger = await copy_async(connection, counts, budget_topics(deployment.system), QUICK)
    assert {topic for topic, _ in ledger.parts} == {"ledger", "ledger-edge", "marks-edge", "marks-shuffler"}
    assert read_budget(ledger, deployment.system) == read_budget(deployment.copy, deployment.system)


@pytest.mark.parametrize("role", ["learner", "shuffler", "aggregator"])
async def test_an_export_for_one_role_is_enough_to_verify_it_and_refused_for_another(
    deployment, broker, tmp_path, role
):
    connection, system = Connection(broker.bootstrap, f"{role}."), deployment.system
    await published(deployment, connection)
    await export_async(connection, system, tmp_path / "out", verified_topics(system, [role]), QUICK)
    found = verify_export(tmp_path / "out", system, deployment.keys, [role])
    assert found.exit_code == 0, found.as_text()
    assert found.totals == verify(deployment.copy, system, deployment.keys, [role]).totals
    other = "shuffler" if role == "learner" else "learner"
    with pytest.raises(HushstreamError, match="name the role that it was made for with --role"):
        verify_export(tmp_path / "out", system, deployment.keys, [other])


async def test_a_copy_ends_where_the_logs_ended_and_says_when_they_went_on(deployment, broker):
    connection = Connection(broker.bootstrap, "busy.")
    await published(deployment, connection)
    counts = deployment.system.partitions
    stop = asyncio.Event()

    async def write() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            while not stop.is_set():
                await producer.send_and_wait("busy.contexts", b"more", partition=0)

    writing = asyncio.create_task(write())
    try:
        copied = await copy_async(connection, counts, ["contexts"], Pause(0.05, 0.1))
    finally:
        stop.set()
        await writing
    part = copied.part(("contexts", 0))
    assert not copied.consistent
    assert len(part.records) == part.high
    assert part.records[-1].offset == part.high - 1


async def test_topics_that_are_missing_or_of_another_size_are_named(deployment, broker):
    connection = Connection(broker.bootstrap, "half.")
    counts = deployment.system.partitions
    with pytest.raises(TopicMissing, match=r"expected topic half\.contexts, there is none"):
        await copy_async(connection, counts, pause=QUICK)
    async with connection.admin("create topics") as admin:
        await admin.create_topics([NewTopic("half.clicks", 1, 1)])
    await topics.apply_async(connection, deployment.system)
    with pytest.raises(PartitionCountWrong, match=r"topic half\.clicks: expected 2 partitions, found 1"):
        await copy_async(connection, counts, pause=QUICK)


TOPICS = {topic.name: topic for kind in (P2B, COLIN) for topic in kind.topics}
GOOD = {name: Existing(1 if topic.count == "tracks" else 2, topic.settings()) for name, topic in TOPICS.items()}


def test_each_topic_has_the_partitions_of_its_deployment(deployment):
    config = replace(
        deployment.system.config, partitions=replace(deployment.system.config.partitions, learner=7, shuffler=3)
    )
    counts = declare(P2BSystem.of(config, deployment.system.core.encoder.lattice, public_dataset=True)).partitions
    assert counts["contexts"] == counts["decisions"] == counts["dead-letters-edge"] == 7
    assert counts["reports"] == counts["ledger"] == counts["journal-shuffler"] == 3
    assert counts["window-sums"] == counts["models"] == 1


def test_a_plan_holds_what_is_missing_and_nothing_else(deployment):
    there = {name: found for name, found in GOOD.items() if name not in ("ledger", "models")}
    wanted = plan(deployment.system, there, "d.")
    assert [(new.topic, new.name, new.partitions) for new in wanted] == [
        ("models", "d.models", 1),
        ("ledger", "d.ledger", 2),
    ]
    assert wanted[1].settings["retention.ms"] == "-1"
    assert not plan(deployment.system, GOOD, "d.")


def test_no_difference_is_found_where_there_is_none(deployment):
    assert not differences(deployment.system, GOOD, "d.")


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("cleanup.policy", "compact"),
        ("retention.ms", "1000"),
        ("retention.bytes", "1000000"),
        ("message.timestamp.type", "CreateTime"),
        ("max.message.bytes", "1000"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_every_other_setting_is_named_with_both_values(deployment, what, found):
    settings = {**TOPICS["reports"].settings(), what: found}
    (one,) = differences(deployment.system, {**GOOD, "reports": Existing(2, settings)}, "d.")
    assert (one.topic, one.name, one.what, one.found) == ("reports", "d.reports", what, found)
    assert one.expected == TOPICS["reports"].settings()[what]
    assert f"topic d.reports: expected {what} {one.expected}, found {found}; set it with" in str(one)
    assert f"--alter --topic d.reports --add-config {what}={one.expected}`" in str(one)


@pytest.mark.parametrize(("what", "found"), [("segment.bytes", "1073741824"), ("segment.ms", "604800000")])
def test_a_journal_whose_trimmed_bytes_stay_on_disk_is_named(deployment, what, found):
    settings = {**TOPICS["decisions"].settings(), what: found}
    (one,) = differences(deployment.system, {**GOOD, "decisions": Existing(2, settings)}, "d.")
    assert (one.topic, one.what, one.found) == ("decisions", what, found)


@pytest.mark.parametrize(("what", "found"), [("cleanup.policy", "delete"), ("retention.ms", "7776000000")])
def test_marks_that_are_not_kept_for_good_by_key_are_named(deployment, what, found):
    settings = {**TOPICS["marks-edge"].settings(), what: found}
    (one,) = differences(deployment.system, {**GOOD, "marks-edge": Existing(2, settings)}, "d.")
    assert (one.topic, one.what, one.found) == ("marks-edge", what, found)


def test_one_copy_in_sync_of_what_lasts_is_named_where_two_are_asked_for(deployment):
    safe = {
        name: replace(found, settings={**found.settings, "min.insync.replicas": "2"}, copies=3)
        for name, found in GOOD.items()
    }
    assert not differences(deployment.system, safe, "d.", least_in_sync=2)
    assert not differences(deployment.system, GOOD, "d.", least_in_sync=1)
    found = differences(deployment.system, GOOD, "d.", least_in_sync=2)
    assert {one.topic for one in found} == {topic.name for topic in deployment.system.topics if topic.lasting}
    assert {(one.what, one.expected, one.found) for one in found} == {("min.insync.replicas", "2 or more", "1")}


def test_another_partition_count_and_a_missing_topic_are_named(deployment):
    there = {name: found for name, found in GOOD.items() if name != "window-sums"}
    there["clicks"] = Existing(5, TOPICS["clicks"].settings())
    found = differences(deployment.system, there, "d.")
    assert [(one.topic, one.what, one.expected, one.found.split()[0]) for one in found] == [
        ("clicks", "partitions", "2", "5"),
        ("window-sums", "topic", "to exist", "none"),
    ]


def test_topics_are_warned_of_together_where_they_are_kept_alike_and_not_where_they_are_safe():
    safe = [Kept("a", 3, 2), Kept("b", 5, 3)]
    assert loss_warnings(safe) == ()
    found = loss_warnings([*safe, Kept("d", 3, 1), Kept("c", 3, 1), Kept("e", 2, 2)])
    assert [line.partition(":")[0] for line in found] == ["topics c, d", "topics e"]
    assert "found 3 and 1" in found[0]
    assert "found 2 and 2" in found[1]
    assert all("--replication 3 --min-insync 2" in line for line in found)
    lasting = {name for name, topic in TOPICS.items() if topic.lasting}
    assert lasting == {
        "decisions", "journal-shuffler", "journal-counter", "models", "items", "ledger", "ledger-edge", "lift",
        "marks-edge", "marks-shuffler", "marks-counter",
        "state-learner", "state-shuffler", "state-counter", "state-aggregator",
    }  # fmt: skip


def test_a_missing_right_is_told_from_another_refusal():
    guard_code("create topic x", 0, None, for_code)
    for code in (29, 31):
        with pytest.raises(AccessDenied, match="create topic x: the broker's access rules forbid it"):
            guard_code("create topic x", code, None, for_code)
    with pytest.raises(BrokerRefused, match="create topic x: InvalidReplicationFactorError, too few brokers"):
        guard_code("create topic x", 38, "too few brokers", for_code)
