from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.kafka.intake import Intake
from hushstream.agents.settings import RECORD_BYTES_LIMIT, Security, WorkerSettings
from hushstream.agents.worker.app import PRIVATE_API, BulkConsumer, BulkConsumerThread, IdempotentProducer, make_app

READ_SOURCE = {
    "AIOKafkaConsumerThread._create_worker_consumer": "c2701bfc3e6f6cad",
    "AIOKafkaConsumerThread._fetch_records": "39a2c6c79fc1455a",
    "AIOKafkaConsumerThread._highwaters": "a7f4f97d9f32aca2",
    "AIOKafkaConsumerThread._seek_wait": "9d221e816d940467",
    "AIOKafkaConsumerThread.on_thread_stop": "8dfc004e258b6c25",
    "Consumer._drain_messages": "44a2500309e83c63",
    "Consumer._new_consumer_thread": "0870ec53dea75083",
    "Consumer.perform_seek": "0e8c130ff4b0afd8",
    "Consumer.verify_all_partitions_active": "4e0e46f5c297305d",
    "CoordinatorGroupRebalance.perform_group_join": "ff2c2109b2e9868d",
    "Fetcher._fetcher": "68f894f0b577d810",
    "GroupCoordinator._maybe_leave_group": "016cd88a16e6c4b5",
    "Producer._settings_default": "9c39987fb719e984",
    "QueueServiceThread.call_thread": "479edda75b54734b",
    "QueueServiceThread.method_queue": "a1ce249e92d9cc3f",
    "TableManager.on_start": "365dd25fbc0e0684",
    "ThreadDelegateConsumer._getmany": "f9d47aa9010b5ff2",
}


@pytest.fixture
def app(tmp_path: Path) -> Any:
    settings = WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=tmp_path)
    return make_app(settings, ("contexts", "clicks"), Intake())


SAFE = {
    "web_enabled": False,
    "web_bind": "127.0.0.1",
    "web_host": "127.0.0.1",
    "broker_session_timeout": 3.0,
    "broker_heartbeat_interval": 1.0,
    "broker_commit_interval": 0.5,
    "topic_disable_leader": True,
    "topic_allow_declare": False,
    "stream_wait_empty": False,
    "table_standby_replicas": 0,
    "producer_acks": -1,
    "producer_linger": 0.0,
    "producer_max_request_size": RECORD_BYTES_LIMIT,
    "broker_client_id": "hushstream",
    "consumer_auto_offset_reset": "earliest",
}


@pytest.mark.parametrize("name", sorted(SAFE))
def test_each_safe_setting_holds(app: Any, name: str) -> None:
    assert getattr(app.conf, name) == SAFE[name]


def test_exactly_once_is_never_used(app: Any) -> None:
    assert app.conf.processing_guarantee.value == "at_least_once"
    assert not app.in_transaction


def test_concurrency_stays_one_as_no_agent_runs_and_each_partition_has_one_fold(app: Any) -> None:
    assert len(app.agents) == 0
    assert len(app.tables) == 0


def test_state_is_never_kept_in_faust(app: Any) -> None:
    assert str(app.conf.store) == "memory:"
    assert app.conf.producer_threaded is False


def test_the_bulk_classes_are_in_place(app: Any) -> None:
    assert type(app.consumer) is BulkConsumer
    assert type(app.consumer._thread) is BulkConsumerThread
    assert type(app.producer) is IdempotentProducer


def test_the_producer_is_idempotent_and_waits_for_all_replicas(app: Any) -> None:
    settings = app.producer._settings_default()
    assert settings["enable_idempotence"] is True
    assert settings["acks"] == "all"


async def test_inputs_of_one_partition_stay_together_and_fetches_wait_20_ms(app: Any) -> None:
    consumer = app.consumer._thread._create_worker_consumer(app.transport)
    try:
        assert app.consumer._thread._assignor.name == "range"
        assert consumer._fetch_max_wait_ms == 20
        assert consumer._enable_auto_commit is False
        assert consumer._session_timeout_ms == 3_000
    finally:
        consumer._closed = True  # never started: there is nothing to stop


def test_a_commit_never_waits_behind_a_fetch(app: Any) -> None:
    assert app.consumer._thread.method_queue.num_workers == 4


def test_only_the_inputs_are_subscribed(app: Any) -> None:
    assert {name for topic in app.topics for name in topic.topics} == {"contexts", "clicks"}


def test_security_reaches_every_client(tmp_path: Path) -> None:
    security = Security(protocol="SASL_PLAINTEXT", username="learner", password="canary")
    settings = WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=tmp_path, security=security)
    app = make_app(settings, ("contexts",), Intake())
    producer = {**app.producer._settings_default(), **app.producer._settings_auth()}
    assert producer["sasl_plain_password"] == "canary"
    assert producer["security_protocol"] == "SASL_PLAINTEXT"
    assert producer["sasl_mechanism"] == "SCRAM-SHA-512"


def test_a_worker_starts_without_an_http_client_and_who_wants_one_gets_it(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from hushstream.agents.kafka.intake import Intake
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.worker import make_app

settings = WorkerSettings(bootstrap="127.0.0.1:1", role="learner", group="g", datadir=Path({str(tmp_path)!r}))
make_app(settings, ("contexts",), Intake())
assert not [name for name in sys.modules if name.partition(".")[0] in ("aiohttp", "attr")]
from aiohttp import web
from aiohttp.client import ClientSession
assert ClientSession.get and web.Application
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_pinned_versions_are_the_ones_that_were_read() -> None:
    names = ("faust-streaming", "aiokafka", "mode-streaming")
    assert [version(name) for name in names] == ["0.15.3", "0.14.0", "0.7.1"]


@pytest.mark.parametrize("name", sorted(PRIVATE_API))
def test_private_api_beneath_the_intake_is_what_was_read(name: str) -> None:
    source = inspect.getsource(PRIVATE_API[name])
    assert hashlib.sha256(source.encode()).hexdigest()[:16] == READ_SOURCE[name], (
        f"{name} has changed: read it again, check the override in hushstream.agents.worker.app, then record it here"
    )
