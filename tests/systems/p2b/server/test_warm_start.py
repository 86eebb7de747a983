"""What the released sums are worth to new users, simulated in the worlds of SYSTEMS.md section 1.

Seeded, so on one machine a run passes or fails for good. Bounds keep at least three standard errors (paired
over worlds, measured with 16 to 24 worlds) to the figure measured, which is given with each.
"""

import numpy as np
import pytest

from hushstream.replay.studies.p2b.play import exact_model
from hushstream.systems.p2b.guarantee import auto_codes
from hushstream.systems.p2b.server.estimate import model_from_sums

WORLDS = range(10)
EPSILON_MID = float(np.log(2))


def as_they_come(simulation, data, codes, epsilon, windows):
    sums, _, encoder = simulation.release(data, codes, epsilon, windows)
    return model_from_sums(sums.ones, sums.zeros, 1, 0.0, encoder.centroids)


def raw_model(data):
    units, arms, clicks = data
    return exact_model((units / 10).astype(np.float32), arms, clicks, 10)


@pytest.fixture(scope="module")
def demo(simulate):
    """Rewards by arm of the experiment in the demo's world: 1,400 slots, 8 codes, epsilon 1."""
    rows = []
    for seed in WORLDS:
        simulation = simulate(seed)
        cold, data = simulation.cold(1400)
        rows.append(
            {
                "cold": cold,
                "exact": simulation.warm(simulation.private(data, 8, None)),
                "raw": simulation.warm(raw_model(data)),
                "one": simulation.warm(simulation.private(data, 8, 1.0)),
                "one as they come": simulation.warm(as_they_come(simulation, data, 8, 1.0, 1)),
                "seven": simulation.warm(simulation.private(data, 8, 1.0, 7)),
                "seven as they come": simulation.warm(as_they_come(simulation, data, 8, 1.0, 7)),
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.slow_statistics
def test_one_private_window_earns_at_least_two_and_a_half_times_cold(demo):
    # Measured 3.1; the ratio of means has a standard error of about 0.1.
    assert demo["one"].mean() >= 2.5 * demo["cold"].mean()


def test_weighing_loses_nothing_against_sums_as_they_come_in_one_window(demo):
    # Measured +.001 with a standard error of .001.
    assert (demo["one"] - demo["one as they come"]).mean() > -0.004


def test_weighing_gains_in_seven_windows(demo):
    # Measured +.040 with a standard error of .004 over 24 worlds (.007 over 10).
    assert (demo["seven"] - demo["seven as they come"]).mean() > 0.02


def test_noise_and_codes_cost_what_was_measured(demo):
    # Means over 24 worlds: cold .147, exact .474, one window .462, seven .420.
    assert demo["cold"].mean() < demo["seven"].mean() < demo["one"].mean() + 0.004
    assert demo["one"].mean() > 0.94 * demo["exact"].mean()
    assert demo["seven"].mean() > 0.80 * demo["exact"].mean()


@pytest.mark.slow_statistics
def test_20_000_slots_at_ln_2_come_within_four_percent_of_non_private(simulate):
    # Reward scale .5, 32 codes. Measured over 16 worlds: a ratio of .980 with a standard error of .004, here
    # .006. (With 14,000 slots .963 at 32 codes and .972 at the 16 that auto_codes chooses.)
    private, raw, cold = [], [], []
    for seed in range(8):
        simulation = simulate(seed, reward_scale=0.5)
        earned, data = simulation.cold(20_000)
        cold.append(earned)
        private.append(simulation.warm(simulation.private(data, 32, EPSILON_MID)))
        raw.append(simulation.warm(raw_model(data)))
    assert np.mean(private) > 0.96 * np.mean(raw)
    assert np.mean(private) > 3 * np.mean(cold)


@pytest.mark.slow_statistics(keep=["1400-1.0-settings0-6"])
@pytest.mark.parametrize(
    ("slots", "epsilon", "settings", "worlds"),
    [
        (1400, 1.0, {}, 6),
        (500, 1.0, {}, 8),
        (14_000, EPSILON_MID, {"reward_scale": 0.5}, 3),
        (70_000, EPSILON_MID, {"reward_scale": 0.1, "linear": True}, 2),
    ],
)
def test_auto_codes_come_near_the_best_power_of_two(simulate, slots, epsilon, settings, worlds):
    # Measured: at most 3 % below the best of 4 to 64. The best is picked with hindsight, which flatters it.
    candidates = (4, 8, 16, 32, 64)
    chosen = auto_codes(10, slots, epsilon)
    earned = np.zeros((worlds, len(candidates)))
    for seed in range(worlds):
        simulation = simulate(seed, **settings)
        _, data = simulation.cold(slots)
        earned[seed] = [simulation.warm(simulation.private(data, codes, epsilon)) for codes in candidates]
    means = dict(zip(candidates, earned.mean(axis=0), strict=True))
    assert means[chosen] > 0.93 * max(means.values())
