"""Worlds by name: the built-in ones and those that other packages offer by entry point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from hushstream.replay.worlds.colin import colin
from hushstream.replay.worlds.lastfm import lastfm
from hushstream.replay.worlds.movielens import movielens_100k
from hushstream.replay.worlds.multilabel import tmc2007
from hushstream.replay.worlds.synthetic import synthetic
from hushstream.replay.worlds.world import World, WorldError

GROUP = "hushstream.worlds"

Factory = Callable[..., World]

_BUILTIN: dict[str, Factory] = {
    "synthetic": synthetic,
    "colin": colin,
    "tmc2007": tmc2007,
    "ml-100k": movielens_100k,
    "lastfm": lastfm,
}


def known_worlds() -> dict[str, Factory]:
    """Return every world's factory by name, sorted; a factory takes its options by keyword only.

    Raises:
        WorldError: two packages claim one name.
    """
    found = dict(_BUILTIN)
    for entry in entry_points(group=GROUP):
        factory = entry.load()
        if found.setdefault(entry.name, factory) is not factory:
            raise WorldError(f"two packages offer a world named {entry.name!r}; remove one of them")
    return dict(sorted(found.items()))


def world_options(name: str) -> dict[str, Any]:
    """Return the options of a world with their defaults.

    Raises:
        WorldError: there is no world of this name; the message lists the known ones.
    """
    known = known_worlds()
    if name not in known:
        raise WorldError(f"unknown world {name!r}; known: {', '.join(known)}")
    parameters = inspect.signature(known[name]).parameters.values()
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
    return known_worlds()[name](**options)
