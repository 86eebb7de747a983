"""Checks of configuration values. Each error names the field, the expected value and the given one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hushstream.privacy.amounts import LEAST_EPSILON
from hushstream.schemas.errors import HushstreamError


class ConfigurationError(HushstreamError):
    """A configuration value is impossible. The message names the field, the expected value and the given one."""


REFUSE_UNKNOWN = {"extra": "forbid"}
"""Settings for the parser of configurations: an unknown key is an error."""

MAX_RECORD_BYTES = 1 << 20
"""Largest size of one record of a log; the codec writes no larger ones (a test compares both)."""

_MOST_SECONDS = 1e10
"""Some 300 years: log times in milliseconds stay far below 2^63."""


def require(condition: bool, name: str, expected: str, got: object) -> None:
    """Refuse a value that does not fulfil ``condition``."""
    if not condition:
        raise ConfigurationError(f"{name}: expected {expected}, got {got!r}")


def whole(name: str, value: object, low: int, high: int) -> object:
    """Refuse a value that is no whole number from ``low`` to ``high``."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(ok, name, f"a whole number from {low} to {high}", value)
    return value


def number(name: str, value: object, expected: str, fits: Callable[[float], bool]) -> float:
    """The value as a float, so that 1 and 1.0 have the same digest; it must be finite and fulfil ``fits``."""
    found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    require(math.isfinite(found) and fits(found), name, expected, value)
    return found


def between(name: str, value: object, low: float, high: float) -> float:
    """A number from ``low`` to ``high``."""
    return number(name, value, f"a number from {low:g} to {high:g}", lambda found: low <= found <= high)


def probability(name: str, value: object) -> float:
    """A probability that is neither 0 nor 1."""
    return number(name, value, "a probability in (0, 1)", lambda found: 0 < found < 1)


def not_negative(name: str, value: object) -> float:
    """A finite number of at least 0."""
    return number(name, value, "a finite number >= 0", lambda found: found >= 0)


def keep(config: object, **values: object) -> None:
    """Set fields of a frozen configuration to their checked values; only a configuration that is made does so."""
    for name, value in values.items():
        object.__setattr__(config, name, value)


def seconds(name: str, value: object, least: float) -> float:
    """A number of seconds, at least ``least``."""
    expected = f"a number of seconds from {least:g} to {_MOST_SECONDS:g}"
    return number(name, value, expected, lambda found: least <= found <= _MOST_SECONDS)


def positive(name: str, value: object, most: float = math.inf, why: str = "") -> float:
    """A finite number above 0, at most ``most``; a message gives the reason."""
    found = number(name, value, "a finite number above 0", lambda found: found > 0)
    require(found <= most, name, f"at most {most:.10g}{why}", value)
    return found


def price(name: str, value: object, most: float) -> float:
    """An epsilon from the smallest unit of accounting to ``most``.

    A smaller epsilon would be rounded up to one unit, and the charge would differ from the configured value.
    """
    found = positive(name, value)
    unit = f"at least {LEAST_EPSILON:g}, the unit in which epsilon is counted (a smaller one would be rounded up to it)"
    require(found >= LEAST_EPSILON, name, unit, value)
    require(found <= most, name, f"at most {most:g} (more protects nobody)", value)
    return found


def word(name: str, value: object, *known: object) -> object:
    """Refuse a value that is none of those known."""
    *others, last = map(str, known)
    require(value in known, name, f"{', '.join(others)} or {last}", value)
    return value


def flag(name: str, value: object) -> object:
    """Refuse a value that is neither true nor false."""
    require(isinstance(value, bool), name, "true or false", value)
    return value


class Is:
    """Key and check of a field, as metadata of its annotation: ``Annotated[int, Is("nodes", whole, 1, 4096)]``."""

    def __init__(self, key: str, check: Callable[..., object] | None = None, *limits: Any) -> None:
        """Say what a value must be.

        Args:
            key: its place in a ``deployment.yaml``, which messages name; a section with a dot at its end is followed
                by the field's name.
            check: called with key, value and ``limits``; returns the value to keep, or raises. By default the value
                must be one of the words of the field's type, if it has any, or true or false.
            limits: further arguments of ``check``.
        """
        self.key, self.check, self.limits = key, check, limits


class Checked:
    """The base of a section of a configuration, a frozen dataclass: its fields are checked as `Is` says."""

    __slots__ = ()
    __pydantic_config__ = REFUSE_UNKNOWN

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)


def check_fields(config: object) -> None:
    """Check the fields of a section, and keep what the checks return (`Is`); words of a type need no check.

    Raises:
        ConfigurationError: a value is impossible.
    """
    made: type = type(config)
    for name, (words, check, limits) in _checks(made).items():
        value = getattr(config, name)
        if value not in words:
            keep(config, **{name: check(value, *limits)})


@cache
def _checks(made: type) -> Mapping[str, tuple[tuple[object, ...], Callable[..., object], tuple[Any, ...]]]:
    """By field: the words that its type allows, and the check of any other value."""
    hints, found = get_type_hints(made, include_extras=True), {}
    for one in fields(made):
        hint, asked = annotated(hints[one.name], one.name)
        if asked is None:
            continue
        words = _words(hint)
        if asked.check is not None:
            found[one.name] = words, partial(asked.check, asked.key), asked.limits
        elif hint is bool:
            found[one.name] = (), partial(flag, asked.key), ()
        elif get_origin(hint) is Literal:
            found[one.name] = words, partial(word, asked.key), words
    return found


def annotated(hint: Any, name: str) -> tuple[Any, Is | None]:
    """A field's type without metadata, and its `Is` with the whole key."""
    kind, *rest = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    found = next((part for part in rest if isinstance(part, Is)), None)
    if found is not None and found.key.endswith("."):
        found = Is(f"{found.key}{name}", found.check, *found.limits)
    return kind, found


def _words(hint: Any) -> tuple[object, ...]:
    """The words that a type allows beside other values; None is one."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(one for part in get_args(hint) for one in _words(part))
    if hint is type(None):
        return (None,)
    return get_args(hint) if get_origin(hint) is Literal else ()


def require_deployment(name: object, system: object, expected: str) -> None:
    """Refuse an invalid name of a deployment, and a configuration of another system than the ``expected`` one.

    Raises:
        ConfigurationError: see `require_deployment_name`, or another system.
    """
    require_deployment_name(name)
    require(system == expected, "system", expected, system)


def require_deployment_name(name: object) -> None:
    """Refuse an invalid name of a deployment (it is part of topic names).

    Raises:
        ConfigurationError: not 1 to 64 ASCII letters, digits, '-' or '_'.
    """
    ok = isinstance(name, str) and 1 <= len(name) <= 64 and all(c.isalnum() or c in "-_" for c in name)
    require(ok and str(name).isascii(), "deployment", "1 to 64 letters, digits, '-' or '_'", name)
