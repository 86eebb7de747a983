"""Plays very many users on one learner's machine in this process, and compares its memory with a cap.

Users come in blocks. A block has all interactions of one visit, and returns for its next visit after all other blocks
had theirs. So if users are spilled to disk, every visit loads each of them once. Every decision is rewarded in the next
batch. A snapshot is taken at every point of the curve. At the end a new machine restores the last one and decides once
for a block of users, as a restarted worker does.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.engine.state.sealed import SALT_BYTES, StorageSeal
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import seeded_key
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.load import REWARD_RATE
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_context_batch, encode_feedback_batch
from hushstream.schemas.columns import REWARD
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig
from hushstream.systems.p2b.contribution.encoder import CENTROID_STEPS
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.learner import LearnerMachine

ROWS = 2048
"""The number of users in a block, which is also the number of contexts in a batch."""

_GIGABYTE = 1 << 30
_START_MS = 1_700_000_000_000
_CONTEXTS = 8192


@dataclass(frozen=True, slots=True)
class SoakSizes:
    """How large a soak is.

    Attributes:
        users: how many different users there are.
        visits, interactions: visits of each user, and their interactions in each.
        dimension, arms: sizes of the learner.
        resident: how many users stay in memory; the others are spilled to disk. None keeps all in memory.
        cap_bytes: the most memory that the process may use.
        points: how often memory is measured.
    """

    users: int = 1_000_000
    visits: int = 2
    interactions: int = 5
    dimension: int = 10
    arms: int = 10
    resident: int | None = 100_000
    cap_bytes: int = 4 * _GIGABYTE
    points: int = 20


@dataclass(frozen=True, slots=True)
class SoakPoint:
    """A measurement at one moment.

    It has the users so far, the decisions so far, the bytes of the process, the bytes of the snapshot together with the
    spilled users, the seconds since the start, and the seconds that this snapshot took.
    """

    users: int
    decisions: int
    memory_bytes: int
    snapshot_bytes: int
    seconds: float
    snapshot_seconds: float


@dataclass(frozen=True, slots=True)
class Soak:
    """A memory curve, and the seconds from the last snapshot on disk to the first decisions of a new machine."""

    points: list[SoakPoint]
    recovery_seconds: float


def run_soak(sizes: SoakSizes, progress: Callable[[str], None]) -> Soak:
    """Play all interactions of every user.

    Raises:
        BenchFailed: the process used more memory than the cap.
    """
    with TemporaryDirectory() as folder:
        place = _Place(Path(folder), sizes)
        machine = place.machine()
        machine.start(machine.genesis(bytes(32)))
        feed = _Feed(machine, sizes)
        points = _soak(feed, place, sizes, progress)
        feed.machine = machine = place.machine()
        begun = time.monotonic()
        place.recover(machine)
        feed.interact([f"user-{number:07d}" for number in range(min(sizes.users, ROWS))])
        return Soak(points, time.monotonic() - begun)


def soak_table(soak: Soak, sizes: SoakSizes) -> Table:
    """The memory curve as a table."""
    table = Table(
        title=f"{sizes.users:,} users, cap {sizes.cap_bytes / _GIGABYTE:g} GB",
        caption=f"a fresh machine decided for {min(sizes.users, ROWS)} users {soak.recovery_seconds:.2f} s after it "
        f"began to read the last snapshot",
    )
    for name in (
        "users met",
        "decisions",
        "memory GB",
        "of the cap",
        "snapshot GB",
        "taken in s",
        "MB/s",
        "decisions/s",
    ):
        table.add_column(name, justify="right")
    for point in soak.points:
        share = point.memory_bytes / sizes.cap_bytes
        table.add_row(
            f"{point.users:,}",
            f"{point.decisions:,}",
            f"{point.memory_bytes / _GIGABYTE:.2f}",
            f"{share:4.0%} {'#' * round(20 * share)}",
            f"{point.snapshot_bytes / _GIGABYTE:.2f}",
            f"{point.snapshot_seconds:.2f}",
            f"{point.snapshot_bytes / 1e6 / point.snapshot_seconds:,.0f}",
            f"{point.decisions / point.seconds:,.0f}",
        )
    return table


def _system(sizes: SoakSizes) -> P2BSystem:
    codes = 8
    config = P2BConfig(
        "soak", sizes.arms, ContextConfig(sizes.dimension), sizes.users, encoder=EncoderConfig(codes=codes)
    )
    rng = np.random.default_rng(0)
    centroids = rng.dirichlet(np.ones(sizes.dimension), codes)
    return P2BSystem.of(config, np.rint(centroids * CENTROID_STEPS).astype(np.int64))


class _Place:
    """The place of snapshots: with the spilled users, or, if all are in memory, in a file."""

    def __init__(self, folder: Path, sizes: SoakSizes) -> None:
        self._system = _system(sizes)
        self._sizes = sizes
        self._path = folder / ("0.snapshot" if sizes.resident is None else "0.users")
        self._store: UserDatabase | None = None
        ring = KeyRing(0, 0, (), seeded_key(0, "edge"))
        self._seal = StorageSeal(self._system.config.deployment, "learner", 0, ring)
        self._genesis = b""

    def machine(self) -> LearnerMachine:
        """Make a new machine."""
        machine = LearnerMachine(self._system, 0, seeded_key(0, "edge"))
        if self._sizes.resident is not None:
            if self._store is not None:
                self._store.close()
            self._store = UserDatabase(self._path, self._seal)
            machine.keep_users(self._store, self._sizes.resident)
        return machine

    def snapshot(self, machine: LearnerMachine) -> int:
        """Take a snapshot; return its bytes on disk."""
        content = machine.snapshot()
        if self._store is None:
            with self._path.open("wb") as file:
                file.writelines(self._seal.pack_file(os.urandom(SALT_BYTES), content))
        else:
            self._store.save(content)
        # SQLite may still have a part of it in its write-ahead log.
        return sum(path.stat().st_size for path in self._path.parent.glob(f"{self._path.name}*"))

    def recover(self, machine: LearnerMachine) -> None:
        """Restore the last snapshot into a new machine."""
        machine.start(machine.genesis(bytes(32)))
        content = self._stored() if self._store is None else self._store.snapshot()
        assert content is not None
        machine.restore(content)

    def _stored(self) -> bytes:
        return self._seal.unpack_file(self._path.read_bytes())


def _soak(feed: _Feed, place: _Place, sizes: SoakSizes, progress: Callable[[str], None]) -> list[SoakPoint]:
    total = sizes.users * sizes.visits * sizes.interactions
    every = max(1, total // sizes.points)
    points: list[SoakPoint] = []
    done = met = 0
    begun = time.monotonic()
    # The machine makes no reference cycles, and a search for them among millions of users would take most of the time.
    gc.disable()
    try:
        for users, first in _visits(sizes):
            feed.interact(users)
            done += len(users)
            met += len(users) if first else 0
            if done // every > len(points):
                seconds, taken = time.monotonic() - begun, time.monotonic()
                size = place.snapshot(feed.machine)
                memory = _resident_bytes()
                points.append(SoakPoint(met, done, memory, size, seconds, time.monotonic() - taken))
                progress(f"{done:,} of {total:,} decisions, {memory / _GIGABYTE:.2f} GB")
                if memory > sizes.cap_bytes:
                    raise BenchFailed(f"expected at most {sizes.cap_bytes} bytes, got {memory} after {done} decisions")
    finally:
        gc.enable()
    return points


def _visits(sizes: SoakSizes) -> Iterator[tuple[list[str], bool]]:
    """Yield blocks of users for one interaction each, and whether it is their first."""
    for visit in range(sizes.visits):
        for low in range(0, sizes.users, ROWS):
            users = [f"user-{number:07d}" for number in range(low, min(sizes.users, low + ROWS))]
            for interaction in range(sizes.interactions):
                yield users, visit == interaction == 0


class _Feed:
    """Appends to the machine's two inputs and folds, with one block of decisions at a time."""

    def __init__(self, machine: LearnerMachine, sizes: SoakSizes) -> None:
        rng = np.random.default_rng(1)
        self.machine = machine
        self._contexts: NDArray[np.float32] = rng.dirichlet(np.ones(sizes.dimension), _CONTEXTS).astype(np.float32)
        self._rng = rng
        self._batch = 0
        self._clicks: list[InputRecord] = []

    def interact(self, users: list[str]) -> None:
        """Decide once for each user; the decisions are rewarded in the next batch."""
        number, self._batch = self._batch, self._batch + 1
        ids = [f"e{number}-{row}" for row in range(len(users))]
        contexts = self._contexts[self._rng.integers(0, _CONTEXTS, len(users))]
        record = InputRecord(number, _START_MS + 100 * number, encode_context_batch(ids, users, contexts))
        slices = [InputSlice("contexts", 0, number, number + 1, [record])]
        if self._clicks:
            slices.append(InputSlice("clicks", 0, number - 1, number, self._clicks))
        (step,) = self.machine.fold(slices)
        assert step.journal is not None
        arms = np.frombuffer(codec.decode(step.journal)[1]["arms"], "<i4")
        rewards = (self._rng.random(len(users)) < REWARD_RATE).astype(np.float64)
        value = encode_feedback_batch(np.full(len(users), REWARD), ids, users, arms, rewards)
        self._clicks = [InputRecord(number, record.timestamp_ms, value)]


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise BenchFailed("expected VmRSS in /proc/self/status, found none")
