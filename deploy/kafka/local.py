"""Apache Kafka on loopback without a container: one broker or three, for development and the test suites.

    python deploy/kafka/local.py up [--brokers 3] [--secured]   prints the bootstrap address when it takes records
    python deploy/kafka/local.py kill 2                         SIGKILL to one broker
    python deploy/kafka/local.py start 2                        starts it again on its data, until it has caught up
    python deploy/kafka/local.py down                           stops all

All take ``--folder`` (default ``.kafka``). Below it, ``bootstrap`` holds the addresses; a secured broker also
leaves ``bootstrap-certificate`` (its listener for certificates) and ``security/NAME.yaml``, which
``hushstream --security`` reads. Needs Java 17 or newer and Maven; Maven fetches the broker by ``pom.xml``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import BrokerNotAvailableError, KafkaError, TopicAlreadyExistsError, for_code
from nodes import ADMINISTRATOR, Node, properties, write_security

from hushstream.agents.security import Cluster, Security, read_security
from hushstream.replay.runners.stream import free_port
from hushstream.schemas.errors import HushstreamError

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE.parents[1] / ".kafka" / "libs"
"""The libraries that Maven fetched; all folders share them."""

JAVA = 17
START_SECONDS = 90.0
STOP_SECONDS = 30.0
_PROBE = "probe"
_NOT_YET = (KafkaError, OSError, TimeoutError)


class LocalKafkaError(Exception):
    """The brokers cannot be fetched, started or stopped; the message says what is missing."""


def up(
    folder: Path,
    brokers: int = 1,
    port: int = 0,
    min_session_ms: int = 6000,
    secured: bool = False,
    broker_session_ms: int = 9000,
) -> str:
    """Fetch, format and start new brokers; returns their addresses once they accept a record.

    Args:
        folder: folder for their files, data and process ids.
        brokers: how many; each is also a voting controller, and topics have as many copies.
        port: port of the first broker; 0 lets the system choose.
        min_session_ms: shorter group sessions are refused; tests of take-over need a short one.
        secured: whether to use passwords and certificates, encryption, and access rules.
        broker_session_ms: the other brokers take over the partitions of a broker that is silent for this long (Kafka's
            default is 9 s).
    """
    running = [number for number in _numbers(folder) if _alive(_pid_file(folder, number))]
    if running:
        raise LocalKafkaError(f"{folder}: expected no running broker, found number {running[0]}; say `down` first")
    java, libraries = _java(), _libraries()
    for stale in (*(_home(folder, number) for number in _numbers(folder)), folder / "security"):
        shutil.rmtree(stale, ignore_errors=True)
    security = folder / "security" if secured else None
    credentials = [] if security is None else write_security(security)
    ports = [free_port() for _ in range(3 * brokers)]
    nodes = [Node(n + 1, *ports[3 * n : 3 * n + 3]) for n in range(brokers)]
    if port:
        nodes[0] = Node(1, port, nodes[0].controller, nodes[0].tls)
    cluster = str(uuid.uuid4())
    for node in nodes:
        home = _home(folder, node.number)
        home.mkdir()
        text = properties(node, nodes, home, security, min_session_ms, broker_session_ms)
        (home / "server.properties").write_text(text, encoding="utf-8")
        _say(f"formatting the folder of broker {node.number} of {brokers}")
        _format(java, libraries, home, cluster, credentials)
    bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    (folder / "bootstrap").write_text(bootstrap, encoding="utf-8")
    if secured:
        (folder / "bootstrap-certificate").write_text(
            ",".join(f"127.0.0.1:{node.tls}" for node in nodes), encoding="utf-8"
        )
    for node in nodes:
        _launch(java, libraries, _home(folder, node.number))
    asyncio.run(_wait_until_served(folder, bootstrap, [node.number for node in nodes]))
    return bootstrap


def start(folder: Path, number: int) -> None:
    """Start a killed broker again on its data; returns when its copies are up to date."""
    if _alive(_pid_file(folder, _known(folder, number))):
        raise LocalKafkaError(f"{folder}: expected broker {number} to be down, it runs")
    _launch(_java(), _libraries(), _home(folder, number))
    asyncio.run(_wait_until_served(folder, (folder / "bootstrap").read_text(encoding="utf-8"), [number]))


def kill(folder: Path, number: int) -> None:
    """End one broker abruptly, as a power failure does."""
    pid_file = _pid_file(folder, _known(folder, number))
    if not _alive(pid_file):
        raise LocalKafkaError(f"{folder}: expected broker {number} to run, it does not")
    os.kill(int(pid_file.read_text(encoding="utf-8")), signal.SIGKILL)
    _wait_until_gone(pid_file)


def down(folder: Path) -> None:
    """Stop all running brokers that were started in this folder."""
    running = [file for number in _numbers(folder) if _alive(file := _pid_file(folder, number))]
    for pid_file in running:
        os.kill(int(pid_file.read_text(encoding="utf-8")), signal.SIGTERM)
    for pid_file in running:
        if not _wait_until_gone(pid_file):
            os.kill(int(pid_file.read_text(encoding="utf-8")), signal.SIGKILL)
        pid_file.unlink()


def _command(java: str, libraries: Path) -> list[str]:
    return [java, f"-Dlog4j2.configurationFile={HERE}/log4j2.properties", "-XX:+UseSerialGC", "-cp", f"{libraries}/*"]


def _format(java: str, libraries: Path, home: Path, cluster: str, credentials: list[str]) -> None:
    options = ["format", "-t", cluster, "-c", str(home / "server.properties"), *credentials]
    # The tool runs for a second: full compilation would take longer than the run.
    command = [*_command(java, libraries), "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool"]
    _run([*command, *options], home / "format.log")


def _launch(java: str, libraries: Path, home: Path) -> None:
    command = [*_command(java, libraries), "-Xmx512m", "-Xms128m", "kafka.Kafka", str(home / "server.properties")]
    with (home / "broker.log").open("ab") as log:
        broker = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    (home / "pid").write_text(str(broker.pid), encoding="utf-8")


async def _wait_until_served(folder: Path, bootstrap: str, numbers: list[int]) -> None:
    """Wait until a produced record has all its copies: the ports open long before the brokers serve requests."""
    _say(f"waiting until {bootstrap} takes a record, at most {START_SECONDS:.0f} s")
    deadline = time.monotonic() + START_SECONDS
    cluster = Cluster(bootstrap, _administrator(folder))
    copies = len(bootstrap.split(","))
    while True:
        try:
            missing = set(numbers) - await _probe(cluster, copies)
            complaint = f"broker {min(missing)} has no copy of it" if missing else ""
        except _NOT_YET as error:
            complaint = type(error).__name__
        if not complaint:
            return
        dead = [number for number in numbers if not _alive(_pid_file(folder, number))]
        if dead or time.monotonic() > deadline:
            log = _home(folder, min(dead, default=numbers[0])) / "broker.log"
            raise LocalKafkaError(f"the brokers took no record ({complaint}); see {log}")
        await asyncio.sleep(0.3)


async def _probe(cluster: Cluster, copies: int) -> set[int]:
    """Produce one record; return the brokers that have it."""
    async with contextlib.AsyncExitStack() as stack:
        admin = AIOKafkaAdminClient(**cluster.client_options(), request_timeout_ms=5000)
        stack.push_async_callback(admin.close)
        await admin.start()
        if admin._client.cluster.controller is None:
            raise BrokerNotAvailableError  # they answer before they have elected one
        answer = await admin.create_topics([NewTopic(_PROBE, 1, copies)])
        code = answer.topic_errors[0][1]
        if code not in (0, TopicAlreadyExistsError.errno):
            raise for_code(code)
        producer = AIOKafkaProducer(**cluster.client_options(), request_timeout_ms=5000, acks="all")
        stack.push_async_callback(producer.stop)
        await producer.start()
        await asyncio.wait_for(producer.send_and_wait(_PROBE, b"ready"), 10)
        (topic,) = await admin.describe_topics([_PROBE])
        return set(topic["partitions"][0]["isr"])


def _administrator(folder: Path) -> Security:
    path = folder / "security" / f"{ADMINISTRATOR}.yaml"
    return read_security(path if path.exists() else None, {})


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise LocalKafkaError(f"expected java ({JAVA} or newer) on the path, found none; install a JRE")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, encoding="utf-8").stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < JAVA:
        found = "no version" if version is None else f"version {version[1]}"
        raise LocalKafkaError(f"expected java {JAVA} or newer, found {found} at {java}; install a newer JRE")
    return java


def _libraries() -> Path:
    target = LIBRARIES
    stamp = target / "complete"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == (HERE / "pom.xml").read_text(encoding="utf-8"):
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalKafkaError("expected mvn (Maven) on the path, found none; install it")
    _say("fetching Apache Kafka by Maven, once")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    _run([maven, "--batch-mode", "--quiet", "-f", str(HERE / "pom.xml"), *goal], target.with_name("maven.log"))
    stamp.write_text((HERE / "pom.xml").read_text(encoding="utf-8"), encoding="utf-8")
    return target


def _say(doing: str) -> None:
    """Say what takes the time; on standard error, because scripts read the addresses from standard output."""
    print(f"kafka: {doing}", file=sys.stderr, flush=True)


def _run(command: list[str], log: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        raise LocalKafkaError(f"{command[0]} ended with code {done.returncode}; see {log}:\n{done.stderr[-500:]}")


def _home(folder: Path, number: int) -> Path:
    return folder / f"broker-{number}"


def _pid_file(folder: Path, number: int) -> Path:
    return _home(folder, number) / "pid"


def _numbers(folder: Path) -> list[int]:
    return sorted(int(home.name.removeprefix("broker-")) for home in folder.glob("broker-*"))


def _known(folder: Path, number: int) -> int:
    if number not in _numbers(folder):
        raise LocalKafkaError(f"{folder}: expected one of the brokers {_numbers(folder)}, got {number}")
    return number


def _wait_until_gone(pid_file: Path) -> bool:
    deadline = time.monotonic() + STOP_SECONDS
    while _alive(pid_file) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _alive(pid_file)


def _alive(pid_file: Path) -> bool:
    try:
        pid = int(pid_file.read_text(encoding="utf-8"))
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "Z":
            return False
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    return True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["up", "down", "kill", "start"])
    parser.add_argument("number", type=int, nargs="?", help="which broker (kill, start)")
    parser.add_argument("--folder", type=Path, default=Path(".kafka"))
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1)
    parser.add_argument("--secured", action="store_true", help="passwords, certificates and access rules")
    parser.add_argument("--port", type=int, default=0, help="of the first broker; 0 lets the system choose")
    parser.add_argument("--min-session-ms", type=int, default=6000, help="shorter group sessions are refused")
    arguments = parser.parse_args()
    if (arguments.number is None) == (arguments.command in ("kill", "start")):
        parser.error("kill and start take the number of a broker, up and down take none")
    return arguments


def main() -> int:
    """Run one command."""
    arguments = _arguments()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a broker that does not answer yet is no news here
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if arguments.command == "up":
            print(up(folder, arguments.brokers, arguments.port, arguments.min_session_ms, arguments.secured))
        elif arguments.command == "down":
            down(folder)
        elif arguments.command == "kill":
            kill(folder, arguments.number)
        else:
            start(folder, arguments.number)
    except (LocalKafkaError, HushstreamError) as error:
        print(f"kafka: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
