"""The real machines in the crash harness of `tests/agents`, which is loaded from its folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from frozen_logs import KEY_SEED
from modules import module_at

HERE = Path(__file__).parent
HARNESSES = {"bench": "agents"}
"""In which folder of tests a module is, if not in this one."""

UNITS = {"learner": 8, "shuffler": 16, "aggregator": 4}
"""Records (a learner's: contexts) in a batch of the fixed schedule: small, so that a run can be killed in many."""


def load(name: str) -> ModuleType:
    """A module of a harness under the name by which mypy knows it, so that harnesses may import one another."""
    folder = HARNESSES.get(name, "chaos")
    return module_at(HERE.parent / folder / "harness" / f"{name}.py", f"tests.{folder}.harness.{name}")


@pytest.fixture(scope="session")
def harness() -> Any:
    """The module of `Bench`, `Deployment` and `Tunnel`."""
    return load("bench")


@pytest.fixture(scope="session")
def promises() -> Any:
    """The module of what must hold after any fault, role by role."""
    return load("promises")


@pytest.fixture(scope="session")
def freezing() -> Any:
    """The module of a P2B deployment's frozen logs."""
    return load("frozen")


@pytest.fixture(scope="session")
def related() -> Any:
    """The module of a collaborative deployment's frozen logs."""
    return load("related")


@pytest.fixture(scope="session")
def record_logs() -> Any:
    """The module of the frozen records of a PDOL deployment."""
    return load("records")


@pytest.fixture(scope="session")
def rating_logs() -> Any:
    """The module of the frozen ratings of a BGTplanner deployment."""
    return load("ratings")


@pytest.fixture(scope="session")
def vendor_logs() -> Any:
    """The module of the frozen logs of vendors that share."""
    return load("vendors")


@pytest.fixture(scope="session")
def related_promises() -> Any:
    """The module of what must hold of a collaborative deployment after any fault."""
    return load("related_promises")


@pytest.fixture(scope="session")
def real_roles() -> Any:
    """The module that gives the real machines of a deployment's folder."""
    return load("roles")


@pytest.fixture(scope="session")
def schedule() -> Any:
    """The module of seeded schedules of faults."""
    return load("schedule")


@pytest.fixture(scope="session")
def sweep(schedule: Any, harness: Any, promises: Any) -> Any:
    """The module that runs schedules of faults; it names the modules that are loaded before it."""
    for name in ("frozen", "related", "related_promises", "roles", "losses", "faults"):
        load(name)
    return load("sweep")


@pytest.fixture(scope="session")
def faults(sweep: Any) -> Any:
    """The module of the operations, which a sweep loads."""
    return load("faults")


@pytest.fixture(scope="session")
def key_seed() -> int:
    """The seed of the keys under which the frozen logs were made."""
    return KEY_SEED


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The frozen input logs and their deployment's folder."""
    return load("frozen").freeze(tmp_path_factory.mktemp("deployment"))


@pytest.fixture(scope="session")
def deployed(frozen: Any, harness: Any) -> Callable[..., Any]:
    """Makes a `Deployment` of one role over the frozen logs: ``deployed(bench, "shuffler", "calm", **settings)``."""
    counts = {"learner": load("frozen").LEARNERS, "shuffler": load("frozen").SHUFFLERS, "aggregator": 1}
    others = {
        "learner": {"reports": counts["shuffler"], "models": 1},
        "shuffler": {"window-sums": 1},
        "aggregator": {},
    }

    def make(bench: Any, role: str, name: str, **settings: Any) -> Any:
        arguments = {"name": role, "folder": str(frozen.folder), "seed": KEY_SEED}
        return harness.Deployment(
            bench,
            f"{role}-{name}",
            f"{HERE}/harness/roles.py:role",
            arguments,
            load("roles").role(**arguments),
            frozen.of(role),
            counts[role],
            {"fixed_records": UNITS[role], **settings},
            others[role],
        )

    return make


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bench(harness: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """One broker and one zygote for all tests here; HUSHSTREAM_TEST_BOOTSTRAP names another broker."""
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    async with harness.Bench(tmp_path_factory.mktemp("bench"), given, [f"{HERE}/harness/roles.py:role"]) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def undisturbed(
    bench: Any, harness: Any, deployed: Callable[..., Any], frozen: Any, promises: Any
) -> Mapping[str, Any]:
    """What each role leaves of the frozen logs under the fixed schedule when nothing happens to it."""

    async def left(role: str) -> Any:
        async with deployed(bench, role, "calm", **harness.CALM) as run:
            await run.finish()
            audit = await run.audit()
            assert audit.repeats == audit.off_chain == 0, role
            await promises.check(role, run, audit, frozen)
        return audit

    return dict(zip(UNITS, await asyncio.gather(*map(left, UNITS)), strict=True))
