"""Checks the fields of a result; each error names the field, the expected value and the given one."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class BadResult(HushstreamError):
    """A result holds a value that is impossible, has no class, or must not be shown."""


class ReportNotWritten(HushstreamError):
    """The folder of a report cannot be written."""


def require(condition: bool, name: str, expected: str, got: object) -> None:
    """Refuse the value of a field unless ``condition`` holds.

    Raises:
        BadResult: unless ``condition`` holds.
    """
    if not condition:
        raise BadResult(f"{name}: expected {expected}, got {got!r}")


def whole(name: str, value: object, low: int | None = 0) -> None:
    """Refuse a value that is no whole number from ``low`` on; None means no bound.

    Raises:
        BadResult: the value is something else.
    """
    ok = isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)
    require(ok, name, "a whole number" if low is None else f"a whole number >= {low}", value)
