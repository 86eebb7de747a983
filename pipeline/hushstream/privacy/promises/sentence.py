"""The words of a guarantee: two costs, the sentence, the phrase for a result, and the bars of the picture.

A guarantee about a person has two costs, one for each relation between neighbours: *replace-one* (the neighbour is
another content) and *zero-out* (the neighbour is an empty content). The first is up to twice the epsilon of the second,
or four times its rho, and comes first. That somebody took part, how often and when is public: who knows all others
names it from an exact count. Where an empty content is none of the possible ones, replace-one alone remains.

Pure epsilon-DP bounds every likelihood ratio by e^epsilon (Dwork and Roth 2014, definition 2.4): so even odds become at
most e^epsilon to 1, whatever an observer reads and knows. (epsilon, delta) does not say so outside an event of chance
delta: let E be that the odds of P against Q exceed e^(epsilon + a) to 1. Then Q(E) <= e^-(epsilon + a) P(E), so by
P(E) <= e^epsilon Q(E) + delta the chance of E is at most delta / (1 - e^-a); two laws whose odds take just this value
in E attain it. `slack` is a: 1 (a chance of 1.582 delta) for the delta of Gaussian noise or of sampling, and 10^-5
(100,001 delta) for a tiny one, such as the truncation error of tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, delta_text, epsilon_text, epsilon_value

_WEAK_EPSILON_MICRO = 10 * MICRO
_WEAK_DELTA_UNITS = DELTA_ONE // 100
_SHOWN_STEP = MICRO // 1000
_BAR = 30
_HIGHEST = 700.0
_SURE = 0.99
_TINY_DELTA_UNITS = DELTA_ONE // 10**11
NOTHING = "nothing"
LITTLE = "next to nothing"


@dataclass(frozen=True, slots=True)
class Prices:
    """What releases cost a person, or one of their units, under each relation.

    Attributes:
        which: epsilon and delta between two contents (replace-one).
        zero_out: epsilon and delta between a content and an empty one (zero-out); None if that is public.
    """

    which: Cost
    zero_out: Cost | None

    def __add__(self, other: Prices) -> Prices:
        """Both together (basic composition). What is public for one of them is public for both."""
        hidden = self.zero_out and other.zero_out and _sum(self.zero_out, other.zero_out)
        return Prices(_sum(self.which, other.which), hidden)

    @property
    def weak(self) -> str | None:
        """Words for the worse relation, if (next to) nothing is guaranteed under it."""
        found = [weakness(one) for one in (self.which, self.zero_out) if one is not None]
        return NOTHING if NOTHING in found else LITTLE if LITTLE in found else None

    @property
    def under(self) -> str:
        """`` under replace-one`` where less is guaranteed under it than `weak` says of both; else empty."""
        alone = self.zero_out is not None and weakness(self.zero_out) != self.weak
        return " under replace-one" if alone else ""

    @property
    def mark(self) -> str:
        """``weak `` before a guarantee by which an observer who was 50 % sure may become over 99 % sure; else empty."""
        return "weak " if even_odds(self.which) > _SURE else ""


class Subject(NamedTuple):
    """The subject of a sentence.

    Attributes:
        which: its name under replace-one.
        zero_out: its name under zero-out.
        public: words to say that it came is public.
        assumed: how many units are assumed of a person whose units nobody counts, in words; empty if they are counted.
    """

    which: str
    zero_out: str
    public: str
    assumed: str = ""


class Odds(NamedTuple):
    """The largest probability that an observer may give to something that had even odds before.

    Attributes:
        label: what it is about.
        share: in [0, 1].
        chance: that it becomes larger, in brackets; empty without a delta.
    """

    label: str
    share: float
    chance: str = ""


PERSON = Subject(
    "one person, replace-one",
    "one person, zero-out",
    "participation is public: that they took part, how often and when",
)
UNIT = Subject("replace-one", "zero-out", "that it came, and when, is public")


def person_of(unit: str, public: bool, supposed: int | None = None) -> Subject:
    """Words for one person: all about them is protected or, if taking part is public, the content of their units.

    Args:
        unit: of the relation, in words.
        public: whether an empty content is none of the possible ones, so that replace-one alone is left.
        supposed: assumed number of units of a person, if nobody counts them; None if they are counted.
    """
    given = "" if supposed is None else f"{supposed} {noun(unit)}{'' if supposed == 1 else 's'}"
    who = f"{given} of one person" if given else "one person"
    if not public:
        return Subject(f"{who}, replace-one", f"{who}, zero-out", PERSON.public, given)
    about = who if given else f"one person's {noun(unit)}s"
    return Subject(f"what {about} were, replace-one", "", PERSON.public, given)


def weakness(cost: Cost) -> str | None:
    """Words for a price that is so high that it promises little or nothing."""
    if cost.delta_units >= DELTA_ONE:
        return NOTHING
    weak = _shown_micro(cost) >= _WEAK_EPSILON_MICRO or cost.delta_units >= _WEAK_DELTA_UNITS
    return LITTLE if weak else None


def strength(cost: Cost) -> str:
    """Words that end a sentence on what a price allows, if that is weak; else empty."""
    word = weakness(cost)
    return f", so {word} is guaranteed" if word else Prices(cost, None).mark and ", which is weak"


def price_text(cost: Cost) -> str:
    """Epsilon and delta, with a remark if they guarantee nothing."""
    return f"{shown(cost)}{strength(cost)}" if weakness(cost) == NOTHING else shown(cost)


def shown(cost: Cost) -> str:
    """Epsilon, rounded up to thousandths, and delta."""
    return f"epsilon {epsilon_text(_shown_micro(cost))}, delta {delta_text(cost.delta_units)}"


def told(prices: Prices, subject: Subject) -> str:
    """Both costs with the relations that they are under, the larger one first."""
    which = f"{subject.which}: {price_text(prices.which)}{', if they give no more' if subject.assumed else ''}"
    if prices.zero_out is None:
        return f"{which}; {subject.public}"
    return f"{which}; {subject.zero_out}: {price_text(prices.zero_out)}"


def bounds(prices: Prices) -> str:
    """Epsilon, rounded up to thousandths, and delta under each relation, the larger first."""
    which = f"{bound(prices.which)} (replace-one)"
    return which if prices.zero_out is None else f"{which} and {bound(prices.zero_out)} (zero-out)"


def noun(unit: str) -> str:
    """The one word for a unit whose text begins with ``one WORD``."""
    first, *others = unit.split()
    return others[0] if first == "one" and others else "unit"


def beyond(unit: str, unit_prices: Prices) -> str:
    """What is guaranteed if little is guaranteed for a whole life; empty if that is little, too."""
    return f" beyond single {noun(unit)}s" if unit_prices.weak is None else ""


def left_alone(unit: str, unit_prices: Prices) -> str:
    """What remains if nothing is guaranteed for a whole life: single units, or hardly those."""
    if unit_prices.weak is None:
        return f"so only single {noun(unit)}s are protected"
    return f"and for {unit} {unit_prices.weak} is guaranteed, too: {bounds(unit_prices)}"


def ledger_words(unit: str, unit_prices: Prices) -> str:
    """The relation whose cost budgets and ledgers count, and the cost under the other one."""
    if unit_prices.zero_out is None:
        return f"`hushstream budget` counts in replace-one; {UNIT.public}."
    return (
        f"`hushstream budget` counts in zero-out. There {unit} costs {shown(unit_prices.zero_out)}, "
        f"and under replace-one {shown(unit_prices.which)}."
    )


def core_sentence(person: Prices, subject: Subject, unit: str, unit_prices: Prices) -> str:
    """The guarantee for a person, and what remains if it guarantees nothing; without a full stop."""
    released = "for all that this deployment releases"
    if weakness(person.zero_out or person.which) == NOTHING and unit_prices.weak is None:
        why = f" (nobody counts their {noun(unit)}s)" if subject.assumed else ""
        weakly = ", weakly" if unit_prices.mark else ""
        return f"one person as a whole is not protected{why}; {unit} is{weakly}, {released}: {bounds(unit_prices)}"
    if person.weak is not None:
        clauses = "; ".join(_weak_clauses(person, subject, unit, unit_prices))
        return f"{clauses}, {released}{'' if unit_prices == person else f'; {_unit_clause(unit, unit_prices)}'}"
    if not subject.assumed:
        of = f" of {noun(unit)}s alone" if unit_prices.zero_out is None else ""
        return f"{person.mark}user-level differential privacy{of}, {released}: {bounds(person)}; {subject.public}"
    together = f"; {subject.assumed} of one person together{person.mark and ' (weak)'}: {bounds(person)}"
    together = "" if person == unit_prices else together
    level = f"{unit_prices.mark}{noun(unit)}-level differential privacy, {released}: {bounds(unit_prices)}{together}"
    return f"{level}; nobody counts all {noun(unit)}s of one person; {subject.public}"


def core_phrase(person: Prices, subject: Subject, unit: str, unit_prices: Prices) -> str:
    """The same in a few words, for a line of results: both costs of a person, and of the unit where that is more."""
    if person.weak is None:
        level, prices = (noun(unit), unit_prices) if subject.assumed else ("user", person)
        return f"{prices.mark}{level}-level {bounds(prices)}"
    weak = f"{person.weak} guaranteed about one person as a whole{person.under}"
    weak += f" ({bounds(person)})" if person.weak == LITTLE else ""
    if unit_prices == person:
        return weak
    if unit_prices.weak is not None:
        return f"{weak}, nor about {unit}"
    return f"{weak}; {unit}: {bound(unit_prices.which)} (replace-one)"


def bars(person: Prices, subject: Subject, unit: str, unit_prices: Prices) -> tuple[Odds, ...]:
    """The bars of the picture: before any release; about a person (larger price first); about a unit if it differs."""
    found = [Odds("before anything is released", 0.5), *_pair(person, subject)]
    if unit_prices != person:
        found += _pair(unit_prices, Subject(f"{unit}, replace-one", f"{unit}, zero-out", ""))
    return tuple(found)


def picture(odds: tuple[Odds, ...]) -> list[str]:
    """The bars as lines of text."""
    width = max(len(one.label) for one in odds)
    lines = ["The most that an observer can believe after the release, if they believed 50 % before:"]
    for one in odds:
        full = round(_BAR * one.share)
        lines.append(f"{one.label:<{width}}  {'█' * full}{'·' * (_BAR - full)} {percent(one.share)}{one.chance}")
    return lines


def percent(share: float) -> str:
    """A share as a percentage, rounded up so that no guarantee is overstated; 100 % is certainty alone."""
    tenths = math.ceil(1000 * share - 1e-9)
    return "over 99.9 %" if tenths >= 1000 and share < 1 else f"{tenths / 10:g} %"


def slack(cost: Cost) -> float:
    """What is added to epsilon, so that odds beyond it have a small chance (`larger_units`)."""
    return 0.0 if not cost.delta_units else 1e-5 if cost.delta_units <= _TINY_DELTA_UNITS else 1.0


def larger_units(cost: Cost) -> int:
    """The chance that the odds exceed e^(epsilon + slack) to 1: delta / (1 - e^-slack) or more, in units of delta."""
    thousandths = 100_001_000 if cost.delta_units <= _TINY_DELTA_UNITS else 1_582
    return min(DELTA_ONE, -(-cost.delta_units * thousandths // 1000))


def even_odds(cost: Cost) -> float:
    """The largest probability after even odds, but for `larger_units`: that of e^(epsilon + slack) to 1."""
    if cost.delta_units >= DELTA_ONE:
        return 1.0
    return 1 / (1 + math.exp(-min(float(epsilon_value(cost.epsilon_micro)) + slack(cost), _HIGHEST)))


def larger(cost: Cost) -> str:
    """The chance of more than `even_odds`, in brackets; empty without a delta."""
    return f" (more: chance at most {delta_text(larger_units(cost))})" if cost.delta_units else ""


def _weak_clauses(person: Prices, subject: Subject, unit: str, unit_prices: Prices) -> list[str]:
    """What is guaranteed under each relation, if it is weak under one; one clause if it is equally weak under both."""
    alone = beyond(unit, unit_prices)
    uncounted = f"nobody counts all {noun(unit)}s of one person" if subject.assumed else ""
    beside = f", and {uncounted}" if uncounted else ""
    both = ((person.which, "replace-one"), (person.zero_out, "zero-out"))
    relations = [(cost, relation) for cost, relation in both if cost is not None]
    weaknesses = {weakness(cost) for cost, _ in relations}
    if weaknesses == {NOTHING}:
        return [f"for one person as a whole nothing is guaranteed{beside}"]
    about = f"for {subject.assumed} of one person" if subject.assumed else "for one person as a whole"
    if weaknesses == {LITTLE}:
        return [f"{about} next to nothing is guaranteed{alone} ({bounds(person)}){beside}"]
    level = (f"{about}, if there are no more, ", "") if subject.assumed else ("", "user-level ")
    return [_clause(cost, relation, *level) for cost, relation in relations] + [uncounted] * bool(uncounted)


def _clause(cost: Cost, relation: str, about: str, level: str) -> str:
    weak = weakness(cost)
    if weak is None:
        return f"{about}{Prices(cost, None).mark}{level}differential privacy under {relation}: {bound(cost)}"
    return f"{weak} is guaranteed under {relation}{'' if weak == NOTHING else f' ({bound(cost)})'}"


def _unit_clause(unit: str, prices: Prices) -> str:
    """What is guaranteed for one unit under each relation."""
    if prices.weak is not None:
        return f"for {unit} {prices.weak} is guaranteed, too"
    return f"{unit} is {prices.mark and 'weakly '}protected: {bounds(prices)}"


def _pair(prices: Prices, subject: Subject) -> list[Odds]:
    found = []
    for about, cost in ((subject.which, prices.which), (subject.zero_out, prices.zero_out)):
        if cost is not None:
            chance = " (nothing is guaranteed)" if weakness(cost) == NOTHING else larger(cost)
            found.append(Odds(about, even_odds(cost), chance))
    return found


def _shown_micro(cost: Cost) -> int:
    """Epsilon as it is printed: in millionths, rounded up to thousandths."""
    return -(-cost.epsilon_micro // _SHOWN_STEP) * _SHOWN_STEP


def bound(cost: Cost) -> str:
    """Epsilon, rounded up to thousandths, and delta if there is one."""
    return shown(cost).removesuffix(", delta 0")


def _sum(one: Cost, other: Cost) -> Cost:
    both = one + other
    return Cost(both.epsilon_micro, min(DELTA_ONE, both.delta_units))
