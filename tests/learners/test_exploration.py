"""What is stated of a draw is what is drawn: every number has one owner, and each arm owns as many as it states."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import numpy as np
import pytest

from hushstream.learners.errors import LearnerError, NoEligibleArm
from hushstream.learners.exploration import WHOLE, Drawn, EpsilonMixture, Softmax, draw

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
def test_every_number_has_one_owner_who_owns_as_many_as_they_state(rule, scores) -> None:
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
def test_the_mixture_is_a_uniform_part_and_one_for_the_best(share: int, scores: list[float]) -> None:
    """share/n for each, and the rest divided among the best: within one number for each division."""
    found, arms = EpsilonMixture(share).weights(np.array(scores), None), len(scores)
    best = [arm for arm, score in enumerate(scores) if score == max(scores)]
    for arm in range(arms):
        exact = Fraction(share, arms) + (Fraction(WHOLE - share, len(best)) if arm in best else 0)
        assert abs(int(found[arm]) - exact) <= arms + 1


def test_softmax_weighs_by_the_exponential_of_the_score() -> None:
    """Within half a 64th of a temperature, and of all scores together."""
    scores = np.array([0.31, 0.3, 0.22, 0.11, 0.0], dtype=np.float32)
    found = Softmax(0.1).weights(scores, None)
    exact = np.exp(scores / 0.1) / np.exp(scores / 0.1).sum()
    assert np.abs(np.log(found / WHOLE / exact)).max() < 2 / 64
    far = Softmax(0.001).weights(np.array([1.0, 0.0]), None)
    assert abs(far[1] / WHOLE - exp(-20)) < 2e-9


def test_the_best_is_known_beforehand_or_not() -> None:
    scores = np.array([0.2, 0.9, 0.1, 0.8])
    rule = EpsilonMixture(70_000_001)
    assert rule.weights(scores, None).tolist() == rule.weights_around(1, 4).tolist()


@pytest.mark.parametrize("rule", [EpsilonMixture(50_000_000), Softmax(0.05)], ids=str)
def test_a_rounding_explains_a_neighbour_and_nothing_else(rule) -> None:
    """Scores that two processors round differently: the other one's answer is near, a made-up propensity is not."""
    scores, other = np.array([0.5, 0.5 + 1e-7, 0.1]), np.array([0.5 + 1e-7, 0.5, 0.1])
    for number in range(0, WHOLE, WHOLE // 997):
        theirs = draw(rule.weights(other, None), number)
        assert rule.tie_gap(scores, None, number, theirs) <= 2e-7
        invented = theirs._replace(propensity=theirs.propensity // 2)
        assert rule.tie_gap(scores, None, number, invented) > 0.1
    assert rule.tie_gap(scores, None, 0, draw(rule.weights(scores, None), WHOLE - 1)) > 0.1


@pytest.mark.parametrize("rule", [EpsilonMixture(50_000_000), Softmax(0.05)], ids=str)
def test_without_an_arm_or_a_number_nothing_is_drawn(rule) -> None:
    with pytest.raises(NoEligibleArm):
        rule.weights(np.array([0.1, 0.2]), np.zeros(2, dtype=np.bool_))
    with pytest.raises(LearnerError, match="finite"):
        rule.weights(np.array([0.1, np.nan]), None)
