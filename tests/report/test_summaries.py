import numpy as np
import pytest

from hushstream.replay.report.parts import paired
from hushstream.replay.result import BadResult
from hushstream.replay.studies.p2b.run import reward_figures


def cold(rewards):
    """Mean and half-width of users with own learning only, in all and by interaction."""
    rows, curve = reward_figures({"cold": rewards})
    (name,) = curve.lines
    return rows[name], curve.lines[name], curve.half_widths[name]


def test_means_and_intervals_come_from_the_users():
    rewards = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    whole, means, halves = cold(rewards)
    # The users' means are 0.5, 1 and 0: their standard deviation is 0.5.
    assert whole["mean_reward"] == pytest.approx(0.5)
    assert whole["ci95"] == pytest.approx(1.959964 * 0.5 / 3**0.5, rel=1e-6)
    assert whole["users"] == 3
    assert means == pytest.approx((1 / 3, 2 / 3))
    assert halves[0] == pytest.approx(1.959964 * rewards[:, 0].std(ddof=1) / 3**0.5, rel=1e-6)


def test_interactions_of_one_user_are_not_taken_as_independent():
    rng = np.random.default_rng(1)
    one_round = (rng.random((400, 1)) < 0.3).astype(float)
    same_again = np.repeat(one_round, 25, axis=1)
    assert cold(same_again)[0]["ci95"] == pytest.approx(cold(one_round)[0]["ci95"])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,)])
def test_nobody_has_no_mean(shape):
    with pytest.raises(BadResult, match="shape"):
        cold(np.zeros(shape))


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan, np.inf])
def test_rewards_outside_their_range_are_refused(value):
    with pytest.raises(BadResult, match="in \\[0, 1\\]"):
        cold(np.array([[0.5, value]]))


def test_one_user_alone_gives_an_interval_that_claims_nothing():
    whole, _, halves = cold(np.array([[1.0, 0.0]]))
    assert whole["ci95"] == halves[0] == 1.0


def test_the_interval_of_paired_units_covers_the_ratio_in_95_of_100_runs():
    """Units that share most of their spread; with 2,000 runs the share is 0.95 +- 0.005, so 4 of these are allowed."""
    rng, runs, units = np.random.default_rng(4), 2_000, 300
    covered = width = 0.0
    for _ in range(runs):
        shared = rng.gamma(4.0, 1.0, units)
        compared = paired(1.3 * shared + rng.normal(0, 0.5, units), shared + rng.normal(0, 0.5, units))
        covered += compared.low <= 1.3 <= compared.high
        width += compared.high - compared.low
    assert 0.93 <= covered / runs <= 0.97
    # Taken as independent the same means would have an interval more than four times as wide.
    assert width / runs < 0.1


def test_pairs_without_anything_below_have_no_ratio():
    assert paired(np.ones(5), np.zeros(5)) is None
    assert paired(np.ones(1), np.ones(1)) is None
