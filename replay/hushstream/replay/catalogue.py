"""Makes a world from its name and options, and plays a run of any system.

*Played by.* Says which commands play a dataset: worlds are replayed through a system, logs of another policy are
evaluated.

*Known worlds.* Finds worlds by name: the built-in ones, and those that other packages offer by entry point.

*Runs.* Makes a run's options from names and values, finds the study that they belong to, and plays it. Python's cyclic
garbage collection is rare meanwhile: a replay in one process keeps every record of its logs and every user until its
end, hundreds of thousands of objects, which the collector would visit again and again (8 of 20 seconds for a log of
33,000 rows).

*Sizes.* Says how large the world or log of a dataset is, for ``datasets inspect``.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

import numpy as np

from hushstream.replay.checks import PlayOptions
from hushstream.replay.datasets.builtin import find_dataset, known_datasets
from hushstream.replay.datasets.store import locate, size_of
from hushstream.replay.logged.table import known_logs
from hushstream.replay.study import Progress, Registry, Study, studies, study_of
from hushstream.replay.worlds.world import World, WorldError
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.replay.report.replayed import RunResult

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


SHARED = tuple(one.name for one in fields(PlayOptions))
"""Options of a run that every system has."""

_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _OLD_PER_MIDDLE = 100_000, 20, 100


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect rarely until the end of the block, or of the function that this decorates."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _OLD_PER_MIDDLE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def options_of(system: str, given: dict[str, Any]) -> Any:
    """Make the options of a run of this system.

    Args:
        system: which system.
        given: values by the names of its options.

    Raises:
        HushstreamError: there is no such system, or an option is not one of its own.
    """
    known = option_names(system)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise HushstreamError(f"run: expected options of {system} ({', '.join(known)}); got {', '.join(unknown)}")
    return study_of(system).options(**given)


def own_names(study: Study) -> tuple[str, ...]:
    """The names of the options that only runs of this system have."""
    return tuple(name for name in option_names(study.system) if name not in SHARED)


def own_values(study: Study, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a system's own options; where an option takes several, one alone is as good.

    Raises:
        HushstreamError: the system does not have one of them.
    """
    known = own_names(study)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise HushstreamError(f"run: expected options of {study.system} ({', '.join(known)}); got {', '.join(unknown)}")
    hints = get_type_hints(study.options)
    several = {name for name in known if get_origin(hints[name]) is tuple}
    return {name: names(value) if name in several else value for name, value in given.items()}


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """A tuple of names, from one name or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def option_names(system: str) -> tuple[str, ...]:
    """The names of the options of a run of this system.

    Raises:
        HushstreamError: there is no such system.
    """
    return tuple(one.name for one in fields(study_of(system).options))


def world_values(dataset: str, values: dict[str, Any], limit: int | None, data_dir: Path | None) -> dict[str, Any]:
    """The options of a world, joined with ``limit`` and ``data_dir``, which every run has.

    Raises:
        HushstreamError: the world is unknown; ``limit`` is given for a world without the option ``users``, or beside
            that option.
    """
    known = world_options(dataset)
    if limit is not None and "users" not in known:
        raise HushstreamError(
            f"limit: expected a dataset whose number of users can be chosen, got {dataset!r} with the options "
            f"{', '.join(known)}"
        )
    if limit is not None and "users" in values:
        raise HushstreamError("limit: expected limit or users of the world, which mean the same, got both")
    if limit is not None:
        values["users"] = limit
    if data_dir is not None and "data_dir" in known:
        values.setdefault("data_dir", data_dir)
    return values


@seldom_collected()
def run_with(options: Any, progress: Progress | None = None) -> RunResult:
    """Play a dataset through a system and return rows, guarantee, counts and throughput.

    Args:
        options: of the class that the system's `Study` names.
        progress: called with (interactions done, interactions in all, what is going on).

    Raises:
        HushstreamError: the dataset or the runner is unknown, or the configuration is invalid.
    """
    for study in studies().values():
        if type(options) is study.options:
            return study.play(options, progress)
    raise HushstreamError(f"run: expected the options of a system, got {type(options).__name__}")
