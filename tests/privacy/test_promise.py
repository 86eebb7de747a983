"""What must be said beside the figures of a whole life, and what everything together costs one person."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.privacy.guarantee import paper_guarantee, slot_sums_guarantee
from hushstream.privacy.promise import Lifetime, Promises
from hushstream.privacy.rewards import LocalReward

ONE = slot_sums_guarantee(1)
NOTHING = "for one person as a whole nothing is promised; only single rewards are protected"
LITTLE = "for one person as a whole next to nothing is promised; only single rewards are protected"


def with_life(cost, promise=ONE):
    return replace(promise, lifetime=Lifetime(9, 1, cost))


@pytest.mark.parametrize(
    ("rewards", "warning"), [(1, None), (4, None), (5, LITTLE), (15, LITTLE), (51, NOTHING), (1000, NOTHING)]
)
def test_a_life_that_promises_next_to_nothing_is_said_in_words(rewards, warning):
    """At epsilon 2 five rewards come to 10, where the warning begins; beyond 100 the tables' delta counts as 1."""
    promise = LocalReward.of(256, 2, "laplace").guarantee(rewards)
    assert promise.warning == promise.as_json()["lifetime"]["warning"] == warning
    lines = promise.as_text().splitlines()
    assert [line for line in lines if line.startswith("Warning")] == ([f"Warning: {warning}."] if warning else [])
    if warning:
        assert lines[lines.index(f"Warning: {warning}.") - 1].startswith("Lifetime: ")


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
    assert said == (weak and f"for one person as a whole {weak} is promised; only single slots are protected")


def test_single_events_are_not_called_protected_where_they_are_not():
    assert paper_guarantee(10, "0.5").warning == (
        "for one person as a whole next to nothing is promised, and for one slot of one user next to nothing"
    )
    spent = replace(ONE, cost=Cost(1, DELTA_ONE), lifetime=Lifetime(1, 1, Cost(1, DELTA_ONE)))
    assert spent.warning == "for one person as a whole nothing is promised, and for one slot of one user nothing"


def test_what_a_person_pays_is_the_sum_of_both_and_the_warning_goes_by_it():
    alone, both = Promises(ONE), Promises(ONE, with_life(Cost(9 * MICRO, 5)))
    assert alone.together == ONE.lifetime.cost
    assert alone.as_json() == {**ONE.as_json(), "lift": None, "together": alone.as_json()["together"]}
    assert alone.beside_text() == ""
    assert both.together == ONE.lifetime.cost + Cost(9 * MICRO, 5)
    assert alone.warning is ONE.warning is both.lift.warning is None
    stated = json.loads(json.dumps(both.as_json()))
    assert stated["together"]["epsilon_micro"] == 10 * MICRO
    assert stated["lift"] == json.loads(json.dumps(both.lift.as_json()))
    assert "next to nothing is promised" in stated["together"]["warning"]
    assert f"Together, over the life of one user: {both.together}.\nWarning: for one person" in both.beside_text()


def test_a_delta_is_never_more_than_one():
    assert Promises(with_life(Cost(1, DELTA_ONE)), with_life(Cost(1, 1))).together == Cost(2, DELTA_ONE)
