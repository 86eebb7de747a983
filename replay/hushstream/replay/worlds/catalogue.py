"""Worlds by name: the built-in ones and those that other packages offer by entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from hushstream.replay.offers import Offers
from hushstream.replay.studies.catalogue import studies
from hushstream.replay.worlds.world import World, WorldError

Factory = Callable[..., World]
"""Takes its options by keyword only; the class that it says to return tells for which system its world is."""

WORLDS: Offers[Factory] = Offers("world", "hushstream.worlds", Callable, WorldError)


def known_worlds() -> dict[str, Factory]:
    """Return every world's factory by name, sorted.

    Raises:
        WorldError: two packages claim one name.
    """
    return WORLDS.known({name: made for study in studies().values() for name, made in study.worlds.items()})


def find_world(name: str) -> Factory:
    """Return the factory of this name.

    Raises:
        WorldError: there is none; the message lists the known names, and says who plays it where another does.
    """
    # What plays a name asks this module, too.
    from hushstream.replay.players import hint

    known = known_worlds()
    return WORLDS.find(known, name, "" if name in known else hint(name))


def system_of(name: str) -> str:
    """The system that plays a world, by the class that its factory says to return.

    Raises:
        WorldError: as `find_world`; or no system plays such worlds.
    """
    made = get_type_hints(find_world(name)).get("return")
    for study in studies().values():
        if name in study.worlds or study.plays(made):
            return study.system
    raise WorldError(f"world {name!r}: expected a factory whose return type a system plays, got {made}")


def world_options(name: str) -> dict[str, Any]:
    """Return the options of a world with their defaults.

    Raises:
        WorldError: as `find_world`.
    """
    parameters = inspect.signature(find_world(name)).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def make_world(name: str, **options: Any) -> World:
    """Build a world by name.

    Args:
        name: one of `known_worlds`.
        options: those of its factory; see `world_options`.

    Raises:
        WorldError: the world or an option is unknown (the message lists the known ones), or has a bad value.
        DatasetError: its files are absent or differ from the published ones.
    """
    known = world_options(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise WorldError(f"world {name!r} has no option {', '.join(unknown)}; known: {', '.join(known)}")
    return find_world(name)(**options)
