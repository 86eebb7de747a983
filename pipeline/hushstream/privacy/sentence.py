"""What a guarantee comes to for one person: a sentence, and a picture of what an onlooker may come to believe.

Pure epsilon-DP bounds every likelihood ratio by e^epsilon (Dwork and Roth 2014, definition 2.4): so even odds become at
most e^epsilon to 1, whatever is read and whatever else is known. What delta allows beyond it is said beside it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, delta_text, epsilon_text, epsilon_value

_WEAK_EPSILON_MICRO = 10 * MICRO
_WEAK_DELTA_UNITS = DELTA_ONE // 100
_BAR = 30
_HIGHEST = 700.0


def weakness(cost: Cost) -> str | None:
    """In words, where a price is so high that little or nothing is promised for it."""
    if cost.delta_units >= DELTA_ONE:
        return "nothing"
    weak = cost.epsilon_micro >= _WEAK_EPSILON_MICRO or cost.delta_units >= _WEAK_DELTA_UNITS
    return "next to nothing" if weak else None


class Odds(NamedTuple):
    """How likely somebody may hold at most what they held as likely as not before.

    Attributes:
        label: of whom.
        share: in [0, 1].
    """

    label: str
    share: float


def factor(cost: Cost) -> str:
    """How much anybody learns at a price, in words; delta aside."""
    return f"a factor e^{epsilon_text(cost.epsilon_micro)}"


def chance(cost: Cost) -> str:
    """What delta says of it, to follow behind."""
    return f", but for a chance of {delta_text(cost.delta_units)}" if cost.delta_units else ""


def core_sentence(life: Cost, unit: str, unit_cost: Cost) -> str:
    """What a price for a whole life comes to, and what is left where it comes to nothing; without a full stop."""
    released = "from all that this deployment releases about"
    weak = weakness(life)
    if weak is None:
        return f"nobody learns more than {factor(life)} {released} one person{chance(life)}"
    unit_weak = weakness(unit_cost)
    single = f"for {unit} {unit_weak} is promised, too"
    if unit_weak is None:
        single = f"{unit} is protected, up to {factor(unit_cost)}"
    how_far = "" if weak == "nothing" else f" ({factor(life)})"
    return f"one person as a whole is promised {weak}{how_far} {released} them; {single}"


def even_odds(life: Cost, units: str, unit: str, unit_cost: Cost) -> tuple[Odds, ...]:
    """The bars of the picture: before, after one unit, and after a whole life where that is more."""
    found = [Odds("before anything is released", 0.5), Odds(f"after, about {unit}", _share(unit_cost))]
    if life != unit_cost:
        found.append(Odds(f"after, about {units}", _share(life)))
    return tuple(found)


def picture(odds: tuple[Odds, ...]) -> list[str]:
    """The bars as lines of text."""
    width = max(len(one.label) for one in odds)
    lines = ["What somebody who held a thing as likely as not may come to believe of it, at most:"]
    for one in odds:
        full = round(_BAR * one.share)
        lines.append(f"{one.label:<{width}}  {'█' * full}{'·' * (_BAR - full)} {percent(one.share)}")
    return lines


def percent(share: float) -> str:
    """A share as a percentage, rounded up: what is promised is never overstated."""
    return f"{min(100, math.ceil(1000 * share - 1e-9) / 10):g} %"


def _share(cost: Cost) -> float:
    if cost.delta_units >= DELTA_ONE:
        return 1.0
    return 1 / (1 + math.exp(-min(float(epsilon_value(cost.epsilon_micro)), _HIGHEST)))
