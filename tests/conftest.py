"""What all tests share: rigs that feed machines real record bytes, skips that count as failures in CI, and what keeps a
busy machine from failing a test or burying its failure.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout
from hypothesis import settings
from modules import module_at

from patience import patience

# No test fails by how long it takes: a busy machine takes longer.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

pytest_plugins = ["parts", "pytester"]

SYSTEMS = Path(__file__).parent / "systems"

SHOWN_LINES = 200
"""Of each captured stream of a failure; a client that retries in the background may have written 100,000 more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: one that begins last keeps a single processor busy while all others are idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> Any:
    """A test hangs when it takes its limit times the load: much of what tests wait for is computation."""
    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=patience(settings.timeout)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Show the end of what was captured; and with HUSHSTREAM_NO_SKIPS set, a skipped test fails.

    There everything that it needs is installed. The value is 1 for every test, or folders with a colon between.
    """
    report = yield
    report.sections = [(name, _last_lines(text)) for name, text in report.sections]
    folders = os.environ.get("HUSHSTREAM_NO_SKIPS", "")
    if report.skipped and (
        folders == "1" or any(folder and item.nodeid.startswith(folder) for folder in folders.split(":"))
    ):
        report.outcome = "failed"
    return report


def _last_lines(text: str) -> str:
    lines = text.splitlines(keepends=True)
    left_out = len(lines) - SHOWN_LINES
    return text if left_out <= 0 else f"({left_out} lines before)\n" + "".join(lines[-SHOWN_LINES:])


@pytest.fixture(scope="session")
def rigs() -> Any:
    """The module of the small deployment and its rigs."""
    return module_at(SYSTEMS / "p2b" / "rigs.py", "hushstream_test_rigs")


@pytest.fixture(scope="session")
def related(rigs: Any) -> Any:
    """The module of the small collaborative deployment and its rigs, which needs that of ``rigs``."""
    return module_at(SYSTEMS / "colin" / "rigs.py", "hushstream_test_collaborative_rigs")


@pytest.fixture(scope="session")
def pdol_rigs(rigs: Any) -> Any:
    """The module of the small PDOL deployment and its rigs, which needs that of ``rigs``."""
    return module_at(SYSTEMS / "pdol" / "rigs.py", "hushstream_test_pdol_rigs")


@pytest.fixture(scope="session")
def shops(rigs: Any) -> Any:
    """The module of the small deployment of vendors and its rigs, which needs that of ``rigs``."""
    return module_at(SYSTEMS / "pdap" / "rigs.py", "hushstream_test_pdap_rigs")


@pytest.fixture(scope="session")
def films(rigs: Any) -> Any:
    """The module of the small deployment of films and its rigs, which needs that of ``rigs``."""
    return module_at(SYSTEMS / "bgt" / "rigs.py", "hushstream_test_bgt_rigs")
