"""Journals that are shortened on a broker: never beyond what a worker needs, and what is left goes on as before.

An embedded broker, or the one whose address HUSHSTREAM_TEST_BOOTSTRAP names.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic, RecordsToDelete

from hushstream.agents.errors import InputsDeleted
from hushstream.agents.recovery.high_water import HighWater
from hushstream.agents.recovery.marks import ReleaseMarks
from hushstream.agents.recovery.recovery import Recovery
from hushstream.agents.recovery.snapshots import SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.homes import OutputEnds
from hushstream.agents.worker.roles import role_topics, role_work
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.declaration import role_of
from hushstream.engine.records import Output
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.findings import Status
from hushstream.ops.check.joined import joined
from hushstream.ops.check.verify import verified_topics, verify
from hushstream.ops.connection import Connection
from hushstream.ops.export import export_async, open_export
from hushstream.ops.live import Pause, copy_async
from hushstream.ops.spending.budget import budget_topics, read
from hushstream.ops.trim import TrimRefused, plan_async, trim_async

QUICK = Pause(moment_seconds=0.05, within_seconds=1.0)


class Deployed:
    """A played deployment on a broker."""

    def __init__(self, played: Any, bootstrap: str, producer: AIOKafkaProducer, prefix: str) -> None:
        self.played, self.system = played, played.system
        self.connection = Connection(bootstrap, prefix)
        self.producer = producer

    async def put(self, without: frozenset[str | tuple[str, int]] = frozenset()) -> Deployed:
        async with self.connection.admin("create topics") as admin:
            settings = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
            partitions = self.system.partitions.items()
            await admin.create_topics(
                [NewTopic(self.connection.prefix + name, n, 1, topic_configs=settings) for name, n in partitions]
            )
        for (topic, number), part in self.played.logs.parts.items():
            for record in part.records if without.isdisjoint((topic, (topic, number))) else ():
                await self.producer.send(
                    self.connection.prefix + topic, record.value, partition=number, timestamp_ms=record.timestamp_ms
                )
        await self.producer.flush()
        return self

    async def send(self, output: Output) -> Awaitable[Any]:
        future: Awaitable[Any] = await self.producer.send(
            self.connection.prefix + output.topic, output.value, output.key, output.partition
        )
        return future

    async def copy(self, roles: list[str] | None = None) -> Any:
        topics = verified_topics(self.system, roles, From.CHECKPOINT)
        return await copy_async(self.connection, self.system.partitions, topics, QUICK)

    async def recovered(self, name: str, home: int, folder: Path, published: bool = True) -> Any:
        """A home partition as a worker takes it up whose disk is empty, from its published state or without."""
        role = role_of(self.system, name)
        settings = WorkerSettings(
            bootstrap=self.connection.bootstrap, role=name, group="g", deployment=self.system.config.deployment,
            topic_prefix=self.connection.prefix, datadir=folder,
        )  # fmt: skip
        work = role_work(name, self.system, self.played.keys)
        topics, snapshots = role_topics(role, self.system), SnapshotStore(settings, work.make_machine)
        marks = topics.marks and ReleaseMarks(
            settings, topics.marks, topics.evidence, topics.declared, work.make_machine, self, HighWater(settings)
        )
        ends = OutputEnds(settings, topics)
        states = PublishedStates(settings, role.state.name, work.make_machine, self, snapshots, ends)
        recovery = Recovery(
            settings, work.make_machine, self, snapshots, lambda: True, marks or None, states if published else None,
            topics.followed,
        )  # fmt: skip
        return await recovery.run(home, [])


@pytest_asyncio.fixture
async def deploy() -> AsyncIterator[Callable[[Any], Deployed]]:
    """Puts what was played on a broker."""
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    async with nullcontext() if given else EmbeddedBroker() as running:
        bootstrap = running.bootstrap if running else str(given)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            yield lambda played: Deployed(played, bootstrap, producer, f"t{uuid.uuid4().hex[:12]}.")


@pytest.fixture
def deployed(deploy: Callable[[Any], Deployed], p2b: Any) -> Deployed:
    return deploy(p2b)


async def test_what_is_trimmed_is_archived_recovered_and_checked(deployed: Any, tmp_path: Path) -> None:
    run = await deployed.put()
    connection, system, played = run.connection, run.system, run.played
    budget = read(await copy_async(connection, system.partitions, budget_topics(system), QUICK), system)
    before = {home: await run.recovered("shuffler", home, tmp_path / f"before-{home}") for home in (0, 1)}
    learner = await run.recovered("learner", 0, tmp_path / "learner-before")

    planned = await plan_async(connection, system, played.keys)
    first = played.firsts
    assert planned.until == first
    assert set(planned.until) == set(played.stood), "models among them, up to what all learners and the aggregator need"
    assert planned.kept == {}
    for one in planned.journals:
        gone = played.logs.part((one.topic, one.partition)).read(0, one.before)
        assert (one.records, one.size) == (len(gone), sum(len(record.value) for record in gone))
    assert all(part.low == 0 for part in (await run.copy(["shuffler"])).parts.values()), "a plan deletes nothing"

    archive = await export_async(connection, system, tmp_path / "archive", {s for s, _ in first}, QUICK, planned.until)
    await trim_async(connection, planned)
    left = await run.copy()
    assert {source: part.low for source, part in left.parts.items() if part.low} == first
    assert archive.records == sum(first.values())
    again = await plan_async(connection, system, played.keys, ["shuffler"])
    assert again.journals == (), "there is nothing more to delete"

    found = verify(left, system, played.keys, None, From.CHECKPOINT)
    assert found.exit_code == 0, found.as_text()
    spent = read(await copy_async(connection, system.partitions, budget_topics(system), QUICK), system)
    assert (spent.deployments, spent.charges, spent.lost) == (budget.deployments, budget.charges, ())
    for home, held in before.items():
        again = await run.recovered("shuffler", home, tmp_path / f"after-{home}")
        assert (again.sequence, again.journal) == (held.sequence, held.journal)
        assert again.machine.snapshot() == held.machine.snapshot(), "with it what was charged"
        assert again.machine.spending.spent == held.machine.spending.spent
    again = await run.recovered("learner", 0, tmp_path / "learner-after")
    assert (again.sequence, again.record) == (learner.sequence, learner.record)

    archived = open_export(tmp_path / "archive")
    found = verify(
        joined([archived, left], {topic.name for topic in system.topics if topic.cleanup == "compact"}),
        system,
        played.keys,
    )
    assert found.exit_code == 0
    assert found.totals[Status.EQUAL] + found.totals[Status.REPEATED] == sum(found.totals.values())


async def test_without_two_states_of_each_partition_nothing_is_deleted(deployed: Any) -> None:
    run = await deployed.put(without=frozenset({"state-shuffler"}))
    with pytest.raises(TrimRefused) as refused:
        await plan_async(run.connection, run.system, run.played.keys, ["shuffler"])
    assert (
        "journal-shuffler/0: expected 2 published states from which a worker could go on, found 0; nothing is"
        in str(refused.value)
    )
    planned = await plan_async(run.connection, run.system, run.played.keys, ["learner"])
    assert {one.topic for one in planned.journals} == {"decisions"}
    async with run.connection.admin("delete inputs") as admin:
        await admin.delete_records({TopicPartition(f"{run.connection.prefix}contexts", 0): RecordsToDelete(-1)})
    with pytest.raises(TrimRefused, match=r"found 0; .*it goes on at contexts/0 offset \d+, but that log begins at"):
        await plan_async(run.connection, run.system, run.played.keys, ["learner"])


@pytest.fixture(params=["colin", "pdap", "pdol"])
def followed(request: pytest.FixtureRequest, deploy: Callable[[Any], Deployed], playing: Callable[[str], Any]) -> Any:
    return deploy(playing(request.param))


@pytest.fixture
def with_devices(deploy: Callable[[Any], Deployed], playing: Callable[[str], Any]) -> Deployed:
    return deploy(playing("bgt"))


async def test_published_models_end_where_no_partition_that_follows_them_needs_more(followed: Any) -> None:
    run = await followed.put()
    played, system = run.played, run.system
    planned = await plan_async(run.connection, system, played.keys, ["aggregator"])
    assert planned.until == {source: low for source, low in played.firsts.items() if source[0] == "models"} != {}
    assert planned.kept == {}
    await trim_async(run.connection, planned)
    left = await run.copy()
    assert {source: part.low for source, part in left.parts.items() if part.low} == planned.until
    for start in (From.CHECKPOINT, From.LAST_CHECKPOINT):
        found = verify(left, system, played.keys, None, start)
        assert found.exit_code == 0, found.as_text()
        assert not found.totals[Status.UNCHECKABLE]


async def test_a_worker_without_a_state_does_not_enter_trimmed_models_in_their_middle(
    deployed: Any, tmp_path: Path
) -> None:
    run = await deployed.put()
    await trim_async(run.connection, await plan_async(run.connection, run.system, run.played.keys, ["aggregator"]))
    with pytest.raises(InputsDeleted, match=r"models/0: must be read from offset 0, but the log begins at"):
        await run.recovered("learner", 0, tmp_path, published=False)


async def test_models_that_devices_read_are_kept_whole(with_devices: Any) -> None:
    run = await with_devices.put()
    planned = await plan_async(run.connection, run.system, run.played.keys)
    assert planned.kept == {"models": "devices begin at its first record"}
    assert planned.until == run.played.firsts


async def test_models_are_kept_for_a_partition_that_has_folded_nothing(deployed: Any) -> None:
    run = await deployed.put(without=frozenset({("decisions", 2), ("state-learner", 2)}))
    planned = await plan_async(run.connection, run.system, run.played.keys, ["aggregator"])
    assert planned.journals == ()
    assert planned.kept == {"models": "these have folded nothing yet, and need its first record: learner/2"}


async def test_models_are_kept_where_the_keys_of_those_who_follow_them_are_not_at_hand(
    deployed: Any, tmp_path: Path
) -> None:
    run = await deployed.put()
    planned = await plan_async(run.connection, run.system, KeySource(folder=tmp_path), ["aggregator"])
    assert planned.journals == ()
    assert planned.kept["models"].startswith("learner reads it, and where it reads on is not known: key file")
