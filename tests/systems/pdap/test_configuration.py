"""Configurations of P-DAP: what is refused, what is in the digest, what is promised, and what is said beforehand."""

import json
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_as
from hushstream.engine.configuration import PartitionConfig, config_digest
from hushstream.engine.declare.plan import Audience
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE
from hushstream.privacy.mechanisms.noise import laplace_scale, truncation
from hushstream.privacy.promises.promise import Form
from hushstream.systems.pdap.algorithm.aggregate import Outcomes
from hushstream.systems.pdap.configuration import (
    BlockConfig,
    CellConfig,
    PdapConfig,
    VendorConfig,
)
from hushstream.systems.pdap.counter import Counter
from hushstream.systems.pdap.plan import block_figures, plan
from hushstream.systems.pdap.promise import epoch_guarantee, release_guarantee
from hushstream.systems.pdap.system import KIND

NAN, INF = float("nan"), float("inf")
VENDORS = (VendorConfig("a", 5), VendorConfig("b", 7))
DECLARED = (VendorConfig("a", 5, declared_rate=0.2), VendorConfig("b", 7, declared_rate=0.3))
AGE = {"age": {"kind": "number", "range": [16, 96]}}


def settings(**values):
    return PdapConfig(**{"deployment": "test", "vendors": VENDORS, "dimension": 2, **values})


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"vendors": ()}, "vendors: expected at least one"),
        ({"vendors": (VendorConfig("a", 5), VendorConfig("a", 7))}, "vendors: expected names that differ"),
        ({"vendors": (VendorConfig("a", 5, True), VendorConfig("b", 7))}, "vendors.items.named: expected the same"),
        ({"vendors": tuple(VendorConfig(f"v{place}", 1 << 20) for place in range(2))}, "arms in all"),
        ({"dimension": 0}, "dimension: expected"),
        ({"dimension": 11}, "dimension: expected"),
        ({"declared": AGE}, "dimension: expected none beside declared features"),
        ({"dimension": 0, "declared": {"age": {"kind": "number"}}}, "features.age: expected the key range"),
        (
            {"dimension": 0, "declared": {"likes": {"kind": "tags", "vocabulary": ["a"], "most": 1}}},
            "features.likes.kind",
        ),
        (
            {"dimension": 0, "declared": {f"f{one}": {"kind": "boolean"} for one in range(11)}},
            "features: expected at most 10",
        ),
        ({"dimension": 0, "declared": {**AGE, "both": {"kind": "cross", "of": ["age", "age"]}}}, "features"),
        ({"dimension": 10, "cells": CellConfig(levels=6)}, r"at most 2\^57 cells"),
        ({"release": BlockConfig(epsilon=5.0, level_growth=1.0)}, "level_growth that keeps"),
        ({"budget": BudgetConfig(1.0, 1e-6, lift=0.5)}, "budget.lift"),
        ({"deployment": "with space"}, "deployment: expected"),
        ({"system": "p2b"}, "system: expected pdap"),
        ({"partitions": PartitionConfig(shuffler=2)}, "partitions.counter"),
        ({"clean_share": 1.2, "vendors": DECLARED}, "learner.clean_share"),
        ({"clean_share": 0.5}, "learner.clean_share: expected 1 where a vendor has no vendors.declared_rate"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(values, match):
    with pytest.raises(ConfigurationError, match=match):
        settings(**values)


@pytest.mark.parametrize(
    "vendor", [("", 1), ("a b", 1), ("a", 0), ("a", 1.5), ("a", 3, 1), ("a", 3, "yes"), ("a", 3, None)]
)
def test_a_vendor_without_name_or_arms_is_refused(vendor):
    with pytest.raises(ConfigurationError):
        VendorConfig(*vendor)


def test_arms_are_numbered_through_vendor_by_vendor():
    assert settings().arms == 12
    assert settings().owners.tolist() == [0] * 5 + [1] * 7


def test_the_smallest_block_of_each_level_is_kappa_over_its_epsilon_rounded_up():
    assert settings(release=BlockConfig(epsilon=0.1)).least_counts == (30,) * 4
    assert settings(release=BlockConfig(epsilon=4.0)).least_counts == (1,) * 4
    assert settings(release=BlockConfig(epsilon=0.1, level_growth=0.5)).least_counts == (30, 22, 15, 11)


def test_declared_features_are_in_the_file_and_in_the_digest():
    text = {"system": "pdap", "deployment": "mall", "vendors": [{"name": "a", "items": {"capacity": 5}}]}
    found = {
        name: parse_as(PdapConfig, {**text, "features": features})
        for name, features in {
            "age": AGE,
            "hour": {"hour": {"kind": "time_of_day"}},
            "numbers": {"dimension": 1},
        }.items()
    }
    assert len({config_digest(one) for one in found.values()}) == 3
    assert found["age"].grid == found["numbers"].grid
    assert KIND.language.written(found["age"])["features"] == {
        "age": {"kind": "number", "range": [16.0, 96.0], "scale": "linear", "nodes": 8}
    }


def test_one_reward_pays_epsilon_once_whatever_windows_and_levels(pdap):
    for settings in (pdap.config(epsilon=0.5), pdap.config(epsilon=0.5, first_window=50, window_ratio=1.1)):
        found = release_guarantee(settings)
        assert found.epsilon_micro == 500_000
        assert found.unit == "one reward"
        assert found.replace_one == found.cost
        assert found.private_as_stated


def test_delta_is_the_truncation_of_one_draw(pdap):
    found = epoch_guarantee(pdap.config(epsilon=0.5))
    off = truncation(*laplace_scale(0.5, 1))
    assert found.delta_units == found.truncation_units
    assert float(off) * (1 + exp(0.5)) <= found.delta_units / DELTA_ONE <= float(off) * (1 + exp(0.5)) * 1.001 + 2**-79


def test_a_persons_c_events_cost_c_times_as_much(pdap):
    found = release_guarantee(pdap.config(epsilon=0.5, events_per_person=40))
    assert found.lifetime.units == 40
    assert found.lifetime.cost.epsilon_micro == 40 * 500_000


def test_with_an_epsilon_for_each_level_the_largest_is_promised(pdap):
    settings = pdap.config(epsilon=0.1, level_growth=0.5)
    assert settings.level_epsilons == pytest.approx((0.1, 0.141422, 0.2, 0.282843), abs=1e-6)
    found = release_guarantee(settings)
    assert found.epsilon_micro == 282_843
    assert "0.1, 0.141422, 0.2, 0.282843 on levels 0 to 3" in found.mechanism


def test_levels_of_a_reward_widen_the_noise_and_not_the_price(pdap):
    found = release_guarantee(pdap.config(epsilon=0.5, reward_levels=10))
    assert (found.epsilon_micro, found.sensitivity) == (500_000, 10)
    assert "scale 10/epsilon" in found.mechanism


def test_who_sees_rewards_is_said_for_each_placement(pdap):
    serving, home = (release_guarantee(pdap.config(placement=one)).not_protected for one in ("serving", "home"))
    assert any("all rewards, from whoever runs the counter" in fact for fact in serving)
    assert any("that vendor's counter" in fact for fact in home)
    assert serving[:-1] == home[:-1]


def test_the_rule_that_must_not_be_broken_is_a_condition(pdap):
    conditions = release_guarantee(pdap.config(events_per_person=40)).conditions
    assert any("no arm is chosen by anyone who sees rewards" in fact for fact in conditions)
    assert any("at most 40 events: nobody counts them" in fact for fact in conditions)


def test_a_budget_with_room_for_nothing_is_refused(pdap):
    settings = replace(pdap.config(epsilon=0.5), budget=BudgetConfig(epsilon=0.4, delta=1e-6))
    with pytest.raises(ConfigurationError, match="one epoch of noise"):
        release_guarantee(settings)


@pytest.mark.parametrize(("epsilon", "outcomes"), [(0.001, 2_900), (0.01, 290), (1.0, 400)])
def test_no_block_will_ever_be_released_is_said_and_holds(pdap, epsilon, outcomes):
    settings = pdap.config(epsilon=epsilon)
    assert any(
        warning.startswith("no block will ever be released") for warning in block_figures(settings, outcomes).warnings
    )
    counter = Counter(settings, pdap.keyed(settings))
    ones, zeros = np.ones(outcomes, dtype=np.int64), np.zeros(outcomes, dtype=np.int64)
    released = 0
    while len(ones):
        some = slice(0, counter.capacity_left)
        counter.take(
            Outcomes(
                zeros[some], ones[some] << 57, zeros[some], zeros[some], pdap.names(counter.taken, len(ones[some]))
            )
        )
        ones, zeros = ones[some.stop :], zeros[some.stop :]
        if not counter.capacity_left:
            released += len(counter.close(counter.window).blocks)
    assert released == 0


def test_one_outcome_more_than_the_smallest_block_is_not_called_hopeless(pdap):
    found = block_figures(pdap.config(epsilon=0.001), 3_000)
    assert not any(warning.startswith("no block") for warning in found.warnings)
    assert any(warning.startswith("hardly any block") for warning in found.warnings)


def test_counters_at_home_fill_from_one_vendors_traffic(pdap):
    serving, home = (
        block_figures(pdap.config(vendors=4, placement=one, epsilon=0.01), 1_000) for one in ("serving", "home")
    )
    assert not any(warning.startswith("no block") for warning in serving.warnings)
    assert any(warning.startswith("no block") for warning in home.warnings)


def test_a_lone_vendor_and_arms_that_never_show_are_named(pdap):
    assert any("nobody to share with" in warning for warning in block_figures(pdap.config(vendors=1), 10_000).warnings)
    assert any(
        "80 of 92 arms" in warning
        for warning in block_figures(pdap.config(vendors=4, arms=23, epsilon=0.1), 1_000).warnings
    )


def test_a_plan_says_when_blocks_come_and_leaves_open_what_no_public_number_tells(pdap):
    found = plan(pdap.config(vendors=4, arms=1000, epsilon=1.0), Audience(20_000, 10))
    assert found.beats is None
    once = plan(pdap.config(vendors=4, arms=1000, epsilon=1.0), Audience(20_000, 1, 365.0))
    assert (once.beats, once.notes[0][:15]) == (None, "20,000 outcomes"), "a first visit came a year after its visitor"
    assert [life.units for life in once.lives] == [1, 1, 1], "who visited once has paid on the first day"
    windows = "each counter closes 21 windows, and the first model comes after 500 outcomes."
    assert found.notes[0] == f"2,343,333 outcomes within a year: {windows}"
    assert not any(note.startswith("Warning") for note in found.notes)


def test_noise_larger_than_the_scatter_of_rewards_leaves_open_whether_sharing_pays(pdap):
    """Two vendors with one star item each: in five of five worlds at this epsilon sharing earned .950, the best that
    there is, where vendors alone earned .487; the plan said "will not", and "almost at random"."""
    found = plan(pdap.config(vendors=2, arms=3, epsilon=0.02), Audience(20_000, 1, 365.0))
    assert found.beats is None
    assert "the noise is larger than the scatter of the rewards" in found.verdict
    assert "pays only where few items are far better than all others" in found.verdict
    assert "random" not in found.verdict


JOINING = Path(__file__).parents[3] / "deploy/docs/reference/joining.json"


def test_a_plan_states_what_simulated_vendors_gained_at_which_epsilon_with_its_interval(pdap):
    """It gave the difference between two kinds of vendors, 14 to 18 points, as if it were what sharing brings."""
    [said] = (note for note in plan(pdap.config(), Audience(20_000, 10)).notes if "simulated worlds" in note)
    rows = [row for row in json.loads(JOINING.read_text(encoding="utf-8"))["rows"] if row["system"] == "pdap"]
    assert len(rows) == 4
    for row in rows:
        gain, low, high = (row[f"joined_over_alone{end}"] for end in ("", "_low", "_high"))
        assert f"{gain:+.1f} ({low:.1f} to {high:.1f}) at epsilon {row['epsilon_asked']:g}" in said


@pytest.mark.parametrize("rate", [-0.1, 1.1, NAN, "0.1"])
def test_a_rate_that_cannot_be_is_refused(rate):
    with pytest.raises(ConfigurationError, match=r"^vendors.declared_rate: expected"):
        VendorConfig("a", 5, declared_rate=rate)


@pytest.mark.parametrize(
    ("release", "vendors", "share"),
    [
        ({"epsilon": 0.99}, DECLARED, 0.05),
        ({"epsilon": 1.0}, DECLARED, 1.0),
        ({"epsilon": 0.5, "level_growth": 1.0}, DECLARED, 1.0),
        ({"epsilon": 0.5}, VENDORS, 1.0),
    ],
)
def test_below_epsilon_1_vendors_that_declare_their_rates_join_on_trial(release, vendors, share):
    found = settings(release=BlockConfig(**release), vendors=vendors)
    notes = plan(found, Audience(20_000, 10)).notes
    assert found.trial_share == share
    assert any(note.startswith("Vendors join on trial") for note in notes) == (share < 1)
    assert any("join on trial" in note and "Warning" in note for note in notes) == (vendors is VENDORS)


def test_on_trial_the_guarantee_says_who_sees_what_dark_visits_show():
    plain, tried = (
        release_guarantee(settings(release=BlockConfig(epsilon=0.5), vendors=DECLARED, clean_share=share))
        for share in (1.0, 0.05)
    )
    assert (plain.cost, plain.lifetime) == (tried.cost, tried.lifetime)
    assert {one.form for one in tried.contents if one.topic == "decisions"} == {Form.CLEAR}
    assert {one.form for one in plain.contents if one.topic == "decisions"} == {Form.PUBLIC}
    chosen = "arm is chosen by anyone who sees rewards"
    assert any(f"no {chosen}" in text for text in plain.conditions)
    assert not any(f"no {chosen}" in text for text in tried.conditions), "dark visits follow exact rewards"
    said = [text for text in tried.not_protected if text not in plain.not_protected]
    assert any("at clean visits" in text for text in said)
    assert any("from whoever visits it while it is on trial" in text for text in said)
