"""The roles of a BGTplanner deployment, killed at each step of the protocol.

Third form of equality: disturbed and undisturbed runs fold the same frozen logs under the fixed schedule. Journals,
slots, releases, rounds and the ledger must be equal byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
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

KINDS = {"rater": 5, "collector": 4, "aggregator": 1}
"""Records in a batch."""

OTHERS = {"rater": {"updates": 1, "models": 1, "rounds": 1}, "collector": {"releases": 1}, "aggregator": {"rounds": 1}}

EARLY = (("snapshot", 0, 0), ("committed", 0, 0), ("decoded", 0, 1), ("folded", 0, 1), ("journal_sent", 0, 1))
MARKED = (("marking", 0, 1), ("marked", 0, 1))
LATE = (("journal_acked", 0, 1), ("released", 0, 2))
"""(step, partition, least sequence number). The journal of a collector has three records, and each crash of the later
steps leaves one fewer to be made: so they are spread over two runs."""


@pytest.fixture(scope="session")
def frozen_ratings(rating_logs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return rating_logs.freeze(tmp_path_factory.mktemp("ratings"))


@pytest.fixture(scope="session")
def deployed_ratings(frozen_ratings: Any, rating_logs: Any, real_roles: Any, harness: Any) -> Callable[..., Any]:
    def make(bench: Any, who: str, name: str, **settings: Any) -> Any:
        arguments = {"name": who, "folder": str(frozen_ratings.folder), "seed": rating_logs.KEY_SEED}
        return harness.Deployment(
            bench,
            f"ratings-{who}-{name}",
            f"{Path(real_roles.__file__)}:role",
            arguments,
            real_roles.role(**arguments),
            frozen_ratings.of(who),
            1,
            {"fixed_records": KINDS[who], **settings},
            OTHERS[who],
        )

    return make


def sent(audit: Any, topic: str, schema: str) -> list[dict[str, Any]]:
    found = [codec.decode(value) for (name, _), values in audit.releases.items() if name == topic for value in values]
    return [fields for name, fields in found if name == schema]


def hold(role: str, audit: Any, users: int) -> None:
    """Everybody sends one slot a round; a round is released once, and paid for once."""
    if role == "rater":
        slots = sent(audit, "updates", "RatingSlot")
        assert len({slot["slot_id"] for slot in slots}) == len(slots) == 3 * users
    elif role == "collector":
        assert sorted(one["round"] for one in sent(audit, "releases", "RatingSums")) == [0, 1, 2]
        assert len(sent(audit, "ledger", "LedgerEntry")) == 3
    else:
        assert sorted(one["number"] for one in sent(audit, "rounds", "RatingRound")) == [1, 2, 3]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def calm(bench: Any, harness: Any, deployed_ratings: Any, rating_logs: Any) -> Mapping[str, Any]:
    """What each role leaves of the frozen logs when nothing happens to it."""

    async def left(role: str) -> Any:
        async with deployed_ratings(bench, role, "calm", **harness.CALM) as run:
            await run.finish()
            audit = await run.audit()
            assert audit.repeats == audit.off_chain == 0, role
            hold(role, audit, rating_logs.USERS)
        return audit

    return dict(zip(KINDS, await asyncio.gather(*map(left, KINDS)), strict=True))


async def test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run(
    bench: Any, deployed_ratings: Any, rating_logs: Any, calm: Mapping[str, Any]
) -> None:
    async def sweep(role: str, name: str, crashes: Sequence[tuple[str, int, int]]) -> None:
        async with deployed_ratings(bench, role, name, in_flight=1) as run:
            await run.crash_sweep(crashes)
            audit = await run.audit()
            assert audit == calm[role], role
            assert audit.off_chain == 0, role
            hold(role, audit, rating_logs.USERS)

    async with asyncio.TaskGroup() as group:
        for role in KINDS:
            group.create_task(sweep(role, "early", EARLY if role == "aggregator" else (*EARLY, *MARKED)))
            group.create_task(sweep(role, "late", LATE))


async def test_topics_older_than_what_was_released_are_refused(
    bench: Any, deployed_ratings: Any, tmp_path: Path
) -> None:
    for role in ("rater", "collector"):
        paid = str(tmp_path / f"paid-{role}")
        async with deployed_ratings(bench, role, "whole", release_marks=paid) as run:
            await run.finish()
            audit = await run.audit()
        kept = {"deployment": run.values["deployment"], "role": run.values["role"], "release_marks": paid}
        older = deployed_ratings(bench, role, "older", **kept, datadir=str(tmp_path / role))
        older.copied_journals = {home: values[:2] for home, values in audit.journals.items()}
        async with older:
            before = await older.output_ends()
            worker = await older.start()
            assert await worker.exit_code() == 1
            assert "the topics are an older copy" in worker.log.read_text(encoding="utf-8")
            assert await older.output_ends() == before, "nothing is sent or drawn again"
