"""The attacker, the relay and the reader of raw segments, as fixtures: test files do not import one another."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from modules import module_at

HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    return module_at(HERE / "harness" / f"{name}.py", f"hushstream_test_unlinkability_{name}")


@pytest.fixture(scope="session")
def raw() -> ModuleType:
    """Reads record batches as they lie in a segment."""
    return load("raw")


@pytest.fixture(scope="session")
def attacker() -> ModuleType:
    """Who sees both sides of the shuffler."""
    return load("attacker")


@pytest.fixture(scope="session")
def relay() -> ModuleType:
    """A learner's slots on their way into the log, each rule a switch."""
    return load("relay")


@pytest.fixture(scope="session")
def deployed() -> ModuleType:
    """A real learner worker on a broker whose segments can be read."""
    return load("deployed")
