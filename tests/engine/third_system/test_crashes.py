"""Both roles of a system of another package, killed at each step of the protocol and on a copy of older topics.

Disturbed and undisturbed runs fold the same frozen votes under the fixed schedule: journals, releases and the ledger
must be equal byte for byte. Nothing here knows the engine's steps but by their names.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from hushstream.agents.worker.deployment import KeySource, load, parse_config, prepare
from hushstream.schemas import codec

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

TESTS = Path(__file__).parents[2]
KEY_SEED = 4
START_MS, CLOCK_STEP_MS = 1_700_000_000_000, 100
VOTERS = 60
STEPS = ("snapshot", "committed", "decoded", "folded", "journal_sent", "journal_acked", "released")
MARKED = ("marking", "marked")
"""Steps of a role that releases under noise."""
KINDS = {"tally": (2, 4), "board": (1, 1)}
"""Home partitions, and records in a batch."""
WRITTEN = {"tally": {"tallies": 1, "spent-on-votes": 2}, "board": {}}


def harness_module(folder: str, name: str) -> ModuleType:
    """A module of a harness under the name that other tests know it by."""
    known = f"tests.{folder}.harness.{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, TESTS / folder / "harness" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


class Frozen(NamedTuple):
    """What each role reads, and the folder of the deployment."""

    folder: Path
    logs: Mapping[tuple[str, int], list[tuple[int, bytes]]]
    votes: int


@pytest.fixture(scope="module")
def frozen(kind: Any, play: Any, values: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    folder = tmp_path_factory.mktemp("poll") / "drinks"
    prepare(folder, parse_config(values), {"options": ("options", "tea\ncoffee\nwater")})
    made = play(load(folder), KeySource(seed=KEY_SEED))
    for number in range(VOTERS):
        made.vote(f"user-{number}", number % 3)
        made.vote(f"user-{number}", (number + 1) % 3)
        if number % 10 == 0:
            made.vote(f"user-{number}", 9, f"unknown-{number}")
    made.driver.pump()
    logs = {
        place: [(START_MS + CLOCK_STEP_MS * n, record.value) for n, record in enumerate(part)]
        for place, part in made.log.partitions()
        if place[0] in ("votes", "tallies")
    }
    return Frozen(folder, logs, 2 * VOTERS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(frozen: Frozen, package: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """A broker and a zygote whose workers find the other package; HUSHSTREAM_TEST_BOOTSTRAP names another broker."""
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    harness = harness_module("agents", "bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(package))
        async with harness.Bench(tmp_path_factory.mktemp("bench"), given) as made:
            yield made


def deployed(bench: Any, frozen: Frozen, role: str, name: str, /, **settings: Any) -> Any:
    homes, unit = KINDS[role]
    roles = harness_module("chaos", "roles")
    arguments = {"name": role, "folder": str(frozen.folder), "seed": KEY_SEED}
    making = roles.role(**arguments)
    read = {"tally": "votes", "board": "tallies"}[role]
    return harness_module("agents", "bench").Deployment(
        bench,
        f"poll-{role}-{name}",
        f"{roles.__file__}:role",
        arguments,
        making,
        {place: log for place, log in frozen.logs.items() if place[0] == read},
        homes,
        {"fixed_records": unit, **settings},
        WRITTEN[role],
    )


def hold(role: str, audit: Any, frozen: Frozen) -> None:
    """Every full window is released once and paid for once; the board shows each."""
    of = {
        name: [codec.decode(v) for (t, _), vs in audit.releases.items() if t == name for v in vs]
        for name in WRITTEN[role]
    }
    if role == "tally":
        assert len(of["tallies"]) == len(of["spent-on-votes"]) > 4
        assert sum(map(len, audit.releases.values())) >= len(of["tallies"]) + VOTERS // 10, "letters of unknown options"
    else:
        shown = [codec.decode(value)[0] for value in audit.journals[0]]
        assert shown.count("Standing") == sum(len(log) for (topic, _), log in frozen.logs.items() if topic == "tallies")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calm(bench: Any, frozen: Frozen) -> Mapping[str, Any]:
    """What each role leaves of the frozen logs when nothing happens to it."""

    async def left(role: str) -> Any:
        async with deployed(bench, frozen, role, "calm", **harness_module("agents", "bench").CALM) as run:
            await run.finish()
            audit = await run.audit()
        assert audit.repeats == audit.off_chain == 0, role
        hold(role, audit, frozen)
        return audit

    return dict(zip(KINDS, await asyncio.gather(*map(left, KINDS)), strict=True))


def crashes(role: str, audit: Any) -> list[tuple[str, int, int]]:
    """(step, home partition, least sequence number): all partitions in turn, early in the journals."""
    steps = [*STEPS[:2], *(MARKED if role == "tally" else ()), *STEPS[2:]]
    return [
        (step, n % len(audit.journals), 1 + (len(audit.journals[n % len(audit.journals)]) - 1) * n // (3 * len(steps)))
        for n, step in enumerate(steps)
    ]


async def test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run(
    bench: Any, frozen: Frozen, calm: Mapping[str, Any]
) -> None:
    async def sweep(role: str) -> None:
        async with deployed(bench, frozen, role, "killed") as run:
            await run.crash_sweep(crashes(role, calm[role]))
            audit = await run.audit()
        assert audit == calm[role], role
        assert audit.off_chain == 0, role
        hold(role, audit, frozen)

    async with asyncio.TaskGroup() as group:
        for role in KINDS:
            group.create_task(sweep(role))


async def test_topics_older_than_what_was_released_are_refused_and_nothing_is_written(
    bench: Any, frozen: Frozen, calm: Mapping[str, Any], tmp_path: Path
) -> None:
    async with deployed(bench, frozen, "tally", "whole", release_marks=str(tmp_path / "paid")) as run:
        await run.finish()
        audit = await run.audit()
    kept = {"deployment": run.values["deployment"], "role": run.values["role"], "release_marks": str(tmp_path / "paid")}
    older = deployed(bench, frozen, "tally", "older", **kept, datadir=str(tmp_path / "state"))
    older.copied_journals = {home: values[: 2 * len(values) // 3] for home, values in audit.journals.items()}
    async with older:
        before = await older.output_ends()
        worker = await older.start()
        assert await worker.exit_code() == 1
        assert "the topics are an older copy" in worker.log.read_text(encoding="utf-8")
        assert await older.output_ends() == before, "nothing is drawn again"
