"""The broker of the Compose example, with its settings as they stand there, on this machine's loopback.

No container runs here: what the image makes of its environment is written by `properties`, and the two jobs that need
the broker's own network are run by hand. Kafka, the jobs' script, the access rules and the workers are the real ones.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from hushstream.agents.security import Cluster, Security
from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client.client import Client
from hushstream.client.kafka import KafkaEventLog
from hushstream.privacy.keys import generate_keys
from patience import Patience

pytestmark = pytest.mark.kafka

DEPLOY = Path(__file__).parents[2] / "deploy"
ACCOUNTS = ("client", "learner", "shuffler", "aggregator")
VALUES = {"items": {"capacity": 3}, "features": {"dimension": 3}, "expected_slots": 20, "encoder": {"codes": 2}}


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def properties(environment: Mapping[str, str]) -> dict[str, str]:
    """What the image writes into ``server.properties``: of names one _ becomes a dot, two an _, three a dash.

    That is `ConvertKey` of docker/resources/utility/utility.go in apache/kafka; it passes over a value with a ``=``.
    """
    found = {}
    for name, value in environment.items():
        assert "=" not in value, f"{name}: the image drops it"
        if name.startswith("KAFKA_") and name != "KAFKA_HEAP_OPTS":
            dotted = re.sub("[^_]_[^_]", lambda match: match[0].replace("_", "."), name.removeprefix("KAFKA_"))
            found[dotted.replace("___", "-").replace("__", "_").lower()] = value
    return found


@dataclass(frozen=True)
class Composed:
    """The broker of the example, and what its jobs left."""

    folder: Path
    stream: str
    admin: str

    def password(self, account: str) -> str:
        return (self.folder / "accounts" / account / "password").read_text(encoding="utf-8")

    def security(self, account: str, **changes: Any) -> Security:
        values = {"protocol": "SASL_PLAINTEXT", "username": account, "password": self.password(account)}
        return Security(**{**values, **changes})


def _tell_accounts(broker: Composed, java: str, libraries: Path) -> str:
    """What the job `accounts` runs, with Kafka's own tool as it lies on this machine."""
    tool = broker.folder / "kafka-configs"
    tool.write_text(f"#!/bin/sh\nexec {java} -cp '{libraries}/*' kafka.admin.ConfigCommand \"$@\"\n", encoding="utf-8")
    tool.chmod(0o755)
    script = ["bash", str(DEPLOY / "compose" / "accounts.sh"), str(broker.folder / "accounts"), broker.admin, str(tool)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=600, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    local = load(DEPLOY / "kafka" / "local.py", "hushstream_test_local")
    try:
        java, libraries = local._java(), local._libraries()
    except local.LocalKafkaError as error:
        pytest.skip(f"needs Apache Kafka on this machine: {error}")
    folder = tmp_path_factory.mktemp("composed")
    service = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]["kafka"]
    stream, admin, controller = local._free_ports(3)
    home = local._home(folder, 1)
    home.mkdir()
    text = "\n".join(f"{name}={value}" for name, value in properties(service["environment"]).items())
    for known, here in (("STREAM://:9092", f"STREAM://127.0.0.1:{stream}"), ("kafka:9092", f"127.0.0.1:{stream}"),
                        ("127.0.0.1:9094", f"127.0.0.1:{admin}"), ("127.0.0.1:9093", f"127.0.0.1:{controller}"),
                        ("/var/lib/kafka/data", str(home / "data"))):  # fmt: skip
        assert known in text, known
        text = text.replace(known, here)
    (home / "server.properties").write_text(text, encoding="utf-8")
    local._format(java, libraries, home, str(uuid.uuid4()), [])
    local._launch(java, libraries, home)
    try:
        asyncio.run(local._wait_until_served(folder, f"127.0.0.1:{admin}", [1]))
        made = Composed(folder, f"127.0.0.1:{stream}", f"127.0.0.1:{admin}")
        passwords = load(DEPLOY / "container" / "accounts.py", "hushstream_test_accounts")
        for account in ACCOUNTS:
            (folder / "accounts" / account).mkdir(parents=True)
        assert passwords.make_passwords(folder / "accounts" / account for account in ACCOUNTS) == list(ACCOUNTS)
        assert _tell_accounts(made, java, libraries).count("Completed updating") == len(ACCOUNTS)
        assert "Completed" not in _tell_accounts(made, java, libraries), "who is known keeps the password"
        yield made
    finally:
        local.down(folder)


@pytest.fixture(scope="module")
def deployment(broker: Composed) -> Path:
    """A deployment whose topics and rules the job `topics` made."""
    folder = broker.folder / "shop"
    folder.mkdir()
    prepare(folder, parse_config({"deployment": "shop", **VALUES}))
    generate_keys(folder / "keys", ["edge", "shuffler"])
    done = _hushstream("topics", "apply", "--deployment", folder, "--bootstrap", broker.admin)
    assert done.returncode == 0, done.stderr
    return folder


def _hushstream(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hushstream.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, encoding="utf-8")


async def _produce(broker: Composed, security: Security, topic: str) -> None:
    producer = AIOKafkaProducer(**Cluster(broker.stream, security).client_options(), request_timeout_ms=10_000)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"x")
    finally:
        await producer.stop()


def test_every_rule_is_as_declared(broker: Composed, deployment: Path) -> None:
    done = _hushstream("topics", "check", "--deployment", deployment, "--bootstrap", broker.admin)
    assert (done.returncode, done.stdout) == (0, "all topics are as declared\n")


def test_whoever_has_no_account_or_another_password_is_not_let_in(broker: Composed, deployment: Path) -> None:
    for security in (
        Security(protocol="SASL_PLAINTEXT", username="nobody", password="guessed"),
        broker.security("learner", password=broker.password("client")),
        Security(),
    ):
        with pytest.raises(KafkaConnectionError):
            asyncio.run(_produce(broker, security, "shop.contexts"))


def test_an_account_reads_and_writes_what_is_declared_for_it_alone(broker: Composed, deployment: Path) -> None:
    asyncio.run(_produce(broker, broker.security("client"), "shop.contexts"))
    for account, topic in (("client", "shop.decisions"), ("aggregator", "shop.contexts"), ("shuffler", "shop.models")):
        with pytest.raises(TopicAuthorizationFailedError):
            asyncio.run(_produce(broker, broker.security(account), topic))

    async def read(account: str, topic: str) -> None:
        options = Cluster(broker.stream, broker.security(account)).client_options()
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **options)
        await consumer.start()
        try:
            await consumer.getone()
        finally:
            await consumer.stop()

    with pytest.raises(TopicAuthorizationFailedError):
        asyncio.run(read("aggregator", "shop.contexts"))


def test_a_worker_answers_applications_under_its_account(broker: Composed, deployment: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    for name, value in compose["services"]["learner"]["environment"].items():
        if name.startswith("HUSHSTREAM_SECURITY__"):
            environment[name] = value.replace("/var/lib/hushstream", str(broker.folder))
    state = broker.folder / "state"
    command = [sys.executable, "-m", "hushstream.cli", "worker", "learner", "--deployment", str(deployment), "--state",
               str(state), "--keys", str(deployment / "keys"), "--bootstrap", broker.stream]  # fmt: skip
    with (broker.folder / "learner.log").open("wb") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        assert asyncio.run(_answered(broker)) == "model", (broker.folder / "learner.log").read_text(encoding="utf-8")
    finally:
        worker.terminate()
        worker.wait(60)


async def _answered(broker: Composed) -> str:
    log = KafkaEventLog(broker.stream, "shop.", security=broker.security("client"))
    deadline = Patience(60)
    async with Client(log) as client:
        number = 0
        while True:
            decision = await client.decide(f"e{number}", "ann", [1, 0, 0], baseline=0, timeout=2)
            if decision.policy not in ("timeout", "no_learner") or deadline.over:
                return decision.policy
            number += 1
            await asyncio.sleep(0.2)
