"""Lists all errors of a configuration: each wrong key, with the expected and the given value.

A configuration class checks its values one after the other and stops at the first wrong one. So this module leaves a
wrong value out where it has a default, and checks the rest again; an operator then corrects all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from copy import deepcopy
from dataclasses import MISSING
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import ValidationError

from hushstream.engine.language import EACH, Language, Refused
from hushstream.engine.values import ConfigurationError

_TOP = "top level"
_EXPECTED = {
    "missing": "a value",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "dict": "keys and values below it",
    "dataclass": "keys and values below it",
    "tuple": "a list",
    "list": "a list",
}
"""What was expected, by the beginning of pydantic's name for the fault."""
_LIMITS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
}
"""What was expected, by pydantic's name for the fault, with the limits that its entry has."""


class Fault(NamedTuple):
    """One wrong key.

    Attributes:
        key: the names of its sections, then its own; empty for a fault of the whole configuration.
        problem: what is wrong.
        decides_others: whether this value decides which other values of its section are valid.
    """

    key: tuple[str, ...]
    problem: str
    decides_others: bool = False

    def __str__(self) -> str:
        return f"{'.'.join(self.key) or _TOP}: {self.problem}"


def faults_of(check: Callable[[Any], Any], language: Language, values: Any) -> tuple[Fault, ...]:
    """All faults of a configuration's values; empty if the values are valid.

    Args:
        check: makes a configuration from values that are nested as its class nests them, or raises.
        language: how the configurations of that class are written in a file.
        values: nested, as in YAML.
    """
    found: dict[tuple[str, ...], Fault] = {}
    left_out: set[tuple[str, ...]] = set()
    rest = deepcopy(values)
    while fresh := [one for one in _faults(check, language, rest) if not _is_known(one.key, left_out, found)]:
        found |= {one.key: one for one in fresh if not _follows(one.key, left_out)}
        keys = [key for one in fresh for key in (language.beside(one.key) if one.decides_others else [one.key])]
        # A missing value cannot be left out. If nothing could be left out in this round, there is nothing more to
        # check.
        gone = [key for key in keys if _leave_out(rest, key)]
        if not gone:
            break
        left_out |= set(gone)
    return tuple(found.values())


def _is_known(key: tuple[str, ...], left_out: Set[tuple[str, ...]], found: Mapping[tuple[str, ...], Fault]) -> bool:
    """Whether a fault is already reported, or only follows from a value that was left out."""
    return key in found or any(key[: len(above)] == above for above in left_out)


def _follows(key: tuple[str, ...], left_out: Set[tuple[str, ...]]) -> bool:
    """Whether a fault only says that a section lacks a value that was left out: the section is then left out, too."""
    return bool(key) and any(len(below) > len(key) and below[: len(key)] == key for below in left_out)


def _faults(check: Callable[[Any], Any], language: Language, values: Any) -> list[Fault]:
    attributes, refused = language.read(values)
    found = [_of_refused(language, one) for one in refused]
    try:
        check(attributes)
    except ValidationError as error:
        others = (_of_pydantic(language, one) for one in error.errors(include_url=False))
        # If a section is not a section at all, that fault is enough: the keys that are missing below it are not listed.
        return [*found, *(one for one in others if not any(one.key[: len(key)] == key for key, *_ in refused))]
    except ConfigurationError as error:
        key, _, problem = str(error).partition(": ")
        # A message begins with the key and a colon, unless it concerns several keys.
        named = problem and " " not in key
        where = language.key_of(tuple(key.split("."))) if named else ()
        return [*found, Fault(where, problem if named else str(error))]
    return found


def _of_refused(language: Language, one: Refused) -> Fault:
    if one.got is not MISSING:
        return Fault(one.key, f"expected keys and values below it, got {_got(one.got)}")
    return Fault(one.key, f"there is no such key{_in_its_place(language, one.key)}")


def _of_pydantic(language: Language, found: Mapping[str, Any]) -> Fault:
    key = language.key_of(tuple(str(part) for part in found["loc"]))
    expected, decides_others = expected_of(found), found["type"] == "literal_error" and len(key) > 1
    if expected is None:
        return Fault(key, found["msg"])
    got = "none" if found["type"] == "missing" else _got(found["input"])
    return Fault(key, f"expected {expected}, got {got}", decides_others)


def expected_of(found: Mapping[str, Any]) -> str | None:
    """Say what a value should have been, from pydantic's entry of its fault; None if only the entry's text says it."""
    kind = found["type"]
    if kind in _LIMITS:
        return _LIMITS[kind].format_map(found.get("ctx", {}))
    return _EXPECTED.get(kind.partition("_")[0])


def problem_of(found: Mapping[str, Any]) -> str:
    """Say what is wrong with a value of a settings file, from pydantic's entry of it; the value is not repeated."""
    kind = found["type"]
    if kind == "value_error":
        return str(found["ctx"]["error"])
    if kind == "extra_forbidden":
        return "there is no such key"
    expected = expected_of(found)
    if expected is None and kind.endswith(("_type", "_parsing")):
        expected = "another kind of value"
    return str(found["msg"]) if expected is None else f"expected {expected}"


def _in_its_place(language: Language, key: tuple[str, ...]) -> str:
    """Name the keys that were probably meant by an unknown one: similar names, or the same name in another section."""
    known, above = {one.key for one in language.keys}, _without_places(key[:-1])
    beside = {path[len(above)] for path in map(_without_places, known) if path[: len(above)] == above != path}
    near = get_close_matches(key[-1], sorted(beside), n=1)
    near = near or sorted(".".join(path) for path in known if path[-1] == key[-1])
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _without_places(key: tuple[str, ...]) -> tuple[str, ...]:
    """Remove the numbers of list items from a key."""
    return tuple(part for part in key if not part.isdigit() and part != EACH)


def _got(value: Any) -> str:
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else repr(value)


def _leave_out(values: Any, key: tuple[str, ...]) -> bool:
    """Remove a key from nested values; False if there is no such key."""
    *above, last = key or ("",)
    for name in above:
        values = values.get(name) if isinstance(values, dict) else None
    return isinstance(values, dict) and values.pop(last, values) is not values
