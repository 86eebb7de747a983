"""The app that a role runs in: settings of Faust that must hold, private names, and the topics of a role."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiokafka.consumer.fetcher
import numpy as np
import pytest
from aiokafka import TopicPartition

from hushstream.agents.kafka.intake import Intake
from hushstream.agents.kafka.stream import Stream
from hushstream.agents.settings import Security, WorkerSettings
from hushstream.agents.worker.app import PRIVATE_NAMES, WholeFetches, make_app
from hushstream.agents.worker.deployment import KeySource, parse_config
from hushstream.agents.worker.roles import role_topics, role_work
from hushstream.engine.declare.declaration import System
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.system import declare as declare_p2b

READ_SOURCE = {
    "faust.transport.drivers.aiokafka.Consumer._new_consumer_thread": "0870ec53dea75083",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread._create_worker_consumer": "c2701bfc3e6f6cad",
    "aiokafka.consumer.fetcher.PartitionRecords": "d7ee9eeb185c5c6e",
}


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=tmp_path)


@pytest.fixture
def app(settings: WorkerSettings) -> Any:
    return make_app(settings, ("contexts", "clicks"), Intake(), "seat")


SAFE = {
    "web_enabled": False,
    "web_bind": "127.0.0.1",
    "web_host": "127.0.0.1",
    "broker_session_timeout": 6.0,
    "broker_heartbeat_interval": 1.0,
    "topic_disable_leader": True,
    "topic_allow_declare": False,
    "stream_wait_empty": False,
    "broker_client_id": "hushstream",
    "consumer_auto_offset_reset": "earliest",
}


@pytest.mark.parametrize("name", sorted(SAFE))
def test_each_safe_setting_holds(app, name):
    assert getattr(app.conf, name) == SAFE[name]


def test_exactly_once_is_never_used(app):
    assert app.conf.processing_guarantee.value == "at_least_once"
    assert not app.in_transaction


def test_concurrency_stays_one_as_a_kill_would_lose_events_otherwise(app):
    (agent,) = app.agents.values()
    assert (agent.name, agent.concurrency, agent.isolated_partitions) == ("learner", 1, False)


def test_state_is_never_kept_in_faust(app):
    assert str(app.conf.store) == "memory:"
    assert len(app.tables) == 0


def test_an_event_is_all_that_a_fetch_brought_of_a_partition_and_stands_at_its_end():
    records = [SimpleNamespace(offset=n, timestamp=1000 + n, timestamp_type=1) for n in (4, 5, 7)]
    fetched = {TopicPartition("contexts", 0): records, TopicPartition("clicks", 0): []}
    ((place, event),) = WholeFetches().iterate(fetched)
    assert (place, event.topic, event.partition) == (TopicPartition("contexts", 0), "contexts", 0)
    assert (event.offset, event.timestamp, event.value) == (7, 1007, records)


async def test_the_producer_is_idempotent_and_waits_for_all_replicas(app, settings, monkeypatch):
    made = await producer_options(app, settings, monkeypatch)
    assert (made["acks"], made["enable_idempotence"]) == ("all", True)
    assert not list(app.boot_strategy.kafka_producer()), "Faust's own cannot be idempotent"


async def test_inputs_of_one_partition_stay_together_and_fetches_wait_20_ms(app):
    consumer = app.consumer.thread._create_worker_consumer(app.transport)
    try:
        assert [one.name for one in consumer._partition_assignment_strategy] == ["range"]
        assert consumer._fetch_max_wait_ms == 20
        assert consumer._enable_auto_commit is False
        assert consumer._session_timeout_ms == app.conf.broker_session_timeout * 1000
        assert consumer._group_instance_id == "seat"
    finally:
        consumer._closed = True  # never started: there is nothing to stop


def test_only_the_inputs_are_subscribed_and_faust_commits_none_of_them(app):
    (agent,) = app.agents.values()
    assert set(agent.channel.topics) == {"contexts", "clicks"}
    assert not agent.channel.acks


async def test_security_reaches_every_client(tmp_path, monkeypatch):
    security = Security(protocol="SASL_PLAINTEXT", username="learner", password="canary")
    settings = WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=tmp_path, security=security)
    app = make_app(settings, ("contexts",), Intake())
    producer = await producer_options(app, settings, monkeypatch)
    consumer = app.consumer.thread._create_worker_consumer(app.transport)
    consumer._closed = True  # never started: there is nothing to stop
    assert producer["sasl_plain_password"] == consumer._client._sasl_plain_password == "canary"
    assert producer["security_protocol"] == consumer._client._security_protocol == "SASL_PLAINTEXT"
    assert producer["sasl_mechanism"] == consumer._client._sasl_mechanism == "SCRAM-SHA-512"


async def producer_options(app: Any, settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options with which a stream makes its producer."""
    made: dict[str, Any] = {}

    class Producer:
        def __init__(self, **options: Any) -> None:
            made.update(options)

        async def start(self) -> None:
            """Connect to nobody."""

    monkeypatch.setattr("hushstream.agents.kafka.stream.AIOKafkaProducer", Producer)
    await Stream(app, settings).start()
    return made


def test_the_pinned_versions_are_the_ones_that_were_read():
    names = ("faust-streaming", "aiokafka", "mode-streaming")
    assert [version(name) for name in names] == ["0.15.3", "0.14.0", "0.7.1"]


def test_no_more_than_three_private_names_are_used_and_each_has_its_reason():
    assert len(PRIVATE_NAMES) <= 3
    assert all(PRIVATE_NAMES.values())


@pytest.mark.parametrize("name", sorted(PRIVATE_NAMES))
def test_what_a_private_name_stands_for_is_what_was_read(name):
    assert read_source(name) == READ_SOURCE[name], (
        f"{name} has changed: read it again, check what stands in its place, then record it here"
    )


def read_source(name: str) -> str:
    """A digest of the source that a name of a library stands for."""
    if name == "aiokafka.consumer.fetcher.PartitionRecords":  # replaced, and where it is made counts too
        source = inspect.getsource(aiokafka.consumer.fetcher)
    else:
        module, _, path = name.partition(".aiokafka.")
        owner = importlib.import_module(f"{module}.aiokafka")
        for part in path.split("."):
            owner = getattr(owner, part)
        source = inspect.getsource(owner)  # type: ignore[arg-type] # a function by now
    return hashlib.sha256(source.encode()).hexdigest()[:16]


SEED = 3
P2B = {"items": {"capacity": 3}, "features": {"dimension": 3}, "expected_slots": 20, "encoder": {"codes": 2}}
COLIN = {"system": "colin", "items": {"capacity": 3}, "features": {"dimension": 3}}
SHAPES: dict[str, dict[str, Any]] = {
    "p2b": P2B,
    "p2b, public, measured": {**P2B, "measurement": {"own": 0.2}},
    "colin, counted by a server": {**COLIN, "release": {"noise_at": "server"}},
    "colin, counted at the edge": {**COLIN, "release": {"noise_at": "learner"}},
}


def made(values: dict[str, Any], public: bool = False) -> System:
    config: Any = parse_config({"deployment": "small", **values})
    if "system" in values:
        graph = SocialGraph(("ann", "bob"), np.array([[0.0, 1.0], [1.0, 0.0]]))
        return declare_colin(CollaborativeSystem.of(config, graph))
    return declare_p2b(P2BSystem.fitted(config, public))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_role_uses_what_its_machines_read_and_journal(shape):
    system = made(SHAPES[shape], public="public" in shape)
    for role in system.roles:
        topics, make = role_topics(role, system), role_work(role.name, system, KeySource(seed=SEED)).make_machine
        machines = [make(home) for home in range(system.homes(role))]
        # A track of an aggregator may take what another does not.
        assert set(topics.inputs) == {name for machine in machines for name, _ in machine.inputs}
        assert {topics.journal} == {machine.journal[0] for machine in machines}
        assert set(topics.broadcasts) == {name for machine in machines for name, _ in machine.broadcasts}
        assert topics.partitions == system.homes(role)
        assert topics.recomputed == {*topics.inputs, topics.journal, *topics.writes, *topics.broadcasts}
        marks = {topics.marks} if role.name != "aggregator" else set()
        assert topics.all - topics.recomputed == {*marks, f"state-{role.name}"}
        assert topics.declared == {topic.name: topic for topic in system.topics if topic.name in topics.all}


EVIDENCE = {
    "p2b": {"learner": (), "shuffler": ("window-sums", "ledger")},
    "p2b, public, measured": {"learner": ("lift", "ledger-edge"), "shuffler": ("window-sums", "ledger")},
    "colin, counted by a server": {"learner": (), "counter": ("releases", "ledger")},
    "colin, counted at the edge": {"learner": ("releases", "ledger")},
}  # fmt: skip
"""Idle shufflers and counters write ticks to reports and rewards: those say nothing of a learner."""


@pytest.mark.parametrize("shape", EVIDENCE)
def test_what_says_that_a_role_has_released_is_written_by_nobody_else(shape):
    system = made(SHAPES[shape], public="public" in shape)
    found = {role.name: role_topics(role, system).evidence for role in system.roles}
    assert found == {**EVIDENCE[shape], "aggregator": ()}


def test_a_role_that_the_deployment_lacks_is_named_with_those_it_has():
    known = r"expected a role of deployment small \(learner, shuffler, aggregator\), got 'counter'"
    with pytest.raises(HushstreamError, match=known):
        role_work("counter", made(P2B), KeySource(seed=SEED))
