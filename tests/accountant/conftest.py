"""Loads what the tests of this folder share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HARNESS = Path(__file__).parent / "harness"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--configurations", type=int, default=20, help="random configurations of each system to compare")


@pytest.fixture(scope="session")
def accountant() -> Any:
    """The modules of the harness by name; each may name those before it."""
    modules = SimpleNamespace()
    for name in ("settings", "oracle", "cases", "formulas", "configurations", "figures"):
        full = f"hushstream_test_accountant_{name}"
        spec = importlib.util.spec_from_file_location(full, HARNESS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
        setattr(modules, name, sys.modules[full])
    return modules
