"""Joins the configuration values that fit a world with those that a caller asked for, which win."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.schemas.errors import HushstreamError

NEVER_SECONDS = 10.0**7
"""A settle time that no run reaches: in a closed loop the end of a phase sends the slots."""


def merged_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The nested values of ``base``; a value that ``over`` has too is taken from there."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = merged_values(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


def nested(values: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Turn names with dots into nested values: ``privacy.epsilon`` becomes the key epsilon below privacy.

    Values that are nested already stay as they are.

    Raises:
        HushstreamError: one name holds a value and has values below it, too; the message names the ``option``.
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        *above, last = name.split(".")
        place = result
        for key in above:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise HushstreamError(f"{option} {name}: expected {key} to have values below it, got a value")
        below = place.get(last, {})
        place[last] = {**below, **nested(value, option)} if isinstance(value, Mapping) else value
    return result
