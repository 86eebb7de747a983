"""What a deployment will bring before it runs: the form in which each system says it, for people and for scripts.

A system declares one function (`hushstream.engine.declare.declaration.Kind.plan`) from its configuration and an
`Audience` to a `Plan`. It reads public numbers alone: the configuration, and how many people are expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from hushstream.engine.values import number, whole
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import PERSON, Prices, price_text

DAYS = (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120, 180, 270, 365)
"""At which a plan says how far it is."""

LIVES = (1, 30, 365)
"""Days after which it says what one person has paid."""


@dataclass(frozen=True, slots=True)
class Audience:
    """Who is expected, in public numbers.

    New people come evenly, and each makes their visits evenly over as many days as they come in.

    Attributes:
        users: that come within ``days``.
        visits: of each, in all.
        days: over which they come.
        rate: share of visits that reward an item drawn at random; None for what the system assumes.
    """

    users: int
    visits: int
    days: float = 30.0
    rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible numbers."""
        whole("users", self.users, 1, 10**10)
        whole("visits-per-user", self.visits, 1, 10**6)
        number("days", self.days, "a number of days above 0 and at most 3650", lambda value: 0 < value <= 3650)
        if self.rate is not None:
            number("click-rate", self.rate, "a share above 0 and below 1", lambda value: 0 < value < 1)

    def reached(self, visit: int, day: float) -> float:
        """How many people have made their visit of this number (from 1) by the end of a day; 0 beyond their last."""
        if visit > self.visits:
            return 0.0
        return self.users / self.days * max(0.0, day - visit * self.days / self.visits)

    def visited(self, day: float) -> float:
        """How many visits there have been by the end of a day."""
        # Visits k = 1..V of step s = days/V after coming: the sum of (day - k s)+ over k.
        step = self.days / self.visits
        made = min(self.visits, int(day / step))
        return self.users / self.days * (made * day - step * made * (made + 1) / 2)

    def of_one(self, day: float) -> int:
        """Visits of a person in their first so many days."""
        return min(self.visits, int(self.visits * day / self.days + 1e-9))


ReleasedAt: TypeAlias = tuple[int, bytes]
"""A record that was released: its log time in milliseconds, and its value."""


class Range(NamedTuple):
    """What is expected, and within which bounds by the assumptions."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """How far a deployment is at the end of a day.

    Attributes:
        day: from its start.
        units: of what privacy is counted in that were released by then.
        share: of what would be gained without privacy from the same people; None where nothing would be.
    """

    day: float
    units: float
    share: Range | None


@dataclass(frozen=True, slots=True)
class Life:
    """What one person has paid after so many days.

    Attributes:
        days: since their first visit.
        units: of theirs that were released.
        prices: None where none was.
    """

    days: int
    units: int
    prices: Prices | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is expected of a deployment.

    Attributes:
        system: its name.
        measure: what ``values`` are, in words.
        values: of what is compared at the end of the last day, by who learns: a range each.
        beats: whether it will be better than no learning together (or alone, where people or parties can learn apart);
            None where that is too close to call, or nobody knows before it is simulated.
        verdict: the same in a sentence.
        points: against time; none where the system has no curve.
        first_day: on which it is better, for the most hopeful, the expected and the least hopeful assumption.
        unit: what ``Point.units`` counts, in the plural.
        paid: what ``Life.units`` counts, in the singular.
        noise: what the noise does to what is learned, a sentence a cell.
        lives: what one person pays.
        holdout: how many people a hold-out needs to show the difference; None where that is no question.
        sizes: processes, memory and disk, by name.
        assumed: what was taken for granted, a sentence each.
        facts: further figures, for scripts.
        notes: further sentences.
        more: where it runs already, what it brings now, and what more of something would, a sentence each.
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
    holdout: str | None = None
    facts: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    more: Sequence[str] = ()

    def told(
        self, beats: bool | None, verdict: str, notes: Sequence[str], facts: Mapping[str, Any], assumed: Sequence[str]
    ) -> Plan:
        """The same with what a simulation found in place of its own verdict."""
        joined = {**(self.facts or {}), **facts}
        return replace(
            self,
            beats=beats,
            verdict=verdict,
            notes=(*self.notes, *notes),
            facts=joined,
            assumed=(*self.assumed, *assumed),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; null where nobody knows."""
        return {
            "system": self.system,
            "measure": self.measure,
            "values": {name: one._asdict() for name, one in self.values.items()},
            "beats_no_learning": self.beats,
            "verdict": self.verdict,
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
                    "prices": None if one.prices is None else prices_text(one.prices),
                }
                for one in self.lives
            ],
            "holdout": self.holdout,
            "sizes": dict(self.sizes),
            "assumed": list(self.assumed),
            "notes": list(self.notes),
            **({"more": list(self.more)} if self.more else {}),
            **({"facts": dict(self.facts)} if self.facts else {}),
        }

    def as_text(self) -> str:
        """Whole lines."""
        lines = [self.verdict]
        lines += [f"{name}: {_between(one)} {self.measure}" for name, one in self.values.items()]
        if self.first_day is not None:
            lines.append(_first_day(self.first_day))
        if self.points:
            lines += ["", f"{'Day':>6} {self.unit:>16}  share of the non-private gain"]
            lines += [
                f"{one.day:>6g} {one.units:>16,.0f}  "
                + ("nothing to gain" if one.share is None else _between(one.share, digits=2))
                for one in self.points
            ]
        lines += _titled("What more would bring", self.more)
        lines += _titled("Noise", self.noise)
        lines += _titled("What one person has paid", [_life(one, self.paid) for one in self.lives])
        if self.holdout is not None:
            lines += _titled("Hold-out", [self.holdout])
        lines += _titled("Size", [f"{name}: {size}" for name, size in self.sizes.items()])
        lines += _titled("Also", self.notes)
        lines += _titled("Assumed", self.assumed)
        return "\n".join(lines) + "\n"


def prices_text(prices: Prices) -> str:
    """Both prices of one person in words, the larger one first."""
    text = f"{PERSON.which}: {price_text(prices.which)}"
    if prices.took_part is None:
        return f"{text}; {PERSON.public}"
    return f"{text}; {PERSON.took_part}: {price_text(prices.took_part)}"


def _titled(title: str, texts: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {text}" for text in texts)] if texts else []


def _between(one: Range, digits: int = 4) -> str:
    return f"{one.middle:.{digits}f} ({one.low:.{digits}f} to {one.high:.{digits}f})"


def _life(one: Life, paid: str) -> str:
    days = f"after {count_text(one.days, 'day')}"
    if one.prices is None:
        return f"{days}: nothing (no {paid} yet)"
    return f"{days}, {count_text(one.units, paid, ',')}: {prices_text(one.prices)}"


def _first_day(days: tuple[int | None, int | None, int | None]) -> str:
    hopeful, expected, cautious = ("never within a year" if day is None else f"day {day}" for day in days)
    return f"Better than no learning from: {expected} (if effects are large: {hopeful}; if small: {cautious})."


def ranged(of: Callable[[float], float], factors: tuple[float, float, float]) -> Range:
    """A figure under three assumptions: low, expected, high; bounds are put in order."""
    low, middle, high = (of(factor) for factor in factors)
    return Range(min(low, middle, high), middle, max(low, middle, high))


def lives_of(units: Callable[[int], int], price: Callable[[int], Prices | None]) -> tuple[Life, ...]:
    """What one person pays after each of `LIVES`: how many units, and what so many cost together."""
    found = []
    for days in LIVES:
        count = units(days)
        found.append(Life(days, count, price(count) if count else None))
    return tuple(found)


def first_day(better: Callable[[int], bool], last: int = DAYS[-1]) -> int | None:
    """The first day on which something holds that goes on holding from then on; None by the last day."""
    if not better(last):
        return None
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if better(middle) else (middle, high)
    return high
