"""One Apache Kafka broker on loopback, without a container: for development and the test suites.

    python deploy/kafka/local.py up [--folder .kafka] [--port 0]    prints the bootstrap address when it takes records
    python deploy/kafka/local.py down [--folder .kafka]

Needs Java 17 or newer and Maven; Maven fetches the broker by ``pom.xml``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

HERE = Path(__file__).resolve().parent
START_SECONDS = 90.0
STOP_SECONDS = 30.0

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms={session}
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class LocalKafkaError(Exception):
    """The broker cannot be fetched, started or stopped; says what is missing."""


def up(folder: Path, port: int, min_session_ms: int = 6000) -> str:
    """Fetch, format and start a fresh broker; returns its address once it takes a record.

    Args:
        folder: for the broker's files, its data and its process number.
        port: 0 lets the system choose.
        min_session_ms: shorter group sessions are refused; tests of take-over want a short one.
    """
    pid_file = folder / "pid"
    if _alive(pid_file):
        raise LocalKafkaError(f"{folder}: expected no running broker, found process {pid_file.read_text()}")
    java, libraries = _java(), _libraries(folder)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    port = port or _free_port()
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=_free_port(), data=data, session=min_session_ms))
    command = [java, "-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={HERE}/log4j2.properties"]
    command += ["-cp", f"{libraries}/*"]
    cluster = str(uuid.uuid4())
    formatting = [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
    _run(formatting, folder / "format.log")
    with (folder / "broker.log").open("wb") as log:
        broker = subprocess.Popen(
            [*command, "kafka.Kafka", str(settings)], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    pid_file.write_text(str(broker.pid))
    address = f"127.0.0.1:{port}"
    asyncio.run(_wait_until_it_takes_a_record(address, broker, folder / "broker.log"))
    (folder / "bootstrap").write_text(address)
    return address


def down(folder: Path) -> None:
    """Stop the broker that ``up`` started in this folder, if it runs."""
    pid_file = folder / "pid"
    if not _alive(pid_file):
        return
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _alive(pid_file) and time.monotonic() < deadline:
        time.sleep(0.1)
    if _alive(pid_file):
        os.kill(pid, signal.SIGKILL)
    pid_file.unlink()


async def _wait_until_it_takes_a_record(address: str, broker: subprocess.Popen[bytes], log: Path) -> None:
    """The port opens long before the broker serves: only a produced record proves that it does."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            await _probe(address)
            return
        except (KafkaError, OSError, TimeoutError) as error:
            if broker.poll() is not None or time.monotonic() > deadline:
                raise LocalKafkaError(f"the broker took no record ({type(error).__name__}); see {log}") from None
            await asyncio.sleep(0.5)


async def _probe(address: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("probe", 1, 1)])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=address, request_timeout_ms=5000)
    await producer.start()
    try:
        await asyncio.wait_for(producer.send_and_wait("probe", b"ready"), 10)
    finally:
        await producer.stop()


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise LocalKafkaError("expected java (17 or newer) on the path, found none; install a JRE")
    return java


def _libraries(folder: Path) -> Path:
    target = folder / "libs"
    stamp = target / "complete"
    if stamp.exists() and stamp.read_text() == (HERE / "pom.xml").read_text():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalKafkaError("expected mvn (Maven) on the path, found none; install it")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    _run([maven, "--batch-mode", "--quiet", "-f", str(HERE / "pom.xml"), *goal], folder / "maven.log")
    stamp.write_text((HERE / "pom.xml").read_text())
    return target


def _run(command: list[str], log: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise LocalKafkaError(f"{command[0]} ended with code {done.returncode}; see {log}:\n{done.stderr[-500:]}")


def _alive(pid_file: Path) -> bool:
    try:
        pid = int(pid_file.read_text())
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return False
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument("--folder", type=Path, default=Path(".kafka"))
    parser.add_argument("--port", type=int, default=0, help="0 lets the system choose")
    parser.add_argument("--min-session-ms", type=int, default=6000, help="shorter group sessions are refused")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if arguments.command == "up":
            print(up(folder, arguments.port, arguments.min_session_ms))
        else:
            down(folder)
    except LocalKafkaError as error:
        print(f"kafka: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
