"""What is shown of a result, in one form for all systems and commands: its headline, its rows and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Headline:
    """The main figure of a result.

    Attributes:
        what: the figure is, in words.
        value: the figure: a ratio, a gain or the like.
        low, high: its 95 % interval; None where the spread cannot be estimated, as after a single run.
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
        answers: the first lines: the private result, and whether it pays.
        verdict: the conclusion, in a sentence; empty where the headline says it.
        headline: the main figure; None where there is none.
        facts: further lines: the guarantee, and what was verified.
        marks: warnings that stand wherever it is shown.
        rows: rows of the data frame; every value is a text, a number, a boolean or None.
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
