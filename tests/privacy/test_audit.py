from functools import partial
from math import exp, log

import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits.audit import (
    audit_slot_sums,
    epsilon_lower_bound,
    lower_confidence,
    upper_confidence,
)
from hushstream.privacy.errors import PrivacyError
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.privacy.mechanisms.noise import checked_add, discrete_laplace, laplace_scale

RUNS = 1_000


def _release(stream, epsilon, levels, ones, zeros, runs):
    """The real noise on the two sums of one cell, ``runs`` times."""
    noise = discrete_laplace(stream, *laplace_scale(epsilon, levels), 2 * runs).reshape(runs, 2)
    return checked_add(np.tile(np.array([ones, zeros], dtype=np.int64), (runs, 1)), noise)


@pytest.mark.parametrize("levels", [1, 256])
def test_the_noise_of_epsilon_one_passes_and_half_of_it_fails(stream, levels):
    """1,000 runs, false alarm 1e-6, power for half the noise above 1 - 1e-8 (see below)."""
    claimed = slot_sums_guarantee(1, levels=levels).cost
    good = audit_slot_sums(partial(_release, stream(), 1, levels), claimed, levels, RUNS)
    assert good.passed
    assert 0.3 < good.epsilon_lower_bound <= 1
    mutant = audit_slot_sums(partial(_release, stream(), 2, levels), claimed, levels, RUNS)
    assert not mutant.passed
    assert mutant.epsilon_lower_bound <= 2


def test_no_noise_at_all_fails():
    def bare(ones, zeros, runs):
        return np.tile(np.array([ones, zeros], dtype=np.int64), (runs, 1))

    assert not audit_slot_sums(bare, Cost(4_000_000), 1, RUNS).passed


def test_noise_that_is_drawn_for_another_sensitivity_fails(stream):
    claimed = slot_sums_guarantee(1, levels=256).cost
    assert not audit_slot_sums(partial(_release, stream(), 1, 128), claimed, 256, RUNS).passed


def test_the_stated_power_holds():
    """Half the noise at epsilon 1: the audit still fails with both rates at their 5e-9 quantiles on the bad side."""
    ratio = exp(-2)
    hit_with_slot, hit_without = 1 / (1 + ratio), ratio / (1 + ratio)
    few = int(stats.binom.ppf(5e-9, RUNS, hit_with_slot))
    many = int(stats.binom.ppf(1 - 5e-9, RUNS, hit_without))
    assert epsilon_lower_bound(few, many, RUNS, 0, 1e-6) > 1


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


def test_a_release_of_another_shape_is_refused():
    with pytest.raises(PrivacyError, match="releases of shape"):
        audit_slot_sums(lambda ones, zeros, runs: np.zeros((runs, 3), np.int64), Cost(1), 1, 10)
