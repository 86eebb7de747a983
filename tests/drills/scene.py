"""What the faults are done to: a deployment with some history, two learners, and questions all the time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hushstream.client import connect
from hushstream.client.client import Client
from hushstream.client.kafka import KafkaEventLog
from hushstream.schemas.batches import encode_context_batch
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of

NAME, PARTITIONS, DIMENSION = "drill", 4, 4
CONFIGURATION = f"""\
deployment: {NAME}
items: {{capacity: 5}}
features: {{dimension: {DIMENSION}}}
expected_slots: 20000
encoder: {{codes: 4}}
partitions: {{learner: {PARTITIONS}, shuffler: 1}}
"""
EARLIER_RECORDS = 24_000
"""Contexts that are decided before the first fault, so that a recovery has something to do."""
PACE_SECONDS = 0.1
GIVEN_UP_SECONDS = 60.0
DISK_MB, BALLAST_MB = 200, 185
COMMAND = Path(sys.executable).with_name("hushstream")


class Learner:
    """A worker's process, a learner's unless another role is said, on a state folder of its own."""

    def __init__(
        self, folder: Path, bootstrap: str, name: str, *, role: str = "learner", options: Sequence[str] = ()
    ) -> None:
        self.state = folder / f"state-{name}"
        self._marks, self._log = folder / f"marks-{name}", folder / f"{name}.log"
        self._command = [
            str(COMMAND), "worker", role, "--deployment", str(folder / NAME), "--bootstrap", bootstrap,
            "--state", str(self.state), "--release-marks", str(self._marks), "--snapshot-interval", "2", *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self.peers: tuple[Learner, ...] = ()

    async def start(self, patience_seconds: float = GIVEN_UP_SECONDS) -> None:
        """Start it, and wait until it has partitions."""
        known = self._said()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: ASYNC220 - it is awaited
        deadline = time.monotonic() + patience_seconds
        while self._said() == known and time.monotonic() < deadline:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)

    async def refused(self) -> str:
        """Start it where all partitions are refused, wait until it has ended by that, and give what it said."""
        before = self._log.read_text(encoding="utf-8")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)  # noqa: ASYNC220 - it is awaited
        await asyncio.to_thread(self._process.wait, 2 * GIVEN_UP_SECONDS)
        return self._log.read_text(encoding="utf-8")[len(before) :]

    def _said(self) -> int:
        return self._log.read_text(encoding="utf-8").count("at journal record") if self._log.exists() else 0

    def accepting(self, refusal: str) -> set[str]:
        """Start from now on with every word that a refusal names, of whichever partition."""
        words = set(re.findall(r"--accept-loss (\d\S+) ", refusal))
        if not words:
            raise RuntimeError(f"expected a refusal that names a word for --accept-loss, got {refusal}")
        for learner in {self, *self.peers}:
            learner._command += [part for word in sorted(words) for part in ("--accept-loss", word)]
        return words

    @property
    def pid(self) -> int:
        """Of the process, which has been started."""
        assert self._process is not None
        return self._process.pid

    def peak_megabytes(self) -> int:
        """The most memory that it has had."""
        return int(Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) // 1024

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


class CrampedLearner(Learner):
    """A learner whose state folder is a small disk of its own, of which less than a tenth is free.

    The disk is in memory, and seen by this process alone: that takes a system that lets its users have namespaces.
    """

    _MOUNT = (
        f'mount -t tmpfs -o size={DISK_MB}m none "$0" && head -c {BALLAST_MB}M /dev/zero > "$0/ballast" && exec "$@"'
    )

    def __init__(self, folder: Path, bootstrap: str, name: str, *, options: Sequence[str] = ()) -> None:
        super().__init__(folder, bootstrap, name, options=options)
        self.state.mkdir()
        self._command = [
            "unshare",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            self._MOUNT,
            str(self.state),
            *self._command,
        ]


class Questions:
    """Asks every partition all the time, each question until it is answered."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._users = [
            next(u for n in range(999) if partition_of(u := f"user-{n}", PARTITIONS) == p) for p in range(PARTITIONS)
        ]
        self._open: dict[int, float] = {}
        self._waited: dict[int, tuple[float, float]] = {}
        self._partition: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        number = 0
        while True:
            for partition, user in enumerate(self._users):
                number += 1
                self._partition[number] = partition
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

    async def dark_since(
        self,
        moment: float,
        patience_seconds: float = GIVEN_UP_SECONDS,
        partitions: Collection[int] = range(PARTITIONS),
    ) -> float:
        """The longest wait of a question asked from a moment on, once all that are older than a second are answered."""
        deadline = time.monotonic() + patience_seconds
        await asyncio.sleep(2)
        while time.monotonic() < deadline and self._overdue():  # noqa: ASYNC110 - many answers are waited for
            await asyncio.sleep(0.05)
        now = time.monotonic()
        waited = {**self._waited, **{number: (began, now - began) for number, began in self._open.items()}}
        of_those = {number for number, partition in self._partition.items() if partition in partitions}
        return max((wait for n, (began, wait) in waited.items() if began >= moment and n in of_those), default=0.0)

    def _overdue(self) -> bool:
        """Whether some question has waited for a second."""
        return any(began < time.monotonic() - 1 for began in self._open.values())


@dataclass
class Scene:
    """What faults are done to; a fault that first prepares says when it ``moved``."""

    kafka: Path
    bootstrap: str
    folder: Path
    first: Learner
    second: Learner
    log: KafkaEventLog
    questions: Questions
    moved: float = 0.0
    further: list[tuple[str, float, float]] = field(default_factory=list)
    """More rows of a fault: what, its aim and its dark time, both in seconds."""

    def topic(self, name: str) -> str:
        """The broker's name of a topic."""
        return f"{NAME}.{name}"


@contextlib.asynccontextmanager
async def scene_in(
    folder: Path, kafka: Path, bootstrap: str, options: Sequence[Sequence[str]] = ((), ())
) -> AsyncIterator[Scene]:
    """A deployment with some history, two learners with more options each, and questions."""
    (folder / "drill.yaml").write_text(CONFIGURATION, encoding="utf-8")
    place = ["--deployment", str(folder / NAME), "--bootstrap", bootstrap]
    for arguments in (
        ["prepare", str(folder / "drill.yaml"), str(folder / NAME)],
        ["keys", "generate", str(folder / NAME / "keys")],
        ["topics", "apply", *place, "--no-acls"],
    ):
        await asyncio.to_thread(subprocess.run, [str(COMMAND), *arguments], check=True, stdout=subprocess.DEVNULL)
    log = KafkaEventLog(bootstrap, f"{NAME}.")
    learners = [
        Learner(folder, bootstrap, name, options=more) for name, more in zip(("first", "second"), options, strict=True)
    ]
    for learner in learners:
        learner.peers = tuple(learners)
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
    each = [
        contexts_of_many("early", partition, EARLIER_RECORDS // 100 // PARTITIONS) for partition in range(PARTITIONS)
    ]
    for values in zip(*each, strict=True):
        for partition, value in enumerate(values):
            await log.append("contexts", partition, value)


def contexts_of_many(name: str, partition: int, count: int) -> list[bytes]:
    """Records of 100 contexts each, of users whose home is a partition; ids and users begin with a name."""
    vectors = np.random.default_rng(0).dirichlet(np.ones(DIMENSION), size=100)
    users = users_of(partition, name, 100)
    events = [[f"{name}-{partition}-{number}-{row}" for row in range(100)] for number in range(count)]
    return [encode_context_batch(one, users, vectors, track="private") for one in events]


def users_of(partition: int, name: str, count: int) -> list[str]:
    """Names of users whose home is a partition."""
    names = (f"{name}-{number}" for number in itertools.count())
    return list(itertools.islice((one for one in names if partition_of(one, PARTITIONS) == partition), count))
