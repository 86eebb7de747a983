"""The roles that run in production, killed at each step of the protocol: third form of equality.

Disturbed and undisturbed runs fold the same frozen logs under the fixed schedule. Journals must be equal record
by record; of each topic that is sent at least once (reports, interactions, window-sums, ledger, dead letters) a
reader drops repeats of identical bytes, and what remains must be equal, for each writer in the same order.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from hashlib import blake2b

import pytest

from hushstream.agents.recovery.snapshots import HoldsStateKeys, SnapshotStore
from hushstream.agents.settings import WorkerSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process(
        keep=[
            "test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run",
        ]
    ),
    pytest.mark.asyncio(loop_scope="session"),
]


MARKS = ("marking", "marked")
STEPS = ("decoded", "folded", "journal_sent", "journal_acked", *MARKS, "released", "committed", "snapshot")
HOMES = {"learner": 3, "shuffler": 2, "aggregator": 1}


def crashes(role: str) -> list[tuple[str, int, int]]:
    """(step, home partition, least sequence number): all partitions in turn, later records each time.

    The aggregator holds no key, and notes nothing.
    """
    if role == "aggregator":
        return [(step, 0, 4 + 5 * n) for n, step in enumerate(step for step in STEPS if step not in MARKS)]
    return [(step, n % HOMES[role], 2 + 2 * n) for n, step in enumerate(STEPS)]


async def test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run(
    bench, deployed, frozen, promises, undisturbed
):
    async def sweep(role: str) -> None:
        async with deployed(bench, role, "killed") as run:
            await run.crash_sweep(crashes(role))
            audit = await run.audit()
            assert audit == undisturbed[role], role
            assert audit.off_chain == 0, role
            await promises.check(role, run, audit, frozen)

    async with asyncio.TaskGroup() as group:
        for role in HOMES:
            group.create_task(sweep(role))


async def test_a_machine_that_lost_its_data_directory_recovers_from_the_journal_alone(
    bench, deployed, frozen, promises, undisturbed, tmp_path
):
    async def restarted(role: str) -> None:
        async with deployed(bench, role, "bare", snapshot_interval_seconds=1000) as run:
            await run.crash_sweep([("journal_sent", 0, 4), ("released", HOMES[role] - 1, 2), ("folded", 0, 20)])
            audit = await run.audit()
            assert audit == undisturbed[role], role
            await promises.check(role, run, audit, frozen)
            bare = await run.start(datadir=str(tmp_path / role))
            for home in range(HOMES[role]):
                await bare.logged(f"partition {home}: at journal record {len(audit.journals[home]) - 1} ")
            assert bare.log.read_text(encoding="utf-8").count(" 0 outputs sent again") == HOMES[role], (
                "all of it was committed"
            )

    async with asyncio.TaskGroup() as group:
        for role in HOMES:
            group.create_task(restarted(role))


# A learner with users on disk, killed, and stopped past its session: the bytes of one that keeps all in memory.

STEPS_OF_SPILLED_USERS = (
    "decoded",
    "folded",
    "journal_sent",
    "journal_acked",
    "released",
    "committed",
    "snapshot",
    "snapshot",
)
FEW = 4


async def test_killed_at_each_step_with_few_users_in_memory_it_leaves_the_same_bytes(bench, deployed, frozen, promises):
    async with deployed(bench, "learner", "all-warm") as run:
        await run.finish()
        undisturbed = await run.audit()
    async with deployed(bench, "learner", "few-warm", resident_users=FEW) as run:
        await run.crash_sweep([(step, n % 3, 2 + 3 * n) for n, step in enumerate(STEPS_OF_SPILLED_USERS)])
        audit = await run.audit()
        assert audit == undisturbed
        await promises.check("learner", run, audit, frozen)


async def test_an_owner_that_wakes_does_not_mix_its_users_with_its_successors(bench, deployed, frozen, promises):
    """Both use one data directory; the heir takes snapshots while the sleeper still has its own view of the file."""
    async with deployed(bench, "learner", "woken-few", schedule="live", resident_users=FEW) as run:
        run.pace_seconds = 0.01
        await run.outlived(("snapshot", 0, 4), batches=(11, 17))
        audit = await run.audit()
        await promises.check("learner", run, audit, frozen)


# A worker that is stopped between two steps, loses its partitions, and wakes: one content on the chain.

ROLES = ("learner", "shuffler", "aggregator")
STAGES = ("folded", "journal_sent", "journal_acked", "released")
"""Of roles that note how far they have released."""


@pytest.mark.parametrize(
    ("roles", "stages"), [(ROLES, STAGES[:2]), (ROLES, STAGES[2:]), (("learner", "shuffler"), MARKS)]
)
async def test_an_owner_that_wakes_after_its_session_adds_no_second_content(
    bench, deployed, frozen, promises, undisturbed, roles, stages
):
    async def woken(role: str, stage: str) -> None:
        # However long it takes, nobody ticks: a tick would close a window that the undisturbed run leaves open.
        async with deployed(bench, role, f"woken-{stage}", schedule="live", tick_interval_seconds=1000) as run:
            run.pace_seconds = 0.01
            await run.outlived((stage, 0, 4), batches=(11, 17))
            audit = await run.audit()  # asserts that nothing off the chain was released
            await promises.check(role, run, audit, frozen)
        if role != "learner":  # a learner's journal says which batches were cut, the others' do not
            assert (audit.journals, audit.releases) == (undisturbed[role].journals, undisturbed[role].releases)

    async with asyncio.TaskGroup() as group:
        for role in roles:
            for stage in stages:
                group.create_task(woken(role, stage))


async def test_an_owner_that_wakes_behind_the_same_record_of_the_next_leaves_no_snapshot_that_skips_their_others(
    bench, deployed, frozen, promises, undisturbed
):
    """Shrunk from the sweep: `shuffler: stop@folded+1/1`, both owners killed, and a third one on their snapshots."""
    async with deployed(bench, "shuffler", "same-record") as run:
        sleeper = await run.start(("folded", 0, 4), signal.SIGSTOP)
        await sleeper.logged("observer: signal")
        heir = await run.start()
        await run.folded_all()
        sleeper.kill(signal.SIGCONT)
        await asyncio.sleep(1.0)
        for worker in (heir, sleeper):
            worker.kill()
            await worker.exit_code()
        third = await run.start()
        for home, values in undisturbed["shuffler"].journals.items():
            await third.logged(f"partition {home}: at journal record {len(values) - 1} ")
        third.kill(signal.SIGTERM)
        assert await third.exit_code() == 0, third.log.read_text(encoding="utf-8")[-3000:]
        audit = await run.audit()
        assert audit == undisturbed["shuffler"]
        await promises.check("shuffler", run, audit, frozen)


# Clean ends, and connections that drop and come back.

BRIEF_SECONDS = 0.5
PAST_THE_SESSION_SECONDS = 2.0


async def test_a_connection_that_drops_and_comes_back_changes_no_byte(
    bench, harness, deployed, frozen, promises, undisturbed
):
    port = int(bench.bootstrap.rpartition(":")[2])

    async def cut_off(role: str) -> None:
        async with harness.Tunnel(port) as tunnel, deployed(bench, role, "cut-off") as run:
            run.pace_seconds = 0.03
            worker = await run.start(bootstrap=f"127.0.0.1:{tunnel.port}")
            await worker.logged("at journal record")
            for away_seconds in (0.0, BRIEF_SECONDS, PAST_THE_SESSION_SECONDS):
                await asyncio.sleep(0.3)
                tunnel.open = False
                tunnel.cut()
                await asyncio.sleep(away_seconds)
                tunnel.open = True
            await run.folded_all()
            worker.kill(signal.SIGTERM)
            assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
            audit = await run.audit()
            assert audit == undisturbed[role], role
            await promises.check(role, run, audit, frozen)

    async with asyncio.TaskGroup() as group:
        for role in ROLES:
            group.create_task(cut_off(role))


# A worker that finds the state of another release goes on without it, and leaves the same bytes.

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
