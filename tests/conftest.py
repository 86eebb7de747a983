"""What all tests share: rigs that feed machines real record bytes, and skips that count as failures in CI."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

RIGS = Path(__file__).parent / "roles" / "harness.py"
RIGS_NAME = "hushstream_test_rigs"


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


@pytest.fixture(scope="session")
def rigs() -> Any:
    """The module of the small deployment and its rigs: test files do not import one another, so it comes from here."""
    if RIGS_NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(RIGS_NAME, RIGS)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[RIGS_NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[RIGS_NAME])
    return sys.modules[RIGS_NAME]
