"""A worker's process: when its garbage is collected, and that nothing below its loop reads a clock."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hushstream.agents.partition.driver
from hushstream.agents import process
from hushstream.agents.partition.schedule import NamedWait
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.agents.worker.worker import RoleWorker
from hushstream.client.waiting import PROBE_SECONDS, SILENT_SECONDS, Circuit
from hushstream.engine.records import Awaited


class Node:
    """Something that can be part of a cycle."""

    def __init__(self) -> None:
        self.other: Node = self


@pytest.fixture
async def stepping(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(process, "STEP_SECONDS", 0.01)
    task = asyncio.create_task(process.collect_in_steps())
    await asyncio.sleep(0)
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def whole() -> Iterator[list[str]]:
    """Grows with each full collection."""
    begun: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            begun.append(phase)

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)


async def _steps() -> None:
    await asyncio.sleep(0.2)


async def test_a_cycle_that_nobody_holds_goes_within_a_step(stepping):
    gone = weakref.ref(Node())
    await _steps()
    assert gone() is None


async def test_what_is_alive_is_set_aside_and_freed_with_its_last_reference(stepping):
    held = [Node() for _ in range(1000)]
    for node in held:
        del node.other
    before = gc.get_freeze_count()
    await _steps()
    assert gc.get_freeze_count() >= before + 1000
    gone = weakref.ref(held[0])
    del node
    held.clear()
    assert gone() is None


async def test_a_cycle_that_was_set_aside_goes_at_a_whole_collection(stepping):
    node = Node()
    await _steps()
    gone = weakref.ref(node)
    del node
    await _steps()
    assert gone() is not None
    process.collect_whole()
    assert gone() is None


async def test_pythons_own_collection_is_back_at_the_end():
    before = gc.get_threshold()
    task = asyncio.create_task(process.collect_in_steps())
    await asyncio.sleep(0)
    assert gc.get_threshold()[2] > 1_000_000
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_what_imports_made_is_set_aside_at_the_start_without_a_look(whole):
    task = asyncio.create_task(process.collect_in_steps())
    await asyncio.sleep(0)
    looked, aside = len(whole), gc.get_freeze_count()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert (looked, aside > 1000) == (0, True)


@pytest.mark.parametrize("drivers", [{}, {0: "a partition's"}])
async def test_a_rebalance_looks_at_everything_only_where_partitions_were_held(drivers, whole, tmp_path, monkeypatch):
    async def revoked(snapshot: bool) -> None:
        drivers.clear()

    worker = RoleWorker(
        WorkerSettings(bootstrap="127.0.0.1:9092", role="learner", group="g", datadir=tmp_path),
        make_machine=lambda _: pytest.fail("no machine is needed"),
        topics=RoleTopics(("contexts",), (), 1),
    )
    held = len(drivers)
    monkeypatch.setattr(worker, "_homes", SimpleNamespace(drivers=drivers, on_revoked=revoked), raising=False)
    gc.freeze()
    try:
        await worker._on_partitions_revoked(None, ())
    finally:
        gc.unfreeze()
    assert len(whole) == held


AGENTS = Path(hushstream.agents.partition.driver.__file__).parents[2]

READS_A_CLOCK = {
    "agents/observe/metrics.py": "the default of a clock that is passed in",
    "agents/process.py": "the default of a clock that is passed in; a logging filter is passed none",
    "agents/kafka/stream.py": "how long ago the last commit was taken",
    "agents/partition/driver.py": "the default of a clock that is passed in",
    "agents/recovery/state_topic.py": "the default of a clock that is passed in; and the wall clock, beside log time",
    "agents/security.py": "whether a certificate has ended by the wall clock",
    "agents/worker/homes.py": "runs recoveries and reloads",
    "agents/worker/preflight.py": "runs the loop that waits for brokers",
    "agents/worker/roles.py": "what gauges show by the wall clock, once a look",
    "agents/worker/health.py": "looks now and then, and hands down when",
    "agents/worker/worker.py": "runs the loop that watches the group",
    "ops/access.py": "runs the loop that waits for brokers",
    "ops/check/follow.py": "runs the loop that follows the journals, and hands down when",
}
"""Modules that import a clock, with the reason; an event loop's time is asked where a coroutine waits."""


def imports_a_clock(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            return True
    return False


def test_nothing_below_a_loop_reads_a_clock():
    found = {
        path.relative_to(AGENTS).as_posix()
        for folder in ("agents", "client", "ops")
        for path in (AGENTS / folder).rglob("*.py")
        if imports_a_clock(path)
    }
    assert found == set(READS_A_CLOCK)


async def test_a_named_record_is_waited_for_from_when_it_was_first_missed(base):
    asked: list[Any] = []

    async def end_offsets(sources: list[Any]) -> dict[Any, int]:
        asked.append(sources)
        return dict.fromkeys(sources, 5)

    told: list[tuple[int, int]] = []
    awaited = Awaited(3, ("clicks", 0), 9, 1)
    machine = SimpleNamespace(awaited=None, ends_at=lambda arrived, end: told.append((arrived, end)))
    metrics = SimpleNamespace(waited_in_vain=lambda: None)
    wait = NamedWait(machine, SimpleNamespace(next_offset=4), 2.0, end_offsets, metrics)  # type: ignore[arg-type]
    assert wait.awaited(base) is None
    assert wait.seconds_left(base) is None
    machine.awaited = awaited
    assert wait.awaited(base + 1.0) == awaited
    assert wait.awaited(base + 2.0) == awaited, "asked again it does not begin anew"
    assert wait.seconds_left(base + 2.0) == pytest.approx(1.0, abs=1e-5)
    assert not await wait.end(base + 2.5)
    assert not asked
    assert await wait.end(base + 3.5)
    assert (asked, told) == ([[("clicks", 0)]], [(4, 5)])


def test_nobody_answers_where_a_question_lies_for_too_long(base):
    circuit = Circuit()
    assert not circuit.is_open(base + 100.0), "nothing was asked"
    circuit.on_request(base)
    assert not circuit.is_open(base + SILENT_SECONDS / 2)
    late = base + 2 * SILENT_SECONDS
    assert circuit.is_open(late)
    assert circuit.probes(late)
    assert not circuit.probes(late + PROBE_SECONDS / 2)
    assert circuit.probes(late + 2 * PROBE_SECONDS)
    circuit.on_answer()
    assert not circuit.is_open(late + 100.0)
