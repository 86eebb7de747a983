"""What a guarantee comes to for one person, in one line and one picture."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, ratio_text
from hushstream.privacy.promise import Guarantee, Lifetime
from hushstream.privacy.sentence import even_odds, percent, picture


def promise(epsilon=1.0, life=1.5, delta=0, life_delta=0, **other):
    cost = Cost(round(epsilon * MICRO), delta)
    values = {
        "mechanism": "m",
        "relation": "r",
        "unit": "one reward",
        "cost": cost,
        "replace_one": cost,
        "lifetime": Lifetime(3, 1, Cost(round(life * MICRO), life_delta)),
        "sensitivity": 1,
        "norm": "n",
        "zone": "z",
        "deployment": "hosted",
        "residue_units": 0,
        "not_protected": ("x",),
    }
    return Guarantee(**{**values, **other})


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            promise(),
            "Nobody learns more than a factor e^1.5 from all that this deployment releases about one person.",
        ),
        (
            promise(life_delta=DELTA_ONE // 1000),
            "Nobody learns more than a factor e^1.5 from all that this deployment releases about one person, but for a "
            "chance of 1.00e-3.",
        ),
        (
            promise(life=12.0),
            "One person as a whole is promised next to nothing (a factor e^12) from all that this deployment releases "
            "about them; one reward is protected, up to a factor e^1.",
        ),
        (
            promise(life_delta=DELTA_ONE),
            "One person as a whole is promised nothing from all that this deployment releases about them; one reward "
            "is protected, up to a factor e^1.",
        ),
        (
            promise(reproducible=True),
            "A person is promised nothing here, since the noise comes from a seed; under a secret key nobody learns "
            "more than a factor e^1.5 from all that this deployment releases about one person.",
        ),
    ],
)
def test_the_first_line_says_what_a_person_is_promised_or_that_it_is_nothing(made, expected):
    assert made.sentence() == expected
    assert made.as_text().splitlines()[0] == expected


def test_what_is_released_beside_it_counts_and_what_is_kept_is_said_where_it_is_known():
    told = promise().sentence(Cost(2 * MICRO), kept=0.8512)
    assert told.startswith("Nobody learns more than a factor e^2 from")
    assert told.endswith("; expected reward kept, 85%.")


def test_the_picture_is_what_even_odds_become():
    unit, life = Cost(MICRO), Cost(2 * MICRO)
    odds = even_odds(life, "a whole life", "one reward", unit)
    shares = [one.share for one in odds]
    assert shares == pytest.approx([0.5, math.e / (1 + math.e), math.e**2 / (1 + math.e**2)])
    assert len(even_odds(unit, "a whole life", "one reward", unit)) == 2
    assert even_odds(Cost(0, DELTA_ONE), "a whole life", "one reward", unit)[-1].share == 1.0
    bars = picture(odds)[1:]
    assert [line.count("█") for line in bars] == [15, 22, 26]
    # Rounded up: what is promised is never overstated.
    assert [line.split()[-2] for line in bars] == ["50", "73.2", "88.1"]
    assert percent(0.88001) == "88.1 %"


@pytest.mark.parametrize(
    ("scale", "text"), [(Fraction(240), "240"), (Fraction(10, 3), "3.333"), (Fraction(10**9, 7), "142857143")]
)
def test_a_scale_is_a_number(scale, text):
    assert ratio_text(scale.numerator, scale.denominator) == text
