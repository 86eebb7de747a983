"""Everything that is wrong with a configuration, in words: each wrong key with what was expected and what came.

A class checks its values one after the other and stops at the first. So what is wrong is left out, where it has a
default, and the rest looked at again; whoever writes a configuration then mends it in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args, get_type_hints

from pydantic import ValidationError

from hushstream.engine.configuration import new_name
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
"""By the beginning of pydantic's names of faults."""


class Fault(NamedTuple):
    """One wrong key.

    Attributes:
        key: with the sections above it; empty for the whole.
        said: what is wrong.
        unsure: whether it decides what else is right in its section.
    """

    key: tuple[str, ...]
    said: str
    unsure: bool = False

    def __str__(self) -> str:
        return f"{'.'.join(self.key) or _TOP}: {self.said}"


def faults_of(check: Callable[[Any], Any], made: type, values: Any) -> tuple[Fault, ...]:
    """What is wrong with values; empty where nothing is.

    Args:
        check: makes a configuration of values, or raises.
        made: the class of the configuration.
        values: nested, as in YAML.
    """
    found: dict[tuple[str, ...], Fault] = {}
    left_out: set[tuple[str, ...]] = set()
    rest = deepcopy(values)
    while fresh := [one for one in _faults(check, made, rest) if one.key not in left_out | found.keys()]:
        found |= {one.key: one for one in fresh}
        keys = [one.key[:-1] if one.unsure else one.key for one in fresh]
        # A value that is missing cannot be left out; what else is wrong beside it is looked for all the same.
        gone = [key for key in keys if _leave_out(rest, key)]
        if not gone:
            break
        left_out |= set(gone)
    return tuple(found.values())


def _faults(check: Callable[[Any], Any], made: type, values: Any) -> list[Fault]:
    try:
        check(values)
    except ValidationError as error:
        return [_of_pydantic(made, found) for found in error.errors(include_url=False)]
    except ConfigurationError as error:
        key, _, said = str(error).partition(": ")
        # What concerns several keys names none of them at its beginning.
        return [Fault(tuple(key.split(".")), said)] if said and " " not in key else [Fault((), str(error))]
    return []


def _of_pydantic(made: type, found: Mapping[str, Any]) -> Fault:
    key = tuple(str(part) for part in found["loc"] if part != made.__name__)
    if found["type"] == "unexpected_keyword_argument":
        return Fault(key, f"there is no such key{_in_its_place(made, key)}")
    if found["type"] == "literal_error":
        return Fault(key, f"expected {found['ctx']['expected']}, got {_got(found['input'])}", len(key) > 1)
    expected = _EXPECTED.get(found["type"].partition("_")[0])
    if expected is None:
        return Fault(key, found["msg"])
    return Fault(key, f"expected {expected}, got {'none' if found['type'] == 'missing' else _got(found['input'])}")


def _in_its_place(made: type, key: tuple[str, ...]) -> str:
    """Which key an unknown one may stand for: the one that was called so, one of nearly that name, or one elsewhere."""
    name = new_name(made, key[-1])
    if name is not None:
        return f"; it is called {name} now"
    known, above = list(_keys(made)), key[:-1]
    beside = [path[-1] for path in known if path[:-1] == _without_places(above)]
    near = get_close_matches(key[-1], beside, n=1) or [".".join(path) for path in known if path[-1] == key[-1]]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _without_places(key: tuple[str, ...]) -> tuple[str, ...]:
    """Without the numbers of list items."""
    return tuple(part for part in key if not part.isdigit())


def _keys(made: type, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a configuration with the sections above it."""
    types = get_type_hints(made)
    for one in fields(made):
        yield (*above, one.name)
        for section in (part for part in (types[one.name], *get_args(types[one.name])) if is_dataclass(part)):
            assert isinstance(section, type)
            yield from _keys(section, (*above, one.name))


def _got(value: Any) -> str:
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else repr(value)


def _leave_out(values: Any, key: tuple[str, ...]) -> bool:
    """Take a key away; False where there is none such."""
    *above, last = key or ("",)
    for name in above:
        values = values.get(name) if isinstance(values, dict) else None
    return isinstance(values, dict) and values.pop(last, values) is not values
