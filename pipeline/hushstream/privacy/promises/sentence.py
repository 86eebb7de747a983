"""The words of a guarantee: two prices, the sentence, the phrase for a result, and the bars of the picture.

A guarantee about a person has two prices: for the question which of two things they did, and for the question whether
they took part at all. In the first question the neighbour is another content, in the second one no content. So the
first costs up to twice the epsilon of the second, and comes first. If taking part is public, only the first question
remains.

Pure epsilon-DP bounds every likelihood ratio by e^epsilon (Dwork and Roth 2014, definition 2.4): so even odds become at
most e^epsilon to 1, whatever an observer reads and knows. With a delta, the two laws are an epsilon-indistinguishable
pair except for a part of weight delta (Kairouz, Oh, Viswanath 2015, theorem 3.3). So every bound is printed with "but
for a chance of delta".
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
NOTHING = "nothing"
LITTLE = "next to nothing"


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of the two questions about a person, or about one of their units.

    Attributes:
        which: epsilon and delta between two contents (which of two things they did).
        took_part: epsilon and delta between a content and none (whether they took part at all); None if that is public.
    """

    which: Cost
    took_part: Cost | None

    def __add__(self, other: Prices) -> Prices:
        """Both together (basic composition). If taking part is public for one of them, it is public for both."""
        hidden = None not in (self.took_part, other.took_part)
        took_part = _sum(self.took_part, other.took_part) if hidden else None
        return Prices(_sum(self.which, other.which), took_part)

    @property
    def weak(self) -> str | None:
        """Words for the worse question, if (next to) nothing is promised for it."""
        found = [weakness(one) for one in (self.which, self.took_part) if one is not None]
        return NOTHING if NOTHING in found else LITTLE if LITTLE in found else None


class Subject(NamedTuple):
    """The subject of a sentence.

    Attributes:
        which: words for the question which of two things it was.
        took_part: words for the question whether it was there at all.
        public: words to say that its being there is public.
    """

    which: str
    took_part: str
    public: str


class Odds(NamedTuple):
    """The largest probability that an observer may give to something that had even odds before.

    Attributes:
        label: what it is about.
        share: in [0, 1].
        chance: words for delta; empty without one.
    """

    label: str
    share: float
    chance: str = ""


PERSON = Subject("which of two things one person did", "whether they took part at all", "that they took part is public")


def person_of(unit: str, public: bool, supposed: int | None = None) -> Subject:
    """Words for one person: all about them is protected or, if taking part is public, the content of their units.

    Args:
        unit: of the relation, in words.
        public: whether taking part is public.
        supposed: assumed number of units of a person, if nobody counts them; None if they are counted.
    """
    few = "" if supposed is None else f", if they gave {supposed} at most, which nobody counts"
    if not public:
        return Subject(f"{PERSON.which}{few}", f"{PERSON.took_part}{few}", PERSON.public)
    return Subject(f"what one person's {noun(unit)}s were{few}", "", "that they gave them is public")


def weakness(cost: Cost) -> str | None:
    """Words for a price that is so high that it promises little or nothing."""
    if cost.delta_units >= DELTA_ONE:
        return NOTHING
    weak = cost.epsilon_micro >= _WEAK_EPSILON_MICRO or cost.delta_units >= _WEAK_DELTA_UNITS
    return LITTLE if weak else None


def price_text(cost: Cost) -> str:
    """Epsilon and delta, with a remark if they promise nothing."""
    return f"{cost}, so nothing is promised" if weakness(cost) == NOTHING else str(cost)


def factor(cost: Cost) -> str:
    """How much an observer learns at a price, in words. Epsilon is rounded up to thousandths; delta is left out."""
    return f"a factor {_power(cost)}"


def chance(cost: Cost) -> str:
    """Words for delta, to follow after `factor`."""
    return f" (but for a chance of {delta_text(cost.delta_units)})" if cost.delta_units else ""


def noun(unit: str) -> str:
    """The one word for a unit whose text begins with ``one WORD``."""
    first, *others = unit.split()
    return others[0] if first == "one" and others else "unit"


def beyond(unit: str, unit_prices: Prices) -> str:
    """What is promised if little is promised for a whole life; empty if that is little, too."""
    return f" beyond single {noun(unit)}s" if unit_prices.weak is None else ""


def left_alone(unit: str, unit_prices: Prices) -> str:
    """What remains if nothing is promised for a whole life: single units, or hardly those."""
    if unit_prices.weak is None:
        return f"so only single {noun(unit)}s are protected"
    return f"and for {unit} {unit_prices.weak} is promised, too ({_unit_factors(unit_prices)})"


def ledger_words(unit: str, unit_prices: Prices) -> str:
    """The question whose price budgets and ledgers count, and the price of the other one."""
    if unit_prices.took_part is None:
        return "Amounts in budget and ledger are for the question which of two it was; that it was there is public."
    return (
        f"Amounts in budget and ledger are for the question whether it was there at all. For it {unit} costs "
        f"{unit_prices.took_part}, and for the question which of two it was {unit_prices.which}."
    )


def core_sentence(person: Prices, subject: Subject, unit: str, unit_prices: Prices) -> str:
    """The promise to a person, and what remains if it promises nothing; without a full stop."""
    released = "from all that this deployment releases"
    if person.weak is not None:
        clauses = "; ".join(_weak_clauses(person, subject, beyond(unit, unit_prices)))
        return f"{clauses}, {released}; {_unit_clause(unit, unit_prices)}"
    which = f"nobody learns more than {factor(person.which)} about {subject.which}{chance(person.which)}"
    if person.took_part is None:
        return f"{which}, {released}; {subject.public}"
    took_part = f"and no more than {factor(person.took_part)} about {subject.took_part}{chance(person.took_part)}"
    return f"{which}, {took_part}, {released}"


def core_phrase(person: Prices, subject: Subject, unit: str, unit_prices: Prices) -> str:
    """The same in a few words, for a line of results: both prices of a person, and of the unit where that is more."""
    if person.weak is None:
        parts = [f"at most {_power(person.which)} about {subject.which}"]
        if person.took_part is not None:
            parts.append(f"{_power(person.took_part)} about {subject.took_part}")
        return ", ".join(parts)
    weak = f"{person.weak} promised about one person as a whole"
    if unit_prices.weak is not None:
        return f"{weak}, nor about {unit}"
    return f"{weak}; about {unit} at most {_power(unit_prices.which)}"


def bars(person: Prices, subject: Subject, unit: str, unit_prices: Prices) -> tuple[Odds, ...]:
    """The bars of the picture: before any release; about a person (larger price first); about a unit if it differs."""
    found = [Odds("before anything is released", 0.5), *_pair(person, subject)]
    if unit_prices != person:
        found += _pair(unit_prices, Subject(f"{unit}: which of two it was", f"{unit}: whether it was there at all", ""))
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
    """A share as a percentage, rounded up so that no promise is overstated."""
    return f"{min(100, math.ceil(1000 * share - 1e-9) / 10):g} %"


def even_odds(cost: Cost) -> float:
    """The largest probability after even odds, at a price: e^epsilon / (1 + e^epsilon), or 1 if delta is 1."""
    if cost.delta_units >= DELTA_ONE:
        return 1.0
    return 1 / (1 + math.exp(-min(float(epsilon_value(cost.epsilon_micro)), _HIGHEST)))


def _weak_clauses(person: Prices, subject: Subject, beyond: str) -> list[str]:
    """The promise for each question, if one of them is weak; one clause if both promises are equally weak."""
    questions = [(person.which, subject.which)]
    if person.took_part is not None:
        questions.append((person.took_part, subject.took_part))
    weaknesses = {weakness(cost) for cost, _ in questions}
    if weaknesses == {NOTHING}:
        return [f"for one person as a whole nothing is promised{beyond}"]
    if weaknesses == {LITTLE}:
        factors = " and ".join(f"{_power(cost)} about {about}" for cost, about in questions)
        return [f"for one person as a whole next to nothing is promised{beyond} (factors of {factors})"]
    return [_clause(cost, about) for cost, about in questions]


def _clause(cost: Cost, about: str) -> str:
    weak = weakness(cost)
    if weak is None:
        return f"nobody learns more than {factor(cost)} about {about}{chance(cost)}"
    return f"{weak} is promised about {about}{'' if weak == NOTHING else f' ({factor(cost)})'}"


def _unit_clause(unit: str, prices: Prices) -> str:
    """The promise for one unit: its larger price, and which of both questions that is."""
    if prices.weak is not None:
        return f"for {unit} {prices.weak} is promised, too"
    which = f"up to {factor(prices.which)} about which of two it was{chance(prices.which)}"
    if prices.took_part is None:
        return f"{unit} is protected, {which}"
    took_part = f"{factor(prices.took_part)} about whether it was there at all{chance(prices.took_part)}"
    return f"{unit} is protected, {which} and {took_part}"


def _unit_factors(prices: Prices) -> str:
    which = f"{factor(prices.which)} about which of two it was"
    if prices.took_part is None:
        return which
    return f"{which} and {factor(prices.took_part)} about whether it was there at all"


def _pair(prices: Prices, subject: Subject) -> list[Odds]:
    found = [_odds(subject.which, prices.which)]
    return found if prices.took_part is None else [*found, _odds(subject.took_part, prices.took_part)]


def _odds(about: str, cost: Cost) -> Odds:
    beside = " (nothing is promised)" if weakness(cost) == NOTHING else chance(cost)
    return Odds(about, even_odds(cost), beside)


def _power(cost: Cost) -> str:
    return f"e^{_shown(cost)}"


def _shown(cost: Cost) -> str:
    return epsilon_text(-(-cost.epsilon_micro // _SHOWN_STEP) * _SHOWN_STEP)


def _sum(one: Cost | None, other: Cost | None) -> Cost:
    assert one is not None
    assert other is not None
    both = one + other
    return Cost(both.epsilon_micro, min(DELTA_ONE, both.delta_units))
