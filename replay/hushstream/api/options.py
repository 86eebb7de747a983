"""Options by the names that the command line has for them, without dashes: ``--in-flight`` is ``in_flight``.

Where such a name is a word of Python's, an underscore follows it: ``--from`` is ``from_``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypedDict

from hushstream.replay.catalogue.known_worlds import known_worlds
from hushstream.replay.logged.frames import is_file
from hushstream.replay.study import Study
from hushstream.schemas.errors import HushstreamError


class Own(TypedDict, total=False):
    """Options that not every system has.

    Attributes:
        contributors, evaluated: p2b: users of the two phases.
        condition: p2b: which conditions of the comparison.
        pace: p2b: interactions a second.
        in_flight: p2b: users that act at the same time.
        from_: p2b: contributors below this were played before.
        rounds: colin: interactions of each user.
        rounds_per_phase: colin: after so many rounds of every user a new model is made.
        contexts: pdap: of all vendors together.
        first_window: pdap: contexts of the first phase.
        window_ratio: pdap: each phase ends at so many times the contexts of the one before.
        records: pdol: how many are played.
        epsilon: pdol: of the sharing whose form is derived from it.
    """

    contributors: int
    evaluated: int
    condition: str | Sequence[str]
    pace: float
    in_flight: int
    from_: int
    rounds: int
    rounds_per_phase: int
    contexts: int
    first_window: int
    window_ratio: float
    records: int
    epsilon: float


SHARED = ("dataset", "runner", "seed", "world", "config", "folder", "bootstrap", "security", "verify")
"""Options that every system has, which `hushstream.api.run` names itself."""


def python_name(flag: str) -> str:
    """How an option of the command line is called in Python."""
    name = flag.lstrip("-").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def own_names(study: Study) -> dict[str, str]:
    """The options that a system has of its own: their fields, by how they are called in Python."""
    own = [one.name for one in fields(study.options) if one.name not in SHARED]
    return {python_name(study.flags.get(name, name)): name for name in own}


def own_values(study: Study, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a system by their fields.

    Raises:
        HushstreamError: one that the system does not have.
    """
    known = own_names(study)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise HushstreamError(f"run: expected options of {study.system} ({', '.join(known)}); got {', '.join(unknown)}")
    return {known[name]: names(value) if name == "condition" else value for name, value in given.items()}


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """One name, or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def path(given: str | Path | None) -> Path | None:
    """A path, where one is given."""
    return None if given is None else Path(given)


def world_of(study: Study, dataset: Any, world: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a world and its options, for a dataset by name, by the path of a table, or as a data frame.

    Raises:
        HushstreamError: a table, for a system that plays none.
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
