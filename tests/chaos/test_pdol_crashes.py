"""Domains and aggregator of a PDOL deployment, killed at each step of the protocol.

Third form of equality: disturbed and undisturbed runs fold the same frozen logs under the fixed schedule. Journals,
releases and the ledger must be equal byte for byte.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
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

MARKS = ("marking", "marked")
STEPS = ("snapshot", "committed", *MARKS, "decoded", "folded", "journal_sent", "journal_acked", "released")
KINDS = {"node": (3, 6), "aggregator": (1, 1)}
"""Home partitions, and records in a batch."""


@pytest.fixture(scope="session")
def frozen_records(record_logs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return record_logs.freeze(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="session")
def frozen_nodes(record_logs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return record_logs.freeze(tmp_path_factory.mktemp("nodes"), "node")


@pytest.fixture(scope="session")
def frozen_gossip(record_logs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return record_logs.freeze_gossip(tmp_path_factory.mktemp("gossip"))


@pytest.fixture(scope="session")
def deployed_records(frozen_records: Any, record_logs: Any, real_roles: Any, harness: Any) -> Callable[..., Any]:
    def make(bench: Any, who: str, name: str, logs: Any = frozen_records, **settings: Any) -> Any:
        homes, unit = KINDS[who]
        arguments = {"name": who, "folder": str(logs.folder), "seed": record_logs.KEY_SEED}
        return harness.Deployment(
            bench,
            f"records-{who}-{name}",
            f"{Path(real_roles.__file__)}:role",
            arguments,
            real_roles.role(**arguments),
            logs.of(who),
            homes,
            {"fixed_records": unit, **settings},
            {"releases": 1, "models": 1} if who == "node" else {},
        )

    return make


def hold(role: str, audit: Any, frozen: Any) -> None:
    """Every record is answered once; every domain pays once for all that it released."""
    if role != "node":
        return
    answered: Counter[str] = Counter()
    released = 0
    for values in audit.journals.values():
        for value in values[1:]:
            fields = codec.decode(value)[1]
            released += fields["releases"]
            answered.update(e for e, again in zip(fields["event_ids"], fields["repeated"], strict=True) if not again)
    assert answered == Counter({f"record-{place}": 1 for place in range(len(frozen.stream))})
    sums = [
        codec.decode(value) for (topic, _), values in audit.releases.items() if topic == "releases" for value in values
    ]
    assert sum(name == "GradientSum" for name, _ in sums) == released > 0
    entries = [values for (topic, _), values in audit.releases.items() if topic == "ledger"]
    assert [len(values) for values in entries] == [1] * KINDS["node"][0]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def calm(bench: Any, harness: Any, deployed_records: Any, frozen_records: Any) -> Mapping[str, Any]:
    """What each role leaves of the frozen logs when nothing happens to it."""

    async def left(role: str) -> Any:
        async with deployed_records(bench, role, "calm", **harness.CALM) as run:
            await run.finish()
            audit = await run.audit()
            assert audit.repeats == audit.off_chain == 0, role
            hold(role, audit, frozen_records)
        return audit

    return dict(zip(KINDS, await asyncio.gather(*map(left, KINDS)), strict=True))


def crashes(role: str, audit: Any) -> list[tuple[str, int, int]]:
    """(step, home partition, least sequence number): all partitions in turn, early in the journals."""
    found = []
    steps = [step for step in STEPS if step not in MARKS or role != "aggregator"]
    for n, step in enumerate(steps):
        home = n % len(audit.journals)
        last = len(audit.journals[home]) - 1
        found.append((step, home, 1 + last * n // (3 * len(steps))))
    return found


async def test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run(
    bench: Any, deployed_records: Any, frozen_records: Any, calm: Mapping[str, Any]
) -> None:
    async def sweep(role: str) -> None:
        async with deployed_records(bench, role, "killed") as run:
            await run.crash_sweep(crashes(role, calm[role]))
            audit = await run.audit()
            assert audit == calm[role], role
            assert audit.off_chain == 0, role
            hold(role, audit, frozen_records)

    async with asyncio.TaskGroup() as group:
        for role in KINDS:
            group.create_task(sweep(role))


async def test_killed_at_each_step_nodes_with_learners_of_their_own_leave_the_bytes_of_an_undisturbed_run(
    bench: Any, harness: Any, deployed_records: Any, frozen_nodes: Any
) -> None:
    """Their learners are edge-zone state that follows from the log alone, like everything else."""
    async with deployed_records(bench, "node", "own-calm", frozen_nodes, **harness.CALM) as run:
        await run.finish()
        undisturbed = await run.audit()
    async with deployed_records(bench, "node", "own-killed", frozen_nodes) as run:
        await run.crash_sweep(crashes("node", undisturbed))
        audit = await run.audit()
    assert audit == undisturbed
    assert audit.off_chain == 0
    hold("node", audit, frozen_nodes)


async def test_an_owner_that_wakes_after_its_session_adds_no_second_content(
    bench: Any, deployed_records: Any, frozen_records: Any
) -> None:
    async with deployed_records(bench, "node", "woken", schedule="live") as run:
        run.pace_seconds = 0.01
        await run.outlived(("journal_sent", 0, 3), batches=(5, 7))
        audit = await run.audit()  # asserts that nothing off the chain was released
        hold("node", audit, frozen_records)


async def test_topics_older_than_what_was_released_are_refused_though_one_debit_paid_for_all(
    bench: Any, deployed_records: Any, tmp_path: Path
) -> None:
    async with deployed_records(bench, "node", "whole", release_marks=str(tmp_path / "paid")) as run:
        await run.finish()
        audit = await run.audit()
    last = 2 * len(audit.journals[0]) // 3
    kept = {"deployment": run.values["deployment"], "role": run.values["role"], "release_marks": str(tmp_path / "paid")}
    older = deployed_records(bench, "node", "older", **kept, datadir=str(tmp_path / "state"))
    older.copied_journals = {home: values[:last] for home, values in audit.journals.items()}
    async with older:
        before = await older.output_ends()
        worker = await older.start()
        assert await worker.exit_code() == 1
        assert "the topics are an older copy" in worker.log.read_text(encoding="utf-8")
        assert await older.output_ends() == before, "nothing is drawn again"


async def test_killed_at_each_step_nodes_of_the_published_form_go_on_with_what_was_sent(
    bench: Any, frozen_gossip: Any, record_logs: Any, real_roles: Any, harness: Any
) -> None:
    """What neighbours send is input and output, so runs differ; each answers, sends and journals everything once."""
    frozen = frozen_gossip
    homes, rounds = record_logs.DOMAINS, record_logs.ROUNDS
    arguments = {"name": "node", "folder": str(frozen.folder), "seed": record_logs.KEY_SEED}
    inputs = {place: log for place, log in frozen.logs.items() if place[0] == "records"}
    making = f"{Path(real_roles.__file__)}:role", arguments, real_roles.role(**arguments)
    run = harness.Deployment(
        bench, "records-gossip", *making, inputs, homes, {"schedule": "live"}, {"parameters": homes}
    )
    async with run:
        await run.crash_sweep([(step, n % homes, 1 + n) for n, step in enumerate(STEPS)])
        audit = await run.audit()  # recomputes all of it, and asserts that nothing else was released
    answered: Counter[str] = Counter()
    for values in audit.journals.values():
        for value in values[1:]:
            fields = codec.decode(value)[1]
            answered.update(e for e, again in zip(fields["event_ids"], fields["repeated"], strict=True) if not again)
    assert answered == Counter({f"record-{place}": 1 for place in range(len(frozen.stream))})
    sent = [[codec.decode(value) for value in audit.releases["parameters", home]] for home in range(homes)]
    for home, records in enumerate(sent):
        after = sorted(fields["after"] for name, fields in records if name == "Parameters")
        assert after == list(range(1, rounds + 1)), f"node {home} sends once after each round"
