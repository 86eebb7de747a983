"""Which interaction a slot holds: by public numbers and this user's own coins, as likely as is stated."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product

import pytest

from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.edge.candidates import Candidates, click_chance

WORD = 1 << 64


def _exact(clicks: list[bool], chance: float | None) -> Counter[int | None]:
    """The probability of each interaction, over coins of 1/12 each and slot coins of 1/10 each."""
    coins, slots = [WORD * (2 * i + 1) // 24 for i in range(12)], [WORD * (2 * i + 1) // 20 for i in range(10)]
    found: Counter[int | None] = Counter()
    for words in product(coins, repeat=len(clicks)):
        kept: Candidates[int] = Candidates()
        for number, (clicked, word) in enumerate(zip(clicks, words, strict=True)):
            kept = kept.observe(number, clicked, chance, word)
        for slot in slots:
            found[kept.chosen(chance, slot)] += 1
    whole = sum(found.values())
    return Counter({key: Fraction(count, whole) for key, count in found.items()})


def test_the_first_click_has_probability_h_and_unclicked_ones_share_the_rest():
    found = _exact([False, True, False, True], 0.8)
    assert found == {1: Fraction(8, 10), 0: Fraction(1, 10), 2: Fraction(1, 10)}


def test_without_h_every_interaction_is_as_likely():
    assert _exact([True, False, True], None) == {0: Fraction(1, 3), 1: Fraction(1, 3), 2: Fraction(1, 3)}


def test_where_one_kind_is_absent_the_other_stands_in():
    assert _exact([False, False], 0.5) == {0: Fraction(1, 2), 1: Fraction(1, 2)}
    assert _exact([True, True], 0.5) == {0: Fraction(1)}


def test_a_user_without_settled_interactions_sends_null():
    assert Candidates().chosen(0.8, 0) is None
    assert Candidates().chosen(None, WORD - 1) is None


@pytest.mark.parametrize(
    ("rate", "chance"), [(0.0, 0.8), (0.1, 0.8), (0.11, 0.5), (0.3, 0.5), (0.31, None), (1.0, None)]
)
def test_h_follows_from_the_declared_click_rate(rate, chance):
    assert click_chance(rate) == chance


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(ContributionError):
        click_chance(rate)
