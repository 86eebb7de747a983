"""The rigs that feed machines real record bytes: test files do not import one another, so they come from here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

HARNESS = Path(__file__).parents[1] / "roles" / "harness.py"
NAME = "hushstream_test_rigs"


def load() -> Any:
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, HARNESS)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]


@pytest.fixture(scope="session")
def rigs() -> Any:
    """The module of the small deployment and its rigs."""
    return load()
