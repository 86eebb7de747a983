"""A statement's verdict in one line, and its figures in one worked example, for a reader who knows no epsilon."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from hushstream.engine.declaration import System
from hushstream.privacy.amounts import DELTA_ONE, Cost, delta_text, epsilon_value
from hushstream.privacy.promise import Guarantee, Promises

_CERTAIN = 16
"""From this epsilon on the odds are beyond a million to one."""


def verdict(promises: Promises) -> str:
    """What holds, in one line: that, or what of it does not, and at which price for one unit and for a person."""
    promise = promises.releases
    if promise.unnoised:
        return f"Not private as stated: content of persons leaves un-noised on {', '.join(promise.unnoised)}"
    if not promise.private_as_stated:
        return f"Not private as stated: the claim that is reproduced does not hold; true price {promise.cost}"
    if promise.reproducible:
        return "Not private: the noise comes from a seed, and whoever knows it can take the noise off"
    person = f"one person in a whole life {promises.together}"
    weak = "" if promises.warning is None else f"; {promises.warning}"
    return f"Private as stated: {promise.unit} pays {promise.cost}, {person}{weak}"


def worked_example(system: System, promises: Promises) -> list[tuple[str, str]]:
    """What the figures let an onlooker learn of somebody, from even odds."""
    promise = promises.releases
    fact = system.words.example
    if promise.unnoised:
        told = f"whoever reads {', '.join(promise.unnoised)} reads it there: no figure bounds what they learn"
        return [("example", f"somebody wonders whether {fact}: {told}")]
    lines = [
        (
            "example",
            f"somebody holds it as likely as not that {fact}. They read everything that is ever published and know "
            f"everything about everybody else. {_after(promise.cost)}",
        ),
        ("the same for one person's whole life", _life(promises)),
    ]
    if promise.cost.delta_units:
        lines.append(("and delta", _delta(promise)))
    return lines


def _after(cost: Cost) -> str:
    """What even odds become."""
    if cost.delta_units >= DELTA_ONE:
        return "Afterwards they may know for certain: nothing is promised."
    epsilon = float(epsilon_value(cost.epsilon_micro))
    if epsilon >= _CERTAIN:
        return "Afterwards they may be as good as certain: more than a million to one."
    high = _percent(1 / (1 + math.exp(-epsilon)))
    return f"Afterwards they hold it at most {high} % and at least {100 - high} % likely, whatever they have read."


def _percent(share: float) -> Decimal:
    return (100 * Decimal(share)).quantize(Decimal("0.1"), ROUND_CEILING)


def _life(promises: Promises) -> str:
    text = "that Ann took part with all that is hers, and not with nothing: as likely as not before. "
    return text + _after(promises.together)


def _delta(promise: Guarantee) -> str:
    return f"these bounds hold but for a chance of at most {delta_text(promise.delta_units)}"
