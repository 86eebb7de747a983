"""Batch kernels agree with the per-event ones to a stated tolerance."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.learners.batch import choose_batch, learn_batch, scores_batch
from hushstream.learners.errors import LearnerError, NoEligibleArm
from hushstream.learners.linucb import LinUCB, LinUCBModel


def learned_state(rng, arms, dimension, events):
    kernel = LinUCB(arms, dimension)
    state = LinUCBModel.cold(arms, dimension).state()
    for x in rng.dirichlet(np.ones(dimension), events).astype(np.float32):
        kernel.learn(state, x, int(rng.integers(arms)), float(rng.random()))
    return kernel, state


@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_batch_scores_agree_with_single_scores(alpha):
    rng = np.random.default_rng(1)
    _, state = learned_state(rng, 7, 9, 300)
    kernel = LinUCB(7, 9, alpha)
    contexts = rng.dirichlet(np.ones(9), 50).astype(np.float32)
    single = np.stack([kernel.scores(state, x).copy() for x in contexts], axis=1)
    assert np.abs(scores_batch(state, contexts, alpha) - single).max() < 1e-6


def test_batch_choices_are_the_single_choices_with_the_same_ties():
    rng = np.random.default_rng(2)
    kernel, state = learned_state(rng, 6, 4, 3)
    contexts = rng.dirichlet(np.ones(4), 200).astype(np.float32)
    ties = rng.integers(0, 1 << 40, 200)
    eligible = rng.random((200, 6)) < 0.7
    eligible[:, 0] = True
    arms, counts = choose_batch(state, contexts, ties, eligible=eligible)
    single = [kernel.choose(state, x, int(t), e) for x, t, e in zip(contexts, ties, eligible, strict=True)]
    assert list(zip(arms.tolist(), counts.tolist(), strict=True)) == single
    assert max(counts) > 1


@pytest.mark.parametrize("law", ["uniform", "one arm", "few", "few of each"])
def test_batch_learning_agrees_with_one_at_a_time(law):
    """By sums, by chunks ("few of each": two of `CHUNK_OF_MANY`), and both in one batch ("few")."""
    rng = np.random.default_rng(3)
    arms = {
        "uniform": rng.integers(0, 12, 500),
        "one arm": np.zeros(500, dtype=np.int64),
        "few": np.minimum(rng.geometric(0.5, 500) - 1, 11),
        "few of each": rng.integers(0, 12, 200),
    }[law]
    contexts = rng.dirichlet(np.ones(8), len(arms)).astype(np.float32)
    rewards = rng.random(len(arms))
    kernel = LinUCB(12, 8)
    shared = LinUCBModel.cold(12, 8).state()
    single, batch = shared.fork(), shared.fork()
    for x, arm, reward in zip(contexts, arms, rewards, strict=True):
        kernel.learn(single, x, int(arm), float(reward))
    learn_batch(batch, contexts, arms, rewards)
    assert np.abs(batch.packed - single.packed).max() < 2e-5
    assert np.array_equal(batch.inverse, batch.inverse.transpose(0, 2, 1))
    assert shared.theta.any() == np.False_


def test_an_empty_batch_changes_nothing():
    state = LinUCBModel.cold(2, 3).state()
    before = state.packed.tobytes()
    learn_batch(state, np.empty((0, 3), np.float32), np.empty(0, np.int64), np.empty(0))
    assert state.packed.tobytes() == before


def test_wrong_shapes_and_empty_masks_are_refused():
    state = LinUCBModel.cold(2, 3).state()
    with pytest.raises(LearnerError, match=r"shape \(n, 3\)"):
        scores_batch(state, np.zeros((4, 2), np.float32))
    with pytest.raises(NoEligibleArm):
        choose_batch(state, np.ones((1, 3), np.float32), np.zeros(1, np.int64), eligible=np.zeros((1, 2), np.bool_))
