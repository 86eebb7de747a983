"""Configurations: what cannot be is refused, all that decides is in the digest, the number of codes follows."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hushstream.engine.configuration import PrivacyConfig
from hushstream.engine.values import ConfigurationError
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    ReleaseConfig,
    SlotConfig,
    UsersConfig,
    configuration_digest,
)
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.guarantee import auto_codes, release_guarantee
from hushstream.systems.p2b.slots import ContributionError


def make(**changes):
    return P2BConfig(**{"deployment": "small", "arms": 5, "context": ContextConfig(4), "expected_slots": 40, **changes})


def test_sampling_of_one_is_for_slot_sums_only():
    for mode in ("tuples", "paper"):
        with pytest.raises(ConfigurationError, match=r"release\.sampling: expected below 1"):
            ReleaseConfig(mode=mode, sampling=1.0)


def test_every_centroid_and_the_sealing_key_move_the_digest_and_words_about_the_guarantee_do_not():
    base = make(release=ReleaseConfig(sampling=0.5))
    sealed = configuration_digest(base, b"centroids", b"key")
    assert len({configuration_digest(base, b"centroids"), configuration_digest(base, b"centroidt"), sealed}) == 3
    said = replace(base, privacy=PrivacyConfig("unprotected"), mode="shadow")
    assert configuration_digest(said, b"centroids") == configuration_digest(base, b"centroids")
    assert said == base


@pytest.mark.parametrize("mode", ["tuples", "paper"])
def test_an_epsilon_is_refused_where_the_sampling_makes_it(mode):
    """0.1 was once taken there, and what was released cost -ln(1 - 0.999) = 6.9."""
    with pytest.raises(
        ConfigurationError, match=rf"^privacy\.epsilon: expected none for mechanism {mode} .*, got 0\.1$"
    ):
        ReleaseConfig(mode=mode, sampling=0.999, epsilon=0.1)
    release = ReleaseConfig(mode=mode, sampling=0.999)
    assert release.slot_epsilon == pytest.approx(6.9078, abs=1e-4)
    promise = release_guarantee(make(release=release, encoder=EncoderConfig(codes=8)))
    assert promise.epsilon_micro == pytest.approx(1e6 * release.slot_epsilon, abs=1.5)


def test_a_whole_number_and_its_float_are_one_configuration():
    one = make(release=ReleaseConfig(epsilon=1, window_seconds=60), slot=SlotConfig(settle_seconds=10))
    two = make(release=ReleaseConfig(epsilon=1.0, window_seconds=60.0), slot=SlotConfig(settle_seconds=10.0))
    assert configuration_digest(one, b"") == configuration_digest(two, b"")


def test_an_encoder_of_another_shape_is_refused(rigs):
    config = rigs.make_system().config
    for shape in ((3, 4), (4, 5)):
        with pytest.raises(ConfigurationError, match=r"encoder: expected centroids of shape \(4, 4\)"):
            P2BSystem.of(config, np.ones(shape, np.int64))


def test_records_too_large_to_publish_are_refused_before_anything_runs():
    wide = np.full((64, 64), 1024, np.int64)
    with pytest.raises(ConfigurationError, match="expected a model"):
        P2BSystem.of(make(arms=64, context=ContextConfig(64), encoder=EncoderConfig(codes=64)), wide)
    many = np.full((4096, 4), 16_384, np.int64)
    with pytest.raises(ConfigurationError, match="expected the sums of a window"):
        P2BSystem.of(make(arms=32, encoder=EncoderConfig(codes=4096)), many)


def release(**values):
    return release_guarantee(make(release=ReleaseConfig(**values), slot=SlotConfig(lifetime_slots=3)))


def test_the_papers_mode_is_named_as_not_private():
    promised = release(mode="paper", sampling=0.5)
    assert not promised.private_as_stated
    assert promised.delta_units == 2**79


def test_state_does_not_expire_while_anything_of_it_waits():
    owed = 2 * 3600.0 + 1800.0
    with pytest.raises(ConfigurationError, match=r"users\.expire_after_seconds: expected more than .*9000.*, got 9000"):
        make(users=UsersConfig(expire_after_seconds=owed))
    assert make(users=UsersConfig(expire_after_seconds=owed + 1)).users.expire_after_seconds == owed + 1


def test_the_settings_that_were_simulated_get_the_codes_that_were_checked():
    assert auto_codes(10, 1400, 1.0) == 8
    assert auto_codes(10, 14_000, math.log(2)) == 16
    assert auto_codes(10, 20_000, math.log(2)) == 32
    assert auto_codes(10, 70_000, math.log(2)) == 32
    assert auto_codes(10, 500, 1.0) == 8
    assert auto_codes(20, 3000, 1.0) == 8


def test_more_slots_or_budget_never_give_fewer_codes_and_more_arms_or_windows_never_more():
    slots = [auto_codes(10, n, 1.0) for n in (1, 100, 1000, 10_000, 100_000, 10**9)]
    budgets = [auto_codes(10, 1400, epsilon) for epsilon in (1e-6, 0.1, 0.5, 1, 5, 1e3, 1e9)]
    arms = [auto_codes(arms, 1400, 1.0) for arms in (1, 5, 10, 50, 1000)]
    windows = [auto_codes(10, 1400, 1.0, windows=windows) for windows in (1, 7, 100)]
    assert slots == sorted(slots)
    assert budgets == sorted(budgets)
    assert arms == sorted(arms, reverse=True)
    assert windows == sorted(windows, reverse=True)
    assert slots[0] == budgets[0] == 2
    assert slots[-1] == budgets[-1] == 32


def test_finer_levels_cost_little():
    assert auto_codes(10, 1400, Fraction(1), levels=256) in (4, 8)


def test_codes_stay_within_a_few_a_dimension():
    for dimension in (2, 3, 6, 20):
        assert auto_codes(10, 10**9, 1.0, dimension=dimension) <= 4 * dimension


@pytest.mark.parametrize(
    "changed",
    [
        {"arms": 0},
        {"expected_slots": 0},
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"levels": 0},
        {"dimension": 1},
    ],
)
def test_impossible_settings_are_refused(changed):
    settings = {"arms": 10, "expected_slots": 100, "epsilon": 1.0, "levels": 1, "dimension": 10} | changed
    with pytest.raises(ContributionError):
        auto_codes(**settings)
