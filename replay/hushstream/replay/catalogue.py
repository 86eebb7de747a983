"""Makes a world from its name and options.

*Played by.* Says which commands play a dataset: worlds are replayed through a system, logs of another policy are
evaluated.

*Known worlds.* Finds worlds by name: the built-in ones, and those that other packages offer by entry point.

*Sizes.* Says how large the world or log of a dataset is, for ``datasets inspect``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from hushstream.replay.datasets.builtin import find_dataset, known_datasets
from hushstream.replay.datasets.store import locate, size_of
from hushstream.replay.logged.log import known_logs
from hushstream.replay.study import Registry, studies
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


def played_by(name: str) -> tuple[str, ...]:
    """The commands that play the dataset of this name, without ``hushstream`` and ``--dataset NAME``; often one."""
    replays = (f"replay {system_of(name)}",) if name in known_worlds() else ()
    return replays + (("evaluate",) if name in known_logs() else ())


def hint(name: str) -> str:
    """The end of a message about a name that was given to the wrong command; empty for an unknown name."""
    commands = [f"`hushstream {command} --dataset {name}`" for command in played_by(name)]
    if commands:
        return f"; {name!r} is played by {' and '.join(commands)}"
    if name in known_datasets():
        return f"; {name!r} is a dataset that no command plays: `hushstream datasets inspect {name}` reads it"
    return ""


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


def inspect_dataset(name: str, data_dir: Path | str | None = None) -> dict[str, Any]:
    """The sizes of a dataset, by name: of its files, and of the world or log that is made of them by default.

    Numbers and texts of a world are shown as they are, arrays by their shape.

    Raises:
        DatasetError: the dataset is unknown, its files were not found, or one differs from the published one.
    """
    dataset = find_dataset(name)
    folder = locate(name, data_dir) if dataset.files else None
    found: dict[str, Any] = {} if folder is None else {"bytes": size_of(folder, dataset)}
    if name in known_worlds():
        made: Any = make_world(name, **({} if folder is None else {"data_dir": str(folder)}))
    elif name in known_logs():
        made = known_logs()[name](folder)
    else:
        return found
    for one in fields(made):
        value = getattr(made, one.name)
        if isinstance(value, np.ndarray):
            found[one.name] = " x ".join(map(str, value.shape))
        elif isinstance(value, int | float | str):
            found[one.name] = value
    return found
