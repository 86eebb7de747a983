"""The forecast beside the whole simulation, and what it must do whatever the spreads are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hushstream.engine.declare.plan import Audience
from hushstream.features.schema import declare
from hushstream.replay.studies.p2b.experiments.forecast import SAMPLE, check_forecasts
from hushstream.systems.p2b.configuration import ContextConfig, LiftConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.contribution.feature_layout import layout_of
from hushstream.systems.p2b.guarantee.promise import noise_variance
from hushstream.systems.p2b.reports.planning.forecast import (
    ForecastError,
    Sample,
    Spreads,
    UserBehaviour,
    best_reward,
    cold_reward,
    forecast_codes,
    forecast_features,
    slot_share,
)
from hushstream.systems.p2b.reports.planning.holdout_size import POWER, holdout_users
from hushstream.systems.p2b.reports.planning.plan import Forecaster, assumed_spreads

SCHEMA = declare(
    {"country": {"kind": "category", "vocabulary": ["de", "fr"]}, "age": {"kind": "number", "range": [0, 9]}}
)
SPREADS = Spreads(0.25, {"country": 0.2, "age": 0.2}, 0.3, 0.08)
HABITS = UserBehaviour(10, 10, 10, 0.8)


@pytest.mark.slow
def test_with_true_spreads_the_gain_is_within_fifteen_percent_of_the_whole_simulation():
    """A seeded sample of `hushstream experiment p2b-forecast`: two worlds, none of which anything was fitted on."""
    (found,) = check_forecasts([SAMPLE], processes=1)
    assert abs(found.forecast / found.gain - 1) < 0.15
    assert found.low <= found.gain <= found.high
    assert found.in_released, "nor of these: the same, by the spreads that the releases of these very worlds tell"


def config(**changed):
    release = changed.pop("release", ReleaseConfig(form="features", window_slots=1_000, sums="fresh"))
    return P2BConfig("shop", 10, ContextConfig(declared=SCHEMA), 20_000, release=release, click_rate=0.08, **changed)


def test_more_slots_and_less_noise_never_bring_less():
    layout = layout_of(SCHEMA, 10, 1, 1.0, 20_000)
    gains = [
        forecast_features(layout, SPREADS, HABITS, Sample(slots, 10 * slots, variance)).gain
        for slots, variance in ((500, 1e9), (500, 1e7), (5_000, 1e7), (50_000, 1e7), (50_000, 0.0))
    ]
    assert gains == sorted(gains)
    assert gains[0] < 0.2 * gains[-1]


def test_the_best_of_many_items_is_worth_more_than_the_best_of_few():
    """Where rates are small, log E e^(C M) - C^2/2 over C, to C: E M - C (1 - var M) / 2 (Harter 1961: .564, 1.539)."""
    small = Spreads(0.1, {}, 0.0, 1e-4)
    few, many = (math.log(best_reward(small, arms, 0.01) / 1e-4) / 0.1 for arms in (2, 10))
    assert few == pytest.approx(0.5642 - 0.05 * (1 - 0.6817), abs=0.005)
    assert many == pytest.approx(1.5388 - 0.05 * (1 - 0.3443), abs=0.005)
    assert best_reward(small, 10, 0.0) == pytest.approx(1e-4, rel=1e-3)


def test_a_model_that_sees_all_is_as_good_as_the_best_item():
    draw = np.random.default_rng(5)
    odds = draw.standard_normal((200_000, 10)) * SPREADS.whole
    chances = 1 / (1 + np.exp(-(odds - 2.6)))
    rate = float(chances.mean())
    seen = best_reward(Spreads(SPREADS.whole, {}, 0.0, rate), 10, SPREADS.whole**2)
    assert seen == pytest.approx(float(chances.max(axis=1).mean()), rel=0.01)


def test_slots_prefer_clicks_as_the_warm_start_takes_them_to():
    cold = cold_reward(SPREADS, HABITS, 10)
    assert slot_share(SPREADS, HABITS) == pytest.approx(0.8 * (1 - (1 - cold) ** 10))
    assert slot_share(SPREADS, UserBehaviour(10, 10, 10, None)) == cold


def test_cold_learners_with_nothing_to_tell_apart_earn_the_rate():
    assert cold_reward(Spreads(0, {}, 0, 0.08), HABITS, 10) == pytest.approx(0.08)
    assert cold_reward(SPREADS, HABITS, 10) > 0.08


def test_noise_of_windows_adds_up_as_the_release_says():
    fresh = config()
    assert noise_variance(fresh, 10) == pytest.approx(10 * noise_variance(fresh, 1))
    one = Forecaster(fresh, Audience(20_000, 12), assumed_spreads(fresh)).at(365)
    large = config(release=ReleaseConfig(form="features", window_slots=100_000, sums="fresh"))
    whole = Forecaster(large, Audience(20_000, 12), assumed_spreads(large)).at(365)
    assert one.gain < whole.gain


def test_nothing_is_gained_before_a_window_has_closed():
    ahead = Forecaster(config(), Audience(20_000, 12), assumed_spreads(config()))
    assert ahead.windows(25) == 0
    assert ahead.at(25).gain == 0
    assert ahead.windows(27) >= 1
    # 667 users a day, whose tenth visit comes 25 days after they do.
    assert ahead.slots(40) == pytest.approx(20_000 / 30 * 15)


def test_users_with_several_slots_in_their_life_give_as_many():
    several = config(slot=SlotConfig(5, 2))
    ahead = Forecaster(several, Audience(300, 10, 30), assumed_spreads(several))
    assert ahead.slots(60) == pytest.approx(10 * (60 - 15) + 10 * (60 - 30))


def test_codes_see_less_with_fewer_codes_and_with_more_noise():
    spreads, behaviour = Spreads(0.25, {"context": 0.6}, 0.3, 0.08), UserBehaviour(10, 10, 10, None, 0.43)

    def gain(codes, variance):
        return forecast_codes(10, codes, spreads, behaviour, Sample(20_000, 200_000, variance)).gain

    assert gain(4, 0.0) < gain(32, 0.0)
    assert gain(32, 100.0) < gain(32, 2.0) < gain(32, 0.0)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_hold_out_of_the_stated_size_shows_the_gain_as_often_as_stated(share):
    """2,000 trials, users whose decisions are as alike as can be: a rate of 0.8 is found within 0.04 but for 1e-5."""
    shop = config(lift=LiftConfig(holdout=share, epsilon=20.0))
    rates = (0.08, 0.12)
    need = holdout_users(shop, *rates, visits=12)
    draw, trials = np.random.default_rng(11), 2_000
    sizes = (need.users, round(need.users * (1 - share) / share))
    found = [draw.binomial(size, rate, trials) / size for size, rate in zip(sizes, rates, strict=True)]
    spread = np.sqrt(sum(rate * (1 - rate) / size for rate, size in zip(found, sizes, strict=True)))
    shown = np.abs(found[1] - found[0]) > 1.96 * spread
    assert float(shown.mean()) == pytest.approx(POWER, abs=0.04)


def test_without_a_difference_no_hold_out_is_large_enough():
    assert holdout_users(config(), 0.08, 0.08, visits=12) is None


def test_a_small_epsilon_of_the_lift_asks_for_more_users():
    dear, cheap = (config(lift=LiftConfig(holdout=0.1, epsilon=epsilon)) for epsilon in (0.01, 10.0))
    assert holdout_users(dear, 0.08, 0.12, 12).users > 1.5 * holdout_users(cheap, 0.08, 0.12, 12).users


def test_impossible_spreads_are_refused():
    with pytest.raises(ForecastError, match="spreads of at least 0"):
        Spreads(-0.1, {}, 0.0, 0.1)
    with pytest.raises(ForecastError, match="none of age"):
        forecast_features(
            layout_of(SCHEMA, 10, 1, 1.0, 100), Spreads(0.1, {"country": 0.1}, 0.1, 0.1), HABITS, Sample(1, 1, 1)
        )
