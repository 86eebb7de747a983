"""What two machines hold that differs, attribute by attribute, through all objects of ours that they are made of."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
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


Contents = Mapping[str, Callable[[Any], Any]]
"""What objects of a class hold, in a form in which equal ones are equal; by module and name of the class."""

CONTENT = "its content"
"""In place of an attribute's name: two objects differ in the form that `Contents` gives."""


EVERY = "*"
"""In place of an attribute's name: all of a class."""


def differences(one: Any, other: Any, passed: Set[tuple[str, str]], contents: Contents) -> set[Attribute]:
    """The attributes in which two objects differ, each under the innermost object of ours that holds it.

    Args:
        one, other: the objects.
        passed: owners and names of attributes that are not looked at.
        contents: what is compared of objects besides.
    """
    walk = _Walk(passed, contents)
    walk.compare(one, other, Attribute("", ""))
    return walk.found


class _Walk:
    """Two object graphs on their way from the roots down."""

    def __init__(self, passed: Set[tuple[str, str]], contents: Contents) -> None:
        self.found: set[Attribute] = set()
        self._passed = passed
        self._contents = contents
        self._seen: set[tuple[int, int]] = set()

    def compare(self, one: Any, other: Any, place: Attribute) -> None:
        if one is other or (id(one), id(other)) in self._seen or isinstance(one, _CODE):
            return
        self._seen.add((id(one), id(other)))
        if type(one) is not type(other):
            self.found.add(place)
        elif isinstance(one, MethodType):
            self.compare(one.__self__, other.__self__, place)
        elif isinstance(one, np.ndarray):
            if one.shape != other.shape or one.dtype != other.dtype or one.tobytes() != other.tobytes():
                self.found.add(place)
        elif is_ours(type(one)) and not isinstance(one, tuple):
            self._objects(one, other)
            if isinstance(one, Mapping):
                self._items(list(one.items()), list(other.items()), place)
        elif isinstance(one, Mapping):
            self._items(list(one.items()), list(other.items()), place)
        elif isinstance(one, _ORDERED):
            self._items(one, other, place)
        elif one != other:
            self.found.add(place)

    def _items(self, one: Any, other: Any, place: Attribute) -> None:
        if len(one) != len(other):
            self.found.add(place)
            return
        for ours, theirs in zip(one, other, strict=True):
            self.compare(ours, theirs, place)

    def _objects(self, one: Any, other: Any) -> None:
        for kind in type(one).__mro__:
            name = f"{kind.__module__}.{kind.__qualname__}"
            if name in self._contents and self._contents[name](one) != self._contents[name](other):
                self.found.add(Attribute(name, CONTENT))
        ours, theirs = attributes_of(one), attributes_of(other)
        for name in ours.keys() | theirs.keys():
            where = Attribute(owner_of(type(one), name), name)
            if {where, (where.owner, EVERY)} & self._passed:
                continue
            if name not in ours or name not in theirs:
                self.found.add(where)
            else:
                self.compare(ours[name], theirs[name], where)


@cache
def owner_of(kind: type, name: str) -> str:
    """The class, by module and name, that first sets or declares an attribute of objects of a class."""
    setting = [one for one in kind.__mro__ if is_ours(one) and name in named_by(one)]
    owner = setting[-1] if setting else kind
    return f"{owner.__module__}.{owner.__qualname__}"


def named_by(kind: type) -> Set[str]:
    """The attributes that a class's own body declares, or sets on its objects."""
    return inspect.get_annotations(kind).keys() | set(_slots_of(kind)) | _set_by(kind)


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
