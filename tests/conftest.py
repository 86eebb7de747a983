"""What all tests share: rigs that feed machines real record bytes, and skips that count as failures in CI."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test fails by how long it takes: a busy machine takes longer.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

SYSTEMS = Path(__file__).parent / "systems"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """With HUSHSTREAM_NO_SKIPS set, a skipped test fails: there everything that it needs is installed.

    Its value is 1 for every test, or folders of tests with a colon between.
    """
    report = yield
    folders = os.environ.get("HUSHSTREAM_NO_SKIPS", "")
    if report.skipped and (
        folders == "1" or any(folder and item.nodeid.startswith(folder) for folder in folders.split(":"))
    ):
        report.outcome = "failed"
    return report


def _module(name: str, path: Path) -> Any:
    """A module of a test folder: test files do not import one another, so what they share comes from here."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def rigs() -> Any:
    """The module of the small deployment and its rigs."""
    return _module("hushstream_test_rigs", SYSTEMS / "p2b" / "rigs.py")


@pytest.fixture(scope="session")
def related(rigs: Any) -> Any:
    """The module of the small collaborative deployment and its rigs, which needs that of ``rigs``."""
    return _module("hushstream_test_collaborative_rigs", SYSTEMS / "colin" / "rigs.py")


@pytest.fixture(scope="session")
def pdol_rigs(rigs: Any) -> Any:
    """The module of the small PDOL deployment and its rigs, which needs that of ``rigs``."""
    return _module("hushstream_test_pdol_rigs", SYSTEMS / "pdol" / "rigs.py")
