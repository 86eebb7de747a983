"""Snapshots beside the folds: the state at the cut is saved, once nothing of it can be lost, and no fold waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hushstream.agents.errors import JournalLost
from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.partition import driver as background_snapshot
from hushstream.agents.partition.driver import PartitionDriver, Tools
from hushstream.agents.recovery.recovery import Recovery
from hushstream.agents.recovery.snapshots import RecoveredMachine, Snapshot, SnapshotStore
from hushstream.agents.recovery.user_store import UsersLost
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import InputRecord, Output
from patience import Patience
from storage import KEYS

PATIENCE_SECONDS = 60.0

pytestmark = pytest.mark.asyncio


class Brokers:
    """Takes records; acknowledges at once those of topics that are not held."""

    def __init__(self) -> None:
        self.sent: dict[str, list[bytes]] = {}
        self.held: set[str] = set()
        self._waiting: list[tuple[str, asyncio.Future[Any], Any]] = []

    async def send(self, output: Output) -> asyncio.Future[Any]:
        log = self.sent.setdefault(output.topic, [b"genesis"] if output.topic.startswith("journal") else [])
        log.append(output.value)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        place = SimpleNamespace(offset=len(log) - 1)
        if output.topic in self.held:
            self._waiting.append((output.topic, future, place))
        else:
            future.set_result(place)
        return future

    def acknowledge(self, topic: str) -> None:
        self.held.discard(topic)
        for found, future, place in self._waiting:
            if found == topic:
                future.set_result(place)


class SlowStore(SnapshotStore):
    """Saves when it is let, and remembers what."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings, KEYS)
        self.let = threading.Event()
        self.begun = threading.Event()
        self.saved: list[Snapshot] = []
        self.refuse: Exception | None = None

    def save(self, partition: int, snapshot: Snapshot) -> None:
        self.begun.set()
        assert self.let.wait(PATIENCE_SECONDS)
        if self.refuse is not None:
            raise self.refuse
        super().save(partition, snapshot)
        self.saved.append(snapshot)


class Run:
    """A driver of one partition of the counting machine, with everything around it in this process."""

    def __init__(self, machines: Any, folder: Path, interval: float, base: float) -> None:
        self.settings = WorkerSettings(
            bootstrap="127.0.0.1:1", role="counting", group="g", datadir=folder, snapshot_interval_seconds=interval,
            tick_interval_seconds=0.02,
        )  # fmt: skip
        self.store, self.brokers = SlowStore(self.settings), Brokers()
        self.lost: list[BaseException] = []
        self.machine = machines.counting(targets=1)[0](0)
        self.genesis = self.machine.genesis(bytes(4))
        self.machine.start(self.genesis)
        metrics = Metrics(Labels("counting", partitions=1))
        began = time.monotonic()

        async def nothing(*_: Any) -> Any:
            return {}

        tools = Tools(
            settings=self.settings, sender=self.brokers, snapshots=self.store, marks=None, states=None, metrics=metrics,
            observe=lambda *_: None, end_offsets=nothing, fetched_end=lambda _: self.end, read_journal=nothing,
            notify_capacity=lambda: None, lost=lambda _, reason: self.lost.append(reason),
            clock=lambda: base + time.monotonic() - began,
        )  # fmt: skip
        self.end = 0
        self.driver = PartitionDriver(0, RecoveredMachine(self.machine, self.genesis, 0, 1), tools)
        (self.buffer,) = self.driver.inputs
        self.buffer.sought()

    def arrive(self, count: int = 1) -> None:
        records = [InputRecord(self.end + n, 1_000_000 + self.end + n, b"k1") for n in range(count)]
        self.end += count
        self.buffer.offer(records)

    async def folded(self) -> None:
        await until(lambda: self.buffer.low == self.end)


@asynccontextmanager
async def running(machines: Any, folder: Path, interval: float = 0.01, base: float = 0.0) -> AsyncIterator[Run]:
    run = Run(machines, folder, interval, base)
    run.driver.start()
    try:
        yield run
    finally:
        run.store.let.set()
        await run.driver.close(PATIENCE_SECONDS)
        await run.store.settled(0)


async def until(reached: Callable[[], bool]) -> None:
    waiting = Patience(PATIENCE_SECONDS)
    while not reached():
        assert not waiting.over
        await asyncio.sleep(0.002)


async def test_folds_go_on_while_a_snapshot_is_written_and_it_holds_none_of_them(machines, tmp_path):
    async with running(machines, tmp_path) as run:
        run.arrive()
        await until(run.store.begun.is_set)
        for _ in range(20):
            run.arrive()
            await run.folded()
        assert not run.store.saved
        run.store.let.set()
        await until(lambda: bool(run.store.saved))
        first = run.store.saved[0]
        assert (first.sequence, first.journal_offset, first.genesis) == (1, 2, run.genesis)
        restored = machines.counting(targets=1)[0](0)
        restored.start(run.genesis)
        restored.restore(first.state)
        assert restored.positions() == {("events", 0): 1}
        await until(lambda: run.store.saved[-1].sequence == len(run.brokers.sent["journal-counting"]) - 1)
        assert run.store.saved[-1].journal_offset == len(run.brokers.sent["journal-counting"])


@pytest.mark.parametrize("topic", ["journal-counting", "counts"])
async def test_nothing_is_saved_before_all_that_was_sent_is_acknowledged(machines, tmp_path, topic):
    async with running(machines, tmp_path) as run:
        run.store.let.set()
        run.brokers.held.add(topic)
        run.arrive()
        await run.folded()
        await until(lambda: not run.driver._background_snapshots.idle.is_set())
        await asyncio.sleep(0.1)
        assert not run.store.begun.is_set()
        run.brokers.acknowledge(topic)
        await until(lambda: bool(run.store.saved))
        assert run.store.load(0) == run.store.saved[-1]


async def test_a_snapshot_that_is_still_written_is_left_to_itself_and_waited_for_at_the_next_take_up(
    machines, tmp_path, monkeypatch
):
    monkeypatch.setattr("hushstream.agents.recovery.recovery.LogReader", lambda _: contextlib.nullcontext())
    async with running(machines, tmp_path) as run:
        run.arrive()
        await until(run.store.begun.is_set)
        recovered = await run.driver.close(0.05)
        assert recovered is not None
        assert recovered.sequence == 1
        seen: list[int] = []

        def behind(partition: int) -> bool:
            seen.append(len(run.store.saved))
            return True

        run.store.behind = behind

        def no_machine(partition: int) -> Any:
            raise LookupError

        recovery = Recovery(run.settings, no_machine, run.brokers, run.store, lambda: True)
        taking_up = asyncio.create_task(recovery.run(0, [], recovered))
        await asyncio.sleep(0.1)
        assert not taking_up.done()
        assert seen == []
        run.store.let.set()
        with pytest.raises(LookupError):
            await taking_up
        assert seen == [1], "it looks at the file when nobody writes it any more"


async def test_folds_and_snapshots_follow_no_uptime(machines, tmp_path, base):
    async with running(machines, tmp_path, base=base) as run:
        run.store.let.set()
        for _ in range(3):
            run.arrive()
            await run.folded()
        await until(lambda: bool(run.store.saved) and run.store.saved[-1].folded == 3)
        assert run.driver.append_wait == 0.0
        assert not run.lost


async def test_the_oldest_append_is_waited_for_until_it_is_acknowledged(machines, tmp_path, base):
    async with running(machines, tmp_path, base=base) as run:
        run.store.let.set()
        run.brokers.held.add("journal-counting")
        run.arrive()
        await run.folded()
        await until(lambda: run.driver.append_wait >= 0.2)
        run.arrive()
        await run.folded()
        assert run.driver.append_wait >= 0.2, "a later append is not what is waited for longest"
        run.brokers.acknowledge("journal-counting")
        await until(lambda: run.driver.append_wait == 0.0)
        assert not run.lost


async def test_a_clean_end_takes_a_last_snapshot(machines, tmp_path):
    async with running(machines, tmp_path, interval=1000.0) as run:
        run.store.let.set()
        run.arrive(3)
        await run.folded()
        await run.driver.close(PATIENCE_SECONDS, snapshot=True)
        assert [found.state for found in run.store.saved] == [run.machine.snapshot()]


async def test_a_refused_snapshot_is_tried_again_and_a_lost_one_reloads_the_partition(
    machines, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("hushstream.agents.partition.driver._RETRY_SECONDS", 0.0)
    async with running(machines, tmp_path) as run:
        run.store.let.set()
        run.store.refuse = OSError("no room")
        run.arrive()
        await until(lambda: caplog.text.count("snapshot not written: no room") > 2)
        run.store.refuse = None
        await until(lambda: bool(run.store.saved))
        assert not run.lost
        run.store.refuse = UsersLost("another owner")
        run.arrive()
        await until(lambda: bool(run.lost))
        assert isinstance(run.lost[0], JournalLost)
        assert await run.driver.close(PATIENCE_SECONDS, snapshot=True) is None


async def test_a_state_is_packed_in_slices_between_which_the_loop_turns(machines, tmp_path, monkeypatch):
    monkeypatch.setattr(background_snapshot, "SLICE_SECONDS", 0.0)
    run = Run(machines, tmp_path, 1000.0, 0.0)
    packed: list[int] = []

    def portions() -> Any:
        for number in range(50):
            packed.append(number)
            yield
        return b"state"

    run.machine.snapshot_portions = portions
    cut = background_snapshot.BackgroundSnapshot.of(run.machine, 5)
    assert packed == [0], "the cut alone is taken at once"
    cut.reached.all_before.set_result(9)
    packing = asyncio.create_task(cut.packed(run.genesis, lambda: False, time.monotonic))
    seen = set()
    while not packing.done():
        seen.add(len(packed))
        await asyncio.sleep(0)
    assert await packing == Snapshot(5, 9, run.genesis, b"state")
    assert len(seen) > 20
