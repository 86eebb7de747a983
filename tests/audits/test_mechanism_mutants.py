"""Every audit passes on the product and fails on the mutants that it is there to find.

False alarms: an audit fails on an honest mechanism with probability at most 1e-6, by its confidence bounds. Power:
`test_power.py` computes that the mutants with half the noise are found with probability above 1 - 1e-6.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import pytest

from hushstream.counting import BinaryTree, BufferedToeplitz, Concentrated, HonakerTree, NegativeDigitTree, PureEpsilon
from hushstream.privacy import exponential, rewards
from hushstream.privacy.response import RandomisedResponse
from hushstream.privacy.rewards import LocalReward
from hushstream.replay.audits import counters, mechanisms
from hushstream.replay.audits.catalogue import all_audits
from hushstream.systems import collaborative_moments, collaborative_release, p2b, p2b_release

AUDITS = {audit.name: audit for audit in all_audits()}
"""Made before anything is mutated: their claims are the product's."""


def named(name):
    return AUDITS[name]


def quick(audit):
    return audit("quick", 1e-6)


@pytest.mark.parametrize("name", AUDITS)
def test_the_product_keeps_its_claim(name):
    row = quick(named(name))
    assert row.passed, row.cells()
    assert row.result.strongest <= row.result.claimed.epsilon_micro / 1e6


def scaled(function, factor):
    """A calibration that takes ``factor`` times its epsilon (or rho)."""
    return lambda price, sensitivity: function(factor * Fraction(price), sensitivity)


HALF_SCALES = {
    "discrete-laplace": (mechanisms, "laplace_scale", 2),
    "discrete-gaussian": (mechanisms, "gaussian_variance_for", 4),
    "k-norm": (mechanisms, "laplace_scale", 2),
    "local-reward-laplace": (rewards, "laplace_scale", 2),
    "slot-sums-fresh": (p2b_release, "laplace_scale", 2),
    "slot-sums-sampled": (p2b_release, "laplace_scale", 2),
}


@pytest.mark.parametrize("name", HALF_SCALES)
def test_half_the_noise_fails(name, monkeypatch):
    audit = named(name)
    place, what, factor = HALF_SCALES[name]
    monkeypatch.setattr(place, what, scaled(getattr(place, what), factor))
    row = quick(audit)
    assert (row.passed, row.verdict) == (False, "EXCEEDS the claim"), row.cells()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("discrete-laplace-size", "laplace_scale"),
        ("discrete-gaussian-size", "gaussian_variance_for"),
        ("k-norm-size", "laplace_scale"),
    ],
)
def test_nine_tenths_of_the_noise_fail_by_their_size(name, what, monkeypatch):
    audit = named(name)
    factor = Fraction(10, 9) ** (2 if what == "gaussian_variance_for" else 1)
    monkeypatch.setattr(mechanisms, what, scaled(getattr(mechanisms, what), factor))
    assert not quick(audit).passed


def test_an_answer_that_is_true_too_often_fails():
    response = RandomisedResponse.of(mechanisms.CATEGORIES, 2)
    claimed = RandomisedResponse.of(mechanisms.CATEGORIES, 1).guarantee().cost
    family = mechanisms.response_family(mechanisms.CATEGORIES)
    run = mechanisms.likelihood_ratio(mechanisms.response_score(response), claimed, family)
    assert not run(1_000, 1e-6).passed


def test_a_bit_that_is_true_too_often_fails(monkeypatch):
    audit = named("local-reward-response")
    honest = rewards._thresholds
    monkeypatch.setattr(rewards, "_thresholds", lambda levels, micro: honest(levels, 2 * micro))
    assert not quick(audit).passed


def test_a_choice_without_the_factor_two_fails(monkeypatch):
    audit = named("exponential")
    honest = exponential.exponential_weights
    monkeypatch.setattr(exponential, "exponential_weights", lambda u, micro, step: honest(u, 2 * micro, step))
    assert not quick(audit).passed


def test_a_reward_noised_by_half_fails(monkeypatch):
    audit = named("noisy-reward")
    monkeypatch.setattr(
        collaborative_moments, "local_reward_of", lambda release: LocalReward.of(release.reward_levels, 2)
    )
    assert not quick(audit).passed


def test_slots_that_are_kept_too_often_fail(monkeypatch):
    audit = named("tuples")
    honest = p2b_release.bernoulli
    monkeypatch.setattr(p2b_release, "bernoulli", lambda stream, units, size: honest(stream, 3 * units // 2, size))
    assert not quick(audit).passed


def test_a_threshold_on_the_code_alone_fails(monkeypatch):
    audit = named("tuples-unique")
    paper = p2b_release.paper
    monkeypatch.setattr(
        p2b_release, "tuples", lambda reports, sampled, threshold: paper(reports.kept(sampled), threshold)
    )
    row = quick(audit)
    assert not row.passed
    assert row.result.hits[1] == 0, "without the report its tuple never shows"


class HalfBinary(BinaryTree):
    @property
    def noise(self):
        return PureEpsilon(2).node_noise(self.levels, self.sensitivity, self.dimension)


class FlatBinary(BinaryTree):
    @property
    def noise(self):
        return self.budget.node_noise(1, self.sensitivity, self.dimension)


class HalfNegative(NegativeDigitTree):
    @property
    def noise(self):
        return PureEpsilon(2).node_noise(self.levels, self.sensitivity, self.dimension)


class FlatNegative(NegativeDigitTree):
    @property
    def noise(self):
        return self.budget.node_noise(1, self.sensitivity, self.dimension)


class HalfHonaker(HonakerTree):
    @property
    def noise(self):
        return Concentrated(4 * self.budget.rho, self.budget.delta).node_noise(
            self.levels, self.sensitivity, self.dimension
        )


class FlatHonaker(HonakerTree):
    @property
    def noise(self):
        return self.budget.node_noise(1, self.sensitivity, self.dimension)


class HalfBuffered(BufferedToeplitz):
    @property
    def noise(self):
        return Concentrated(4 * self.budget.rho, self.budget.delta).noise_for(self.squared_sensitivity)


def same_settings(kind, plan):
    settings = {name: getattr(plan, name) for name in ("budget", "dimension", "sensitivity", "horizon")}
    return kind(**settings, **({"base": plan.base} if isinstance(plan, NegativeDigitTree) else {}))


@pytest.mark.parametrize("kind", [HalfBinary, FlatBinary, HalfNegative, FlatNegative])
def test_a_digit_tree_with_half_the_noise_or_without_its_level_factor_fails(kind):
    plan = counters.BINARY if issubclass(kind, BinaryTree) else counters.NEGATIVE_DIGIT
    mutant = same_settings(kind, plan)
    assert mutant.guarantee().cost.epsilon_micro == 1_000_000, "it claims what the product claims"
    runs = 5_000 if kind in (HalfBinary, HalfNegative) else 1_000
    assert not counters.audit_tree(mutant)(runs, 1e-6).passed


@pytest.mark.parametrize("kind", [HalfHonaker, FlatHonaker])
def test_the_estimated_tree_with_half_the_noise_or_without_its_level_factor_fails(kind):
    mutant = same_settings(kind, counters.HONAKER)
    audit = counters.audit_linear(mutant, counters.honaker_family(counters.HONAKER))
    assert not audit(2_000, 1e-6).passed


def test_the_buffered_counter_with_half_the_noise_fails():
    mutant = same_settings(HalfBuffered, counters.BUFFERED)
    assert not counters.audit_linear(mutant, counters.gaussian_family())(2_000, 1e-6).passed


def test_windows_through_a_counter_without_its_level_factor_fail(monkeypatch):
    honest = p2b.window_tree_of
    audit = named("slot-sums-counter")

    def mutated(config, codes):
        tree = honest(config, codes)
        return None if tree is None else same_settings(FlatNegative, tree)

    monkeypatch.setattr(p2b, "window_tree_of", lru_cache(mutated))
    assert not quick(audit).passed


def test_a_collaborative_counter_without_its_level_factor_fails(monkeypatch):
    audit, honest = named("server-counter"), collaborative_release.plan_of
    monkeypatch.setattr(
        collaborative_moments,
        "plan_of",
        lru_cache(lambda release, features: same_settings(FlatNegative, honest(release, features))),
    )
    assert not quick(audit).passed


def test_a_collaborative_counter_sized_by_l2_in_place_of_l1_fails(monkeypatch):
    audit, honest = named("edge-counter"), collaborative_release.lattice_sensitivity
    unremembered = collaborative_release.plan_of.__wrapped__
    monkeypatch.setattr(collaborative_moments, "plan_of", lru_cache(unremembered))
    monkeypatch.setattr(collaborative_release, "lattice_sensitivity", lambda features, norm: honest(features, "L2"))
    assert not quick(audit).passed
