"""A vendor's learner, the counter and the aggregator of a P-DAP deployment, killed at each step of the protocol.

Third form of equality: disturbed and undisturbed runs fold the same frozen logs under the fixed schedule. Journals,
outcomes, blocks, tickets and the ledger must be equal byte for byte.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
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
LEARNER = "learner.vendor-0"
KINDS = {LEARNER: (2, 3), "counter": (1, 1), "aggregator": (1, 1)}
"""Home partitions, and records (a learner's: contexts) in a batch."""
WRITTEN = {"outcomes": 1, "forwards.vendor-1": 1, "models": 1, "items.vendor-0": 1}
"""Topics of the learner beside its home's."""


@pytest.fixture(scope="session")
def frozen_vendors(vendor_logs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return vendor_logs.freeze(tmp_path_factory.mktemp("vendors"))


@pytest.fixture(scope="session")
def deployed_vendors(frozen_vendors: Any, vendor_logs: Any, real_roles: Any, harness: Any) -> Callable[..., Any]:
    def make(bench: Any, who: str, name: str, **settings: Any) -> Any:
        homes, unit = KINDS[who]
        arguments = {"name": who, "folder": str(frozen_vendors.folder), "seed": vendor_logs.KEY_SEED}
        return harness.Deployment(
            bench,
            f"vendors-{who.partition('.')[0]}-{name}",
            f"{Path(real_roles.__file__)}:role",
            arguments,
            real_roles.role(**arguments),
            frozen_vendors.of(who),
            homes,
            {"fixed_records": unit, **settings},
            WRITTEN if who == LEARNER else {"releases": 1},
        )

    return make


def values(audit: Any, topic: str, schema: str) -> list[Mapping[str, Any]]:
    found = [codec.decode(value) for (name, _), those in audit.releases.items() if name == topic for value in those]
    return [fields for name, fields in found if name == schema]


def names_in(records: list[Mapping[str, Any]]) -> Counter[bytes]:
    return Counter(fields["names"][at : at + 16] for fields in records for at in range(0, len(fields["names"]), 16))


def hold(role: str, audit: Any, frozen: Any, fixed: bool = True) -> None:
    """Every event is decided once and leaves once; every outcome is in one block at most, and all are paid for once.

    What a vendor said of its items is passed on, once.
    """
    passed_on = {LEARNER: "outcomes", "counter": "releases"}
    if role in passed_on:
        changes = values(audit, passed_on[role], "ArmChange")
        arms = frozen.system.config.vendors[0].arms
        own = [(fields["arm"], fields["offered"]) for fields in changes if fields["arm"] < arms]
        assert sorted(own) == sorted([*((arm, True) for arm in range(arms)), (2, False), (4, False)])
    if role == LEARNER:
        decided = Counter(
            event
            for journal in audit.journals.values()
            for value in journal[1:]
            for event in codec.decode(value)[1]["event_ids"]
        )
        own = {f"visit:{event}" for event in np.flatnonzero(frozen.visits.arrivals.homes == 0)}
        # A learner that has not read its catalogue yet has nothing to show: such contexts are refused, and clients ask
        # again (`tests/client/test_answers_at_once.py`). Where all is merged by log time there is none.
        assert own <= decided.keys() or (not fixed and own & decided.keys())
        assert set(decided.values()) == {1}
        left = names_in(values(audit, "outcomes", "Outcomes"))
        assert set(left.values()) == {1}
        # What was never shown, as probes are not, leaves nothing; nor does an event whose model came at another time
        # than when the log was made, so that another arm was decided than was shown.
        assert len(left) == len(own) or (not fixed and 0 < len(left) < len(own))
    elif role == "counter":
        came = names_in([codec.decode(value)[1] for _, value in frozen.logs["outcomes", 0] if _is_outcomes(value)])
        releases = values(audit, "releases", "BlockRelease")
        assert len({fields["window"] for fields in releases}) == len(releases) > 20
        assert sum(fields["outcomes"] for fields in releases) == len(came)
        blocked = sum(int(np.frombuffer(fields["counts"], "<i8").sum()) for fields in releases)
        assert 0 < blocked <= len(came)
        (entry,) = values(audit, "ledger", "LedgerEntry")
        assert entry["debit"]["epsilon_micro"] == 2_000_000


def _is_outcomes(value: bytes) -> bool:
    return codec.decode(value)[0] == "Outcomes"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def calm(bench: Any, harness: Any, deployed_vendors: Any, frozen_vendors: Any) -> Mapping[str, Any]:
    """What each role leaves of the frozen logs when nothing happens to it."""

    async def left(role: str) -> Any:
        async with deployed_vendors(bench, role, "calm", **harness.CALM) as run:
            await run.finish()
            audit = await run.audit()
            assert audit.repeats == audit.off_chain == 0, role
            hold(role, audit, frozen_vendors)
        return audit

    return dict(zip(KINDS, await asyncio.gather(*map(left, KINDS)), strict=True))


def crashes(role: str, audit: Any) -> list[tuple[str, int, int]]:
    """(step, home partition, least sequence number): all partitions in turn, early in the journals."""
    found = []
    steps = [step for step in STEPS if step not in MARKS or role != "aggregator"]
    for n, step in enumerate(steps):
        home = n % len(audit.journals)
        last = len(audit.journals[home]) - 1
        assert last >= 2 * len(steps), f"{role}: too few records to be killed in"
        found.append((step, home, 1 + last * n // (3 * len(steps))))
    return found


async def test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run(
    bench: Any, deployed_vendors: Any, frozen_vendors: Any, calm: Mapping[str, Any]
) -> None:
    async def sweep(role: str) -> None:
        async with deployed_vendors(bench, role, "killed") as run:
            await run.crash_sweep(crashes(role, calm[role]))
            audit = await run.audit()
            assert audit == calm[role], role
            assert audit.off_chain == 0, role
            hold(role, audit, frozen_vendors)

    async with asyncio.TaskGroup() as group:
        for role in KINDS:
            group.create_task(sweep(role))


async def test_an_owner_that_wakes_after_its_session_adds_no_second_content(
    bench: Any, deployed_vendors: Any, frozen_vendors: Any
) -> None:
    async def woken(role: str) -> None:
        async with deployed_vendors(bench, role, "woken", schedule="live") as run:
            run.pace_seconds = 0.02
            await run.outlived(("journal_sent", 0, 3), batches=(5, 7))
            audit = await run.audit()  # asserts that nothing off the chain was released
            hold(role, audit, frozen_vendors, fixed=False)

    async with asyncio.TaskGroup() as group:
        for role in (LEARNER, "counter"):
            group.create_task(woken(role))


async def test_topics_older_than_what_was_released_are_refused(
    bench: Any, deployed_vendors: Any, tmp_path: Path
) -> None:
    async def older(role: str) -> None:
        paid = str(tmp_path / role / "paid")
        async with deployed_vendors(bench, role, "whole", release_marks=paid) as run:
            await run.finish()
            audit = await run.audit()
        last = 2 * len(audit.journals[0]) // 3
        kept = {"deployment": run.values["deployment"], "role": run.values["role"], "release_marks": paid}
        again = deployed_vendors(bench, role, "older", **kept, datadir=str(tmp_path / role / "state"))
        again.copied_journals = {home: values[:last] for home, values in audit.journals.items()}
        async with again:
            before = await again.output_ends()
            worker = await again.start()
            assert await worker.exit_code() == 1
            assert "the topics are an older copy" in worker.log.read_text(encoding="utf-8")
            assert await again.output_ends() == before, "nothing is drawn again"

    async with asyncio.TaskGroup() as group:
        for role in (LEARNER, "counter"):
            group.create_task(older(role))
