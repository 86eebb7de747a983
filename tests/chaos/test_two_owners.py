"""A worker that is stopped between two steps, loses its partitions, and wakes: one content on the chain."""

from __future__ import annotations

import asyncio
import signal

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
]

ROLES = ("learner", "shuffler", "aggregator")
STAGES = ("folded", "journal_sent", "journal_acked", "released")
MARKS = ("marking", "marked")
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
