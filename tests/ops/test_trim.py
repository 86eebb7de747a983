"""Journals that are shortened on a broker: never beyond what a worker needs, and what is left goes on as before.

An embedded broker, or the one whose address HUSHSTREAM_TEST_BOOTSTRAP names.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete

from hushstream.agents.errors import InputsDeleted, PartitionError, TopicMissing
from hushstream.agents.recovery.marks import HighWater, ReleaseMarks
from hushstream.agents.recovery.recovery import Recovery
from hushstream.agents.recovery.snapshots import SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings, group_of
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.homes import OutputEnds
from hushstream.agents.worker.preflight import check_topics
from hushstream.agents.worker.roles import role_topics, role_work
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.declaration import role_of
from hushstream.engine.records import Output
from hushstream.ops.budget import budget_topics, read
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verified_topics, verify
from hushstream.ops.connection import Connection
from hushstream.ops.export import export_async, open_export
from hushstream.ops.log_copy import Pause, copy_async, joined
from hushstream.ops.logs.losses import require_stopped
from hushstream.ops.logs.remake import plan_marks, plan_models, plan_partitions
from hushstream.ops.logs.trim import TrimRefused, plan, until
from hushstream.ops.topics import apply_async, check_async
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdap.system import NOT_ANEW

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

    def settings(self, name: str, folder: Path) -> WorkerSettings:
        return WorkerSettings(
            bootstrap=self.connection.bootstrap, role=name, group="g", deployment=self.system.config.deployment,
            topic_prefix=self.connection.prefix, datadir=folder,
        )  # fmt: skip

    async def recovered(self, name: str, home: int, folder: Path, published: bool = True) -> Any:
        """A home partition as a worker takes it up whose disk is empty, from its published state or without."""
        role, settings = role_of(self.system, name), self.settings(name, folder)
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


async def test_what_is_trimmed_is_archived_recovered_and_checked(deployed, tmp_path):
    run = await deployed.put()
    connection, system, played = run.connection, run.system, run.played
    budget = read(await copy_async(connection, system.partitions, budget_topics(system), QUICK), system)
    before = {home: await run.recovered("shuffler", home, tmp_path / f"before-{home}") for home in (0, 1)}
    learner = await run.recovered("learner", 0, tmp_path / "learner-before")

    planned = await plan(connection, system, played.keys)
    first = played.firsts
    assert until(planned.rows) == first
    assert set(until(planned.rows)) == set(played.stood), (
        "models among them, up to what all learners and the aggregator need"
    )
    assert planned.remarks == ()
    for one in planned.rows:
        gone = played.logs.part((one.topic, one.partition)).read(0, one.before)
        assert (one.records, one.size) == (len(gone), sum(len(record.value) for record in gone))
    assert all(part.low == 0 for part in (await run.copy(["shuffler"])).parts.values()), "a plan deletes nothing"

    archive = await export_async(
        connection, system, tmp_path / "archive", {s for s, _ in first}, QUICK, until(planned.rows)
    )
    await planned.act()
    left = await run.copy()
    assert {source: part.low for source, part in left.parts.items() if part.low} == first
    assert archive.records == sum(first.values())
    again = await plan(connection, system, played.keys, ["shuffler"])
    assert again.rows == (), "there is nothing more to delete"

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


async def test_without_two_states_of_each_partition_nothing_is_deleted(deployed):
    run = await deployed.put(without=frozenset({"state-shuffler"}))
    with pytest.raises(TrimRefused) as refused:
        await plan(run.connection, run.system, run.played.keys, ["shuffler"])
    assert (
        "journal-shuffler/0: expected 2 published states from which a worker could go on, found 0; nothing is"
        in str(refused.value)
    )
    planned = await plan(run.connection, run.system, run.played.keys, ["learner"])
    assert {one.topic for one in planned.rows} == {"decisions"}
    async with run.connection.admin("delete inputs") as admin:
        await admin.delete_records({TopicPartition(f"{run.connection.prefix}contexts", 0): RecordsToDelete(-1)})
    with pytest.raises(TrimRefused, match=r"found 0; .*it goes on at contexts/0 offset \d+, but that log begins at"):
        await plan(run.connection, run.system, run.played.keys, ["learner"])


@pytest.fixture(params=["colin", "pdap", "pdol"])
def followed(request: pytest.FixtureRequest, deploy: Callable[[Any], Deployed], playing: Callable[[str], Any]) -> Any:
    return deploy(playing(request.param))


@pytest.fixture
def of_ratings(deploy: Callable[[Any], Deployed], playing: Callable[[str], Any]) -> Deployed:
    return deploy(playing("bgt"))


async def test_published_models_end_where_no_partition_that_follows_them_needs_more(followed):
    run = await followed.put()
    played, system = run.played, run.system
    planned = await plan(run.connection, system, played.keys, ["aggregator"])
    assert until(planned.rows) == {source: low for source, low in played.firsts.items() if source[0] == "models"} != {}
    assert planned.remarks == ()
    await planned.act()
    left = await run.copy()
    assert {source: part.low for source, part in left.parts.items() if part.low} == until(planned.rows)
    for start in (From.CHECKPOINT, From.LAST_CHECKPOINT):
        found = verify(left, system, played.keys, None, start)
        assert found.exit_code == 0, found.as_text()
        assert not found.totals[Status.UNCHECKABLE]


async def test_a_worker_without_a_state_does_not_enter_trimmed_models_in_their_middle(deployed, tmp_path):
    run = await deployed.put()
    await (await plan(run.connection, run.system, run.played.keys, ["aggregator"])).act()
    with pytest.raises(InputsDeleted, match=r"models/0: must be read from offset 0, but the log begins at"):
        await run.recovered("learner", 0, tmp_path, published=False)


async def test_models_of_ratings_end_where_no_rater_needs_more(of_ratings):
    run = await of_ratings.put()
    planned = await plan(run.connection, run.system, run.played.keys)
    assert (planned.remarks, until(planned.rows)) == ((), run.played.firsts)


async def test_models_are_kept_for_a_partition_that_has_folded_nothing(deployed):
    run = await deployed.put(without=frozenset({("decisions", 2), ("state-learner", 2)}))
    planned = await plan(run.connection, run.system, run.played.keys, ["aggregator"])
    assert planned.rows == ()
    assert planned.remarks == ("kept models: these have folded nothing yet, and need its first record: learner/2",)


async def test_models_are_kept_where_the_keys_of_those_who_follow_them_are_not_at_hand(deployed, tmp_path):
    run = await deployed.put()
    planned = await plan(run.connection, run.system, KeySource(folder=tmp_path), ["aggregator"])
    assert planned.rows == ()
    assert planned.remarks[0].startswith("kept models: learner reads it, and where it reads on is not known: key file")


@pytest.fixture(params=["p2b", "colin"])
def publishing(request: pytest.FixtureRequest, deploy: Callable[[Any], Deployed], playing: Callable[[str], Any]) -> Any:
    return deploy(playing(request.param))


@pytest.mark.parametrize("deleted", ["records", "topic"])
async def test_models_that_were_emptied_are_computed_again_with_the_same_bytes_at_the_same_offsets(
    publishing, deleted, tmp_path
):
    """Without them learners and the aggregator were refused for good, although all they follow from was there."""
    run = await publishing.put()
    connection, system, keys = run.connection, run.system, run.played.keys
    name = f"{connection.prefix}models"
    before = (await run.copy()).of_topic("models")
    assert any(part.records for _, part in before)
    assert (await plan_models(connection, system, keys)).remarks == ("models: it holds its versions",)
    async with connection.admin("empty models") as admin:
        if deleted == "topic":
            await admin.delete_topics([name])
            for role in ("learner", "aggregator"):
                with pytest.raises(TopicMissing, match=r"topics apply.* then.*`hushstream logs repair models --write"):
                    await check_topics(run.settings(role, tmp_path), role_topics(role_of(system, role), system))
            await apply_async(connection, system)
        else:
            await admin.delete_records({TopicPartition(name, home): RecordsToDelete(-1) for home, _ in before})
    for role in ("aggregator", "learner"):
        with pytest.raises(PartitionError, match=r"models/0.*`hushstream logs repair models --write"):
            await run.recovered(role, 0, tmp_path / "refused")

    planned = await plan_models(connection, system, keys)
    assert [(one.topic, one.partition, one.low) for one in planned.rows] == [("models", home, 0) for home, _ in before]
    assert not any(part.records for _, part in (await run.copy()).of_topic("models")), "a plan writes nothing"
    await planned.act()
    left = await run.copy()
    for home, part in before:
        again = left.part(("models", home))
        assert (again.low, again.high) == (0, part.high)
        assert [one.value for one in again.records] == [one.value for one in part.records]
        await run.recovered("aggregator", home, tmp_path / f"after-{home}")
    assert verify(left, system, keys, ["aggregator"]).exit_code == 0
    assert "log times are new" in planned.remarks[0]


async def test_models_of_which_a_part_was_written_again_get_the_others(publishing):
    """Whoever is ended in between runs the command again, and finds the topic not empty."""
    run = await publishing.put(without=frozenset({"models"}))
    before = [(home, list(part.records)) for home, part in run.played.logs.of_topic("models")]
    name = f"{run.connection.prefix}models"
    for home, records in before:
        await run.producer.send_and_wait(name, records[0].value, partition=home)
    planned = await plan_models(run.connection, run.system, run.played.keys)
    await planned.act()
    for home, part in (await run.copy()).of_topic("models"):
        assert [one.value for one in part.records] == [one.value for one in dict(before)[home]]
    assert not (await plan_models(run.connection, run.system, run.played.keys)).rows


async def test_models_whose_input_is_gone_too_are_not_computed(deployed):
    run = await deployed.put(without=frozenset({"models"}))
    async with run.connection.admin("shorten windows") as admin:
        await admin.delete_records({TopicPartition(f"{run.connection.prefix}window-sums", 0): RecordsToDelete(1)})
    with pytest.raises(HushstreamError, match="window-sums/0: expected all records since the first, found those from"):
        await plan_models(run.connection, run.system, run.played.keys)


@pytest.fixture
def sharing(deploy: Callable[[Any], Deployed], playing: Callable[[str], Any]) -> Deployed:
    return deploy(playing("pdap"))


async def test_lost_marks_are_written_anew_unless_an_older_journal_would_decide_visits_anew(sharing):
    """An older journal of decisions beside lost marks looks like the newest one."""
    run = await sharing.put()
    system, name = run.system, "learner.vendor-0"
    marks = f"{run.connection.prefix}{role_of(system, name).marks}"
    await run.producer.send_and_wait(marks, b"of nobody", partition=0)
    async with run.connection.admin("lose marks") as admin:
        await admin.delete_records({TopicPartition(marks, 0): RecordsToDelete(-1)})
    planned = await plan_marks(run.connection, system, run.played.keys, name)
    assert [row.partition for row in planned.rows] == [0]
    on_trial = replace(
        system,
        roles=tuple(replace(one, irreplaceable=NOT_ANEW) if one.name == name else one for one in system.roles),
    )
    with pytest.raises(HushstreamError, match=r"No mark is written anew.* visits that the lost journal answered"):
        await plan_marks(run.connection, on_trial, run.played.keys, name)


async def test_partitions_that_were_added_are_taken_away_and_records_keep_offsets_and_log_times(deployed, tmp_path):
    run = await deployed.put()
    connection, system = run.connection, run.system
    name, count = f"{connection.prefix}contexts", system.partitions["contexts"]
    async with connection.admin("add partitions") as admin:
        await admin.delete_records({TopicPartition(name, 0): RecordsToDelete(3)})
        before = (await run.copy()).of_topic("contexts")
        await admin.create_partitions({name: NewPartitions(count + 1)})
    (found,) = [one for one in await check_async(connection, system) if one.what == "partitions"]
    assert f"found {count + 1}; `hushstream logs repair partitions contexts --write` makes it again" in str(found)

    planned = await plan_partitions(connection, system, "contexts", tmp_path / "copy")
    assert [(one.partition, one.low) for one in planned.rows][:2] == [(0, 3), (1, 0)]
    await planned.act()
    assert not [one for one in await check_async(connection, system) if one.topic == "contexts"]
    assert [
        (home, part.low, part.high, list(part.records)) for home, part in (await run.copy()).of_topic("contexts")
    ] == [(home, part.low, part.high, list(part.records)) for home, part in before]
    learner = await run.recovered("learner", 0, tmp_path / "learner")
    assert learner.sequence
    # A run that was ended when it had written a part goes on from its copy; records of others are not written over.
    async with connection.admin("as if it was ended") as admin:
        await admin.delete_topics([name])
    with pytest.raises(HushstreamError, match=r"got contexts; if it is gone .* `hushstream topics apply` first"):
        await plan_partitions(connection, system, "contexts", tmp_path / "copy")
    await apply_async(connection, system)
    first = dict(before)[1].records
    await run.producer.send_and_wait(name, first[0].value, partition=1)
    await (await plan_partitions(connection, system, "contexts", tmp_path / "copy")).act()
    assert [
        [(one.offset, one.value) for one in part.records] for _, part in (await run.copy()).of_topic("contexts")
    ] == [[(one.offset, one.value) for one in part.records] for _, part in before]
    await run.producer.send_and_wait(name, b"of somebody else", partition=1)
    with pytest.raises(HushstreamError, match=r"contexts holds records that .* does not: nothing was written"):
        await plan_partitions(connection, system, "contexts", tmp_path / "copy")
    with pytest.raises(HushstreamError, match="expected a topic to which partitions were added, got clicks"):
        await plan_partitions(connection, system, "clicks", tmp_path / "none")


async def test_a_state_topic_that_was_deleted_is_told_with_the_command_and_filled_again(deployed, tmp_path):
    run = await deployed.put()
    connection, system = run.connection, run.system
    settings, topics = run.settings("shuffler", tmp_path), role_topics(role_of(system, "shuffler"), system)
    held = await run.recovered("shuffler", 0, tmp_path / "before")
    async with connection.admin("delete a topic") as admin:
        await admin.delete_topics([f"{connection.prefix}state-shuffler"])
    with pytest.raises(TopicMissing, match=r"state-shuffler does not exist.*`hushstream topics apply.*start this"):
        await check_topics(settings, topics)
    assert [one.topic for one in await apply_async(connection, system)] == ["state-shuffler"]
    again = await run.recovered("shuffler", 0, tmp_path / "after")
    assert (again.sequence, again.record) == (held.sequence, held.record)
    assert again.machine.snapshot() == held.machine.snapshot()


async def test_a_worker_of_any_role_that_runs_stops_a_repair(deployed):
    """Catches a look at several groups in one request, of which the client decodes the first alone."""
    run = await deployed.put()
    connection, system = run.connection, run.system
    roles = [role_of(system, name) for name in ("learner", "shuffler", "aggregator")]
    await require_stopped(connection, system, roles)
    for role in roles:
        worker = AIOKafkaConsumer(
            connection.prefix + role.inputs[0],
            bootstrap_servers=connection.bootstrap,
            group_id=group_of(system.config.deployment, role.name),
        )
        async with worker:
            with pytest.raises(HushstreamError, match=f"expected no worker of group .*{role.name}, found 1; stop them"):
                await require_stopped(connection, system, roles)
        await require_stopped(connection, system, roles)
