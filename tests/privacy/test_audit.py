from math import exp, log

import pytest
from scipy import stats

from hushstream.privacy.audits import (
    epsilon_lower_bound,
    lower_confidence,
    upper_confidence,
)

RUNS = 1_000


def test_the_stated_false_alarm_rate_holds():
    """Exact: the sum over all pairs of hits, for the true rates of epsilon 1, where the audit would fail."""
    ratio = exp(-1)
    runs = 60
    with_slot = stats.binom.pmf(range(runs + 1), runs, 1 / (1 + ratio))
    without = stats.binom.pmf(range(runs + 1), runs, ratio / (1 + ratio))
    lower = [lower_confidence(hits, runs, 0.05) for hits in range(runs + 1)]
    upper = [upper_confidence(hits, runs, 0.05) for hits in range(runs + 1)]
    alarm = sum(
        with_slot[t] * without[f]
        for t in range(runs + 1)
        for f in range(runs + 1)
        if lower[t] > exp(1) * float(upper[f]) or 1 - upper[f] > exp(1) * (1 - float(lower[t]))
    )
    assert 0 < alarm <= 0.1
    t, f = 58, 5
    assert epsilon_lower_bound(t, f, runs, 0, 0.1) == pytest.approx(
        max(log(lower[t] / upper[f]), log((1 - upper[f]) / (1 - lower[t])))
    )


@pytest.mark.parametrize("hits", [0, 1, 7, 500, 881, 999, 1000])
@pytest.mark.parametrize("error", [5e-7, 0.025])
def test_confidence_bounds_are_those_of_clopper_and_pearson(hits, error):
    oracle = stats.binomtest(hits, 1000)
    low, high = oracle.proportion_ci(1 - 2 * error, method="exact")
    assert float(lower_confidence(hits, 1000, error)) == pytest.approx(low, abs=1e-9)
    assert float(upper_confidence(hits, 1000, error)) == pytest.approx(high, abs=1e-9)


def test_an_attacker_who_sees_nothing_proves_nothing():
    assert epsilon_lower_bound(500, 500, 1000, 0, 1e-6) == 0
    assert epsilon_lower_bound(0, 1000, 1000, 0, 1e-6) == 0
