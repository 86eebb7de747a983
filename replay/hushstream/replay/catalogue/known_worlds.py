"""Finds worlds by name: the built-in ones, and those that other packages offer by entry point."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_type_hints

from hushstream.replay.registry import Registry
from hushstream.replay.study import studies
from hushstream.replay.worlds.world import World, WorldError

Factory = Callable[..., World]
"""A function that makes a world. Its options are keyword arguments; its declared return type decides the system."""

WORLDS: Registry[Factory] = Registry("world", "hushstream.worlds", Callable, WorldError)


def known_worlds() -> dict[str, Factory]:
    """Return every world's factory by name, sorted.

    Raises:
        WorldError: two packages claim one name.
    """
    return WORLDS.known({name: made for study in studies().values() for name, made in study.worlds.items()})


def system_of(name: str) -> str:
    """The system that plays a world, by the declared return type of its factory.

    Raises:
        KeyError: there is no world of this name.
        WorldError: no system plays such worlds.
    """
    made = get_type_hints(known_worlds()[name]).get("return")
    for study in studies().values():
        if name in study.worlds or study.plays(made):
            return study.system
    raise WorldError(f"world {name!r}: expected a factory whose return type a system plays, got {made}")
