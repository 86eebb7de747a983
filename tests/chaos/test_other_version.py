"""A worker that finds the state of another release goes on without it, and leaves the same bytes."""

from __future__ import annotations

import signal
from dataclasses import replace
from hashlib import blake2b

import pytest

from hushstream.agents.recovery.snapshots import HoldsStateKeys, SnapshotStore
from hushstream.agents.settings import WorkerSettings

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

FEW = 4
OTHER = (2**31).to_bytes(4, "little")


def of_another_release(state: bytes) -> bytes:
    """An intact state whose form no release here has."""
    value = OTHER + state[20:]
    return blake2b(value, digest_size=16, person=b"hush-state").digest() + value


def alter_snapshots(settings: WorkerSettings, keys: HoldsStateKeys, partitions: int, users: bool) -> int:
    """Put states of another release in the place of those that a worker left; gives how many there were."""
    store = SnapshotStore(settings, keys)
    altered = 0
    for partition in range(partitions):
        if users:
            store.users(partition)
        snapshot = store.load(partition)
        if snapshot is not None:
            store.save(partition, replace(snapshot, state=of_another_release(snapshot.state)))
            altered += 1
    return altered


def kept_aside(settings: WorkerSettings) -> int:
    """How many states lie beside those in use."""
    return len(list(settings.datadir.rglob("*.other-version")))


@pytest.mark.parametrize(("role", "settings"), [("shuffler", {}), ("learner", {"resident_users": FEW})])
async def test_it_is_gone_on_without_the_state_which_is_kept_aside(bench, deployed, frozen, promises, role, settings):
    async with deployed(bench, role, "this-release", **settings) as run:
        await run.finish()
        undisturbed = await run.audit()
    async with deployed(bench, role, "other-release", **settings) as run:
        first = await run.start(("snapshot", 0, 2), signal.SIGKILL)
        await first.exit_code()
        found = alter_snapshots(run.settings, run.make_machine, len(undisturbed.journals), bool(settings))
        assert found
        second = await run.start()
        await run.folded_all()
        second.kill(signal.SIGTERM)
        log = second.log.read_text(encoding="utf-8")
        assert await second.exit_code() == 0, log[-3000:]
        assert log.count("snapshot: expected the present form") == log.count("and is not used") == found
        assert kept_aside(run.settings) == found
        audit = await run.audit()
        assert audit == undisturbed
        await promises.check(role, run, audit, frozen)
