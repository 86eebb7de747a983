"""What all tests share: where Apache Kafka suites find their broker, and skips that count as failures in CI."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """With HUSHSTREAM_NO_SKIPS set, a skipped test fails: there everything that it needs is installed."""
    report = yield
    if report.skipped and os.environ.get("HUSHSTREAM_NO_SKIPS"):
        report.outcome = "failed"
    return report
