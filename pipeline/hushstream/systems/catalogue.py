"""Finds every system: the built-in ones, and those of other packages.

Another package offers a system by an entry point of the group ``hushstream.systems`` that names a `Kind`. A built-in
system is imported when it is needed, because a worker needs only its own, and each import takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from hushstream.engine.declare.declaration import Kind
from hushstream.engine.declare.role import DeclarationError

GROUP = "hushstream.systems"

_BUILTIN = ("p2b", "colin", "pdap", "pdol", "bgt")
"""The names of the built-in systems; each package has the name of its system."""

DEFAULT = _BUILTIN[0]
"""The system of a configuration or a run that names none."""


def builtin() -> tuple[Kind, ...]:
    """The built-in systems."""
    return tuple(_builtin(name) for name in _BUILTIN)


def each_kind() -> Iterator[Kind]:
    """Every system, the built-in ones first; each is imported when its turn comes.

    Raises:
        DeclarationError: two packages claim one name, or an entry point names something else.
    """
    for name in _BUILTIN:
        yield _builtin(name)
    yield from _offered().values()


@cache
def kinds() -> Mapping[str, Kind]:
    """Every system by name, the built-in ones first.

    Raises:
        DeclarationError: two packages claim one name, or an entry point names something else.
    """
    return {kind.name: kind for kind in each_kind()}


def kind_of(name: object) -> Kind:
    """The system of this name.

    Raises:
        DeclarationError: no system has this name, or `kinds` would raise this error.
    """
    offered = _offered()
    if name in _BUILTIN:
        return _builtin(name)
    if not isinstance(name, str) or name not in offered:
        raise DeclarationError(f"system: expected one of {', '.join((*_BUILTIN, *offered))}, got {name!r}")
    return offered[name]


@cache
def _builtin(name: str) -> Kind:
    kind: Kind = import_module(f"hushstream.systems.{name}.system").KIND
    return kind


@cache
def _offered() -> Mapping[str, Kind]:
    """The systems of other packages, by name."""
    found: dict[str, Kind] = {}
    for entry in sorted(entry_points(group=GROUP)):
        offered = entry.load()
        if not isinstance(offered, Kind):
            raise DeclarationError(
                f"entry point {entry.name} of {GROUP}: expected a Kind, got {type(offered).__name__}"
            )
        if offered.name in _BUILTIN or found.setdefault(offered.name, offered) is not offered:
            raise DeclarationError(f"two packages offer a system named {offered.name!r}; remove one of them")
    return found
