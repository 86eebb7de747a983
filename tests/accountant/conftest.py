"""Loads what the tests of this folder share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from modules import module_at

HARNESS = Path(__file__).parent / "harness"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--configurations", type=int, default=20, help="random configurations of each system to compare")


@pytest.fixture(scope="session")
def accountant() -> Any:
    """The modules of the harness by name; each may name those before it."""
    modules = SimpleNamespace()
    for name in ("settings", "oracle", "cases", "formulas", "configurations", "figures"):
        setattr(modules, name, module_at(HARNESS / f"{name}.py", f"hushstream_test_accountant_{name}"))
    return modules
