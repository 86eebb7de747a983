"""A shuffler killed around the release that its budget refuses: what was refused is never released, by anyone.

The price of a counter over windows pays for a few of them. The last paid window and the first refused one are where a
worker that counted wrongly after a crash would release once more, or once too few.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hushstream.schemas import codec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
]

PAID = 4
"""Windows that a partition's price pays for; journal record n closes window n - 1."""

STEPS = ("folded", "journal_sent", "journal_acked", "released")
"""A window that was refused releases nothing, and is not noted."""
HOMES = 2


@pytest.fixture(scope="session")
def short(freezing: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Frozen logs of a deployment whose budget ends early."""
    config = freezing.configuration()
    release = replace(config.release, sums="counter", windows=PAID)
    ending = replace(config, deployment="short", release=release)
    return freezing.freeze(tmp_path_factory.mktemp("short"), config=ending)


@pytest.fixture(scope="session")
def shufflers(short: Any, real_roles: Any, harness: Any, key_seed: int) -> Callable[..., Any]:
    """Makes a `Deployment` of its shuffler."""

    def make(bench: Any, name: str, **settings: Any) -> Any:
        arguments = {"name": "shuffler", "folder": str(short.folder), "seed": key_seed}
        return harness.Deployment(
            bench,
            f"spent-{name}",
            f"{Path(real_roles.__file__)}:role",
            arguments,
            real_roles.role(**arguments),
            short.of("shuffler"),
            HOMES,
            {"fixed_records": 16, **settings},
            {"window-sums": 2},
        )

    return make


def require_spent(audit: Any, written: dict[Any, Any], system: Any) -> None:
    """Paid windows are released, each once; of the others nothing leaves, and nothing is debited."""
    price = system.guarantee().epsilon_micro
    for values in audit.journals.values():
        records = [codec.decode(value)[1] for value in values[1:]]
        assert len(records) > PAID + 2, "windows went on closing"
        debits = [record["debit"]["epsilon_micro"] for record in records]
        assert debits == [price] + [0] * (len(records) - 1)
    windows = {codec.decode(record.value)[1]["window_id"] for record in written["window-sums", 0]}
    entries = {codec.decode(record.value)[1]["entry_id"] for home in range(HOMES) for record in written["ledger", home]}
    assert windows == entries
    assert len(windows) == PAID * HOMES


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def spent_calm(bench: Any, harness: Any, shufflers: Callable[..., Any], short: Any) -> Any:
    """What the shuffler leaves when nothing happens to it."""
    async with shufflers(bench, "calm", **harness.CALM) as run:
        await run.finish()
        audit = await run.audit()
        assert audit.repeats == audit.off_chain == 0
        require_spent(audit, await written_by(run), short.system)
    return audit


async def written_by(run: Any) -> dict[Any, Any]:
    places = [("window-sums", 0), *(("ledger", home) for home in range(HOMES))]
    return {place: await run.records_of(place) for place in places}


async def test_a_kill_around_the_exhausting_debit_never_releases_what_was_refused(bench, shufflers, short, spent_calm):
    async def killed(step: str, sequence: int) -> None:
        async with shufflers(bench, f"{step}-{sequence}", snapshot_interval_seconds=0.2) as run:
            await run.crash_sweep([(step, 0, sequence), (step, 1, sequence)])
            audit = await run.audit()
            assert audit == spent_calm, (step, sequence)
            require_spent(audit, await written_by(run), short.system)

    async with asyncio.TaskGroup() as group:
        for step in STEPS:
            for sequence in (PAID, PAID + 1):
                group.create_task(killed(step, sequence))


async def test_a_worker_says_once_why_it_releases_nothing_and_another_without_its_state_releases_nothing_either(
    bench, shufflers, short, spent_calm, tmp_path
):
    async with shufflers(bench, "bare", snapshot_interval_seconds=1000) as run:
        worker = await run.start()
        await run.folded_all()
        for home in range(HOMES):
            said = f"partition {home}: nothing is released any more: budget of epoch/{home}/0: asked one more release"
            assert worker.log.read_text(encoding="utf-8").count(said) == 1
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0
        ends = await run.output_ends()
        bare = await run.start(datadir=str(tmp_path / "bare"))
        for home in range(HOMES):
            await bare.logged(f"partition {home}: at journal record {len(spent_calm.journals[home]) - 1} ")
        assert await run.output_ends() == ends
        assert await run.audit() == spent_calm
