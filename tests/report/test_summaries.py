from __future__ import annotations

import numpy as np
import pytest

from hushstream.replay.report.summaries import paired
from hushstream.replay.report.values import BadResult
from hushstream.replay.studies.p2b.report.results import ConditionSummary
from hushstream.replay.studies.p2b.report.summaries import compare, headline, summarise


def test_means_and_intervals_come_from_the_users():
    rewards = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    summary, rows = summarise("cold", rewards)
    # The users' means are 0.5, 1 and 0: their standard deviation is 0.5.
    assert summary.mean == pytest.approx(0.5)
    assert summary.ci95 == pytest.approx(1.959964 * 0.5 / 3**0.5, rel=1e-6)
    assert [(row.round, row.users) for row in rows] == [(1, 3), (2, 3)]
    assert [row.mean for row in rows] == pytest.approx([1 / 3, 2 / 3])
    assert rows[0].ci95 == pytest.approx(1.959964 * rewards[:, 0].std(ddof=1) / 3**0.5, rel=1e-6)


def test_interactions_of_one_user_are_not_taken_as_independent():
    rng = np.random.default_rng(1)
    one_round = (rng.random((400, 1)) < 0.3).astype(float)
    same_again = np.repeat(one_round, 25, axis=1)
    assert summarise("cold", same_again)[0].ci95 == pytest.approx(summarise("cold", one_round)[0].ci95)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,)])
def test_nobody_has_no_mean(shape):
    with pytest.raises(BadResult, match="shape"):
        summarise("cold", np.zeros(shape))


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan, np.inf])
def test_rewards_outside_their_range_are_refused(value):
    with pytest.raises(BadResult, match="in \\[0, 1\\]"):
        summarise("cold", np.array([[0.5, value]]))


def test_one_user_alone_gives_an_interval_that_claims_nothing():
    summary, rows = summarise("cold", np.array([[1.0, 0.0]]))
    assert summary.ci95 == rows[0].ci95 == 1.0
    assert compare(summary, summary) is None


def test_the_ratio_stands_inside_its_interval_and_touches_significance_at_its_bounds():
    above, below = ConditionSummary(0.438, 0.0125, 600), ConditionSummary(0.1205, 0.0097, 600)
    compared = compare(above, below)
    assert compared.ratio == pytest.approx(0.438 / 0.1205)
    assert compared.low < compared.ratio < compared.high
    for bound in (compared.low, compared.high):
        gap = (above.mean - bound * below.mean) ** 2
        assert gap == pytest.approx(above.ci95**2 + bound**2 * below.ci95**2)


def test_the_interval_of_a_ratio_covers_it_in_95_of_100_runs():
    # 4,000 runs of 200 and 200 users; coverage has standard error .0035 (Fieller's bounds are exact for normal
    # means). The band of +-.02 alarms falsely with probability below 1e-6 there; an interval a quarter too
    # short covers 85.8 %, 11 standard errors below the band.
    rng = np.random.default_rng(20)
    covered, runs, users = 0, 4_000, 200
    above = rng.binomial(users, 0.45, runs) / users
    below = rng.binomial(users, 0.15, runs) / users
    for a, b in zip(above, below, strict=True):
        spread = [1.959964 * (m * (1 - m) / users) ** 0.5 for m in (a, b)]
        compared = compare(ConditionSummary(a, spread[0], users), ConditionSummary(b, spread[1], users))
        covered += compared.low <= 3.0 <= compared.high
    assert 0.93 <= covered / runs <= 0.97


def test_a_mean_that_cannot_be_told_from_zero_gives_no_ratio():
    assert compare(ConditionSummary(0.4, 0.01, 9), ConditionSummary(0.0, 0.0, 9)) is None
    assert compare(ConditionSummary(0.4, 0.01, 9), ConditionSummary(0.02, 0.02, 9)) is None


def test_the_headline_needs_both_arms(make_result):
    both = make_result()
    assert headline(both).ratio == both.conditions["warm_private"].mean / both.conditions["cold"].mean
    assert headline(make_result(conditions={"cold": both.conditions["cold"]})) is None


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
