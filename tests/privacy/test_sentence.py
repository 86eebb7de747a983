"""What a guarantee comes to for one person, in one line and one picture."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, ratio_text
from hushstream.privacy.promises.page import page_text
from hushstream.privacy.promises.promise import Guarantee, Lifetime, Promises
from hushstream.privacy.promises.sentence import Prices, factor, percent, picture


def promise(epsilon=1.0, life=1.5, life_delta=0, **other):
    cost, exchange = Cost(round(epsilon * MICRO)), Cost(round(2 * epsilon * MICRO))
    whole = Cost(round(life * MICRO), life_delta), Cost(round(2 * life * MICRO), life_delta and 3 * life_delta)
    values = {
        "mechanism": "m",
        "relation": "r",
        "unit": "one reward",
        "cost": cost,
        "replace_one": exchange,
        "lifetime": Lifetime(3, 1, *whole),
        "sensitivity": 1,
        "norm": "n",
        "zone": "z",
        "deployment": "hosted",
        "residue_units": 0,
        "not_protected": ("x",),
    }
    return Guarantee(**{**values, **other})


RELEASED = "from all that this deployment releases"
UNIT = (
    "one reward is protected, up to a factor e^2 about which of two it was and a factor e^1 about whether it was there"
)
STRONG = (
    "obody learns more than a factor e^3 about which of two things one person did, and no more than a factor e^1.5 "
    f"about whether they took part at all, {RELEASED}."
)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (promise(), f"N{STRONG}"),
        (
            promise(life_delta=DELTA_ONE // 1000),
            "Nobody learns more than a factor e^3 about which of two things one person did (but for a chance of "
            "3.00e-3), and no more than a factor e^1.5 about whether they took part at all (but for a chance of "
            f"1.00e-3), {RELEASED}.",
        ),
        (
            promise(life=12.0),
            "For one person as a whole next to nothing is promised beyond single rewards (factors of e^24 about which "
            f"of two things one person did and e^12 about whether they took part at all), {RELEASED}; {UNIT} at all.",
        ),
        (
            promise(life=6.0),
            "Next to nothing is promised about which of two things one person did (a factor e^12); nobody learns more "
            f"than a factor e^6 about whether they took part at all, {RELEASED}; {UNIT} at all.",
        ),
        (
            promise(life_delta=DELTA_ONE),
            f"For one person as a whole nothing is promised beyond single rewards, {RELEASED}; {UNIT} at all.",
        ),
        (
            promise(reproducible=True),
            "A person is promised nothing here, since the noise comes from a seed; under a secret key n" + STRONG,
        ),
    ],
)
def test_the_first_line_says_what_a_person_is_promised_or_that_it_is_nothing(made, expected):
    assert made.sentence() == expected
    assert page_text(Promises(made)).splitlines()[0] == expected


def test_what_is_released_beside_it_counts():
    told = promise().sentence(Prices(Cost(4 * MICRO), Cost(2 * MICRO)))
    assert told.startswith("Nobody learns more than a factor e^4 about which")


def test_a_factor_is_rounded_up_to_thousandths():
    assert factor(Cost(2_999_987)) == "a factor e^3"
    assert factor(Cost(6_643_156)) == "a factor e^6.644"


def test_the_picture_is_what_even_odds_become_with_the_delta_of_each():
    odds = promise(life=2.0, life_delta=DELTA_ONE // 1000).odds()
    assert [one.share for one in odds] == pytest.approx([0.5, *(1 / (1 + math.exp(-e)) for e in (4, 2, 2, 1))])
    bars = picture(odds)[1:]
    assert [line.count("█") for line in bars] == [15, 29, 26, 26, 22]
    # Rounded up: what is promised is never overstated.
    assert [line.partition(" %")[0].split()[-1] for line in bars] == ["50", "98.3", "88.1", "88.1", "73.2"]
    assert [line.partition(" %")[2] for line in bars[1:3]] == [
        " (but for a chance of 3.00e-3)",
        " (but for a chance of 1.00e-3)",
    ]
    assert percent(0.88001) == "88.1 %"


def test_a_bar_of_what_is_promised_nothing_is_full_and_says_so():
    (_, which, took_part, *_) = promise(life_delta=DELTA_ONE).odds()
    assert which.share == took_part.share == 1.0
    assert which.chance == took_part.chance == " (nothing is promised)"


def test_a_unit_that_is_all_of_a_person_is_drawn_once():
    one = promise(life=1.0)
    assert len(one.odds()) == 3


def test_nobody_is_called_he_or_she():
    """A word of a user's page that has a gender would be wrong for half of them."""
    made = promise(life=6.0, life_delta=1)
    said = " ".join([made.sentence(), made.phrase(), *picture(made.odds()), made.warning or ""])
    assert not re.search(r"\b(he|she|his|her|hers|him)\b", said)


@pytest.mark.parametrize(
    ("scale", "text"), [(Fraction(240), "240"), (Fraction(10, 3), "3.333"), (Fraction(10**9, 7), "142857143")]
)
def test_a_scale_is_a_number(scale, text):
    assert ratio_text(scale.numerator, scale.denominator) == text
