"""Faults on Apache Kafka, one after the other, unattended: for how long is no context of some partition answered?

    python tests/drills/run.py            # or `make drill`; 6 minutes

Two learners share four partitions; each partition is asked ten times a second, and every question is asked until it is
answered. The dark time of a fault is the longest that one of the questions waited which were asked from the moment of
the fault on. At the end the learner's journal is verified against its inputs. Nothing is assumed of a fault that this
release does not outlive: it is tried, and given up after `GIVEN_UP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy" / "kafka"), str(Path(__file__).parent)]

import local  # noqa: E402
from bomb import gzip_bomb, produce  # noqa: E402

from hushstream.agents.logs import LogReader  # noqa: E402
from hushstream.client import connect  # noqa: E402
from hushstream.client.client import Client  # noqa: E402
from hushstream.client.kafka import KafkaEventLog  # noqa: E402
from hushstream.ops.connection import Connection  # noqa: E402
from hushstream.schemas import codec  # noqa: E402
from hushstream.schemas.batches import encode_context_batch  # noqa: E402
from hushstream.schemas.errors import HushstreamError  # noqa: E402
from hushstream.schemas.partitioning import partition_of  # noqa: E402

NAME, PARTITIONS, DIMENSION = "drill", 4, 4
CONFIGURATION = f"""\
deployment: {NAME}
arms: 5
context: {{dimension: {DIMENSION}}}
expected_slots: 20000
encoder: {{codes: 4}}
partitions: {{learner: {PARTITIONS}, shuffler: 1}}
"""
EARLIER_RECORDS = 24_000
"""Contexts that are decided before the first fault, so that a recovery has something to do."""
PACE_SECONDS = 0.1
PUBLISHED_SECONDS = 15.0
"""Of small states that change all the time, several are published by then."""
GIVEN_UP_SECONDS = 60.0
COMMAND = Path(sys.executable).with_name("hushstream")


@dataclass(frozen=True)
class Row:
    """One fault: what was done, and for how long a partition was dark."""

    fault: str
    aim_seconds: float
    dark_seconds: float
    remark: str = ""

    def __str__(self) -> str:
        dark = (
            f"more than {self.dark_seconds:.0f} s"
            if self.dark_seconds >= GIVEN_UP_SECONDS
            else f"{self.dark_seconds:.1f} s"
        )
        held = "held" if self.dark_seconds <= self.aim_seconds else "MISSED"
        return f"| {self.fault} | {dark} | {self.aim_seconds:g} s | {held} | {self.remark} |"


class Learner:
    """A learner's process, on a state folder of its own."""

    def __init__(self, folder: Path, bootstrap: str, name: str) -> None:
        self.state = folder / f"state-{name}"
        self._marks, self._log = folder / f"marks-{name}", folder / f"{name}.log"
        self._command = [
            str(COMMAND), "worker", "learner", "--deployment", str(folder / NAME), "--bootstrap", bootstrap,
            "--state", str(self.state), "--paid-marks", str(self._marks), "--snapshot-interval", "2",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until it has partitions."""
        known = self._said()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: ASYNC220 - it is awaited
        deadline = time.monotonic() + GIVEN_UP_SECONDS
        while self._said() == known and time.monotonic() < deadline:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)

    def _said(self) -> int:
        return self._log.read_text().count("at journal record") if self._log.exists() else 0

    @property
    def pid(self) -> int:
        """Of the process, which has been started."""
        assert self._process is not None
        return self._process.pid

    def peak_megabytes(self) -> int:
        """The most memory that it has had."""
        return int(Path(f"/proc/{self.pid}/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

    async def end(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal that ends it, and wait for that."""
        if self._process is not None:
            self._process.send_signal(number)
            await asyncio.to_thread(self._process.wait)

    async def revive(self) -> None:
        """Start it again, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            await self.start()

    def signal(self, number: int) -> None:
        """Send it a signal that does not end it."""
        assert self._process is not None
        self._process.send_signal(number)


class Questions:
    """Asks every partition all the time, each question until it is answered."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._users = [
            next(u for n in range(999) if partition_of(u := f"user-{n}", PARTITIONS) == p) for p in range(PARTITIONS)
        ]
        self._open: dict[int, float] = {}
        self._waited: dict[int, tuple[float, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        number = 0
        while True:
            for user in self._users:
                number += 1
                task = asyncio.create_task(self._ask(number, user))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(PACE_SECONDS)

    async def _ask(self, number: int, user: str) -> None:
        began = self._open[number] = time.monotonic()
        vector = np.full(DIMENSION, 1 / DIMENSION)
        while True:
            try:
                await self._client.decide(f"question-{number}", user, vector, timeout=2 * GIVEN_UP_SECONDS)
                break
            except HushstreamError:
                await asyncio.sleep(PACE_SECONDS)
        del self._open[number]
        self._waited[number] = (began, time.monotonic() - began)

    async def dark_since(self, moment: float, patience_seconds: float = GIVEN_UP_SECONDS) -> float:
        """The longest wait of a question asked from a moment on, once all that are older than a second are answered."""
        deadline = time.monotonic() + patience_seconds
        await asyncio.sleep(2)
        while time.monotonic() < deadline and self._overdue():  # noqa: ASYNC110 - many answers are waited for
            await asyncio.sleep(0.05)
        waiting = [time.monotonic() - began for began in self._open.values() if began >= moment]
        return max([wait for began, wait in self._waited.values() if began >= moment] + waiting, default=0.0)

    def _overdue(self) -> bool:
        """Whether some question has waited for a second."""
        return any(began < time.monotonic() - 1 for began in self._open.values())


@dataclass(frozen=True)
class Scene:
    """What faults are done to."""

    kafka: Path
    bootstrap: str
    folder: Path
    first: Learner
    second: Learner
    log: KafkaEventLog
    questions: Questions

    def topic(self, name: str) -> str:
        """The broker's name of a topic."""
        return f"{NAME}.{name}"


async def killed(scene: Scene) -> str:
    await scene.first.end(signal.SIGKILL)
    return ""


async def rolled(scene: Scene) -> str:
    for learner in (scene.first, scene.second):
        await learner.end()
        await learner.start()
    return ""


async def broker_killed(scene: Scene) -> str:
    await asyncio.to_thread(local.kill, scene.kafka, 1)
    await asyncio.sleep(5)
    await asyncio.to_thread(local.start, scene.kafka, 1)
    return "its start included"


async def state_deleted(scene: Scene) -> str:
    for learner in (scene.first, scene.second):
        shutil.rmtree(learner.state, ignore_errors=True)
        await learner.end(signal.SIGKILL)
    await asyncio.gather(scene.first.start(), scene.second.start())
    return "both learners, the group's session included"


async def impossible(scene: Scene) -> str:
    fields = {"line": "private", "eligible": b"", "baseline": -1, "after_click": 10**9}
    for partition in range(PARTITIONS):
        context = {"event_id": f"bad-{partition}", "user": "nobody", "context": bytes(4 * DIMENSION), **fields}
        await scene.log.append("contexts", partition, codec.encode("Context", context))
    return "one in each partition"


async def bomb(scene: Scene) -> str:
    batch = await asyncio.to_thread(gzip_bomb, 1000 << 20)
    for partition in range(PARTITIONS):
        await produce(scene.bootstrap, scene.topic("contexts"), partition, batch)
    await asyncio.sleep(5)
    peak = max(learner.peak_megabytes() for learner in (scene.first, scene.second))
    return f"{len(batch) >> 10} KiB on the wire, one in each partition; a learner's peak: {peak} MB"


async def garbage(scene: Scene) -> str:
    draw = np.random.default_rng(1)
    good = encode_context_batch(["a"], ["b"], np.eye(1, DIMENSION), track="private")
    bad_phase = codec.encode("Seal", {"phase": -3, "origin": -1, "config_digest": bytes(16)})
    kinds = [b"", b"\0", b"\xc3\x01", good[:-1], good + b"x", good[:12], bad_phase, codec.COMPRESSED, bytes(500_000)]
    kinds += [draw.bytes(length) for length in (10, 1000, 900_000)]
    for kind in kinds:
        for topic in ("contexts", "clicks"):
            for partition in range(PARTITIONS):
                await scene.log.append(topic, partition, kind)
    return f"{len(kinds)} kinds on both inputs"


async def stopped(scene: Scene) -> str:
    scene.first.signal(signal.SIGSTOP)
    await asyncio.sleep(60)
    scene.first.signal(signal.SIGCONT)
    return "two owners at its end"


async def disk_full(scene: Scene) -> str:
    whole = resource.prlimit(scene.first.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    await asyncio.sleep(15)
    resource.prlimit(scene.first.pid, resource.RLIMIT_FSIZE, whole)
    return "no file of one worker takes a byte for 15 s"


async def retention(scene: Scene) -> str:
    await scene.second.end()
    connection = Connection(scene.bootstrap, f"{NAME}.")
    async with LogReader(connection.settings()) as reader:
        ends = await reader.end_offsets([(topic, p) for topic in ("contexts", "clicks") for p in range(PARTITIONS)])
    # Retention takes what is days old: all of it was folded, and lies in a state that was published since.
    await asyncio.sleep(PUBLISHED_SECONDS)
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap)
    await admin.start()
    try:
        places = {TopicPartition(scene.topic(t), p): RecordsToDelete(end) for (t, p), end in ends.items()}
        await admin.delete_records(places)
    finally:
        await admin.close()
    await scene.first.end()
    shutil.rmtree(scene.second.state, ignore_errors=True)
    await scene.second.start()
    return "to a worker without its state"


FAULTS: tuple[tuple[str, float, Callable[[Scene], Awaitable[str]]], ...] = (
    ("kill -9 of a worker, a peer alive", 5, killed),
    ("rolling restart", 3, rolled),
    ("broker killed for 5 s", 10, broker_killed),
    ("state folders deleted, then kill -9", 10, state_deleted),
    ("context with an impossible `after_click`", 2, impossible),
    ("1 GB gzip value", 2, bomb),
    ("garbage of 12 kinds", 2, garbage),
    ("SIGSTOP 60 s", 15, stopped),
    ("disk of one worker full, a peer healthy", 15, disk_full),
)
LAST = ("partition moves after retention", 10.0, retention)
"""Where it is not outlived nothing works after it."""


@contextlib.asynccontextmanager
async def scene_in(folder: Path, kafka: Path, bootstrap: str) -> AsyncIterator[Scene]:
    """A deployment with some history, two learners and questions."""
    (folder / "drill.yaml").write_text(CONFIGURATION)
    place = ["--deployment", str(folder / NAME), "--bootstrap", bootstrap]
    for arguments in (
        ["prepare", str(folder / "drill.yaml"), str(folder / NAME)],
        ["keys", "generate", str(folder / NAME / "keys")],
        ["topics", "apply", *place, "--no-acls"],
    ):
        await asyncio.to_thread(subprocess.run, [str(COMMAND), *arguments], check=True, stdout=subprocess.DEVNULL)
    log = KafkaEventLog(bootstrap, f"{NAME}.")
    learners = [Learner(folder, bootstrap, name) for name in ("first", "second")]
    await log.start(lambda *_: None)
    async with connect(bootstrap, NAME) as client:
        await history(log)
        await asyncio.gather(*(learner.start() for learner in learners))
        questions = Questions(client)
        asking = asyncio.create_task(questions.run())
        try:
            await questions.dark_since(time.monotonic())
            yield Scene(kafka, bootstrap, folder, learners[0], learners[1], log, questions)
        finally:
            asking.cancel()
            await asyncio.gather(asking, *(learner.end(signal.SIGKILL) for learner in learners), return_exceptions=True)
            await log.stop()


async def history(log: KafkaEventLog) -> None:
    """Contexts of many users, 100 in a record."""
    vectors = np.random.default_rng(0).dirichlet(np.ones(DIMENSION), size=100)
    for number in range(EARLIER_RECORDS // 100):
        partition = number % PARTITIONS
        users = users_of(partition, "early", 100)
        events = [f"early-{number}-{row}" for row in range(100)]
        await log.append("contexts", partition, encode_context_batch(events, users, vectors, track="private"))


def users_of(partition: int, name: str, count: int) -> list[str]:
    """Names of users whose home is a partition."""
    names = (f"{name}-{number}" for number in itertools.count())
    return list(itertools.islice((one for one in names if partition_of(one, PARTITIONS) == partition), count))


async def drill(kafka: Path, bootstrap: str) -> bool:
    """Do it all and print the table; whether everything that can be verified is as it should be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with scene_in(folder, kafka, bootstrap) as scene:
            print("| fault | dark | aim | | |\n|---|---|---|---|---|", flush=True)
            for fault, aim, act in FAULTS:
                await one(scene, fault, aim, act)
                await asyncio.gather(scene.first.revive(), scene.second.revive())
                await scene.questions.dark_since(time.monotonic())
            verified = await asyncio.to_thread(verify, folder, bootstrap)
            await one(scene, *LAST)
    print(
        f"\nverify of the learner before the last fault: {verified.stdout.splitlines()[0]} (exit {verified.returncode})"
    )
    return verified.returncode == 0


async def one(scene: Scene, fault: str, aim_seconds: float, act: Callable[[Scene], Awaitable[str]]) -> None:
    """One fault: done, waited out, printed."""
    moment = time.monotonic()
    remark = await act(scene)
    dark = await scene.questions.dark_since(moment)
    print(Row(fault, aim_seconds, dark, remark), flush=True)


def verify(folder: Path, bootstrap: str) -> subprocess.CompletedProcess[str]:
    """Recompute the learner's journal from its inputs."""
    command = [
        str(COMMAND),
        "verify",
        "--role",
        "learner",
        "--deployment",
        str(folder / NAME),
        "--bootstrap",
        bootstrap,
    ]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def main() -> int:
    """On a Kafka of its own, as Kafka comes."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers come and go here, as they should
    with tempfile.TemporaryDirectory() as name:
        kafka = Path(name)
        bootstrap = local.up(kafka)
        try:
            return 0 if asyncio.run(drill(kafka, bootstrap)) else 1
        finally:
            local.down(kafka)


if __name__ == "__main__":
    sys.exit(main())
