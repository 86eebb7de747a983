"""Checks of configuration values: each names the field, what it takes and what came."""

from __future__ import annotations

import math
from collections.abc import Callable

from hushstream.privacy.amounts import LEAST_EPSILON
from hushstream.schemas.errors import HushstreamError


class ConfigurationError(HushstreamError):
    """A configuration value is impossible; the message names the field, what it takes and what came."""


REFUSE_UNKNOWN = {"extra": "forbid"}
"""Read by whoever parses a configuration into its classes: a key that none of them has is an error."""

MAX_RECORD_BYTES = 1 << 20
"""What one record of the log may hold; the codec writes no more (a test holds the two equal)."""

_MOST_SECONDS = 1e10
"""Some 300 years: log times in milliseconds stay far below 2^63."""


def require(condition: bool, name: str, expected: str, got: object) -> None:
    """Refuse a value that does not fulfil ``condition``."""
    if not condition:
        raise ConfigurationError(f"{name}: expected {expected}, got {got!r}")


def whole(name: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number from ``low`` to ``high``."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(ok, name, f"a whole number from {low} to {high}", value)


def number(name: str, value: object, expected: str, fits: Callable[[float], bool]) -> float:
    """The value as a float (so that 1 and 1.0 have one digest), if it is a finite number that fits."""
    found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    require(math.isfinite(found) and fits(found), name, expected, value)
    return found


def seconds(name: str, value: object, least: float) -> float:
    """A number of seconds, at least ``least``."""
    expected = f"a number of seconds from {least:g} to {_MOST_SECONDS:g}"
    return number(name, value, expected, lambda found: least <= found <= _MOST_SECONDS)


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    return number(name, value, "a finite number above 0", lambda found: found > 0)


def price(name: str, value: object, most: float) -> float:
    """An epsilon, from the unit in which it is counted to ``most``.

    What lies below the unit would be counted as the whole unit, and what is charged would not be what was configured.
    """
    found = positive(name, value)
    unit = f"at least {LEAST_EPSILON:g}, the unit in which epsilon is counted (a smaller one would be rounded up to it)"
    require(found >= LEAST_EPSILON, name, unit, value)
    require(found <= most, name, f"at most {most:g} (more protects nobody)", value)
    return found


def require_deployment(name: object, system: object, expected: str) -> None:
    """Refuse what cannot name a deployment, and a configuration of another system than the ``expected`` one.

    Raises:
        ConfigurationError: see `require_deployment_name`, or another system.
    """
    require_deployment_name(name)
    require(system == expected, "system", expected, system)


def require_deployment_name(name: object) -> None:
    """Refuse what cannot name a deployment (it stands in topic names).

    Raises:
        ConfigurationError: not 1 to 64 ASCII letters, digits, '-' or '_'.
    """
    ok = isinstance(name, str) and 1 <= len(name) <= 64 and all(c.isalnum() or c in "-_" for c in name)
    require(ok and str(name).isascii(), "deployment", "1 to 64 letters, digits, '-' or '_'", name)
