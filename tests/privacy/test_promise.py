"""What must be said beside the figures of a whole life, and what everything together costs one person."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.privacy.promises.page import groups_of, page_json, page_text
from hushstream.privacy.promises.promise import Cap, Lifetime, Promises
from hushstream.privacy.promises.sentence import Prices

ONE = slot_sums_guarantee(1)
NOTHING = "for one person as a whole nothing is promised beyond single rewards"
LITTLE = "for one person as a whole next to nothing is promised beyond single rewards"


def with_life(cost, promise=ONE):
    """A life that costs as much against another as against none."""
    return replace(promise, lifetime=Lifetime(9, 1, cost, cost))


@pytest.mark.parametrize(
    ("rewards", "warning"), [(1, None), (4, None), (5, LITTLE), (15, LITTLE), (51, NOTHING), (1000, NOTHING)]
)
def test_a_life_that_promises_next_to_nothing_is_said_in_words(rewards, warning):
    """At epsilon 2 five rewards come to 10, where the warning begins; beyond 100 the tables' delta counts as 1."""
    promise = LocalReward.of(256, 2, "laplace").guarantee(rewards)
    assert promise.warning == promise.as_json()["lifetime"]["warning"] == warning
    lines = page_text(Promises(promise)).splitlines()
    assert [line for line in lines if "Warning" in line] == ([f"  Warning: {warning}."] if warning else [])
    if warning:
        assert lines[lines.index(f"  Warning: {warning}.") - 1].startswith("  Counted of one person: ")
        assert lines[0].startswith(warning[:1].upper() + warning[1:])


def test_the_warning_names_the_setting_that_gives_a_person_something():
    life = replace(ONE.lifetime, units=50, cost=Cost(50 * MICRO), exchange=Cost(100 * MICRO), cap=Cap("a.b", 4))
    said = replace(ONE, lifetime=life).warning
    assert said.endswith("beyond single slots; with a.b of at most 4 a person is promised something")


@pytest.mark.parametrize(
    ("cost", "weak"),
    [
        (Cost(10 * MICRO - 1), None),
        (Cost(10 * MICRO), "next to nothing"),
        (Cost(20 * MICRO), "next to nothing"),
        (Cost(1, DELTA_ONE // 100 - 1), None),
        (Cost(1, DELTA_ONE // 100), "next to nothing"),
        (Cost(1, DELTA_ONE - 1), "next to nothing"),
        (Cost(1, DELTA_ONE), "nothing"),
    ],
)
def test_where_the_warning_begins(cost, weak):
    said = with_life(cost).warning
    assert said == (weak and f"for one person as a whole {weak} is promised beyond single slots")


@pytest.mark.parametrize(("exchange", "weak"), [(9, None), (10, "next to nothing")])
def test_the_larger_price_of_a_life_decides_whether_there_is_a_warning(exchange, weak):
    """The null relation alone would still have promised something at half of it."""
    promise = replace(ONE, lifetime=Lifetime(9, 1, Cost(exchange * MICRO // 2), Cost(exchange * MICRO)))
    assert promise.life_prices.weak == weak
    assert (promise.warning is None) is (weak is None)


def test_single_events_are_not_called_protected_where_they_are_not():
    assert paper_guarantee(10, "0.5").warning == (
        "for one person as a whole next to nothing is promised, and for one slot of one user next to nothing"
    )
    spent = with_life(Cost(1, DELTA_ONE), replace(ONE, cost=Cost(1, DELTA_ONE)))
    assert spent.warning == "for one person as a whole nothing is promised, and for one slot of one user nothing"


def test_what_a_person_pays_is_the_sum_of_both_and_the_warning_goes_by_it():
    alone, both = Promises(ONE), Promises(ONE, with_life(Cost(9 * MICRO, 5)))
    assert alone.together == ONE.life_prices == Prices(ONE.lifetime.exchange, ONE.lifetime.cost)
    assert alone.as_json() == {**ONE.as_json(), "lift": None, "together": alone.as_json()["together"]}
    assert both.together.took_part == ONE.lifetime.cost + Cost(9 * MICRO, 5)
    assert both.together.which == ONE.lifetime.exchange + Cost(9 * MICRO, 5)
    assert alone.warning is ONE.warning is both.lift.warning is None
    stated = json.loads(json.dumps(both.as_json()))
    assert stated["together"]["took_part"]["epsilon_micro"] == 10 * MICRO
    assert stated["together"]["which"]["epsilon_micro"] == 11 * MICRO
    assert stated["lift"] == json.loads(json.dumps(both.lift.as_json()))
    assert "next to nothing is promised" in stated["together"]["warning"]
    text = page_text(both)
    assert f"  Which of two things one person did: {both.together.which}.\n" in text
    assert f"  Whether they took part at all: {both.together.took_part}.\n" in text
    assert "\nThe lift\n" in text
    assert "\nThe lift\n" not in page_text(alone)


def test_a_delta_is_never_more_than_one():
    both = Promises(with_life(Cost(1, DELTA_ONE)), with_life(Cost(1, 1))).together
    assert both == Prices(Cost(2, DELTA_ONE), Cost(2, DELTA_ONE))


def test_the_page_and_its_json_hold_the_same_groups_and_each_fact_once():
    promises = Promises(ONE, slot_sums_guarantee(1, levels=4))
    text, values = page_text(promises), page_json(promises)
    for group in groups_of(promises):
        assert f"\n\n{group.title}\n" in text
        assert group.as_json() == values[group.key]
    lines = [line for line in text.splitlines() if line.startswith("  - ")]
    assert len(lines) == len(set(lines)) == len(values["not_protected"])


def test_where_taking_part_is_public_one_question_is_left():
    promises = Promises(LocalReward.of(1, 1).guarantee(3))
    assert promises.together.took_part is None
    assert page_json(promises)["person"]["took_part"] == page_json(promises)["unit"]["took_part"] == "public"
    assert promises.sentence().endswith("; that they gave them is public.")
    assert promises.phrase() == "at most e^3 about what one person's rewards were"
    assert [one.label for one in promises.odds()[1:]] == [
        "what one person's rewards were",
        "one reward: which of two it was",
    ]


def test_the_phrase_of_a_result_has_both_prices_and_says_where_nothing_is_promised():
    assert Promises(ONE).phrase() == (
        "at most e^2 about which of two things one person did, e^1 about whether they took part at all"
    )
    seeded = Promises(ONE.under_key(reproducible=True)).phrase()
    assert seeded.startswith("nothing promised, as the noise comes from a seed; under a secret key at most e^2")
    weak = Promises(LocalReward.of(256, 2, "laplace").guarantee(51)).phrase()
    assert weak == "nothing promised about one person as a whole; about one reward at most e^2"
    assert paper_guarantee(10, "0.5").phrase().startswith("what is claimed does not hold: ")
