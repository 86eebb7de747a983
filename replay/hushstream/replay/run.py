"""`run`: one call that plays a dataset through a system and returns what came of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hushstream.replay.progress import Progress
from hushstream.replay.study import Study, studies, study_of
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import DEFAULT


def run(system: str = DEFAULT, *, progress: Progress | None = None, **options: Any) -> Any:
    """Play a dataset through a system and return rows, guarantee, counts and throughput.

    Args:
        system: which system (`hushstream.systems.catalogue`).
        progress: called with (interactions done, interactions in all, what is going on).
        options: see the class of options of its `Study`.

    Raises:
        HushstreamError: an unknown system, dataset, runner or option, or an option of another system; a wrong
            configuration.
    """
    return run_with(options_of(system, options), progress)


def options_of(system: str, given: dict[str, Any]) -> Any:
    """The options of a run of this system.

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


def option_names(system: str) -> tuple[str, ...]:
    """What a run of this system can be told.

    Raises:
        HushstreamError: there is no such system.
    """
    return tuple(one.name for one in fields(study_of(system).options))


def run_with(options: Any, progress: Progress | None = None) -> Any:
    """`run` for options that were put together already."""
    return study_for(options).play(options, progress)


def study_for(options: Any) -> Study:
    """Whose options these are.

    Raises:
        HushstreamError: nobody's.
    """
    for study in studies().values():
        if type(options) is study.options:
            return study
    raise HushstreamError(f"run: expected the options of a system, got {type(options).__name__}")
