"""Makes a world from its name and options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hushstream.replay.catalogue.known_worlds import WORLDS, Factory, known_worlds
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.worlds.world import World, WorldError


def find_world(name: str) -> Factory:
    """Return the factory of this name.

    Raises:
        WorldError: there is no such world; the message lists the known names, and the command that plays a log of this
            name.
    """
    known = known_worlds()
    return WORLDS.find(known, name, "" if name in known else hint(name))


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


def seeded_world(name: str, options: Mapping[str, Any], seed: int) -> object:
    """Build a world by name; where it has a seed and the options have none, it gets ``seed``.

    Raises:
        WorldError: as `make_world`.
    """
    own = {"seed": seed} if "seed" in world_options(name) else {}
    return make_world(name, **{**own, **options})
