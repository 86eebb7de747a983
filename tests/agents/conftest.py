"""The harness as fixtures: test files do not import one another, so it comes from here."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from modules import module_at

HARNESS = Path(__file__).with_name("harness")

BASES = {"just up": 0.0, "10 s": 10.0, "2 h": 7200.3, "40 days": 40 * 86400.0, "272 years": 2.0**33}
"""Uptimes in seconds. The larger one is, the coarser are the floats that moments are rounded to."""


@pytest.fixture(params=BASES.values(), ids=BASES.keys())
def base(request: pytest.FixtureRequest) -> float:
    """Where a clock stands when a test begins: nothing may follow from it."""
    return float(request.param)


def load(name: str, folder: Path = HARNESS) -> ModuleType:
    return module_at(folder / f"{name}.py", f"hushstream_test_{name}")


@pytest.fixture(scope="session")
def harness() -> Any:
    """The module of `Bench`, `Deployment` and `Tunnel`."""
    return load("bench")


@pytest.fixture(scope="session")
def machines() -> Any:
    """The module of the small machines; its file is their factories' home."""
    return load("machines")


@pytest.fixture(scope="session")
def bombs() -> Any:
    """The module of record batches that are large when they are unpacked; `make drill` uses it, too."""
    return load("bomb", HARNESS.parents[1] / "drills")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(harness: Any, machines: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """One broker and one zygote for all tests of a module; HUSHSTREAM_TEST_BOOTSTRAP names another broker."""
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    preload = [f"{machines.__file__}:counting"]
    async with harness.Bench(tmp_path_factory.mktemp("bench"), given, preload) as made:
        yield made
