"""Learner, counter and aggregator of a collaborative deployment, killed at each step of the protocol.

Third form of equality: disturbed and undisturbed runs fold the same frozen logs under the fixed schedule. Journals,
releases and the ledger must be equal byte for byte; of topics that are sent at least once a reader drops repeats.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from hushstream.schemas import codec
from patience import Patience

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
]

MARKS = ("marking", "marked")
"""Steps of roles that note how far they have released; an aggregator holds no key, and notes nothing."""
STEPS = ("snapshot", "committed", *MARKS, "decoded", "folded", "journal_sent", "journal_acked", "released")
"""Those that come at intervals first: when they come, several batches more have been folded."""
KINDS = {
    "learner": ("server", "learner", 3, 10),
    "edge learner": ("learner", "learner", 3, 10),
    "counter": ("server", "counter", 1, 4),
    "aggregator": ("server", "aggregator", 1, 1),
}
"""Who adds the noise, the role, its home partitions, and the records (a learner's: contexts) in a batch."""


@pytest.fixture(scope="session")
def populations(related: Any, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return {
        noise_at: related.freeze(tmp_path_factory.mktemp(f"related-{noise_at}"), noise_at)
        for noise_at in ("server", "learner")
    }


@pytest.fixture(scope="session")
def deployed_related(populations: Any, related: Any, real_roles: Any, harness: Any) -> Callable[..., Any]:
    """Makes a `Deployment` of one kind of role over the frozen logs; ``logs`` may stand in their place."""

    def make(bench: Any, kind: str, name: str, logs: Any = None, **settings: Any) -> Any:
        noise_at, role, homes, unit = KINDS[kind]
        frozen = populations[noise_at]
        arguments = {"name": role, "folder": str(frozen.folder), "seed": related.KEY_SEED}
        return harness.Deployment(
            bench,
            f"related-{kind.replace(' ', '-')}-{name}",
            f"{Path(real_roles.__file__)}:role",
            arguments,
            real_roles.role(**arguments),
            frozen.of(role) if logs is None else logs,
            homes,
            {"fixed_records": unit, **settings},
            {"rewards": 1, "releases": 1, "models": 1} if role == "learner" else {},
        )

    return make


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def calm(
    bench: Any, harness: Any, deployed_related: Any, populations: Any, related_promises: Any
) -> Mapping[str, Any]:
    """What each kind of role leaves of the frozen logs when nothing happens to it."""

    async def left(kind: str) -> Any:
        noise_at, role, *_ = KINDS[kind]
        async with deployed_related(bench, kind, "calm", **harness.CALM) as run:
            await run.finish()
            audit = await run.audit()
            assert audit.repeats == audit.off_chain == 0, kind
            await related_promises.check(role, run, audit, populations[noise_at])
        return audit

    return dict(zip(KINDS, await asyncio.gather(*map(left, KINDS)), strict=True))


def crashes(kind: str, audit: Any) -> list[tuple[str, int, int]]:
    """(step, home partition, least sequence number): all partitions in turn, early in the journals.

    A worker goes on in all partitions until it is killed in one: late in the journals nothing would be left to do.
    """
    found = []
    steps = [step for step in STEPS if step not in MARKS or kind != "aggregator"]
    for n, step in enumerate(steps):
        home = n % len(audit.journals)
        last = len(audit.journals[home]) - 1
        assert last >= 2 * len(steps), f"{kind}: too few records to be killed in"
        found.append((step, home, 1 + last * n // (3 * len(steps))))
    return found


async def test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run(
    bench: Any, deployed_related: Any, populations: Any, related_promises: Any, calm: Mapping[str, Any]
) -> None:
    async def sweep(kind: str) -> None:
        noise_at, role, *_ = KINDS[kind]
        async with deployed_related(bench, kind, "killed") as run:
            await run.crash_sweep(crashes(kind, calm[kind]))
            audit = await run.audit()
            assert audit == calm[kind], kind
            assert audit.off_chain == 0, kind
            await related_promises.check(role, run, audit, populations[noise_at])

    async with asyncio.TaskGroup() as group:
        for kind in KINDS:
            group.create_task(sweep(kind))


async def test_a_machine_that_lost_its_data_directory_recovers_from_the_journal_alone(
    bench: Any, deployed_related: Any, calm: Mapping[str, Any], tmp_path: Path
) -> None:
    async def restarted(kind: str) -> None:
        homes = KINDS[kind][2]
        async with deployed_related(bench, kind, "bare", snapshot_interval_seconds=1000) as run:
            await run.crash_sweep([("journal_sent", homes - 1, 6)])
            audit = await run.audit()
            assert audit == calm[kind], kind
            bare = await run.start(datadir=str(tmp_path / kind))
            for home in range(homes):
                await bare.logged(f"partition {home}: at journal record {len(audit.journals[home]) - 1} ")
            assert bare.log.read_text(encoding="utf-8").count(" 0 outputs sent again") == homes, (
                "all of it was committed"
            )

    async with asyncio.TaskGroup() as group:
        for kind in KINDS:
            group.create_task(restarted(kind))


async def test_an_owner_that_wakes_after_its_session_adds_no_second_content(
    bench: Any, deployed_related: Any, populations: Any, related_promises: Any, calm: Mapping[str, Any]
) -> None:
    async def woken(kind: str, stage: str) -> None:
        noise_at, role, *_ = KINDS[kind]
        async with deployed_related(bench, kind, f"woken-{stage}", schedule="live") as run:
            run.pace_seconds = 0.01
            await run.outlived((stage, 0, 3), batches=(5, 7))
            audit = await run.audit()  # asserts that nothing off the chain was released
            await related_promises.check(role, run, audit, populations[noise_at])
        if role != "learner":  # a learner's journal says which batches were cut, the others' do not
            assert (audit.journals, audit.releases) == (calm[kind].journals, calm[kind].releases)

    stages = ("folded", "journal_sent", "journal_acked", "marking")
    async with asyncio.TaskGroup() as group:
        for kind, stage in [*(("counter", stage) for stage in stages), ("edge learner", "journal_sent")]:
            group.create_task(woken(kind, stage))


# Rule 7, with a real worker.


def flipped(log: list[tuple[int, bytes]], least: int) -> tuple[int, list[tuple[int, bytes]]]:
    """The log with every reward of one record replaced by another: the first from an offset on."""
    offset = next(
        place
        for place, (_, value) in enumerate(log)
        if place >= least and value[:2] == b"\xc3\x01" and codec.decode(value)[0] == "Rewards"
    )
    time_ms, value = log[offset]
    name, fields = codec.decode(value)
    rewards = 1.0 - np.frombuffer(fields["rewards"], "<f8")
    changed = codec.encode(name, {**fields, "rewards": rewards.astype("<f8").tobytes()})
    return offset, [*log[:offset], (time_ms, changed), *log[offset + 1 :]]


async def values_until(run: Any, place: tuple[str, int], enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    waiting = Patience(30)
    while True:
        values: list[bytes] = await run.values_of(place)
        if enough(values):
            return values
        assert not waiting.over, f"{place}: {len(values)} values and not what was waited for"
        await asyncio.sleep(0.1)


def decoded(values: list[bytes]) -> list[dict[str, Any]]:
    return [dict(codec.decode(value)[1]) for value in values]


async def test_a_counter_whose_inputs_changed_while_it_was_down_sends_nothing_twice_and_pays_for_a_new_epoch(
    bench: Any, deployed_related: Any, populations: Any
) -> None:
    frozen = populations["server"]
    whole = frozen.logs["rewards", 0]
    async with deployed_related(bench, "counter", "before") as run:
        run.pace_seconds = 0.01
        worker = await run.start(("journal_acked", 0, 20))
        assert await worker.exit_code() == -signal.SIGKILL
        journal = await run.values_of(("journal-counter", 0))
        released = await run.values_of(("releases", 0))
    records = decoded(journal[1:])
    high = records[-1]["head"]["inputs"][0]["high"]
    offset, log = flipped(whole[:high], high // 2)
    first_changed = next(n for n, r in enumerate(records) if r["head"]["inputs"][0]["high"] > offset)
    assert 0 < first_changed < len(records) - 2

    run = deployed_related(bench, "counter", "after", {("rewards", 0): log}, schedule="live")
    run.copied_journals = {0: journal}
    async with run:
        worker = await run.start()
        await worker.logged("a new epoch begins with the next release")
        await worker.logged(f"at journal record {len(records)} ")
        again = await run.values_of(("releases", 0))
        assert again == released[:first_changed], "what still follows from the log, with the same bytes, and no more"
        await run.append({("rewards", 0): whole[high:]})
        await values_until(run, ("releases", 0), lambda values: len(values) >= first_changed + 3)
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0
        releases = decoded(await run.values_of(("releases", 0)))
        entries = decoded(await run.values_of(("ledger", 0)))
        followed = decoded((await run.values_of(("journal-counter", 0)))[len(journal) :])
        # Its own journal can be followed by the next worker, who sends nothing that is not there already.
        ends = await run.output_ends()
        heir = await run.start(datadir=str(run.settings.datadir) + "-other")
        await heir.logged(f"at journal record {len(records) + len(followed)} ")
        assert await run.output_ends() == ends
        heir.kill(signal.SIGTERM)
        assert await heir.exit_code() == 0
    fresh = releases[first_changed:]
    assert {release["epoch"] for release in fresh} == {1}
    assert [release["leaf"] for release in fresh] == [len(records) + 1 + n for n in range(len(fresh))]
    assert not {release["release_id"] for release in fresh} & {release["release_id"] for release in decoded(released)}
    price = round(1_000_000 * frozen.system.config.release.epsilon)
    assert [entry["debit"]["epsilon_micro"] for entry in entries] == [price, price]
    assert [entry["debit"]["scope"] for entry in entries] == ["epoch/0/0", "epoch/0/1/renewal/1"]
    assert followed[0]["debit"] == entries[1]["debit"]
    assert {record["debit"]["epsilon_micro"] for record in followed[1:]} == {0}


@pytest.mark.parametrize("kind", ["counter", "edge learner"])
async def test_topics_older_than_what_was_released_are_refused_though_one_debit_paid_for_all(
    bench: Any, deployed_related: Any, kind: str, tmp_path: Path
) -> None:
    async with deployed_related(bench, kind, "whole", release_marks=str(tmp_path / "paid")) as run:
        await run.finish()
        audit = await run.audit()
    assert len(audit.releases["ledger", 0]) == 1, "one debit pays for all"
    last = 2 * len(audit.journals[0]) // 3
    kept = {"deployment": run.values["deployment"], "role": run.values["role"], "release_marks": str(tmp_path / "paid")}
    older = deployed_related(bench, kind, "older", **kept, datadir=str(tmp_path / "state"))
    older.copied_journals = {home: values[:last] for home, values in audit.journals.items()}
    async with older:
        before = await older.output_ends()
        worker = await older.start()
        assert await worker.exit_code() == 1
        assert "the topics are an older copy" in worker.log.read_text(encoding="utf-8")
        assert await older.output_ends() == before, "nothing is drawn again"
