"""Runs any system: makes its options from names and values, finds the study that they belong to, and plays it.

*Garbage collection.* Makes Python's cyclic garbage collection rare while a replay runs.

A replay in one process keeps every record of its logs and every user until its end. These are hundreds of thousands of
objects. At the default thresholds the collector visits them again and again, and finds them alive: this took 8 of 20
seconds for a log of 33,000 rows.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hushstream.replay.catalogue import world_options
from hushstream.replay.study import Progress, studies, study_of
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.replay.report.replayed import RunResult

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
