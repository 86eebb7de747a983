"""The harness as a fixture: test files do not import one another, so it comes from here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

NAME = "hushstream_test_pdap"


@pytest.fixture(scope="session")
def pdap() -> Any:
    """The module of a small deployment of P-DAP."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, Path(__file__).parent / "harness.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]
