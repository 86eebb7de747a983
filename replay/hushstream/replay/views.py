"""What a result shows of itself, whatever system or command it came of: its headline, its rows and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Headline:
    """The one figure that a result is about.

    Attributes:
        what: it is, in words.
        value: a ratio, a gain or the like.
        low, high: its 95 % interval; None where one run says nothing of its own spread.
    """

    what: str
    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.what}: {self.value:.3g} (one run: no interval)"
        return f"{self.what}: {self.value:.3g} (95 % interval {self.low:.3g} to {self.high:.3g})"

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {"what": self.what, "value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of a result in a few lines, as a data frame and as a picture.

    Attributes:
        title: what was run.
        answers: what was reached privately, and whether that pays: said first.
        verdict: what it comes to, in plain words; empty where the headline says it.
        headline: None where there is no one figure.
        facts: lines below it: what is promised, what was checked.
        marks: warnings that stand wherever it is shown.
        rows: of a data frame; every value is a text, a number, a truth value or None.
        pictures: PNG bytes by name, drawn when asked for; the first is the main one.
    """

    title: str
    answers: tuple[str, ...] = ()
    verdict: str = ""
    headline: Headline | None = None
    facts: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    rows: Sequence[Mapping[str, Any]]
    pictures: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
