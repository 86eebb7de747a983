"""LinUCB, and how arms are explored."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import numpy as np
import pytest

from hushstream.learners.exploration import WHOLE, Drawn, EpsilonMixture, LearnerError, NoEligibleArm, Softmax, draw
from hushstream.learners.linucb import (
    LinUCB,
    LinUCBModel,
    LinUCBState,
    state_bytes,
)


class Textbook:
    """Li et al. 2010, Algorithm 1, in float64 with an inverse computed anew after each update."""

    def __init__(self, arms: int, dimension: int, alpha: float) -> None:
        self.gram = np.stack([np.eye(dimension)] * arms)
        self.moment = np.zeros((arms, dimension))
        self.inverse = self.gram.copy()
        self.theta = self.moment.copy()
        self.alpha = alpha

    def choose(self, x, tie, eligible):
        products = np.einsum("kij,j->ki", self.inverse, x)
        scores = np.einsum("ki,i->k", self.theta, x) + self.alpha * np.sqrt(np.einsum("ki,i->k", products, x))
        if eligible is not None:
            scores[~eligible] = -np.inf
        tied = np.flatnonzero(scores == scores.max())
        return int(tied[tie % len(tied)]), len(tied)

    def learn(self, x, arm, reward):
        self.gram[arm] += np.outer(x, x)
        self.moment[arm] += reward * x
        self.inverse[arm] = np.linalg.inv(self.gram[arm])
        self.theta[arm] = np.linalg.solve(self.gram[arm], self.moment[arm])


def unit_contexts(rng, n, dimension):
    contexts = rng.random((n, dimension)).astype(np.float32)
    return contexts / np.linalg.norm(contexts, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("dimension", "arms", "events", "alpha", "masked"),
    [(25, 25, 10_000, 1.0, False), (7, 9, 2000, 0.3, True)],
)
def test_actions_and_ties_equal_the_textbook_form(dimension, arms, events, alpha, masked):
    rng = np.random.default_rng(11)
    contexts = unit_contexts(rng, events, dimension)
    slopes = rng.normal(0, 1, (arms, dimension))
    kernel = LinUCB(arms, dimension, alpha)
    state = LinUCBModel.cold(arms, dimension).state().fork()
    textbook = Textbook(arms, dimension, alpha)
    for x in contexts:
        tie = int(rng.integers(1 << 40))
        eligible = rng.random(arms) < 0.5 if masked else None
        if eligible is not None and not eligible.any():
            eligible = None
        expected = textbook.choose(x.astype(np.float64), tie, eligible)
        assert kernel.choose(state, x, tie, eligible) == expected
        reward = float(rng.random() < 1 / (1 + np.exp(-slopes[expected[0]] @ x)))
        kernel.learn(state, x, expected[0], reward)
        textbook.learn(x.astype(np.float64), expected[0], reward)


def test_inverse_stays_symmetric_and_near_float64_after_100_000_updates():
    rng = np.random.default_rng(5)
    dimension = 25
    contexts = unit_contexts(rng, 1000, dimension)
    rewards = rng.random(1000)
    kernel = LinUCB(1, dimension)
    state = LinUCBModel.cold(1, dimension).state()
    for index in range(100_000):
        kernel.learn(state, contexts[index % 1000], 0, rewards[index % 1000])
    wide = contexts.astype(np.float64)
    gram = np.eye(dimension) + 100 * wide.T @ wide
    exact = np.linalg.inv(gram)
    assert np.array_equal(state.inverse[0], state.inverse[0].T)
    assert np.abs(state.inverse[0] - exact).max() < 1e-6
    assert np.abs(state.theta[0] - exact @ (100 * rewards @ wide)).max() < 2e-5


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (25, 25), (10, 10), (33, 17), (40, 100)])
def test_equal_arms_get_equal_bits_and_every_arm_can_win_the_tie(shape):
    arms, dimension = shape
    rng = np.random.default_rng(1)
    kernel = LinUCB(arms, dimension)
    state = LinUCBModel.cold(arms, dimension, ridge=0.7).state()
    x = unit_contexts(rng, 1, dimension)[0]
    assert len(set(kernel.scores(state, x).tolist())) == 1
    assert [kernel.choose(state, x, tie) for tie in range(arms)] == [(arm, arms) for arm in range(arms)]
    assert kernel.choose(state, x, lambda ties: ties - 1) == (arms - 1, arms)


def test_scores_have_the_same_bits_wherever_the_arrays_lie_in_memory():
    rng = np.random.default_rng(2)
    arms, dimension = 9, 13
    kernel = LinUCB(arms, dimension)
    state = LinUCBModel.cold(arms, dimension).state()
    for x in unit_contexts(rng, 200, dimension):
        kernel.learn(state, x, int(rng.integers(arms)), float(rng.random()))
    x = unit_contexts(rng, 1, dimension)[0]
    expected = kernel.scores(state, x).tobytes()
    for shift in range(16):
        room = np.empty(state.packed.size + 16, dtype=np.float32)
        moved = room[shift : shift + state.packed.size].reshape(state.packed.shape)
        moved[:] = state.packed
        place = np.empty(dimension + 16, dtype=np.float32)
        place[shift : shift + dimension] = x
        again = LinUCB(arms, dimension).scores(LinUCBState(moved, True), place[shift : shift + dimension])
        assert again.tobytes() == expected


def test_excluded_arms_are_never_chosen_and_ties_count_eligible_arms_only():
    kernel = LinUCB(4, 3)
    state = LinUCBModel.cold(4, 3).state()
    x = np.array([0.2, 0.3, 0.5], dtype=np.float32)
    eligible = np.array([False, True, False, True])
    assert [kernel.choose(state, x, tie, eligible) for tie in range(4)] == [(1, 2), (3, 2), (1, 2), (3, 2)]
    assert kernel.choose(state, x, 0, np.array([False, False, True, False])) == (2, 1)


@pytest.mark.parametrize("arms", [1, 3])
def test_no_eligible_arm_is_an_error(arms):
    kernel = LinUCB(arms, 2)
    with pytest.raises(NoEligibleArm, match="at least one eligible arm"):
        kernel.choose(LinUCBModel.cold(arms, 2).state(), np.ones(2, np.float32), 0, np.zeros(arms, np.bool_))


def test_a_context_that_is_no_number_is_an_error_not_an_arm():
    kernel = LinUCB(3, 2)
    with pytest.raises(LearnerError, match="finite scores"):
        kernel.choose(LinUCBModel.cold(3, 2).state(), np.array([np.nan, 1], np.float32))


def test_users_share_the_model_until_they_learn():
    kernel = LinUCB(3, 2)
    shared = LinUCBModel.cold(3, 2).state()
    before = shared.packed.tobytes()
    first, second = shared.fork(), shared.fork()
    assert first.packed is shared.packed
    kernel.learn(first, np.array([0.5, 0.5], np.float32), 1, 1.0)
    assert shared.packed.tobytes() == before
    assert second.packed is shared.packed
    assert first.packed is not shared.packed
    later = first.fork()
    kernel.learn(first, np.array([0.5, 0.5], np.float32), 1, 1.0)
    assert later.theta[1, 0] != first.theta[1, 0]


def test_a_vanishing_width_never_gives_nan():
    packed = np.zeros((2, 2, 3), dtype=np.float32)
    packed[:, :, :2] = -1e-7 * np.eye(2)
    packed[1, :, 2] = 0.5
    assert LinUCB(2, 2).choose(LinUCBState(packed, False), np.ones(2, np.float32)) == (1, 1)


def test_a_dumped_state_goes_on_with_the_same_bits():
    rng = np.random.default_rng(3)
    kernel = LinUCB(4, 5)
    state = LinUCBModel.cold(4, 5).state()
    contexts = unit_contexts(rng, 60, 5)
    for x in contexts[:30]:
        kernel.learn(state, x, int(rng.integers(4)), 1.0)
    again = LinUCBState.load(state.dump())
    for x in contexts[30:]:
        kernel.learn(state, x, 2, 0.25)
        kernel.learn(again, x, 2, 0.25)
    assert again.dump() == state.dump()


@pytest.mark.parametrize("damage", [b"", b"HLUC", b"XXXX" + bytes(12), "short", "long"])
def test_damaged_dumps_are_refused(damage):
    good = LinUCBModel.cold(2, 2).state().dump()
    broken = {"short": good[:-1], "long": good + b"\0"}.get(damage, damage)
    with pytest.raises(LearnerError):
        LinUCBState.load(broken)


def test_a_model_starts_users_at_its_ridge_regression():
    rng = np.random.default_rng(4)
    gram = np.stack([np.eye(3) * 2 + np.outer(x, x) for x in rng.random((2, 3))])
    moment = rng.random((2, 3))
    state = LinUCBModel(gram, moment).state()
    assert np.allclose(state.theta, np.linalg.solve(gram, moment[:, :, None])[:, :, 0], atol=1e-6)
    assert np.allclose(state.inverse @ gram, np.eye(3), atol=1e-5)


@pytest.mark.parametrize(
    ("gram", "moment"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3))),
        (np.zeros((2, 3, 3)), np.zeros((2, 2))),
        (np.full((1, 2, 2), np.nan), np.zeros((1, 2))),
        (np.array([[[1.0, 0.5], [0.0, 1.0]]]), np.zeros((1, 2))),
        (np.ones((1, 2, 2), np.float32), np.zeros((1, 2))),
    ],
)
def test_impossible_models_are_refused(gram, moment):
    with pytest.raises(LearnerError):
        LinUCBModel(gram, moment)


def test_a_gram_that_is_not_positive_definite_is_refused():
    with pytest.raises(LearnerError, match="positive definite"):
        LinUCBModel(np.array([[[1.0, 0.0], [0.0, -1.0]]]), np.zeros((1, 2))).state()


def test_a_state_takes_the_bytes_that_are_said():
    assert LinUCBModel.cold(5, 3).state().packed.nbytes == state_bytes(5, 3) == 240


RULES = [EpsilonMixture(50_000_000), EpsilonMixture(WHOLE), EpsilonMixture(333_333_331), Softmax(0.05), Softmax(2.0)]
SCORES = [
    [0.3],
    [0.3, 0.3],
    [0.1, 0.7, 0.2],
    [0.7, 0.1, 0.7, 0.7, 0.2],
    [0.0] * 7,
    [5.0, -1000.0, 4.99, 5.0],
]


def _masks(arms: int) -> list[np.ndarray | None]:
    odd = np.arange(arms) % 2 == 1
    return [None, np.ones(arms, dtype=np.bool_), np.arange(arms) == arms - 1, *([odd] if odd.any() else [])]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("scores", SCORES, ids=str)
def test_every_number_has_one_owner_who_owns_as_many_as_they_state(rule, scores):
    """All 10^9 numbers, by the ends of the runs that arms own: a run's first and last number, and its neighbours."""
    for eligible in _masks(len(scores)):
        weights = rule.weights(np.array(scores, dtype=np.float32), eligible)
        assert int(weights.sum()) == WHOLE
        allowed = np.ones(len(scores), dtype=np.bool_) if eligible is None else eligible
        # Nobody is left out who may be shown: also where two are left, or one.
        assert ((weights > 0) == allowed).all()
        first = 0
        for arm in np.flatnonzero(allowed):
            owned = draw(weights, first).propensity
            for number in (first, first + owned // 2, first + owned - 1):
                assert draw(weights, number) == Drawn(arm, owned)
            first += owned
        assert first == WHOLE


@pytest.mark.parametrize("share", [1, 50_000_000, 333_333_331, WHOLE])
@pytest.mark.parametrize("scores", SCORES[1:], ids=str)
def test_the_mixture_is_a_uniform_part_and_one_for_the_best(share, scores):
    """share/n for each, and the rest divided among the best: within one number for each division."""
    found, arms = EpsilonMixture(share).weights(np.array(scores), None), len(scores)
    best = [arm for arm, score in enumerate(scores) if score == max(scores)]
    for arm in range(arms):
        exact = Fraction(share, arms) + (Fraction(WHOLE - share, len(best)) if arm in best else 0)
        assert abs(int(found[arm]) - exact) <= arms + 1


def test_softmax_weighs_by_the_exponential_of_the_score():
    """Within half a 64th of a temperature, and of all scores together."""
    scores = np.array([0.31, 0.3, 0.22, 0.11, 0.0], dtype=np.float32)
    found = Softmax(0.1).weights(scores, None)
    exact = np.exp(scores / 0.1) / np.exp(scores / 0.1).sum()
    assert np.abs(np.log(found / WHOLE / exact)).max() < 2 / 64
    far = Softmax(0.001).weights(np.array([1.0, 0.0]), None)
    assert abs(far[1] / WHOLE - exp(-20)) < 2e-9


@pytest.mark.parametrize("rule", [EpsilonMixture(50_000_000), Softmax(0.05)], ids=str)
def test_a_rounding_explains_a_neighbour_and_nothing_else(rule):
    """Scores that two processors round differently: the other one's answer is near, a made-up propensity is not."""
    scores, other = np.array([0.5, 0.5 + 1e-7, 0.1]), np.array([0.5 + 1e-7, 0.5, 0.1])
    for number in range(0, WHOLE, WHOLE // 997):
        theirs = draw(rule.weights(other, None), number)
        assert rule.tie_gap(scores, None, number, theirs) <= 2e-7
        invented = theirs._replace(propensity=theirs.propensity // 2)
        assert rule.tie_gap(scores, None, number, invented) > 0.1
    assert rule.tie_gap(scores, None, 0, draw(rule.weights(scores, None), WHOLE - 1)) > 0.1


@pytest.mark.parametrize("rule", [EpsilonMixture(50_000_000), Softmax(0.05)], ids=str)
def test_without_an_arm_or_a_number_nothing_is_drawn(rule):
    with pytest.raises(NoEligibleArm):
        rule.weights(np.array([0.1, 0.2]), np.zeros(2, dtype=np.bool_))
    with pytest.raises(LearnerError, match="finite"):
        rule.weights(np.array([0.1, np.nan]), None)
