"""`run`: one call that plays a dataset through a system and returns what came of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, overload

from hushstream.replay.report.results import RunResult
from hushstream.replay.studies.colin.report import CollaborativeResult
from hushstream.replay.studies.colin.run import CollaborativeOptions, run_collaborative
from hushstream.replay.studies.p2b.closed_loop import Progress
from hushstream.replay.studies.p2b.run import P2BOptions, run_p2b
from hushstream.schemas.errors import HushstreamError

RunOptions = P2BOptions | CollaborativeOptions

SYSTEMS: dict[str, type[P2BOptions] | type[CollaborativeOptions]] = {"p2b": P2BOptions, "colin": CollaborativeOptions}
"""The options of a run, by system."""


@overload
def run(system: Literal["p2b"] = "p2b", *, progress: Progress | None = None, **options: Any) -> RunResult: ...
@overload
def run(system: Literal["colin"], *, progress: Progress | None = None, **options: Any) -> CollaborativeResult: ...
@overload
def run(system: str, *, progress: Progress | None = None, **options: Any) -> RunResult | CollaborativeResult: ...
def run(system: str = "p2b", *, progress: Progress | None = None, **options: Any) -> RunResult | CollaborativeResult:
    """Play a dataset through a system and return rows, guarantee, counts and throughput.

    Args:
        system: which system ("p2b" or "colin").
        progress: called with (interactions done, interactions in all, what is going on).
        options: see `P2BOptions` and `CollaborativeOptions`.

    Raises:
        HushstreamError: an unknown system, dataset, runner or option, or an option of another system; a wrong
            configuration.
    """
    return run_with(options_of(system, options), progress)


def options_of(system: str, given: dict[str, Any]) -> RunOptions:
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
    return SYSTEMS[system](**given)


def option_names(system: str) -> tuple[str, ...]:
    """What a run of this system can be told.

    Raises:
        HushstreamError: there is no such system.
    """
    if system not in SYSTEMS:
        raise HushstreamError(f"system: expected {' or '.join(SYSTEMS)}, got {system!r}")
    return tuple(one.name for one in fields(SYSTEMS[system]))


def run_with(options: RunOptions, progress: Progress | None = None) -> RunResult | CollaborativeResult:
    """`run` for options that were put together already."""
    if isinstance(options, P2BOptions):
        return run_p2b(options, progress)
    return run_collaborative(options, progress)
