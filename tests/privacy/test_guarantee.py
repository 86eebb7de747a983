"""What is promised: guarantees, sums of prices, sentences, what an attacker may learn, and tuples."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import comb, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import iv, mp
from scipy import stats

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost, delta_units, delta_value, ratio_text
from hushstream.privacy.conversions import exp_above, exp_below, log_above, rho_to_epsilon_micro, to_fraction
from hushstream.privacy.errors import BadAmount, BadGuarantee, BadNoise
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee, tuples_guarantee
from hushstream.privacy.mechanisms.noise import amplified_epsilon_micro, bernoulli, noise_epsilon
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.privacy.mechanisms.tuples import (
    at_least,
    at_most,
    curve_epsilon,
    exact_delta,
    probability_of,
    smallest_threshold,
    working,
)
from hushstream.privacy.promises.page import groups_of, page_json, page_text
from hushstream.privacy.promises.promise import Cap, Guarantee, Lifetime
from hushstream.privacy.promises.sentence import Prices, bounds, even_odds, larger_units, percent, picture, slack

KEYS = {
    "sentence",
    "phrase",
    "marks",
    "tainted",
    "private_as_stated",
    "reproducible",
    "odds",
    "short",
    "person",
    "unit",
    "mechanism",
    "not_protected",
}


def page(guarantee):
    return page_text(guarantee)


EVERY = [
    slot_sums_guarantee(1),
    slot_sums_guarantee(1, levels=256, sampling="0.5", lifetime_slots=3, devices=2, deployment="edge"),
    tuples_guarantee(50, "0.5"),
    tuples_guarantee(50, "0.5", coin="edge", injected=25),
    paper_guarantee(10, "0.5"),
]


@pytest.mark.parametrize("guarantee", EVERY)
def test_every_guarantee_has_every_field_in_json_and_text(guarantee):
    stated = json.loads(json.dumps(page_json(guarantee)))
    assert KEYS <= set(stated) <= {*KEYS, "seen", "readers", "conditions"}
    text = page(guarantee)
    for field in ("mechanism", "unit", "relation", "deployment", "zone", "norm", "computational"):
        assert getattr(guarantee, field) in text
    for fact in guarantee.not_protected + guarantee.conditions:
        assert fact in text
        assert fact in stated["not_protected"] + stated.get("conditions", [])
    for group, prices in (("unit", guarantee.unit_prices), ("person", guarantee.life_prices)):
        assert stated[group]["which"]["epsilon_micro"] == prices.which.epsilon_micro
        assert int(stated[group]["zero_out"]["delta_units"]) == prices.zero_out.delta_units
    for key, field in (("zone", "zone"), ("deployment", "deployment"), ("strength", "computational")):
        assert stated["mechanism"][key] == getattr(guarantee, field)
    assert "against parties without the key" in text
    assert stated["unit"]["relation"].startswith("zero-out")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_secret_sampling_lowers_epsilon_and_the_noise_keeps_its_scale():
    sampled = slot_sums_guarantee(1, sampling="0.5")
    assert sampled.epsilon_micro == 620_115
    assert "scale 1" in sampled.mechanism
    assert "0.5" in sampled.mechanism


def test_what_d_devices_of_a_person_cost_is_what_the_laws_of_the_noise_give():
    """The sentences on D devices, computed: D times a pure epsilon; D times a rho under separate noise, D^2 under one.

    The discrete Laplace is exp(-epsilon |x|) and the Gaussian's Renyi divergence of order a is a (shift)^2 / 2 sigma^2.
    Separate noise is a product of laws, one sum is one law whose mean moves D times as far.
    """
    for devices in (1, 2, 5):
        x = np.arange(-200, 201)
        one_sum = (np.abs(x - devices) - np.abs(x)).max()
        separate = sum((np.abs(x - 1) - np.abs(x)).max() for _ in range(devices))
        assert one_sum == separate == devices
        life = slot_sums_guarantee(1, devices=devices).lifetime
        assert life.cost.epsilon_micro == devices * slot_sums_guarantee(1).lifetime.cost.epsilon_micro
        y, a = np.linspace(-60, 60, 240_001), 2.0
        log_p, log_q = -(y**2) / 2, -((y - devices) ** 2) / 2
        weights = np.exp(a * log_p + (1 - a) * log_q) / math.sqrt(2 * math.pi)
        rho = math.log(np.trapezoid(weights, y)) / (a - 1) / a
        assert rho == pytest.approx(devices**2 / 2, rel=1e-6), "one draw adds up to D^2, D draws to D, of 1/2 each"


def test_a_coin_at_the_edge_says_that_injection_voids_it_and_what_it_costs():
    exposed = tuples_guarantee(50, "0.5", coin="edge", injected=25)
    assert page_json(exposed)["unit"]["zero_out"]["delta"] == pytest.approx(1.73e-4, rel=1e-2)
    assert "void if others inject more than 25" in page(exposed)
    assert "void if others inject" not in page(tuples_guarantee(50, "0.5"))
    with pytest.raises(BadGuarantee, match="where the shuffler throws the coin"):
        tuples_guarantee(50, "0.5", injected=1)
    with pytest.raises(BadGuarantee, match="shuffler or edge"):
        tuples_guarantee(50, "0.5", coin="nobody")


def test_the_papers_calibration_prints_the_true_figure_beside_the_claim():
    guarantee = paper_guarantee(10, "0.5")
    lines = page(guarantee).splitlines()
    assert lines[0].startswith("The claim that is reproduced here does not hold, and for one person as a whole next to")
    assert lines[1] == "NOT PRIVATE AS STATED"
    claimed = next(place for place, line in enumerate(lines) if line.startswith("  Claimed: epsilon 0.693148"))
    assert lines[claimed + 1] == "  True: at that epsilon, delta 5.00e-1."
    assert page_json(guarantee)["private_as_stated"] is False
    assert page_json(guarantee)["mechanism"]["claimed"]["epsilon"] == 0.693148
    assert page_json(guarantee)["mechanism"]["true"]["delta"] == 0.5


@pytest.mark.parametrize("threshold", [10, 50])
def test_a_unique_tuple_reaches_the_stated_delta_of_the_papers_release(threshold, stream):
    """The attack of the docstring, run: 4 l others hold the code, the slot's action is unique to it.

    With 20,000 keyed runs the rate is within 6 sigma (0.022) of p; with the slot null it is 0.
    """
    runs, others = 20_000, 4 * threshold
    coins = bernoulli(stream(), 2**63, runs * (others + 1)).reshape(runs, others + 1)
    shown = coins[:, 0] & (coins.sum(axis=1) >= threshold)
    assert abs(float(np.mean(shown)) - 0.5) < 0.022
    assert delta_value(paper_guarantee(threshold, "0.5").delta_units) == Fraction(1, 2)
    assert delta_value(paper_guarantee(threshold, "0.5", lifetime_slots=2).lifetime.cost.delta_units) == Fraction(3, 4)


def test_a_seeded_key_marks_the_text_and_the_json():
    marked = slot_sums_guarantee(1).under_key(reproducible=True)
    first, second, *_ = page(marked).splitlines()
    assert first.startswith("A person is guaranteed nothing here, since the noise comes from a seed")
    assert second == "REPRODUCIBLE, NOT PRIVATE"
    assert page_json(marked)["reproducible"] is True
    assert "REPRODUCIBLE" not in page(slot_sums_guarantee(1))


def test_hosted_and_edge_name_whom_contexts_and_clicks_are_open_to():
    assert "the operator, whose workers run the learners" in page(slot_sums_guarantee(1, deployment="hosted"))
    assert "controls the device" in page(slot_sums_guarantee(1, deployment="edge"))


@pytest.mark.parametrize(
    "call",
    [
        lambda: slot_sums_guarantee(0),
        lambda: slot_sums_guarantee(float("inf")),
        lambda: slot_sums_guarantee(-1),
        lambda: slot_sums_guarantee(1, levels=0),
        lambda: slot_sums_guarantee(1, sampling=0),
        lambda: slot_sums_guarantee(1, sampling=1.1),
        lambda: slot_sums_guarantee(1, lifetime_slots=0),
        lambda: slot_sums_guarantee(1, devices=0),
        lambda: slot_sums_guarantee(1, deployment="cloud"),
        lambda: tuples_guarantee(0, "0.5"),
        lambda: tuples_guarantee(50, 1),
        lambda: paper_guarantee(0, "0.5"),
        lambda: paper_guarantee(10, 0),
    ],
)
def test_settings_without_a_guarantee_are_refused(call):
    with pytest.raises((BadGuarantee, BadAmount, BadNoise), match="expected"):
        call()


def test_a_guarantee_that_leaves_something_open_is_refused():
    for wrong in ({"unit": ""}, {"not_protected": ()}, {"deployment": "cloud"}, {"private_as_stated": False}):
        with pytest.raises(BadGuarantee, match="expected"):
            replace(slot_sums_guarantee(1), **wrong)
    with pytest.raises(BadGuarantee, match="a tainted input exactly where it is not"):
        replace(paper_guarantee(10, "0.5"), private_as_stated=True)


ONE = slot_sums_guarantee(1)
NOTHING = "for one person as a whole nothing is guaranteed beyond single rewards"
LITTLE = "for one person as a whole next to nothing is guaranteed beyond single rewards"


def with_life(cost, promise=ONE):
    """A life that costs as much against another as against none."""
    return replace(promise, lifetime=Lifetime(9, 1, cost, cost))


@pytest.mark.parametrize(
    ("rewards", "warning"), [(1, None), (4, None), (5, LITTLE), (15, LITTLE), (51, NOTHING), (1000, NOTHING)]
)
def test_a_life_that_promises_next_to_nothing_is_said_in_words(rewards, warning):
    """At epsilon 2 five rewards come to 10, where the warning begins; beyond 100 the tables' delta counts as 1."""
    promise = LocalReward.of(256, 2, "laplace").guarantee(rewards)
    assert promise.warning == page_json(promise)["person"].get("warning") == warning
    lines = page_text(promise).splitlines()
    assert [line for line in lines if "Warning" in line] == ([f"  Warning: {warning}."] if warning else [])
    if warning:
        assert lines[lines.index(f"  Warning: {warning}.") - 1].startswith("  Counted of one person: ")
        head = (
            f"{warning[:1].upper()}{warning[1:]}" if warning == LITTLE else "One person as a whole is not protected; "
        )
        assert lines[0].startswith(head)


def test_the_warning_names_the_setting_that_gives_a_person_something():
    life = replace(ONE.lifetime, units=50, cost=Cost(50 * MICRO), exchange=Cost(100 * MICRO), cap=Cap("a.b", 4))
    said = replace(ONE, lifetime=life).warning
    assert said.endswith("beyond single reports; with a.b of at most 4 a person is guaranteed something")


@pytest.mark.parametrize(
    ("cost", "weak"),
    [
        (Cost(10 * MICRO - 1000), None),
        (Cost(10 * MICRO - 999), "next to nothing"),
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
    assert said == (weak and f"for one person as a whole {weak} is guaranteed beyond single reports")


@pytest.mark.parametrize(("exchange", "weak"), [(9, None), (10, "next to nothing")])
def test_the_larger_price_of_a_life_decides_whether_there_is_a_warning(exchange, weak):
    """The null relation alone would still have promised something at half of it."""
    promise = replace(ONE, lifetime=Lifetime(9, 1, Cost(exchange * MICRO // 2), Cost(exchange * MICRO)))
    assert promise.life_prices.weak == weak
    assert (promise.warning is None) is (weak is None)


def test_single_events_are_not_called_protected_where_they_are_not():
    assert paper_guarantee(10, "0.5").warning == ("for one person as a whole next to nothing is guaranteed"), (
        "one report is all that the person gives: it is not said again of it"
    )
    spent = with_life(Cost(1, DELTA_ONE), replace(ONE, cost=Cost(1, DELTA_ONE)))
    assert spent.warning == "for one person as a whole nothing is guaranteed, and for one report of one user nothing"


def test_what_a_person_pays_is_the_sum_of_both_and_the_warning_goes_by_it():
    alone, both = ONE, replace(ONE, lift=with_life(Cost(9 * MICRO, 5)))
    assert alone.together == ONE.life_prices == Prices(ONE.lifetime.exchange, ONE.lifetime.cost)
    assert both.together.zero_out == ONE.lifetime.cost + Cost(9 * MICRO, 5)
    assert both.together.which == ONE.lifetime.exchange + Cost(9 * MICRO, 5)
    assert alone.warning is ONE.warning is both.lift.warning is None
    stated = json.loads(json.dumps(page_json(both)))
    assert stated["person"]["zero_out"]["epsilon_micro"] == 10 * MICRO
    assert stated["person"]["which"]["epsilon_micro"] == 11 * MICRO
    assert stated["person"]["releases"]["zero_out"] == page_json(alone)["person"]["zero_out"]
    assert stated["lift"]["zero_out"]["epsilon_micro"] == both.lift.cost.epsilon_micro
    assert "next to nothing is guaranteed" in stated["person"]["warning"]
    text = page_text(both)
    assert f"  One person, replace-one: {both.together.which}.\n" in text
    assert f"  One person, zero-out: {both.together.zero_out}.\n" in text
    assert "\nThe lift\n" in text
    assert "\nThe lift\n" not in page_text(alone)


def test_a_delta_is_never_more_than_one():
    both = replace(with_life(Cost(1, DELTA_ONE)), lift=with_life(Cost(1, 1))).together
    assert both == Prices(Cost(2, DELTA_ONE), Cost(2, DELTA_ONE))


def test_the_page_and_its_json_hold_the_same_groups_and_each_fact_once():
    promises = replace(ONE, lift=slot_sums_guarantee(1, levels=4))
    text, values = page_text(promises), page_json(promises)
    for group in groups_of(promises):
        assert f"\n\n{group.title}\n" in text
        assert group.as_json() == values[group.key]
    lines = [line for line in text.splitlines() if line.startswith("  - ")]
    assert len(lines) == len(set(lines)) == len(values["not_protected"])


def test_where_taking_part_is_public_one_question_is_left():
    promises = LocalReward.of(1, 1).guarantee(3)
    assert promises.together.zero_out is None
    assert page_json(promises)["person"]["zero_out"] == page_json(promises)["unit"]["zero_out"] == "public"
    assert promises.sentence().endswith("; participation is public: that they took part, how often and when.")
    assert promises.phrase() == "user-level epsilon 3 (replace-one)"
    assert [one.label for one in promises.odds()[1:]] == [
        "what one person's rewards were, replace-one",
        "one reward, replace-one",
    ]


def test_the_phrase_of_a_result_has_both_prices_and_says_where_nothing_is_promised():
    both = r"user-level epsilon 2, delta \S+ \(replace-one\) and epsilon 1, delta \S+ \(zero-out\)"
    assert re.fullmatch(both, ONE.phrase())
    seeded = ONE.under_key(reproducible=True).phrase()
    assert seeded.startswith(
        "nothing guaranteed, as the noise comes from a seed; under a secret key user-level epsilon 2"
    )
    weak = LocalReward.of(256, 2, "laplace").guarantee(51).phrase()
    assert weak == "nothing guaranteed about one person as a whole; one reward: epsilon 2, delta 1.99e-17 (replace-one)"
    assert paper_guarantee(10, "0.5").phrase().startswith("what is claimed does not hold: ")


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
        "truncation_units": 0,
        "not_protected": ("x",),
    }
    return Guarantee(**{**values, **other})


RELEASED = "for all that this deployment releases"
PUBLIC = "participation is public: that they took part, how often and when"
UNIT = "one reward is protected: epsilon 2 (replace-one) and epsilon 1 (zero-out)"


def uncounted(made, units):
    return replace(made, lifetime=replace(made.lifetime, units=units, counted=False))


STRONG = f"ser-level differential privacy, {RELEASED}: epsilon 3 (replace-one) and epsilon 1.5 (zero-out); {PUBLIC}."


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (promise(), f"U{STRONG}"),
        (
            promise(life_delta=DELTA_ONE // 1000),
            f"User-level differential privacy, {RELEASED}: epsilon 3, delta 3.00e-3 (replace-one) and epsilon 1.5, "
            f"delta 1.00e-3 (zero-out); {PUBLIC}.",
        ),
        (
            promise(life=12.0),
            "For one person as a whole next to nothing is guaranteed beyond single rewards (epsilon 24 (replace-one) "
            f"and epsilon 12 (zero-out)), {RELEASED}; {UNIT}.",
        ),
        (
            promise(life=6.0),
            "Next to nothing is guaranteed under replace-one (epsilon 12); weak user-level differential privacy under "
            f"zero-out: epsilon 6, {RELEASED}; {UNIT}.",
        ),
        (
            promise(life_delta=DELTA_ONE),
            f"One person as a whole is not protected; {UNIT.replace(' protected:', f', {RELEASED}:')}.",
        ),
        (
            uncounted(promise(life_delta=DELTA_ONE), 4),
            "One person as a whole is not protected (nobody counts their rewards); "
            f"{UNIT.replace(' protected:', f', {RELEASED}:')}.",
        ),
        (
            uncounted(promise(life=6.0), 4),
            "Next to nothing is guaranteed under replace-one (epsilon 12); for 4 rewards of one person, if there are "
            f"no more, weak differential privacy under zero-out: epsilon 6; nobody counts all rewards of one person, "
            f"{RELEASED}; {UNIT}.",
        ),
        (
            uncounted(promise(life=12.0), 4),
            "For 4 rewards of one person next to nothing is guaranteed beyond single rewards (epsilon 24 (replace-one) "
            f"and epsilon 12 (zero-out)), and nobody counts all rewards of one person, {RELEASED}; {UNIT}.",
        ),
        (
            promise(reproducible=True),
            "A person is guaranteed nothing here, since the noise comes from a seed; under a secret key u" + STRONG,
        ),
    ],
)
def test_the_first_line_says_what_a_person_is_promised_or_that_it_is_nothing(made, expected):
    assert made.sentence() == expected
    assert page_text(made).splitlines()[0] == expected


def in_short(made):
    return {line.name: line.text for line in groups_of(made)[0].lines}


@pytest.mark.parametrize(("life", "weak"), [(2.297, False), (2.298, True)])
def test_a_guarantee_by_which_somebody_may_become_over_99_percent_sure_is_called_weak(life, weak):
    """e^4.5951 is 99 to one. Films' 99.9 % and a club's 99.4 % stood there without a word on it."""
    made = promise(life=life)
    assert made.sentence().startswith("Weak user-level") == made.phrase().startswith("weak user-level") == weak
    assert ("% sure, which is weak; 50 % sure it is not empty" in in_short(made)["In words"]) == weak
    assert made.warning is None
    alone = promise(life_delta=DELTA_ONE, epsilon=life)
    assert ("one reward is, weakly, for all" in alone.sentence()) == weak
    assert ("; one reward is weakly protected: " in promise(life=12.0, epsilon=life).sentence()) == weak


def test_a_unit_that_is_all_of_a_person_is_not_said_to_be_less():
    """At epsilon 4.5 films' page said of all reports of one user that they were not all that one person gives."""
    made = promise(epsilon=6.0, life=6.0)
    assert made.life_prices == made.unit_prices
    assert made.sentence() == (
        "Next to nothing is guaranteed under replace-one (epsilon 12); weak user-level differential privacy under "
        f"zero-out: epsilon 6, {RELEASED}."
    )
    assert made.warning == "for one person as a whole next to nothing is guaranteed under replace-one"
    assert made.phrase().startswith("next to nothing guaranteed about one person as a whole under replace-one (epsilon")
    assert in_short(made)["Protected"] == "one person: 3 rewards of one user"
    assert in_short(promise(life=12.0))["Protected"].startswith("one reward, not one person, who pays epsilon 24 (")
    assert in_short(uncounted(made, 4))["Protected"] == "one reward, not all that one person gives, which nobody counts"


def test_what_one_may_come_to_believe_is_said_with_its_delta():
    made = promise(life_delta=DELTA_ONE // 1000)
    assert (
        " 98.3 % sure (more: chance at most 4.75e-3); 50 % sure it is not empty, 92.5 % (more: "
        in in_short(made)["In words"]
    )


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-9, 1e-15])
@pytest.mark.parametrize("rho", [0.024356, 4 * 0.024356, 1.67])
def test_what_one_may_come_to_believe_holds_for_gaussian_noise(rho, delta):
    """The loss is normal, about rho with variance 2 rho; beyond a small epsilon itself it has more than delta."""
    cost = Cost(rho_to_epsilon_micro(round(rho * 1e6), delta_units(delta)), delta_units(delta))

    def beyond(odds):
        return stats.norm.sf((odds - rho) / math.sqrt(2 * rho))

    chance = float(delta_value(larger_units(cost)))
    assert beyond(math.log(even_odds(cost) / (1 - even_odds(cost)))) <= chance
    epsilon = cost.epsilon_micro / 1e6
    assert rho > 1 or beyond(epsilon) > delta, "so `epsilon but for delta` would be false"


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-3), (2.113, 1e-6), (3.0, 2.5e-15)])
def test_no_smaller_chance_of_more_belief_follows_from_epsilon_and_delta(epsilon, delta):
    """Two laws that are (epsilon, delta) apart: one has odds of e^(epsilon + slack) with this chance."""
    cost = Cost(round(epsilon * 1e6), delta_units(delta))
    most = Fraction(1) - Fraction(math.exp(-slack(cost)))
    first = Fraction(delta) / most
    second, odds = first * Fraction(math.exp(-epsilon - slack(cost))), Fraction(math.exp(epsilon))
    assert float(first - odds * second) == pytest.approx(delta, rel=1e-6)
    assert (1 - second) - odds * (1 - first) <= delta
    assert float(first) <= float(delta_value(larger_units(cost))) <= 1.001 * float(first)


def test_what_is_released_beside_it_counts():
    alone, beside = promise(life=1.0), replace(promise(life=1.0), lift=promise(life=1.0))
    assert ": epsilon 2 (replace-one)" in alone.sentence()
    assert ": epsilon 4 (replace-one)" in beside.sentence()


def test_an_epsilon_is_rounded_up_to_thousandths():
    assert bounds(Prices(Cost(2_999_987), None)) == "epsilon 3 (replace-one)"
    assert bounds(Prices(Cost(6_643_156), None)) == "epsilon 6.644 (replace-one)"


def test_the_picture_is_what_even_odds_become_with_the_delta_of_each():
    odds = promise(life=2.0, life_delta=DELTA_ONE // 1000).odds()
    assert [one.share for one in odds] == pytest.approx([0.5, *(1 / (1 + math.exp(-e)) for e in (5, 3, 2, 1))])
    bars = picture(odds)[1:]
    assert [line.count("█") for line in bars] == [15, 30, 29, 26, 22]
    # Rounded up: what is promised is never overstated.
    assert [line.partition(" %")[0].split()[-1] for line in bars] == ["50", "99.4", "95.3", "88.1", "73.2"]
    assert [line.partition(" %")[2] for line in bars[1:3]] == [
        " (more: chance at most 4.75e-3)",
        " (more: chance at most 1.59e-3)",
    ]
    assert percent(0.88001) == "88.1 %"
    assert (percent(0.9989), percent(0.9995), percent(1.0)) == ("99.9 %", "over 99.9 %", "100 %")


def test_a_bar_of_what_is_promised_nothing_is_full_and_says_so():
    (_, which, zero_out, *_) = promise(life_delta=DELTA_ONE).odds()
    assert which.share == zero_out.share == 1.0
    assert which.chance == zero_out.chance == " (nothing is guaranteed)"


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


def _interval(function, value):
    """An enclosure by mpmath's interval arithmetic, which rounds outwards and knows no slack of ours."""
    iv.prec = 240
    enclosure = function(iv.mpf(value.numerator) / value.denominator)
    ends = [mp.mpf(end) for end in (enclosure.a, enclosure.b)]
    return [to_fraction(end) for end in ends]


@given(st.fractions(min_value=-40, max_value=40, max_denominator=10**6))
def test_exponentials_lie_on_their_stated_side(value):
    with mp.workprec(240):
        low, high = _interval(iv.exp, value)
    assert low <= exp_above(value)
    assert exp_below(value) <= high
    assert exp_below(value) < exp_above(value) <= exp_below(value) * (1 + Fraction(1, 2**250))


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**6, max_denominator=10**6))
def test_logarithms_are_not_below_the_true_ones(value):
    with mp.workprec(240):
        low, high = _interval(iv.log, value)
    assert log_above(value) >= low
    assert log_above(value) - high < Fraction(1, 2**200)


def test_the_librarys_own_precision_is_neither_used_nor_changed():
    before = mp.prec
    with mp.workprec(20):
        assert exp_above(Fraction(1)) - exp_below(Fraction(1)) < Fraction(1, 2**250)
    assert mp.prec == before


@pytest.mark.parametrize("value", [Fraction(-3, 4), Fraction(0), Fraction(1, 2**70), Fraction(5)])
def test_dyadic_numbers_convert_exactly(value):
    assert to_fraction(working(value)) == value


def test_what_no_formula_needs_is_refused():
    with pytest.raises(BadAmount, match="within"):
        exp_above(Fraction(1001))
    with pytest.raises(BadAmount, match="above 0"):
        log_above(Fraction(0))


@pytest.mark.parametrize(("trials", "chance"), [(1, Fraction(1, 3)), (12, Fraction(1, 2)), (40, Fraction(9, 10))])
def test_binomial_tails_equal_their_rational_sums(trials, chance):
    exact = [comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]
    for k in range(-1, trials + 2):
        inside = exact[k] if 0 <= k <= trials else Fraction(0)
        pairs = [
            (probability_of(trials, k, working(chance)), inside),
            (at_least(trials, k, working(chance)), sum(exact[max(k, 0) :], Fraction(0))),
            (at_most(trials, k, working(chance)), sum(exact[: max(k + 1, 0)], Fraction(0))),
        ]
        for computed, true in pairs:
            assert abs(to_fraction(computed) - true) < Fraction(1, 2**240)


@given(st.integers(1, 5_000_000), st.fractions(min_value=Fraction(1, 1000), max_value=1, max_denominator=1000))
def test_the_noise_for_a_target_keeps_it_and_one_millionth_more_would_not(micro, chance):
    target = Fraction(micro, 1_000_000)
    noise = noise_epsilon(target, chance)
    assert noise >= target
    assert amplified_epsilon_micro(noise, chance) <= micro
    assert amplified_epsilon_micro(noise + Fraction(1, 1_000_000), chance) > micro


@pytest.mark.parametrize("chance", [0, -1, 2])
def test_a_sampling_probability_out_of_range_is_refused(chance):
    with pytest.raises((BadAmount, BadNoise), match="expected"):
        amplified_epsilon_micro(1, chance)


@given(
    st.fractions(min_value=Fraction(1, 100), max_value=1, max_denominator=100),
    st.fractions(min_value=Fraction(1, 10), max_value=4, max_denominator=10),
)
def test_the_amplified_epsilon_bounds_both_directions_of_the_worst_pair(chance, epsilon):
    """Randomised response is the worst (eps, 0) pair: two outcomes with ratio e^eps each way."""
    grow = exp_above(epsilon)
    with_slot, without = grow / (1 + grow), 1 / (1 + grow)
    mixed = chance * with_slot + (1 - chance) * without
    bound = exp_above(Fraction(amplified_epsilon_micro(epsilon, chance), 1_000_000))
    assert mixed <= bound * without * (1 + Fraction(1, 2**200))
    assert with_slot <= bound * (1 - mixed) * (1 + Fraction(1, 2**200))


HALF = curve_epsilon("0.5")


@cache
def _law(trials, chance):
    return [comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]


def _thresholded(trials, chance, threshold, shift=0):
    """The law of the emitted count: 0 below the threshold, itself from there on."""
    law = {}
    for count, share in enumerate(_law(trials, chance)):
        shown = count + shift if count + shift >= threshold else 0
        law[shown] = law.get(shown, Fraction(0)) + share
    return law


def _hockey_stick(first, second, factor):
    return sum(
        (max(Fraction(0), share - factor * second.get(k, Fraction(0))) for k, share in first.items()), Fraction(0)
    )


def _worst(threshold, chance, factor, slots, others, injected=0):
    """The definition, enumerated in exact rationals: both directions, every number of other reports up to a limit."""
    return max(
        _hockey_stick(*pair, factor)
        for n in range(others + 1)
        for p, q in [
            (
                _thresholded(n + slots, chance, threshold, injected),
                _thresholded(n, chance, threshold, injected),
            )
        ]
        for pair in ((p, q), (q, p))
    )


@settings(max_examples=25, deadline=None)
@given(
    threshold=st.integers(1, 6),
    chance=st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)]),
    epsilon=st.sampled_from(["0", "0.05", "0.3", "0.693", "0.694", "1.5", "3"]),
    slots=st.integers(1, 3),
)
def test_the_delta_is_that_of_the_definition(threshold, chance, epsilon, slots):
    """Enumeration over up to 60 other reports; the worst case lies below that for all of these settings."""
    factor = exp_below(Fraction(epsilon))
    definition = _worst(threshold, chance, factor, slots, others=60)
    computed = exact_delta(threshold, chance, epsilon, slots)
    assert definition <= computed <= definition + Fraction(2, 2**80)


@pytest.mark.parametrize("injected", [0, 1, 3, 4, 9])
def test_injected_reports_lower_the_threshold_that_counts(injected):
    factor = exp_below(HALF)
    definition = _worst(5, Fraction(1, 2), factor, 1, others=40, injected=injected)
    computed = exact_delta(5, "0.5", HALF, injected=injected)
    assert definition <= computed <= definition + Fraction(2, 2**80)


@pytest.mark.parametrize(("p", "threshold"), [("0.1", 36), ("0.25", 41), ("0.5", 50), ("0.75", 73), ("0.9", 148)])
def test_the_smallest_thresholds_for_one_in_a_million_come_out(p, threshold):
    epsilon = curve_epsilon(p)
    assert smallest_threshold(p, epsilon, "1e-6") == threshold
    assert exact_delta(threshold, p, epsilon) <= Fraction(1, 10**6) < exact_delta(threshold - 1, p, epsilon)


@given(st.integers(1, 80), st.floats(0.05, 0.95), st.floats(0, 3), st.integers(1, 4))
def test_delta_never_grows_with_threshold_or_epsilon(threshold, p, epsilon, slots):
    base = exact_delta(threshold, p, epsilon, slots)
    assert exact_delta(threshold + 1, p, epsilon, slots) <= base
    assert exact_delta(threshold, p, epsilon + 0.1, slots) <= base
    assert 0 < base <= 1


def test_an_epsilon_just_below_the_curve_needs_far_more_reports_to_be_worst_and_is_still_bounded():
    close = exact_delta(10, "0.5", log(2) - 1e-9)
    assert exact_delta(10, "0.5", HALF) <= close <= exact_delta(10, "0.5", HALF) * Fraction(101, 100)


def test_large_settings_stay_quick_and_never_fall_below_one_unit():
    assert exact_delta(1_000_000, "0.5", "0.6") == Fraction(1, 2**80)
    assert exact_delta(10_000_000, "0.999", curve_epsilon("0.999")) >= Fraction(1, 2**80)


@pytest.mark.parametrize(
    "call",
    [
        lambda: exact_delta(0, "0.5", 1),
        lambda: exact_delta(10.0, "0.5", 1),
        lambda: exact_delta(10, "0.5", -1),
        lambda: exact_delta(10, "0.5", float("nan")),
        lambda: exact_delta(10, 1, 1),
        lambda: exact_delta(10, 0, 1),
        lambda: exact_delta(10, 2, 1),
        lambda: exact_delta(10, "0.5", 1, 0),
        lambda: exact_delta(10, "0.5", 1, 1, -1),
        lambda: smallest_threshold("0.5", 1, 0),
        lambda: smallest_threshold("0.5", 1, 1),
        lambda: curve_epsilon(1),
    ],
)
def test_settings_that_have_no_guarantee_are_refused(call):
    with pytest.raises((BadAmount, BadNoise), match="expected"):
        call()


def test_a_delta_that_no_threshold_reaches_is_refused():
    # At epsilon 0 the delta falls like 1/sqrt(l) only.
    with pytest.raises(BadAmount, match="got none"):
        smallest_threshold("0.5", 0, "1e-6")
