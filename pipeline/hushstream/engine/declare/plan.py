"""A plan: the forecast for a deployment before it runs, in one form for all systems, for people and for scripts.

A system declares a function (`hushstream.engine.declare.declaration.Kind.plan`) that makes a `Plan` from a
configuration and an `Audience`. It reads public numbers alone: the configuration, and the expected number of people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from hushstream.engine.values import number, whole
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import PERSON, Prices, bounds, told

DAYS = (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 365)
"""Days of the points of a plan, beside the first day on which it is expected to be better."""

MONTH = 30
"""Days that the visits of one person take, where nothing else is known."""

LIVES = (1, 30, 365)
"""Numbers of days after which a plan says what one person has paid."""


@dataclass(frozen=True, slots=True)
class Audience:
    """The expected audience, in public numbers.

    New people arrive at a constant rate over ``days``, each with their first visit; the others follow evenly within
    ``visit_days``.

    Attributes:
        users: number of people who arrive within ``days``.
        visits: total visits of each person.
        days: the days within which they arrive.
        rate: share of visits that reward an item drawn at random; None for the system's assumption.
        lead: pdol: by how much a central learner predicts more labels than nodes alone in the last quarter of public
            data; None if nobody knows.
        visit_days: days that the visits of one person take; None: as many as ``days``.
    """

    users: int
    visits: int
    days: float = 30.0
    rate: float | None = None
    lead: float | None = None
    visit_days: float | None = None

    @classmethod
    def of_a_year(cls, users: int, visits: int) -> Audience:
        """People who have made all their visits by the end of a year, each within `MONTH` days."""
        return cls(users, visits, DAYS[-1] - MONTH, visit_days=MONTH)

    @property
    def step(self) -> float:
        """Days from one visit of a person to the next."""
        return (self.days if self.visit_days is None else self.visit_days) / self.visits

    def __post_init__(self) -> None:
        """Refuse impossible numbers."""
        whole("users", self.users, 1, 10**10)
        whole("visits-per-user", self.visits, 1, 10**6)
        for name, days in (("days", self.days), ("visit-days", self.visit_days)):
            if days is not None:
                number(name, days, "a number of days above 0 and at most 3650", lambda value: 0 < value <= 3650)
        if self.rate is not None:
            number("click-rate", self.rate, "a share above 0 and below 1", lambda value: 0 < value < 1)
        if self.lead is not None:
            number("lead", self.lead, "a difference of shares, above -1 and below 1", lambda value: -1 < value < 1)

    def reached(self, visit: int, day: float) -> float:
        """Number of people who have made their n-th visit (from 1) by the end of a day; 0 if n exceeds ``visits``."""
        if visit > self.visits:
            return 0.0
        return self.users / self.days * max(0.0, day - (visit - 1) * self.step)

    def visited(self, day: float) -> float:
        """Number of visits by the end of a day."""
        # Visits k = 0..V-1 of step s after the first: the sum of (day - k s)+ over k.
        made = min(self.visits, math.ceil(day / self.step))
        return self.users / self.days * (made * day - self.step * made * (made - 1) / 2)

    def of_one(self, day: float) -> int:
        """Number of a person's visits in a number of days since their first."""
        return min(self.visits, 1 + int(day / self.step + 1e-9))


class Range(NamedTuple):
    """An expected value with bounds from the assumptions."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """The forecast for the end of a day.

    Attributes:
        day: from its start.
        units: number of units of privacy that were released by then.
        share: gain as a share of `Plan.gain`; None if that is none.
    """

    day: float
    units: float
    share: Range | None


@dataclass(frozen=True, slots=True)
class Life:
    """What one person has paid after a number of days.

    Attributes:
        days: days since their first visit.
        units: number of their released units.
        prices: None if no unit was released.
    """

    days: int
    units: int
    prices: Prices | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The forecast for a deployment.

    Attributes:
        system: its name.
        measure: the quantity in ``values``, in words.
        gain: the gain that ``Point.share`` is a share of, in words.
        values: ranges of that quantity at the end of the last day, by who learns.
        beats: whether it will be better than own learning, as good as people or parties have it alone; None if that is
            too close to say, or if public numbers do not tell.
        verdict: the same in a sentence.
        doubt: why `hushstream init` would not draft it: the predicate of a sentence about it; empty if it would.
        points: forecasts for some days; none if the system has no curve.
        first_day: first day on which it is better, under the most hopeful, the expected and the least hopeful
            assumption.
        unit: what ``Point.units`` counts, in the plural.
        paid: what ``Life.units`` counts, in the singular.
        noise: effect of the noise on what is learned, one sentence for each cell.
        lives: what one person pays.
        sizes: processes, memory and disk, by name.
        assumed: assumptions, one sentence each.
        facts: further figures, for scripts.
        notes: further sentences.
    """

    system: str
    measure: str
    values: Mapping[str, Range]
    beats: bool | None
    verdict: str
    unit: str
    paid: str
    lives: Sequence[Life]
    sizes: Mapping[str, str]
    assumed: Sequence[str]
    points: Sequence[Point] = ()
    first_day: tuple[int | None, int | None, int | None] | None = None
    noise: Sequence[str] = ()
    facts: Mapping[str, Any] | None = None
    gain: str = "the non-private gain"
    notes: Sequence[str] = ()
    doubt: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; null if unknown."""
        return {
            "system": self.system,
            "measure": self.measure,
            "values": {name: one._asdict() for name, one in self.values.items()},
            "beats_own_learning": self.beats,
            "verdict": self.verdict,
            "doubt": self.doubt,
            "unit": self.unit,
            "paid": self.paid,
            "points": [
                {"day": one.day, "units": one.units, "share": None if one.share is None else one.share._asdict()}
                for one in self.points
            ],
            "first_day_better": None
            if self.first_day is None
            else dict(zip(("hopeful", "expected", "cautious"), self.first_day, strict=True)),
            "noise": list(self.noise),
            "lives": [
                {
                    "days": one.days,
                    "units": one.units,
                    "prices": None if one.prices is None else told(one.prices, PERSON),
                }
                for one in self.lives
            ],
            "sizes": dict(self.sizes),
            "assumed": list(self.assumed),
            "notes": list(self.notes),
            **({"facts": dict(self.facts)} if self.facts else {}),
        }

    def as_text(self) -> str:
        """Whole lines; of days with one share of the gain only the first is there."""
        lines = [self.verdict]
        lines += _titled(
            f"{self.measure[:1].upper()}{self.measure[1:]}: expected, and its range",
            [f"{name}: {_between(one)}" for name, one in self.values.items()],
        )
        if self.first_day is not None:
            lines += ["", _first_day(self.first_day)]
        if any(one.units for one in self.points):
            lines += ["", f"{'By day':>6} {self.unit:>16}  share of {self.gain}, and its range"]
            lines += _changes(self.points)
            if any(one.units == two.units and _falls(one.share, two.share) for one, two in pairwise(self.points)):
                lines.append("  (Until the next window closes it falls: without privacy, learning would go on.)")
        lines += _titled("Noise", self.noise)
        lines += _titled("Charged to one person", _lives(self.lives, self.paid))
        lines += _titled("Size", [f"{name}: {size}" for name, size in self.sizes.items()])
        lines += _titled("Also", self.notes)
        lines += _titled("Assumed", self.assumed)
        return "\n".join(lines) + "\n"


def _falls(before: Range | None, after: Range | None) -> bool:
    return before is not None and after is not None and after.middle < before.middle


def _titled(title: str, texts: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {text}" for text in texts)] if texts else []


def _between(one: Range) -> str:
    return "{1:.3f} ({0:.3f} to {2:.3f})".format(*one)


def _changes(points: Sequence[Point]) -> list[str]:
    """A line for each day whose share is not that of the line before."""
    lines, before = [], ""
    for one in points:
        share = "nothing to gain" if one.share is None else "{1:.2f} ({0:.2f} to {2:.2f})".format(*one.share)
        if share != before:
            lines.append(f"{one.day:>6g} {one.units:>16,.0f}  {share}")
        before = share
    return lines


def _lives(lives: Sequence[Life], paid: str) -> list[str]:
    """One line for all numbers of days after which a person is charged the same."""
    charged: dict[str, list[str]] = {}
    for one in lives:
        told_price = f"nothing (no {paid} yet)"
        if one.prices is not None:
            told_price = f"{bounds(one.prices)}, for {count_text(one.units, paid, ',')}"
        charged.setdefault(told_price, []).append(f"{one.days:,}")
    return [f"within {', '.join(days)} day{'' if days == ['1'] else 's'}: {cost}" for cost, days in charged.items()]


def _first_day(days: tuple[int | None, int | None, int | None]) -> str:
    if len(set(days)) == 1:
        return f"Better than own learning from: {_day(days[0])}, in the whole range."
    hopeful, expected, cautious = map(_day, days)
    return f"Better than own learning from: {expected} (high end of the range: {hopeful}; low end: {cautious})."


def _day(day: int | None) -> str:
    return "never within a year" if day is None else f"day {day}"


def ranged(of: Callable[[float], float], factors: tuple[float, float, float]) -> Range:
    """A range from a figure under three assumptions (low, expected, high). The bounds are sorted."""
    low, middle, high = (of(factor) for factor in factors)
    return Range(min(low, middle, high), middle, max(low, middle, high))


def lives_of(units: Callable[[int], int], price: Callable[[int], Prices | None]) -> tuple[Life, ...]:
    """What one person pays after each of `LIVES` days: the number of units, and their joint price."""
    found = []
    for days in LIVES:
        count = units(days)
        found.append(Life(days, count, price(count) if count else None))
    return tuple(found)


def first_day(better: Callable[[int], bool], last: int = DAYS[-1]) -> int | None:
    """The first day from which a condition holds on all days; None if there is none."""
    if not better(last):
        return None
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if better(middle) else (middle, high)
    return high
