"""The harness and the rigs as fixtures: test files do not import one another, so they come from here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from modules import module_at


@pytest.fixture(scope="session")
def pdap() -> Any:
    """The module of a small deployment of P-DAP, of stages alone."""
    return module_at(Path(__file__).with_name("harness.py"), "hushstream_test_pdap")
