"""Configurations that fit a world, under what a caller asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEVER_SECONDS = 10.0**7
"""A settle time that no run reaches: in a closed loop the seal at the end of a phase sends the slots."""


def merged_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values, with what ``over`` says in place of what ``base`` says."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = merged_values(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged
