"""Audits fail on the mutants that they are there to find (`test_catalogue.py`: and pass on the product).

Power: `test_power.py` computes that the mutants with half the noise are found with probability above 1 - 1e-6.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import pytest

from every_audit import all_audits
from hushstream.counting import BinaryTree, BufferedToeplitz, Concentrated, HonakerTree, NegativeDigitTree, PureEpsilon
from hushstream.privacy.mechanisms import exponential, rewards
from hushstream.privacy.mechanisms.response import RandomisedResponse
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.replay.audits import counters, mechanisms
from hushstream.replay.audits.catalogue import audit_names
from hushstream.replay.studies.colin.audits import paper as colin_paper
from hushstream.replay.studies.colin.experiments import noise as colin_noise
from hushstream.systems.colin import release as collaborative_release
from hushstream.systems.colin.algorithm import noised_sums as collaborative_moments
from hushstream.systems.p2b import lift
from hushstream.systems.p2b.guarantee import deployment as p2b
from hushstream.systems.p2b.machines import release as p2b_release
from memory import forget

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_statistics(
        keep=[
            "test_half_the_noise_fails",
            "test_half_the_noise_fails_after_the_product_was_audited",
            "test_a_bit_that_is_true_too_often_fails",
            "test_a_choice_without_the_factor_two_fails",
            "test_a_threshold_on_the_code_alone_fails",
            "test_users_counters_with_half_the_noise_fail[server-negative-digit-laplace]",
        ]
    ),
]


@pytest.fixture(scope="module", autouse=True)
def audits():
    """Made before anything is mutated: their claims are the product's."""
    return all_audits()


def named(name):
    return next(audit for audit in all_audits() if audit.name == name)


def quick(audit):
    return audit("quick", 1e-6)


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


@pytest.mark.parametrize("name", ["slot-sums-fresh", "slot-sums-sampled"])
def test_half_the_noise_fails_after_the_product_was_audited(name, monkeypatch):
    """The releases keep the terms of a deployment, among them the scale: those of the sound product must be gone."""
    audit = named(name)
    assert audit.run(100, 1e-6).passed
    forget()
    monkeypatch.setattr(p2b_release, "laplace_scale", scaled(p2b_release.laplace_scale, 2))
    assert not quick(audit).passed


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


@pytest.mark.parametrize("name", ["noisy-reward", "noisy-reward-laplace"])
def test_a_reward_noised_by_half_fails(name, monkeypatch):
    audit = named(name)
    (release,) = audit.subjects
    law = LocalReward.of(release.reward_levels, release.epsilon).law
    twice = LocalReward.of(release.reward_levels, 2 * release.epsilon, law)
    monkeypatch.setattr(collaborative_moments, "local_reward_of", lambda release: twice)
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


class TwiceEpsilon(NegativeDigitTree):
    @property
    def noise(self):
        return PureEpsilon(2 * self.budget.epsilon).node_noise(self.levels, self.sensitivity, self.dimension)


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


@pytest.mark.parametrize("name", ["slot-sums-counter", "slot-sums-counter-sampled"])
def test_windows_through_a_counter_without_its_level_factor_fail(name, monkeypatch):
    honest = p2b.window_tree_of
    audit = named(name)

    def mutated(config):
        tree = honest(config)
        return None if tree is None else same_settings(FlatNegative, tree)

    monkeypatch.setattr(p2b, "window_tree_of", lru_cache(mutated))
    assert not quick(audit).passed


def test_a_lift_with_half_the_noise_or_a_forgotten_factor_fails(monkeypatch):
    """Factors: one of the two sums, the decisions of a user, the levels of the tree."""
    audit, honest = named("lift"), lift.lift_tree
    (settings,) = audit.subjects

    def found(mutated):
        monkeypatch.setattr(lift, "lift_tree", lambda *place: mutated(honest(*place)))
        return quick(audit)

    assert found(lambda tree: tree).passed
    assert not found(lambda tree: same_settings(TwiceEpsilon, tree)).passed
    assert not found(lambda tree: replace(tree, sensitivity=tree.sensitivity // 2)).passed
    assert not found(lambda tree: replace(tree, sensitivity=tree.sensitivity // settings.decisions_per_user)).passed
    assert not found(lambda tree: same_settings(FlatNegative, tree)).passed


def test_a_lift_that_counts_every_decision_fails(monkeypatch):
    audit, honest = named("lift"), lift.LiftCounter.count
    monkeypatch.setattr(
        lift.LiftCounter, "count", lambda self, user, holdout, index, *rest: honest(self, user, holdout, 0, *rest)
    )
    assert not quick(audit).passed


def at_a_price(plan, factor):
    """The same counter with the noise of so many times its epsilon or rho."""
    if isinstance(plan.budget, Concentrated):
        return replace(plan, budget=Concentrated(factor * plan.budget.rho, plan.budget.delta))
    return replace(plan, budget=type(plan.budget)(factor * plan.budget.epsilon))


def drawn_at(monkeypatch, price):
    """Let users' counters draw at so many times their price, which ``price`` says of a plan."""
    honest = collaborative_release.plan_of.__wrapped__

    def mutated(release, features):
        plan = honest(release, features)
        return at_a_price(plan, price(plan))

    monkeypatch.setattr(collaborative_moments, "plan_of", lru_cache(mutated))


PLACES = ("server-", "learner-")
COLLABORATIVE = [name for name in audit_names() if name.endswith(("-laplace", "-gaussian")) and name.startswith(PLACES)]


@pytest.mark.parametrize("name", [*COLLABORATIVE, "server-binary-k-norm", "learner-honaker-k-norm"])
def test_users_counters_with_half_the_noise_fail(name, monkeypatch):
    assert len(COLLABORATIVE) == 14
    drawn_at(monkeypatch, lambda plan: 4 if isinstance(plan.budget, Concentrated) else 2)
    row = quick(named(name))
    assert (row.passed, row.verdict) == (False, "EXCEEDS the claim"), row.cells()


@pytest.mark.parametrize("name", [name for name in COLLABORATIVE if name.startswith("server") and "blt" not in name])
def test_users_trees_without_their_level_factor_fail(name, monkeypatch):
    """With Gaussian noise the factor is the root of two levels: 8,000 runs find it (`test_power.py`)."""
    drawn_at(monkeypatch, lambda plan: plan.levels)
    assert not named(name).run(8_000, 1e-6).passed


def test_a_users_buffered_counter_that_is_sized_by_one_draw_fails(monkeypatch):
    """A reward stays in all later draws: without them the variance is too small by the norm of C's first column."""
    drawn_at(monkeypatch, lambda plan: Fraction(plan.shape.squared_norm(plan.horizon)))
    assert not named("server-blt-gaussian").run(16_000, 1e-6).passed


def test_a_users_counter_sized_by_l2_in_place_of_l1_fails(monkeypatch):
    audit, honest = named("learner-negative-digit-laplace"), collaborative_release.lattice_sensitivity
    unremembered = collaborative_release.plan_of.__wrapped__
    monkeypatch.setattr(collaborative_moments, "plan_of", lru_cache(unremembered))
    monkeypatch.setattr(collaborative_release, "lattice_sensitivity", lambda features, norm: honest(features, "L2"))
    assert not quick(audit).passed


@pytest.mark.parametrize("factor", [0.5, 1 / 3])
def test_the_papers_tree_with_even_less_noise_fails(factor, monkeypatch):
    """Half of it, or that of one level in place of three: more than the epsilon that really holds is proven."""
    audit, honest = named("colin-paper"), colin_noise.paper_scale
    monkeypatch.setattr(colin_noise, "paper_scale", lambda *run: tuple(factor * scale for scale in honest(*run)))
    row = quick(audit)
    assert (row.passed, row.verdict) == (False, "EXCEEDS the claim"), row.cells()


def test_the_papers_tree_at_the_right_scale_is_no_longer_broken(monkeypatch):
    """Whoever repairs it must not go on saying that it is broken."""
    audit, honest = named("colin-paper"), colin_noise.paper_scale
    factor = audit.run.args[1].epsilon_micro / colin_paper.CLAIM.epsilon_micro
    monkeypatch.setattr(colin_noise, "paper_scale", lambda *run: tuple(factor * scale for scale in honest(*run)))
    row = quick(audit)
    assert (row.passed, row.verdict) == (False, "the paper's claim was not broken"), row.cells()
