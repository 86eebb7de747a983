"""A learner worker as a team deploys it, on a broker whose segments can be read afterwards byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kafka.admin import KafkaAdminClient

from hushstream.agents.worker.deployment import KEYS, KeySource, prepare
from hushstream.broker import server
from hushstream.broker.server import EmbeddedBroker
from hushstream.client.kafka import KafkaEventLog
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import LogCopy, copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    FeedbackConfig,
    P2BConfig,
    PartitionConfig,
    SlotConfig,
)
from hushstream.systems.p2b.machines.learner import LearnerMachine
from patience import Patience

USERS = 360
SHUFFLERS = 3
SPAN_SECONDS = 1.5
ARRIVE_SECONDS = 3.0
WAIT_SECONDS = 90.0
SESSION_SECONDS = 6.0
"""The least that Apache Kafka takes by default."""

Segments = Mapping[tuple[str, int], Sequence[bytes]]
Read = Callable[[str, int, Sequence[bytes]], Iterable[Any]]


@dataclass(frozen=True)
class Broker:
    """Where a broker is, what lies in its logs, and who sent requests to it (None where it does not say)."""

    bootstrap: str
    segments: Callable[[str], Segments]
    clients: Callable[[], list[str]] | None


@dataclass(frozen=True)
class Left:
    """What a worker left: the logs by logical topic, raw and as copied, and which user a report id stands for."""

    system: System
    keys: KeySource
    logs: Segments
    copy: LogCopy
    user_of: Mapping[bytes, str]
    clients: list[str] | None


@contextlib.contextmanager
def embedded() -> Iterator[Broker]:
    """The embedded broker in a thread; the client ids of all produce requests are noted."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    broker, clients = EmbeddedBroker(), []
    parse = server.parse_request

    def noted(*arguments):
        request = parse(*arguments)
        if request.api_key == 0:
            clients.append(request.client_id)
        return request

    def segments(prefix: str) -> Segments:
        store = broker._node.store  # what lies there is what a segment file would hold
        return {
            (name.removeprefix(prefix), number): [b"".join(store.partition(name, number)._batches)]
            for name, topic in store.topics.items()
            if name.startswith(prefix)
            for number in range(len(topic.partitions))
        }

    try:
        server.parse_request = noted
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result()
        yield Broker(broker.bootstrap, segments, lambda: clients)
    finally:
        server.parse_request = parse
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def apache(bootstrap: str) -> Iterator[Broker]:
    """An Apache Kafka on this machine: it says itself in which folder its segments are."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    folders = sorted({Path(folder) for folder in _folders(admin.describe_log_dirs())})
    admin.close()
    assert folders, "the broker names no folder of logs"

    def segments(prefix: str) -> Segments:
        found: dict[tuple[str, int], list[bytes]] = {}
        for folder in folders:
            for place in sorted(folder.glob(f"{prefix}*")):
                topic, _, number = place.name.removeprefix(prefix).rpartition("-")
                found[topic, int(number)] = [path.read_bytes() for path in sorted(place.glob("*.log"))]
        return found

    yield Broker(bootstrap, segments, None)


def _folders(described: object) -> Iterator[str]:
    """Every log folder in what the broker said, whose form differs between versions of the client."""
    if isinstance(described, dict):
        for name, value in described.items():
            if name == "log_dir" and isinstance(value, str):
                yield value
            else:
                yield from _folders(value)
    elif isinstance(described, (list, tuple)):
        for item in described:
            yield from _folders(item)
    elif hasattr(described, "to_object"):
        yield from _folders(described.to_object())


def worked(broker: Broker, folder: Path, read: Read) -> Left:
    """Let users come to a real learner worker, all their slots leave, and the worker stop.

    Args:
        broker: where.
        folder: of the deployment.
        read: reads the records of a partition's segments.
    """
    name = f"u{uuid.uuid4().hex[:10]}"
    prefix = f"{name}."
    generate_keys(folder / KEYS, ("edge", "shuffler"))
    keys = KeySource(folder / KEYS)
    system = prepare(folder, _config(name), keys=keys)
    machine = LearnerMachine(system.core, 0, keys.key("edge"))
    users = [_name(number) for number in range(USERS)]
    user_of = {machine.terms.user_key(user).digest("report-id", bytes(8)): user for user in users}

    def sent() -> int:
        logs = broker.segments(prefix)
        found = (read(*source, segments) for source, segments in logs.items() if source[0] == "reports")
        return len({record.value[10:26] for records in found for record in records} & user_of.keys())

    connection = Connection(broker.bootstrap, prefix)
    asyncio.run(apply_async(connection, system))
    with Worker(broker.bootstrap, folder):
        asyncio.run(_come(broker.bootstrap, prefix, sent))
    copy = asyncio.run(copy_async(connection, system.partitions))
    clients = None if broker.clients is None else broker.clients()
    return Left(system, keys, broker.segments(prefix), copy, user_of, clients)


def _config(name: str) -> P2BConfig:
    return P2BConfig(
        deployment=name,
        arms=3,
        context=ContextConfig(3),
        expected_slots=USERS,
        encoder=EncoderConfig(codes=3),
        slot=SlotConfig(after_interactions=1, settle_seconds=SPAN_SECONDS),
        feedback=FeedbackConfig(attribution_window_seconds=0.5),
        partitions=PartitionConfig(learner=1, shuffler=SHUFFLERS),
    )


def _name(number: int) -> str:
    return f"canary-{number:04}"


class Worker:
    """The learner's process."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        command = [sys.executable, "-m", "hushstream.cli", "worker", "learner", "--deployment", str(folder)]
        command += ["--bootstrap", bootstrap, "--session-timeout", str(SESSION_SECONDS)]
        self._log = folder / "worker.log"
        with self._log.open("ab") as log:
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        assert failed or self._process.poll() is None, self._log.read_text(encoding="utf-8")[-800:]
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def _come(bootstrap: str, prefix: str, sent: Callable[[], int]) -> None:
    """Users come one by one, in an order that their names do not tell; then log time goes on until all have sent."""
    generator = np.random.default_rng(6)
    log = KafkaEventLog(bootstrap, prefix)
    await log.start(lambda partition, offset, value: None)
    try:
        for number in generator.permutation(USERS).tolist():
            await log.append("contexts", 0, _context(_name(number), f"event-{number:04}", int(generator.integers(3))))
            await asyncio.sleep(ARRIVE_SECONDS / USERS)
        waiting = Patience(WAIT_SECONDS)
        while sent() < USERS:
            assert not waiting.over, "the worker has not sent all slots in time"
            await asyncio.sleep(SPAN_SECONDS / 2)
            await log.append("contexts", 0, _context("late", f"late-{time.monotonic_ns()}", 0))
    finally:
        await log.stop()


def _context(user: str, event_id: str, code: int) -> bytes:
    point = np.full(3, 0.1) + 0.7 * np.eye(3)[code]
    return codec.encode("Context", {"event_id": event_id, "user": user, "context": point.astype("<f4").tobytes()})
