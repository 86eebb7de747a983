"""What two machines hold that differs, attribute by attribute, through all objects of ours that they are made of."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping, Set
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

OURS = ("hushstream", "hushstream_")
"""How the modules begin whose objects are looked into: the product's, and those of packages that offer systems."""
_CODE = (FunctionType, BuiltinFunctionType, ModuleType, type)
_ORDERED = (list, tuple, deque)


class Attribute(NamedTuple):
    """An attribute, by the class that sets it first."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


def is_ours(kind: type) -> bool:
    """Whether objects of a class are looked into."""
    module = kind.__module__.partition(".")[0]
    return module == OURS[0] or module.startswith(OURS[1])


def attributes_of(found: Any) -> dict[str, Any]:
    """The values that an object holds, by name, in ``__dict__`` or slots."""
    slots = [name for kind in type(found).__mro__ for name in _slots_of(kind)]
    held = {name: getattr(found, name) for name in slots if hasattr(found, name)}
    return {**held, **getattr(found, "__dict__", {})}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    hidden = [name for name in names if name.startswith("__") and not name.endswith("__")]
    return tuple(f"_{kind.__name__.lstrip('_')}{n}" if n in hidden else n for n in names if n != "__weakref__")


def differences(one: Any, other: Any) -> set[Attribute]:
    """The attributes in which two objects differ, each under the innermost object of ours that holds it."""
    found: set[Attribute] = set()
    _compare(one, other, Attribute("", ""), found, set())
    return found


def _compare(one: Any, other: Any, place: Attribute, found: set[Attribute], seen: set[tuple[int, int]]) -> None:
    if one is other or (id(one), id(other)) in seen or isinstance(one, _CODE):
        return
    seen.add((id(one), id(other)))
    if type(one) is not type(other):
        found.add(place)
    elif isinstance(one, MethodType):
        _compare(one.__self__, other.__self__, place, found, seen)
    elif isinstance(one, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype or one.tobytes() != other.tobytes():
            found.add(place)
    elif isinstance(one, Mapping) and not is_ours(type(one)):
        if list(one) != list(other):
            found.add(place)
        else:
            for key in one:
                _compare(one[key], other[key], place, found, seen)
    elif isinstance(one, _ORDERED) and not hasattr(one, "_fields"):
        if len(one) != len(other):
            found.add(place)
        else:
            for ours, theirs in zip(one, other, strict=True):
                _compare(ours, theirs, place, found, seen)
    elif is_ours(type(one)):
        _compare_objects(one, other, place, found, seen)
    elif one != other:
        found.add(place)


def _compare_objects(one: Any, other: Any, place: Attribute, found: set[Attribute], seen: set[tuple[int, int]]) -> None:
    if isinstance(one, tuple):
        for ours, theirs in zip(one, other, strict=True):
            _compare(ours, theirs, place, found, seen)
        return
    ours, theirs = attributes_of(one), attributes_of(other)
    for name in ours.keys() | theirs.keys():
        where = Attribute(owner_of(type(one), name), name)
        if name not in ours or name not in theirs:
            found.add(where)
        else:
            _compare(ours[name], theirs[name], where, found, seen)


@cache
def owner_of(kind: type, name: str) -> str:
    """The class, by module and name, that first sets or declares an attribute of objects of a class."""
    setting = [one for one in kind.__mro__ if is_ours(one) and name in named_by(one)]
    owner = setting[-1] if setting else kind
    return f"{owner.__module__}.{owner.__qualname__}"


def named_by(kind: type) -> Set[str]:
    """The attributes that a class's own body declares, or sets on its objects."""
    return kind.__dict__.get("__annotations__", {}).keys() | set(_slots_of(kind)) | _set_by(kind)


@cache
def _set_by(kind: type) -> frozenset[str]:
    """The attributes that the methods in a class's own body set on the object itself."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return frozenset()
    methods = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.args.args)
    return frozenset(name for method in methods for name in _sets(method, method.args.args[0].arg))


def _sets(method: ast.FunctionDef, own: str) -> Iterator[str]:
    for node in ast.walk(method):
        stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if stored and isinstance(node.value, ast.Name) and node.value.id == own:
            yield node.attr
