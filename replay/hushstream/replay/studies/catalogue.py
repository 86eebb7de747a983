"""The studies of every system, found by the name that its declaration gives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from hushstream.replay.studies.study import Study
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kinds


class UnknownStudy(HushstreamError):
    """A system is unknown, or names studies that are none."""


@cache
def studies() -> Mapping[str, Study]:
    """By system, in the order of the catalogue.

    Raises:
        UnknownStudy: a system names something else.
    """
    return {name: _load(kind.study) for name, kind in kinds().items()}


def study_of(system: str) -> Study:
    """The studies of a system.

    Raises:
        UnknownStudy: there is no such system.
    """
    known = studies()
    if system not in known:
        raise UnknownStudy(f"system: expected {' or '.join(known)}, got {system!r}")
    return known[system]


def _load(place: str) -> Study:
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name, None)
    if not isinstance(found, Study):
        raise UnknownStudy(f"{place}: expected studies of a system, got {type(found).__name__}")
    return found
