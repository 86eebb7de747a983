"""The roles that run in production, killed at each step of the protocol: third form of equality.

Disturbed and undisturbed runs fold the same frozen logs under the fixed schedule. Journals must be equal record
by record; of each topic that is sent at least once (reports, interactions, window-sums, ledger, dead letters) a
reader drops repeats of identical bytes, and what remains must be equal, for each writer in the same order.
"""

from __future__ import annotations

import asyncio

import pytest

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
HOMES = {"learner": 3, "shuffler": 2, "aggregator": 2}


def crashes(role: str) -> list[tuple[str, int, int]]:
    """(step, home partition, least sequence number): all partitions in turn, later records each time.

    The aggregator's second track publishes at phase ends alone, so it is hit first, at its second record. It holds no
    key, and notes nothing.
    """
    homes = HOMES[role]
    if role == "aggregator":
        steps = [step for step in STEPS if step not in MARKS]
        return [("journal_acked", 1, 2), *((step, 0, 4 + 5 * n) for n, step in enumerate(steps))]
    return [(step, n % homes, 2 + 2 * n) for n, step in enumerate(STEPS)]


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
            await run.crash_sweep([("journal_sent", 0, 4), ("released", 1, 2), ("folded", 0, 20)])
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
