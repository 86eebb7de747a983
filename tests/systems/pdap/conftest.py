"""The harness and the rigs as fixtures: test files do not import one another, so they come from here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


def _module(name: str, file: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def pdap() -> Any:
    """The module of a small deployment of P-DAP, of stages alone."""
    return _module("hushstream_test_pdap", "harness.py")
