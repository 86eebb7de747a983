"""Clean ends, and connections that drop and come back."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from hushstream.schemas import codec

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="session")]

ROLES = ("learner", "shuffler", "aggregator")
BRIEF_SECONDS = 0.5
PAST_THE_SESSION_SECONDS = 2.0


async def test_sigterm_loses_nothing_repeats_nothing_and_flushes_no_window(
    bench, harness, deployed, frozen, promises, undisturbed
):
    async def ended(role: str) -> None:
        small = {"schedule": "live", "batch_records": 6, "buffer_records": 6}
        async with deployed(bench, role, "ended", **small, **harness.CALM) as run:
            run.pace_seconds = 0.02
            for _ in range(3):
                worker = await run.start()
                await worker.logged("at journal record")
                await asyncio.sleep(0.25)
                worker.kill(signal.SIGTERM)
                assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
            await run.finish()
            audit = await run.audit()
            await promises.check(role, run, audit, frozen)
        assert audit.repeats == audit.off_chain == 0, role
        if role != "learner":
            assert (audit.journals, audit.releases) == (undisturbed[role].journals, undisturbed[role].releases)
        if role == "shuffler":
            check_windows_are_whole(audit, frozen)

    async with asyncio.TaskGroup() as group:
        for role in ROLES:
            group.create_task(ended(role))


def check_windows_are_whole(audit: Any, frozen: Any) -> None:
    """A window is full, or a phase end or log time closed it; an end that flushed one would leave it short."""
    full = frozen.system.config.release.window_slots
    for values in audit.journals.values():
        records = [codec.decode(value)[1] for value in values[1:]]
        assert all((r["slots"] == full) == (r["closed_by"] == "slots") for r in records)
        assert {r["closed_by"] for r in records} == {"slots", "seal", "time"}


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
