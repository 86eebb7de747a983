"""Topics that are older than what was released, or others: no worker goes on with them, whatever disk it has."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hushstream.agents.kafka.administration import journal_name
from hushstream.agents.recovery.marks import HighWater
from hushstream.engine.journal.marks import Mark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process(
        keep=[
            "test_a_journal_that_was_cut_is_refused_by_a_worker_with_an_empty_disk[shuffler]",
        ]
    ),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_journal_behind_its_high_water_mark_is_refused_and_nothing_is_sent(bench, deployed, tmp_path):
    async with deployed(bench, "shuffler", "older", snapshot_interval_seconds=1000, release_marks=str(tmp_path)) as run:
        await run.finish()
        before = await run.audit()
        high = HighWater(run.settings)
        paid = {home: len(values) - 1 for home, values in before.journals.items()}
        for home, sequence in paid.items():
            (noted,) = high.noted(home)
            assert 0 < noted.sequence <= sequence, "each release was noted"
            # As if one more release had been paid for, whose journal record these topics do not hold.
            high.raise_to(home, Mark(journal_name(before.journals[home][0]), sequence + 1))
        # Without its data directory the worker has the topics and the marks alone.
        again = await run.start(datadir=str(tmp_path / "empty"))
        code = await again.exit_code()
        assert code not in (0, -signal.SIGKILL), again.log.read_text(encoding="utf-8")[-2000:]
        assert "the topics are an older copy" in again.log.read_text(encoding="utf-8")
        assert await run.audit() == before


ROLES = ("shuffler", "learner")
"""Windows of a shuffler; of a learner the slots that spend its users' allowances."""


@asynccontextmanager
async def copied(
    bench: Any, deployed: Callable[..., Any], role: str, name: str, cut: Callable[[int], int]
) -> AsyncIterator[tuple[Any, Any]]:
    """A deployment that has released, and its topics restored with each journal cut to ``cut`` of its records.

    Marks come back whole; an empty data directory stands for a worker on another machine. Nothing else is as it was:
    no outputs, no commits.
    """
    async with deployed(bench, role, f"{name}-whole") as run:
        await run.finish()
        audit = await run.audit()
        older = deployed(bench, role, name)
        older.copied_journals = {home: values[: cut(len(values))] for home, values in audit.journals.items()}
        older.with_marks = False
        marks = {home: await run.marks_of(home) for home in audit.journals}
    async with older:
        for home, values in audit.journals.items():
            await older.note(home, values[0], max(mark.sequence for mark in marks[home]))
        yield older, audit


async def refused(run: Any, says: str, **settings: Any) -> str:
    """Start a worker that must refuse every partition, and send nothing; gives its log."""
    before = await run.output_ends()
    worker = await run.start(**settings)
    code = await worker.exit_code()
    log = str(worker.log.read_text(encoding="utf-8"))
    assert (code, "Traceback" in log) == (1, False), log[-3000:]
    assert says in log, log[-3000:]
    assert await run.output_ends() == before, "a worker that refuses writes nothing"
    return log


@pytest.mark.parametrize("role", ROLES)
async def test_a_journal_that_was_cut_is_refused_by_a_worker_with_an_empty_disk(bench, deployed, role):
    async with copied(bench, deployed, role, "cut", lambda length: 2 * length // 3) as (older, _):
        await refused(older, "the topics are an older copy")


async def test_an_operator_goes_on_with_a_cut_journal_once_and_by_name(bench, deployed):
    async with copied(bench, deployed, "shuffler", "accepted", lambda length: 2 * length // 3) as (older, audit):
        names = [(await older.marks_of(home))[0].journal for home in sorted(audit.journals)]
        words = [f"{home}:{name}:1" for home, name in enumerate(names)]
        worker = await older.start(accept_loss=words)
        await older.folded_all()
        assert worker.log.read_text(encoding="utf-8").count(
            "went on with a refused journal by the operator's word"
        ) == len(words)
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        found = await older.audit()
        assert {home: len(values) for home, values in found.journals.items()} == {
            home: len(values) for home, values in audit.journals.items()
        }
        marks = [mark for home in found.journals for mark in await older.marks_of(home) if mark.generation == 1]
        assert sum(mark.accepted for mark in marks) == len(words)
        again = await older.start(datadir=str(older.settings.datadir) + "-again")
        await older.taken_up(again)
        again.kill(signal.SIGTERM)
        assert await again.exit_code() == 0
