"""Translates options of the command line into Python's names: ``--in-flight`` is ``in_flight``.

A name that is a keyword of Python gets an underscore at its end: ``--from`` is ``from_``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from keyword import iskeyword
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from hushstream.replay.catalogue.known_worlds import known_worlds
from hushstream.replay.logged.frames import is_file
from hushstream.replay.meanings import meanings
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.study import Study, study_of
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import DEFAULT

SHARED = tuple(one.name for one in fields(PlayOptions))
"""Options that every system has; `hushstream.api.run` has parameters for them."""


def python_name(flag: str) -> str:
    """The Python name of an option of the command line."""
    name = flag.lstrip("-").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def own_names(study: Study) -> dict[str, str]:
    """The options that only this system has: their fields, by Python name."""
    own = [one.name for one in fields(study.options) if one.name not in SHARED]
    return {python_name(study.flags.get(name, name)): name for name in own}


def own_options(system: str = DEFAULT) -> dict[str, str]:
    """The options that only this system accepts in `run`: by name, the meaning.

    Raises:
        HushstreamError: there is no such system.
    """
    study = study_of(system)
    said = meanings(study.options)
    return {name: said.get(field, "") for name, field in own_names(study).items()}


def own_values(study: Study, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a system's own options, by field.

    Raises:
        HushstreamError: the system does not have one of them.
    """
    known = own_names(study)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise HushstreamError(f"run: expected options of {study.system} ({', '.join(known)}); got {', '.join(unknown)}")
    hints = get_type_hints(study.options)
    several = {name for name, field in known.items() if get_origin(hints[field]) is tuple}
    return {known[name]: names(value) if name in several else value for name, value in given.items()}


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """A tuple of names, from one name or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def path(given: str | Path | None) -> Path | None:
    """A `Path`, or None if none is given."""
    return None if given is None else Path(given)


def world_of(study: Study, dataset: Any, world: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a world and its options, for a dataset by name, by the path of a table, or as a data frame.

    Raises:
        HushstreamError: a table was given, and the system plays no tables.
    """
    if dataset is None:
        return study.dataset, dict(world)
    if isinstance(dataset, str) and (dataset in known_worlds() or not Path(dataset).is_file()):
        return dataset, dict(world)
    if study.own_table is None:
        kind = "a file" if is_file(dataset) else "a data frame"
        raise HushstreamError(
            f"dataset: expected the name of a world, as {study.system} asks for arms that a table does not "
            f"have; got {kind}: evaluate(log, mapping=...) judges a log of decisions"
        )
    if "mapping" not in world:
        raise HushstreamError(f"world: expected the mapping of the table (world={{'mapping': ...}}), got {dict(world)}")
    is_file(dataset)
    return study.own_table, {"file": dataset, **world}
