"""A replay in which every role runs under its own principal, and a search for secrets in all that it leaves."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from hushstream.agents.errors import AccessDenied, TopicMissing
from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.client.kafka import KafkaEventLog
from hushstream.engine.declare.declaration import System
from hushstream.ops import access as acls
from hushstream.ops.access import Principals
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verified_topics, verify, verify_export, verify_live
from hushstream.ops.export import export_async
from hushstream.ops.log_copy import LogCopy, copy_async
from hushstream.ops.topics import apply_async, check_async
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.replay.catalogue import make_world
from hushstream.replay.runners.stream import free_port
from hushstream.replay.studies.p2b.run import ClosedLoop, Plan
from hushstream.schemas import codec
from patience import patience

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

USERS, ROUNDS = 24, 4
STOP_SECONDS = 20.0
BY_ENVIRONMENT = "shuffler"
"""This role gets its user and password from the environment, the others from files."""


def named(system: System) -> list[str]:
    """The duties for which somebody is named."""
    return [*(f"verify-{role}" for role in system.role_names), "export"]


@dataclass
class Workers:
    """One process a role, each under its own principal."""

    kafka: Any
    folder: Path
    keys: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, tuple[int, int]] = field(default_factory=dict)

    def start(self, role: str) -> None:
        self.ports[role] = (free_port(), free_port())
        arguments = ["worker", role, "--deployment", str(self.folder), "--keys", str(self.keys)]
        arguments += ["--log-level", "debug", "--metrics-port", str(self.ports[role][0])]
        arguments += ["--zone-metrics-port", str(self.ports[role][1]), "--bootstrap", self.kafka.passwords]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        if role == BY_ENVIRONMENT:
            secret = (self.kafka.folder / "security" / f"{role}.password").read_text(encoding="utf-8")
            given = {"PROTOCOL": "SASL_SSL", "USERNAME": role, "PASSWORD": secret}
            given["CA_FILE"] = str(self.kafka.folder / "security" / "ca.pem")
            environment |= {f"HUSHSTREAM_SECURITY__{name}": value for name, value in given.items()}
        else:
            arguments += ["--security", str(self.kafka.file(role))]
        with (self.folder / f"{role}.log").open("wb") as log:
            self.processes[role] = subprocess.Popen(
                [sys.executable, "-m", "hushstream.cli", *arguments], stdout=log, stderr=log, env=environment
            )

    def pages(self) -> dict[str, str]:
        """What each endpoint says, by role and kind."""
        return {
            f"{role} {kind}": urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            for role, ports in self.ports.items()
            for kind, port in zip(("public", "zone"), ports, strict=True)
        }

    def stop(self) -> dict[str, int]:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        return {role: process.wait(patience(STOP_SECONDS)) for role, process in self.processes.items()}


@dataclass(frozen=True)
class Played:
    """What a replay left, everywhere."""

    system: System
    keys: Path
    folder: Path
    logs: LogCopy
    pages: Mapping[str, str]
    codes: Mapping[str, int]
    decisions: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(
    kafka: Any, fresh_name: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Played]:
    name, folder = fresh_name(), tmp_path_factory.mktemp("played")
    config = {"deployment": name, "items": {"capacity": 4}, "features": {"dimension": 4}, "expected_slots": USERS}
    config |= {
        "encoder": {"codes": 4},
        "slot": {"after_interactions": 2},
        "feedback": {"settle_seconds": 0.2},
        "partitions": {"learner": 2, "shuffler": 1},
    }
    system = prepare(folder, parse_config(config))
    keys = folder.parent / f"{folder.name}-keys"
    generate_keys(keys, ("edge", "shuffler"))
    admin = kafka.connection("admin", f"{name}.")
    await apply_async(admin, system)
    await acls.apply_async(admin, system, Principals.of([f"{duty}=User:{duty}" for duty in named(system)]))
    workers = Workers(kafka, folder, keys)
    try:
        for role in system.role_names:
            workers.start(role)
        log = KafkaEventLog(kafka.passwords, f"{name}.", security=kafka.security("client"))
        world = make_world("synthetic", users=USERS, rounds=ROUNDS, dimension=4, arms=4, seed=5)
        result = await asyncio.wait_for(
            ClosedLoop(world, Plan(USERS * 2 // 3, USERS // 3, ("cold", "warm_private"))).run(log), 60
        )
        await _send_bad_records(kafka, name, system.partitions)
        pages = await asyncio.to_thread(workers.pages)
    finally:
        try:
            codes = await asyncio.to_thread(workers.stop)
        finally:
            for role in system.role_names:
                print((folder / f"{role}.log").read_text(encoding="utf-8")[-1500:])
    logs = await copy_async(admin, system.partitions)
    await export_async(admin, system, folder / "export")
    yield Played(system, keys, folder, logs, pages, codes, result.decisions)


async def _send_bad_records(kafka: Any, name: str, counts: Mapping[str, int]) -> None:
    """What becomes dead letters."""
    log = KafkaEventLog(kafka.passwords, f"{name}.", security=kafka.security("client"))
    await log.start(lambda *_: None)
    bad = {"event_id": "nan", "user": "bad", "context": np.full(4, np.nan, "<f4").tobytes()}
    await log.append("contexts", 0, codec.encode("Context", bad))
    await log.append("clicks", 0, b"not a record")
    await log.stop()
    admin = kafka.connection("admin", f"{name}.")
    for _ in range(300):
        found = await copy_async(admin, counts, {"dead-letters-edge"})
        if any(part.records for part in found.parts.values()):
            return
        await asyncio.sleep(0.2)
    pytest.fail("bad records did not become dead letters")


async def test_every_role_does_its_whole_work_under_its_own_principal(played):
    assert played.codes == dict.fromkeys(played.system.role_names, 0)
    assert played.decisions == (USERS * 2 // 3 + 2 * (USERS // 3)) * ROUNDS
    filled = {topic for (topic, _), part in played.logs.parts.items() if part.records}
    assert filled >= {
        "contexts",
        "clicks",
        "decisions",
        "reports",
        "journal-shuffler",
        "window-sums",
        "ledger",
        "models",
    }
    assert "dead-letters-edge" in filled


async def test_what_they_published_follows_from_the_logs(played):
    found = verify(played.logs, played.system, KeySource(folder=played.keys), played.system.role_names)
    assert found.exit_code == 0, found.as_text()


@pytest.mark.parametrize("role", ["learner", "shuffler", "aggregator"])
async def test_whoever_is_named_for_it_verifies_a_role_on_the_broker_and_writes_nothing(kafka, played, role, tmp_path):
    prefix = f"{played.system.config.deployment}."
    inspector, keys = kafka.connection(f"verify-{role}", prefix), KeySource(folder=played.keys)
    found = await asyncio.to_thread(verify_live, inspector, played.system, keys, [role])
    assert found.exit_code == 0, found.as_text()
    assert found.totals[Status.EQUAL] > 0
    assert not found.totals[Status.UNCHECKABLE]
    await export_async(inspector, played.system, tmp_path / "out", verified_topics(played.system, [role]))
    assert verify_export(tmp_path / "out", played.system, keys, [role]).totals == found.totals
    for topic in played.system.partitions:
        async with AIOKafkaProducer(**inspector.cluster.client_options()) as producer:
            with pytest.raises((TopicAuthorizationFailedError, UnknownTopicOrPartitionError)):
                await producer.send_and_wait(prefix + topic, b"x", partition=0)
    others = [f"verify-{other}" for other in ("learner", "shuffler", "aggregator") if other != role]
    # What the aggregator reads and writes is published; only here, where the others' topics hold something.
    for who in (*others, *(() if role == "aggregator" else ("operator", role))):
        with pytest.raises((AccessDenied, TopicMissing)):
            await asyncio.to_thread(verify_live, kafka.connection(who, prefix), played.system, keys, [role])


async def test_whoever_is_named_to_export_copies_everything_and_nobody_else_does(kafka, played, tmp_path):
    prefix, keys = f"{played.system.config.deployment}.", KeySource(folder=played.keys)
    await export_async(kafka.connection("export", prefix), played.system, tmp_path / "out")
    assert verify_export(tmp_path / "out", played.system, keys).exit_code == 0
    for who in ("operator", "verify-learner", "learner", "client"):
        with pytest.raises((AccessDenied, TopicMissing)):
            await export_async(kafka.connection(who, prefix), played.system, tmp_path / who)


async def test_the_operator_checks_topics_and_is_told_how_without_access_rules(kafka, played):
    connection = kafka.connection("operator", f"{played.system.config.deployment}.")
    assert await check_async(connection, played.system) == ()
    with pytest.raises(AccessDenied, match="--no-acls"):
        await acls.check_async(connection, played.system, Principals.of())


def forms(secret: bytes) -> list[bytes]:
    """How a secret may be written: as it is, in hexadecimal digits of either case, in base 64, as Python shows it."""
    hexed = secret.hex().encode()
    return [secret, hexed, hexed.upper(), base64.b64encode(secret).rstrip(b"="), repr(secret)[2:-1].encode()]


def holders(secrets: Mapping[str, bytes], places: Mapping[str, bytes]) -> set[tuple[str, str]]:
    """Which secret is found where, whole or its first half."""
    pieces = {name: [f for part in (s, s[: len(s) // 2]) for f in forms(part)] for name, s in secrets.items()}
    return {
        (name, place)
        for place, content in places.items()
        for name, found in pieces.items()
        if any(piece in content for piece in found)
    }


async def test_no_key_and_no_password_is_in_anything_that_was_left(kafka, played):
    secrets = {f"password of {path.stem}": path.read_bytes() for path in (kafka.folder / "security").glob("*.password")}
    secrets |= {
        f"key of {zone}": bytes.fromhex(
            re.findall(r"[0-9a-f]{64}", key_path(played.keys, zone).read_text(encoding="utf-8"))[0]
        )
        for zone in ("edge", "shuffler")
    }
    places = {f"{topic}/{number}": b"\0".join(record.value for record in part.records)
              for (topic, number), part in played.logs.parts.items()}  # fmt: skip
    places |= {f"metrics {name}": page.encode() for name, page in played.pages.items()}
    places |= {str(path): path.read_bytes() for path in played.folder.rglob("*") if path.is_file()}
    places |= {"broker": (kafka.folder / "broker-1" / "broker.log").read_bytes()}
    found = verify(played.logs, played.system, KeySource(folder=played.keys), played.system.role_names)
    places["verify"] = f"{found.as_text()} {found.as_json()} {found!r}".encode()
    kinds = ("learner.log", "metrics learner zone", "dead-letters-edge/0", "state", "manifest", "broker")
    for kind in kinds:
        assert any(kind in place for place in places), kind
    assert len(secrets) >= 9
    assert not holders(secrets, places)


async def test_the_search_finds_a_secret_in_every_form_in_which_it_may_leak():
    secret = bytes(range(1, 33))
    for form in forms(secret) + forms(secret[:16]):
        assert holders({"key": secret}, {"log": b"before " + form + b" after"}) == {("key", "log")}
    assert not holders({"key": secret}, {"log": b"before and after"})
