"""The stated power: with both rates at their 5e-7 quantiles on the bad side, half the noise is still found.

The runs are those of the quick version; a larger version finds it with more certainty.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.audits.audit import epsilon_lower_bound, lower_confidence, upper_confidence
from hushstream.privacy.audits.laws import Family, Pair, gaussian_pair, laplace_pair, plane_pair, pure
from hushstream.replay.audits import counters, mechanisms
from hushstream.replay.audits.catalogue import make_audit
from hushstream.replay.audits.readings import reading_family, reading_of
from hushstream.replay.studies.colin.audits import paper as colin_paper
from hushstream.replay.studies.colin.audits.rows import COLLABORATIVE_EPSILON, COUNTERS, FEATURES
from hushstream.replay.studies.colin.experiments.mechanisms import paper_true_epsilon
from hushstream.replay.studies.p2b.audits import releases
from hushstream.replay.studies.p2b.audits.rows import LIFT, THRESHOLD, WORST_CROWD
from hushstream.systems.colin.configuration import ContinualConfig, FeatureConfig
from hushstream.systems.colin.release import plan_of
from hushstream.systems.p2b.lift import lift_tree


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
        ("slot-sums-counter-sampled", kept_half(2.0), Family(lambda e: kept_half(e).power, lambda e: e)),
        ("slot-sums-sampled", kept_half(2.0), Family(lambda e: kept_half(e).power, lambda e: e)),
        ("local-reward-response", laplace_pair(2.0), mechanisms.LAPLACE_FAMILY),
        ("local-reward-laplace", laplace_pair(2.0, 1, 4), Family(lambda e: laplace_pair(e, 1, 4).power, lambda e: e)),
        ("noisy-reward", laplace_pair(2.0), mechanisms.LAPLACE_FAMILY),
        ("exponential", mechanisms.choice_pair(2.0), mechanisms.choice_family()),
    ],
)
def test_half_the_noise_is_found_with_the_quick_runs(name, pair, family):
    assert found(*rates(pair), make_audit(name).runs, family) > 1


def test_an_answer_at_twice_epsilon_is_found_with_the_quick_runs():
    pair = mechanisms.response_pair(2.0, mechanisms.CATEGORIES)
    family = mechanisms.response_family(mechanisms.CATEGORIES)
    assert found(float(pair.moved[1]), float(pair.null[1]), make_audit("randomised-response").runs, family) > 1


def test_slots_that_are_kept_too_often_are_found_with_the_quick_runs():
    """Three in four in place of one in two, in the worst crowd of the threshold that is audited."""
    with_unit, without = (float(stats.binom.sf(THRESHOLD - 1, n, 0.75)) for n in (WORST_CROWD + 1, WORST_CROWD))
    assert found(
        with_unit, without, make_audit("tuples").runs, releases.tuples_family(WORST_CROWD, THRESHOLD)
    ) > np.log(2)


def test_half_of_gaussian_noise_is_found_with_the_quick_runs():
    claim = mechanisms.GAUSSIAN_COST.epsilon_micro / 1e6
    # A quarter of the variance, that is four times rho.
    pair = gaussian_pair(mechanisms.STEP**2 / (8 * 0.5), mechanisms.STEP)
    assert found(*rates(pair), make_audit("discrete-gaussian").runs, mechanisms.GAUSSIAN_FAMILY) > claim
    assert found(*normal_rates(2.0), make_audit("buffered-toeplitz").runs, counters.gaussian_family()) > claim
    seen = counters.HONAKER
    left = seen.factorisation(counters.SEEN).left
    covariance = left @ left.T * seen.noise.variance / 4 + np.eye(counters.SEEN) / 12
    distance = float(np.sqrt(np.ones(counters.SEEN) @ np.linalg.solve(covariance, np.ones(counters.SEEN))))
    assert found(*normal_rates(distance), make_audit("honaker-tree").runs, counters.honaker_family(seen)) > claim


def test_an_audit_against_the_nominal_epsilon_would_miss_half_the_noise_of_a_deep_tree():
    """Why there is a second column: ten levels, half the noise, and rates that are known exactly."""
    true_rate, false_rate = rates(laplace_pair(2.0, 10))
    assert np.log(true_rate / false_rate) < 1
    family = counters.tree_family(counters.BinaryTree(budget=counters.PureEpsilon(1), horizon=1_023))
    assert family.lower_bound(Fraction(true_rate), Fraction(false_rate)) == pytest.approx(2, rel=1e-3)


def test_half_the_noise_of_a_lift_is_found_with_the_quick_runs():
    tree = lift_tree(LIFT, 2)
    reading, step = reading_of(tree, tree.horizon), 2 * LIFT.decisions_per_user
    pair = laplace_pair(2 * LIFT.epsilon, 2 * tree.levels, step)
    assert found(*rates(pair), make_audit("lift").runs, reading_family(tree, reading, 2)) > LIFT.epsilon


def test_half_of_a_larger_rewards_laplace_noise_is_found_with_the_quick_runs():
    family = pure(lambda epsilon: laplace_pair(epsilon, 1, mechanisms.LEVELS).power)
    pair = laplace_pair(6.0, 1, mechanisms.LEVELS)
    assert found(*rates(pair), make_audit("noisy-reward-laplace").runs, family) > 3


def plan_and_reading(mechanism, noise):
    horizon = COUNTERS[noise][mechanism]
    release = ContinualConfig(
        mechanism=mechanism,
        noise=noise,
        epsilon=COLLABORATIVE_EPSILON,
        horizon=horizon,
        rewards_per_user=horizon,
    )
    plan = plan_of(release, FeatureConfig(FEATURES))
    return plan, reading_of(plan, horizon)


@pytest.mark.parametrize("mechanism", COUNTERS["gaussian"])
def test_half_of_a_users_gaussian_noise_is_found_with_the_quick_runs(mechanism):
    """And the level factor of two levels with 8,000 runs; of a buffered counter its column's norm with 16,000."""
    plan, reading = plan_and_reading(mechanism, "gaussian")
    fine = plan.fine_bits if mechanism == "blt" else 0
    told = float(reading.moves**2 @ (1 / reading.variances))
    distance = plan.sensitivity * np.sqrt(told / plan.noise.variance) * 2.0**fine
    family = reading_family(plan, reading, 1)
    assert (
        found(*normal_rates(2 * distance), make_audit(f"learner-{mechanism}-gaussian").runs, family)
        > COLLABORATIVE_EPSILON
    )
    factor, runs = (plan.shape.squared_norm(plan.horizon), 16_000) if mechanism == "blt" else (plan.levels, 8_000)
    assert found(*normal_rates(float(factor) ** 0.5 * distance), runs, family) > COLLABORATIVE_EPSILON


@pytest.mark.parametrize("mechanism", ["negative-digit", "binary"])
def test_half_of_a_users_laplace_noise_is_found_with_the_quick_runs(mechanism):
    plan, reading = plan_and_reading(mechanism, "laplace")
    pair = laplace_pair(2 * COLLABORATIVE_EPSILON, plan.levels * FEATURES, 16)
    family = reading_family(plan, reading, FEATURES)
    assert found(*rates(pair), make_audit(f"server-{mechanism}-laplace").runs, family) > COLLABORATIVE_EPSILON


def test_half_of_an_estimated_trees_laplace_noise_is_found_with_the_quick_runs():
    """Rates of the real score on drawn laws: 400,000 draws give each within 0.002, six deviations."""
    plan, reading = plan_and_reading("honaker", "laplace")
    draws, generator = 400_000, np.random.default_rng(7)
    scale, step = 2 * FEATURES / (2 * COLLABORATIVE_EPSILON), 1 << 20
    seen = []
    for moved in (1.0, 0.0):
        first, second, above = generator.laplace(scale=scale, size=(3, draws, FEATURES))
        # Two leaves, the first of which moved, and the node above them: the estimate of that is the second release.
        released = moved + np.array([first, (2 * above + first + second) / 3])
        seen.append(float(np.mean(reading.clipped_score(np.rint(released * step), step) > 0)))
    family = reading_family(plan, reading, FEATURES)
    assert (
        found(seen[0] - 0.002, seen[1] + 0.002, make_audit("server-honaker-laplace").runs, family)
        > COLLABORATIVE_EPSILON
    )


def sure(pair):
    """Rates of the attacker on the paper's tree, whose yes needs a likelihood ratio of e to `SURE`."""
    seen = np.log(pair.moved / pair.null) > colin_paper.SURE
    return float(pair.moved[seen].sum()), float(pair.null[seen].sum())


def test_the_papers_claim_is_broken_with_the_quick_runs():
    runs, true = make_audit("colin-paper").runs, paper_true_epsilon(colin_paper.EXPOSURE, "server", colin_paper.EPSILON)
    chances = sure(colin_paper.pair(true))
    few, many = int(stats.binom.ppf(5e-7, runs, chances[0])), int(stats.binom.ppf(1 - 5e-7, runs, chances[1]))
    assert epsilon_lower_bound(few, many, runs, Fraction(0), 1e-6) > colin_paper.EPSILON
    family = colin_paper.family()
    # Half the noise: the attacker weighs by the scale that they expect, so their yes needs twice the logarithm.
    halved = colin_paper.pair(2 * true)
    seen = np.log(halved.moved / halved.null) > 2 * colin_paper.SURE
    assert found(float(halved.moved[seen].sum()), float(halved.null[seen].sum()), runs, family) > true
