"""A step of the counter while it comes about: what was gathered since the last one, and what it will journal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hushstream.engine.machine import Output


@dataclass(slots=True)
class Gathered:
    """What happened since the last step."""

    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ids: dict[str, None] = field(default_factory=dict)
    """Of batches that came; remembered only when it is settled that they count."""


@dataclass(frozen=True, slots=True)
class Made:
    """A step as it follows from its rows, before it is journaled."""

    fields: dict[str, Any]
    outputs: tuple[Output, ...]
    released: bool
