import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hushstream.privacy.amounts import DELTA_ONE, Cost, delta_value
from hushstream.privacy.bounds import exp_above
from hushstream.privacy.errors import BadAmount, BadGuarantee, BadNoise
from hushstream.privacy.mechanisms.coins import bernoulli
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee, tuples_guarantee
from hushstream.privacy.mechanisms.noise import residue
from hushstream.privacy.mechanisms.tuples import exact_delta, smallest_threshold
from hushstream.privacy.promises.page import page_text
from hushstream.privacy.promises.promise import Promises

KEYS = {
    "epsilon",
    "delta",
    "epsilon_micro",
    "delta_units",
    "relation",
    "sentence",
    "phrase",
    "public_participation",
    "unit",
    "lifetime",
    "replace_one",
    "deployment",
    "zone",
    "sensitivity",
    "norm",
    "mechanism",
    "residue",
    "not_protected",
    "conditions",
    "private_as_stated",
    "claimed",
    "computational",
    "redraws",
    "reproducible",
    "contents",
    "unnoised",
}


def page(guarantee):
    return page_text(Promises(guarantee))


EVERY = [
    slot_sums_guarantee(1),
    slot_sums_guarantee(1, levels=256, sampling="0.5", lifetime_slots=3, devices=2, deployment="edge"),
    tuples_guarantee(50, "0.5"),
    tuples_guarantee(50, "0.5", coin="edge", injected=25),
    paper_guarantee(10, "0.5"),
]


@pytest.mark.parametrize("guarantee", EVERY)
def test_every_guarantee_has_every_field_in_json_and_text(guarantee):
    stated = json.loads(json.dumps(guarantee.as_json()))
    assert set(stated) == KEYS
    text = page(guarantee)
    for field in ("mechanism", "unit", "relation", "deployment", "zone", "norm", "computational"):
        assert stated[field] in text
    for fact in stated["not_protected"] + stated["conditions"]:
        assert fact in text
    assert "against parties without the key" in text
    assert stated["relation"].startswith("null-slot")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_default_release_at_epsilon_one_is_epsilon_one_and_its_residue():
    guarantee = slot_sums_guarantee(1.0)
    assert guarantee.cost.epsilon_micro == 1_000_000
    assert guarantee.delta_units == guarantee.residue_units
    error = residue(1, 1)
    exact = 2 * error * (1 + exp_above(Fraction(1)))
    assert 0 <= delta_value(guarantee.delta_units) - exact < Fraction(1, 2**80)
    assert guarantee.as_json()["delta"] < 1e-16
    assert guarantee.private_as_stated
    assert guarantee.marks == ()


def test_a_report_against_a_report_costs_twice_the_epsilon():
    for guarantee in EVERY:
        assert guarantee.replace_one.epsilon_micro == 2 * guarantee.epsilon_micro
        assert guarantee.replace_one.delta_units >= guarantee.delta_units


def test_secret_sampling_lowers_epsilon_and_the_noise_keeps_its_scale():
    sampled = slot_sums_guarantee(1, sampling="0.5")
    assert sampled.epsilon_micro == 620_115
    assert "scale 1" in sampled.mechanism
    assert "0.5" in sampled.mechanism


@pytest.mark.parametrize(
    "make", [lambda **k: slot_sums_guarantee(1, **k), lambda **k: tuples_guarantee(50, "0.5", **k)]
)
def test_a_lifetime_adds_up_over_slots_and_devices_and_never_below_the_sum(make):
    one = make()
    assert one.lifetime.cost == one.cost
    for slots, devices in ((1, 1), (3, 1), (2, 3), (12, 1)):
        lifetime = make(lifetime_slots=slots, devices=devices).lifetime
        total = slots * devices
        assert lifetime.cost.epsilon_micro == total * one.epsilon_micro
        assert lifetime.cost.delta_units >= total * one.delta_units - total
        assert (lifetime.units, lifetime.devices) == (slots, devices)
    assert "on each of 3 unlinked devices" in page(make(lifetime_slots=2, devices=3))


def test_a_lifetime_of_tuples_counts_that_a_users_own_slots_fill_their_crowd():
    epsilon = Fraction(693_148, 1_000_000)
    ten = tuples_guarantee(50, "0.5", lifetime_slots=10).lifetime.cost.delta_units
    assert delta_value(ten) == exact_delta(50, "0.5", 10 * epsilon, 10)
    assert tuples_guarantee(50, "0.5", lifetime_slots=100).lifetime.cost.delta_units == DELTA_ONE


def test_beyond_the_computed_splits_the_bound_stays_above_them():
    many = tuples_guarantee(400, "0.1", lifetime_slots=65).lifetime.cost.delta_units
    fewer = tuples_guarantee(400, "0.1", lifetime_slots=64).lifetime.cost.delta_units
    assert many >= fewer


def test_a_lifetime_so_long_that_nothing_is_left_says_delta_one():
    assert slot_sums_guarantee(1, lifetime_slots=1000).lifetime.cost == Cost(1_000_000_000, DELTA_ONE)


def test_the_threshold_for_a_target_keeps_it():
    threshold = smallest_threshold("0.5", tuples_guarantee(50, "0.5").cost.epsilon_micro / 1e6, "1e-6")
    assert threshold == 50
    assert delta_value(tuples_guarantee(threshold, "0.5").delta_units) <= Fraction(1, 10**6)


def test_a_coin_at_the_edge_says_that_injection_voids_it_and_what_it_costs():
    exposed = tuples_guarantee(50, "0.5", coin="edge", injected=25)
    assert exposed.as_json()["delta"] == pytest.approx(1.73e-4, rel=1e-2)
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
    assert guarantee.as_json()["private_as_stated"] is False
    assert guarantee.as_json()["claimed"]["epsilon"] == 0.693148
    assert guarantee.as_json()["delta"] == 0.5


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
    assert first.startswith("A person is promised nothing here, since the noise comes from a seed")
    assert second == "REPRODUCIBLE, NOT PRIVATE"
    assert marked.as_json()["reproducible"] is True
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
    with pytest.raises(BadGuarantee, match="expected a claim or content that leaves un-noised exactly where"):
        replace(paper_guarantee(10, "0.5"), private_as_stated=True)
