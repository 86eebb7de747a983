"""``hushstream audit --config``: what a configuration really releases is attacked, at its epsilon and horizon.

False alarms: at most 1e-6 each, by the confidence bounds. Power: the settings are those whose half noise, or forgotten
factor, `test_power.py` computes to be found with as many runs or fewer; where they differ it is said beside the test.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from hushstream.agents.worker.deployment import artefacts_of, read_config
from hushstream.counting import Concentrated, PureEpsilon
from hushstream.privacy.audits.audit import audit_slot_sums
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.replay.audits.catalogue import audit_config
from hushstream.replay.studies.p2b.audits import slot_sums
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of
from hushstream.systems.colin import release as collaborative_release
from hushstream.systems.colin.algorithm import noised_sums as collaborative_moments
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.p2b import deployment as p2b
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig, SlotConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_statistics(
        keep=[
            "test_many_windows_are_attacked_through_the_counter_that_auto_chooses",
            "test_rewards_that_are_noised_at_once_are_attacked_at_any_length_of_features",
            "test_users_counters_are_attacked_at_the_configured_horizon_and_epsilon[server-negative-digit-laplace]",
            "test_what_cannot_be_attacked_is_refused_by_name",
        ]
    ),
]

RUNS = 4_000
EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


def shuffled(expected_slots=20_000, sealed=False, **release):
    return P2BConfig(
        deployment="audited",
        arms=4,
        context=ContextConfig(5),
        expected_slots=expected_slots,
        encoder=EncoderConfig(codes=10),
        slot=SlotConfig(sealed=sealed),
        release=ReleaseConfig(window_slots=100, **release),
    )


def collaborative(features=None, **release):
    return CollaborativeConfig(
        deployment="audited",
        arms=3,
        features=FeatureConfig(4) if features is None else features,
        release=ContinualConfig(**{"rewards_per_user": 100, "horizon": 100, **release}),
    )


def counted(monkeypatch, factor):
    """Draw every counter, over windows and of users, at so many times its epsilon (or rho)."""
    windows, users = p2b.window_tree_of, collaborative_release.plan_of

    def cheap(plan):
        if isinstance(plan.budget, Concentrated):
            return replace(plan, budget=Concentrated(factor * plan.budget.rho, plan.budget.delta))
        return replace(plan, budget=PureEpsilon(factor * plan.budget.epsilon))

    monkeypatch.setattr(p2b, "window_tree_of", lru_cache(lambda *place: cheap(windows(*place))))
    monkeypatch.setattr(collaborative_moments, "plan_of", lru_cache(lambda *place: cheap(users(*place))))


def test_many_windows_are_attacked_through_the_counter_that_auto_chooses():
    report = audit_config(shuffled(levels=2, windows=200), RUNS)
    assert report.result.passed
    assert report.settings["sums"] == "counter"
    assert (report.settings["horizon"], report.settings["epsilon"]) == (200, 1.0)
    assert 1 < report.settings["steps"] <= 200
    assert "of at most 200 windows of the counter" in report.as_text()
    assert report.guarantee.cost == report.result.claimed
    assert report.result.strongest > 0.3, "the attack is worth its name"


def test_few_windows_are_attacked_one_by_one():
    report = audit_config(shuffled(expected_slots=100), RUNS)
    assert (report.settings["sums"], report.settings["horizon"], report.settings["steps"]) == ("fresh", None, 1)
    assert "Seen:" not in report.as_text()


def test_a_counter_without_its_level_factor_is_found_where_fresh_noise_would_be_in_order(monkeypatch):
    """Two levels and two sums at epsilon 1: 4,000 runs find half the noise with probability above 1 - 1e-6."""
    config = shuffled(levels=2, windows=200)
    tree = p2b.window_tree_of(config)
    counted(monkeypatch, tree.levels)
    assert tree.levels == 2
    assert not audit_config(config, RUNS).result.passed
    fresh = audit_slot_sums(slot_sums._slot_sums(1.0, 2), slot_sums_guarantee(1.0, 2).cost, 2, RUNS)
    assert fresh.passed, "noise that this configuration never draws tells nothing of it"


@pytest.mark.parametrize("levels", [1, 2, 3, 255, 256])
def test_rewards_of_any_number_of_levels_are_attacked(levels):
    report = audit_config(shuffled(expected_slots=100, levels=levels), RUNS)
    assert report.result.passed
    assert report.result.strongest > 0.5


def test_sampled_and_sealed_slots_are_attacked_as_they_are_released():
    report = audit_config(shuffled(sampling=0.5, sealed=True, levels=2, windows=200), RUNS)
    assert report.result.passed
    assert report.settings["sampling"] == 0.5
    assert report.guarantee.cost.epsilon_micro == 1_000_000


@pytest.mark.parametrize(
    ("noise_at", "mechanism", "noise"),
    [
        ("server", "negative-digit", "laplace"),
        ("learner", "binary", "laplace"),
        ("server", "negative-digit", "k-norm"),
        ("server", "honaker", "gaussian"),
        ("server", "blt", "gaussian"),
    ],
)
def test_users_counters_are_attacked_at_the_configured_horizon_and_epsilon(noise_at, mechanism, noise):
    config = collaborative(noise_at=noise_at, mechanism=mechanism, noise=noise, epsilon=6.0)
    report = audit_config(config, 1_000)
    assert report.result.passed
    assert (report.mechanism, report.settings["noise"], report.settings["noise_at"]) == (mechanism, noise, noise_at)
    assert (report.settings["horizon"], report.settings["epsilon"]) == (100, 6.0)
    assert "of at most 100 steps of the counter" in report.as_text()
    assert report.result.strongest > 1


@pytest.mark.parametrize(("mechanism", "noise", "factor"), [("negative-digit", "laplace", 2), ("blt", "gaussian", 4)])
def test_users_counters_with_half_the_noise_are_found(mechanism, noise, factor, monkeypatch):
    """At epsilon 8 and all levels in sight, as in the catalogue's rows; one reward moves one entry or four."""
    config = collaborative(mechanism=mechanism, noise=noise, epsilon=8.0, horizon=32, rewards_per_user=32)
    counted(monkeypatch, factor)
    assert not audit_config(config, RUNS).result.passed


def test_rewards_that_are_noised_at_once_are_attacked_at_any_length_of_features():
    config = collaborative(FeatureConfig(3, norm=2.5), noise_at="learner", mechanism="noisy-reward", epsilon=2.5)
    report = audit_config(config, RUNS)
    assert report.result.passed
    assert 1.5 < report.result.strongest <= 2.5


@pytest.mark.parametrize(
    "features",
    [FeatureConfig(1), FeatureConfig(3, norm=0.7), FeatureConfig(6, norm_l1=1.3), FeatureConfig(5, 1.0, 0.4)],
)
@pytest.mark.parametrize("noise", ["laplace", "k-norm", "gaussian"])
def test_features_of_any_bounds_are_attacked(features, noise):
    config = collaborative(features, noise=noise, epsilon=8.0, mechanism="binary", horizon=3, rewards_per_user=3)
    assert audit_config(config, 200).result.passed


def test_long_features_with_hardly_any_epsilon_take_no_more_room_than_there_is():
    """The curve of so wide a vector would be some 10^9 numbers; its bound is 0, and the claim's own bound stands."""
    config = collaborative(FeatureConfig(200), noise="k-norm", epsilon=0.1, horizon=1 << 20)
    result = audit_config(config, 100).result
    assert result.passed
    assert result.calibrated_lower_bound == 0


def test_a_long_counter_is_attacked_by_its_first_steps():
    config = collaborative(horizon=1 << 20, rewards_per_user=1_000)
    report = audit_config(config, 1_000)
    assert report.settings["horizon"] == 1 << 20
    assert report.settings["steps"] < 10_000
    assert "with noise for them all" in report.as_text()


def test_what_cannot_be_attacked_is_refused_by_name():
    with pytest.raises(HushstreamError, match=r"release.mechanism slot-sums.*--only tuples"):
        audit_config(shuffled(mode="tuples", sampling=0.5))
    exact = replace(collaborative(), release=ContinualConfig(mechanism="exact"))
    with pytest.raises(HushstreamError, match=r"release.mechanism that adds noise, got exact"):
        audit_config(exact)
    wide = CollaborativeConfig("wide", 1, FeatureConfig(500), release=ContinualConfig(noise_at="learner"))
    with pytest.raises(HushstreamError, match=r"at most \d+ runs of this configuration.*--runs"):
        audit_config(wide, 100_000)
    with pytest.raises(HushstreamError, match="100 to 1000000 runs"):
        audit_config(collaborative(), 5)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_is_attacked_at_the_price_that_its_guarantee_states(path):
    config, artefacts = read_config(path), artefacts_of(path.parent)
    report = audit_config(config, 100)
    stated = kind_of(config.system).promises(config, artefacts).releases
    assert report.result.claimed == report.guarantee.cost == stated.cost
    assert report.result.passed


def test_a_bound_of_zero_is_said_to_tell_nothing():
    report = audit_config(read_config(EXAMPLES / "club.yaml"), 100)
    assert report.result.strongest == 0
    assert "This tells nothing" in report.as_text()
    assert "stays within" not in report.as_text()
