"""The stated power: with both rates at their 5e-7 quantiles on the bad side, half the noise is still found.

The runs are those of the quick version; a larger version finds it with more certainty.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.audit import lower_confidence, upper_confidence
from hushstream.privacy.audit_laws import Family, Pair, gaussian_pair, laplace_pair, plane_pair
from hushstream.replay.audits import counters, mechanisms, releases
from hushstream.replay.audits.catalogue import THRESHOLD, WORST_CROWD, all_audits

RUNS = {audit.name: audit.runs for audit in all_audits()}


def rates(pair):
    """Of the event that the product's own likelihood ratio is above one: by symmetry it is the mutant's too."""
    seen = pair.moved > pair.null * (1 + 1e-9)
    return float(pair.moved[seen].sum()), float(pair.null[seen].sum())


def normal_rates(distance):
    return float(stats.norm.cdf(distance / 2)), float(stats.norm.cdf(-distance / 2))


def kept_half(epsilon):
    """Slot sums whose slots are kept with probability one half; the noise of epsilon alone is the larger price."""
    pair = laplace_pair(float(np.log1p(np.expm1(epsilon) / 0.5)), 2)
    return Pair(pair.null, 0.5 * (pair.moved + pair.null))


def found(true_rate, false_rate, runs, family):
    few = int(stats.binom.ppf(5e-7, runs, true_rate))
    many = int(stats.binom.ppf(1 - 5e-7, runs, false_rate))
    return family.lower_bound(lower_confidence(few, runs, 5e-7), upper_confidence(many, runs, 5e-7))


TREE, DEEP = counters.NEGATIVE_DIGIT, counters.BINARY


@pytest.mark.parametrize(
    ("name", "pair", "family"),
    [
        ("discrete-laplace", laplace_pair(2.0), mechanisms.LAPLACE_FAMILY),
        ("k-norm", plane_pair(mechanisms.STEP / 2, mechanisms.STEP), mechanisms.K_NORM_FAMILY),
        ("binary-tree", laplace_pair(2.0, DEEP.levels), counters.tree_family(DEEP)),
        ("negative-digit-tree", laplace_pair(2.0, TREE.levels), counters.tree_family(TREE)),
        ("slot-sums-fresh", laplace_pair(2.0, 2), counters.tree_family(TREE)),
        ("slot-sums-counter", laplace_pair(2.0, 2), counters.tree_family(TREE)),
        ("slot-sums-sampled", kept_half(2.0), Family(lambda e: kept_half(e).power, lambda e: e)),
        ("local-reward-response", laplace_pair(2.0), mechanisms.LAPLACE_FAMILY),
        ("local-reward-laplace", laplace_pair(2.0, 1, 4), Family(lambda e: laplace_pair(e, 1, 4).power, lambda e: e)),
        ("noisy-reward", laplace_pair(2.0), mechanisms.LAPLACE_FAMILY),
        ("server-counter", laplace_pair(2.0, 8, 16), releases.sums_family(2)),
        ("edge-counter", laplace_pair(2.0, 8, 16), releases.sums_family(2)),
        ("exponential", mechanisms.choice_pair(2.0), mechanisms.choice_family()),
    ],
)
def test_half_the_noise_is_found_with_the_quick_runs(name, pair, family):
    assert found(*rates(pair), RUNS[name], family) > 1


def test_an_answer_at_twice_epsilon_is_found_with_the_quick_runs():
    pair = mechanisms.response_pair(2.0, mechanisms.CATEGORIES)
    family = mechanisms.response_family(mechanisms.CATEGORIES)
    assert found(float(pair.moved[1]), float(pair.null[1]), RUNS["randomised-response"], family) > 1


def test_slots_that_are_kept_too_often_are_found_with_the_quick_runs():
    """Three in four in place of one in two, in the worst crowd of the threshold that is audited."""
    with_unit, without = (float(stats.binom.sf(THRESHOLD - 1, n, 0.75)) for n in (WORST_CROWD + 1, WORST_CROWD))
    assert found(with_unit, without, RUNS["tuples"], releases.tuples_family(WORST_CROWD, THRESHOLD)) > np.log(2)


def test_half_of_gaussian_noise_is_found_with_the_quick_runs():
    claim = mechanisms.GAUSSIAN_COST.epsilon_micro / 1e6
    # A quarter of the variance, that is four times rho.
    pair = gaussian_pair(mechanisms.STEP**2 / (8 * 0.5), mechanisms.STEP)
    assert found(*rates(pair), RUNS["discrete-gaussian"], mechanisms.GAUSSIAN_FAMILY) > claim
    assert found(*normal_rates(2.0), RUNS["buffered-toeplitz"], counters.gaussian_family()) > claim
    seen = counters.HONAKER
    left = seen.factorisation(counters.SEEN).left
    covariance = left @ left.T * seen.noise.variance / 4 + np.eye(counters.SEEN) / 12
    distance = float(np.sqrt(np.ones(counters.SEEN) @ np.linalg.solve(covariance, np.ones(counters.SEEN))))
    assert found(*normal_rates(distance), RUNS["honaker-tree"], counters.honaker_family(seen)) > claim


def test_an_audit_against_the_nominal_epsilon_would_miss_half_the_noise_of_a_deep_tree():
    """Why there is a second column: ten levels, half the noise, and rates that are known exactly."""
    true_rate, false_rate = rates(laplace_pair(2.0, 10))
    assert np.log(true_rate / false_rate) < 1
    family = counters.tree_family(counters.BinaryTree(budget=counters.PureEpsilon(1), horizon=1_023))
    assert family.lower_bound(Fraction(true_rate), Fraction(false_rate)) == pytest.approx(2, rel=1e-3)
