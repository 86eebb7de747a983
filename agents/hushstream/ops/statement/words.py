"""The verdict of a statement in one line, and worked examples for a reader who does not know epsilon."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

from hushstream.engine.declare.declaration import System
from hushstream.privacy.amounts import Cost, delta_text, epsilon_value
from hushstream.privacy.promises.promise import Promises
from hushstream.privacy.promises.sentence import NOTHING, Prices, Subject, even_odds, price_text, weakness

_CERTAIN = 16
"""From this epsilon on, the odds that an onlooker may reach are above a million to one."""

UNIT_SUBJECT = Subject("which of two it was", "whether it was there at all", "that it was there is public")


def verdict(promises: Promises) -> str:
    """Say in one line what is guaranteed: first for one person, then for one unit; or that nothing is."""
    promise = promises.releases
    if promise.unnoised:
        return f"Not private as stated: content of persons leaves un-noised on {', '.join(promise.unnoised)}"
    if not promise.private_as_stated:
        return f"Not private as stated: the claim that is reproduced does not hold; true price {promise.cost}"
    if promise.reproducible:
        return "Not private: the noise comes from a seed, and whoever knows it can take the noise off"
    unit = f"{promise.unit}: {told(promise.unit_prices, UNIT_SUBJECT)}"
    if promises.warning is None:
        return f"Private as stated for one person: {told(promises.together, promise.person)}; {unit}"
    if promise.unit_prices.weak is not None:
        return f"Not private: {promises.warning}"
    warning = promises.warning
    return f"{warning[:1].upper()}{warning[1:]}; private as stated for single units alone: {unit}"


def told(prices: Prices, subject: Subject) -> str:
    """Say both prices with the questions that they answer, the larger one first."""
    which = f"{subject.which}, {price_text(prices.which)}"
    if prices.took_part is None:
        return f"{which}; {subject.public}"
    return f"{which}; {subject.took_part}, {price_text(prices.took_part)}"


def worked_example(system: System, promises: Promises) -> list[tuple[str, str]]:
    """Show by an example what an onlooker may learn about a person, starting from even odds."""
    promise = promises.releases
    fact = system.words.example
    if promise.unnoised:
        told_there = f"whoever reads {', '.join(promise.unnoised)} reads it there: no figure bounds what they learn"
        return [("example", f"an observer asks whether {fact}: {told_there}")]
    one, life = promise.unit_prices, promises.together
    lines = [
        (
            "example",
            f"an observer assigns probability 50 % to this: {fact}; and 50 % to something else in its place. They read "
            f"everything that is ever published and know everything about everybody else. {_after(one.which)}",
        )
    ]
    if one.took_part is not None:
        lines.append(("the same, had there been nothing in its place", _after(one.took_part)))
    what = f"an observer assigns 50 % to each of two things that all of Ann's data may be. {_after(life.which)}"
    lines.append(("the same for one person's whole life", what))
    if life.took_part is not None:
        what = f"an observer assigns 50 % to this: Ann took part; and 50 % to the contrary. {_after(life.took_part)}"
        lines.append(("and whether they took part at all", what))
    return lines


def how_to_read(promises: Promises) -> str:
    """Say in one sentence what the figures mean: each price bounds the odds of its own question."""
    subject = promises.releases.person
    factor = "by at most a factor of e to its epsilon, but for a chance of its delta"
    both = f"the odds of {subject.which} change {factor}, whatever is published"
    if promises.together.took_part is None:
        return f"{both}; {subject.public}"
    return f"{both}; those of {subject.took_part} by the second, smaller price likewise"


def _after(cost: Cost) -> str:
    """Say what even odds become under this bound, with its delta."""
    if weakness(cost) == NOTHING:
        return "Afterwards they may know for certain: nothing is promised."
    if float(epsilon_value(cost.epsilon_micro)) >= _CERTAIN:
        return "Afterwards they may be as good as certain: more than a million to one."
    high = (100 * Decimal(even_odds(cost))).quantize(Decimal("0.1"), ROUND_CEILING)
    beside = f", but for a chance of at most {delta_text(cost.delta_units)}" if cost.delta_units else ""
    return f"Afterwards they think it at most {high} % and at least {100 - high} % likely{beside}."
