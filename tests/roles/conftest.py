"""The rigs of collaborative systems as a fixture: test files do not import one another, so it comes from here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

NAME = "hushstream_test_collaborative_rigs"


@pytest.fixture(scope="session")
def related(rigs: Any) -> Any:
    """The module of the small collaborative deployment and its rigs, which needs that of ``rigs``."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, Path(__file__).with_name("collaborative_harness.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]
