"""Cyclic garbage goes within a step, what is alive is looked at once, and nothing stays set aside by accident."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hushstream.agents.observe import collection
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.agents.worker.worker import RoleWorker


class Node:
    """Something that can be part of a cycle."""

    def __init__(self) -> None:
        self.other: Node = self


@pytest.fixture
async def stepping(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(collection, "STEP_SECONDS", 0.01)
    task = asyncio.create_task(collection.collect_in_steps())
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


async def test_a_cycle_that_nobody_holds_goes_within_a_step(stepping: None) -> None:
    gone = weakref.ref(Node())
    await _steps()
    assert gone() is None


async def test_what_is_alive_is_set_aside_and_freed_with_its_last_reference(stepping: None) -> None:
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


async def test_a_cycle_that_was_set_aside_goes_at_a_whole_collection(stepping: None) -> None:
    node = Node()
    await _steps()
    gone = weakref.ref(node)
    del node
    await _steps()
    assert gone() is not None
    collection.collect_whole()
    assert gone() is None


async def test_pythons_own_collection_is_back_at_the_end() -> None:
    before = gc.get_threshold()
    task = asyncio.create_task(collection.collect_in_steps())
    await asyncio.sleep(0)
    assert gc.get_threshold()[2] > 1_000_000
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


async def test_what_imports_made_is_set_aside_at_the_start_without_a_look(whole: list[str]) -> None:
    task = asyncio.create_task(collection.collect_in_steps())
    await asyncio.sleep(0)
    looked, aside = len(whole), gc.get_freeze_count()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert (looked, aside > 1000) == (0, True)


@pytest.mark.parametrize("drivers", [{}, {0: "a partition's"}])
async def test_a_rebalance_looks_at_everything_only_where_partitions_were_held(
    drivers: dict[int, str], whole: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
