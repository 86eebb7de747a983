"""A learner with users on disk, killed, and stopped past its session: the bytes of one that keeps all in memory."""

import pytest

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

STEPS = ("decoded", "folded", "journal_sent", "journal_acked", "released", "committed", "snapshot", "snapshot")
FEW = 4


async def test_killed_at_each_step_with_few_users_in_memory_it_leaves_the_same_bytes(bench, deployed, frozen, promises):
    async with deployed(bench, "learner", "all-warm") as run:
        await run.finish()
        undisturbed = await run.audit()
    async with deployed(bench, "learner", "few-warm", resident_users=FEW) as run:
        await run.crash_sweep([(step, n % 3, 2 + 3 * n) for n, step in enumerate(STEPS)])
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
