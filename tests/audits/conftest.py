"""No test of an audit meets what the product remembered in an earlier one, and none leaves broken terms behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memory import forget


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    forget()
    yield
    forget()
