"""The command that runs Apache Kafka on loopback says what is missing, and stops what it started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

COMMAND = Path(__file__).parents[2] / "deploy" / "kafka" / "local.py"
GIVEN = os.environ.get("HUSHSTREAM_TEST_THREE")
THREE = Path(GIVEN).resolve() if GIVEN else None


def local(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) if path is None else {**os.environ, "PATH": str(path)}
    return subprocess.run(
        [sys.executable, str(COMMAND), *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environment, timeout=120,
    encoding="utf-8")  # fmt: skip


def tool(folder: Path, name: str, says: str) -> None:
    """A program of this name that prints one line on standard error."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n", encoding="utf-8")
    program.chmod(0o755)


def copy_of_the_command(folder: Path) -> Path:
    """A copy of the command elsewhere: it has nothing that Maven fetched before."""
    home = folder / "checkout" / "deploy" / "kafka"
    home.mkdir(parents=True)
    for file in COMMAND.parent.iterdir():
        if file.is_file():
            (home / file.name).write_bytes(file.read_bytes())
    return home


def test_without_java_it_says_what_to_install(tmp_path):
    done = local("up", "--folder", tmp_path / "kafka", path=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kafka: expected java (17 or newer) on the path, found none; install a JRE\n"


@pytest.mark.parametrize(
    ("says", "found"), [('openjdk version "11.0.2" 2019', "version 11"), ('java version "1.8.0"', "version 1")]
)
def test_an_old_java_is_named_with_its_version(tmp_path, says, found):
    tool(tmp_path, "java", says)
    done = local("up", "--folder", tmp_path / "kafka", path=tmp_path)
    assert done.returncode == 1
    assert f"expected java 17 or newer, found {found} at {tmp_path / 'java'}" in done.stderr


def test_without_maven_it_says_what_to_install(tmp_path):
    tool(tmp_path, "java", 'openjdk version "17.0.1" 2021')
    home = copy_of_the_command(tmp_path)
    done = subprocess.run(
        [sys.executable, str(home / "local.py"), "up", "--folder", str(tmp_path / "kafka")],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": str(tmp_path)}, timeout=60,
    encoding="utf-8")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "kafka: expected mvn (Maven) on the path, found none; install it\n"


def test_it_says_what_it_does_while_it_fetches_and_starts_a_broker(tmp_path):
    """It was silent for half a minute. Here Java and Maven end at once, so no broker ever takes a record."""
    tool(tmp_path, "java", 'openjdk version "17.0.1" 2021')
    tool(tmp_path, "mvn", "done")
    home = copy_of_the_command(tmp_path)
    done = subprocess.run(
        [sys.executable, str(home / "local.py"), "up", "--folder", str(tmp_path / "kafka")],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        timeout=120, encoding="utf-8")  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    doing = [line.partition(", ")[0].split(" until ")[0] for line in done.stderr.splitlines()]
    assert doing[:3] == [
        "kafka: fetching Apache Kafka by Maven",
        "kafka: formatting the folder of broker 1 of 1",
        "kafka: waiting",
    ]


def test_stopping_what_does_not_run_is_no_mistake_and_killing_it_is(tmp_path):
    assert local("down", "--folder", tmp_path).returncode == 0
    for command in ("kill", "start"):
        done = local(command, "2", "--folder", tmp_path)
        assert done.returncode == 1
        assert done.stderr == f"kafka: {tmp_path}: expected one of the brokers [], got 2\n"
    assert local("kill", "--folder", tmp_path).returncode == 2


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.skipif(
    not THREE,
    reason="needs three brokers of Apache Kafka: start them with `make kafka-up-three` and set HUSHSTREAM_TEST_THREE "
    "to their folder",
)
async def test_three_brokers_keep_what_was_acknowledged_while_one_is_killed_and_comes_back():
    assert THREE is not None
    bootstrap = (THREE / "bootstrap").read_text(encoding="utf-8")
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    answer = await admin.create_topics([NewTopic("kept", 3, 3)])
    await admin.close()
    assert [code for _, code, _ in answer.topic_errors] == [0]
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        for number in range(60):
            if number == 20:
                assert (await asyncio.to_thread(local, "kill", "2", "--folder", THREE)).returncode == 0
            if number == 40:
                assert (await asyncio.to_thread(local, "start", "2", "--folder", THREE)).returncode == 0
            await asyncio.wait_for(producer.send_and_wait("kept", b"%d" % number, partition=number % 3), 60)
    consumer = AIOKafkaConsumer("kept", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    async with consumer:
        values = [int((await asyncio.wait_for(consumer.getone(), 30)).value or b"") for _ in range(60)]
    assert sorted(values) == list(range(60))
