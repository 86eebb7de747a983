"""The sparse kernels are LinUCB with a diagonal start, one at a time, after own interactions, and in batches."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.learners.errors import LearnerError, NoEligibleArm
from hushstream.learners.sparse import MOST_STEPS, OwnSteps, SparseModel, SparseUCB, contexts_of

ARMS, CELLS, PLACES = 6, 20, 5


def _model(seed: int = 0) -> SparseModel:
    rng = np.random.default_rng(seed)
    return SparseModel.of(rng.normal(size=(ARMS, CELLS)), rng.uniform(0.1, 1.0, (ARMS, CELLS)), 0.3)


def _contexts(count: int, seed: int = 1):
    rng = np.random.default_rng(seed)
    cells = np.array([rng.choice(CELLS, PLACES, replace=False) for _ in range(count)])
    values = rng.uniform(0, 1, (count, PLACES))
    # Places that are not needed name a cell that another one uses.
    cells[::2, -1], values[::2, -1] = cells[::2, 0], 0.0
    return cells, values


def _dense(cells, values) -> np.ndarray:
    written = np.zeros((len(cells), CELLS))
    np.add.at(written, (np.arange(len(cells))[:, None], cells), values)
    return written


def _textbook(model: SparseModel, steps, contexts) -> np.ndarray:
    """Scores by dense matrices in float64: posterior of each arm's coefficients, mean plus one standard deviation."""
    table = model.table.astype(np.float64)
    scores = np.empty((len(contexts), ARMS))
    for arm in range(ARMS):
        precision = np.diag(1 / table[:, ARMS + arm])
        moment = precision @ table[:, arm]
        for x, chosen, reward in steps:
            if chosen == arm:
                precision += np.outer(x, x) / model.reward_variance
                moment += x * reward / model.reward_variance
        covariance = np.linalg.inv(precision)
        mean = covariance @ moment
        scores[:, arm] = contexts @ mean + np.sqrt(np.einsum("ni,ij,nj->n", contexts, covariance, contexts))
    return scores


def test_scores_of_new_users_are_the_textbooks():
    model, kernel = _model(), SparseUCB(ARMS, CELLS, PLACES)
    cells, values = _contexts(50)
    found = np.array([kernel.scores(model, None, one).copy() for one in contexts_of(cells, values)])
    assert found == pytest.approx(_textbook(model, [], _dense(cells, values)), abs=1e-5)


def test_scores_after_own_interactions_are_the_textbooks():
    model, kernel, own = _model(), SparseUCB(ARMS, CELLS, PLACES), OwnSteps(CELLS)
    cells, values = _contexts(60)
    dense, contexts, rng = _dense(cells, values), contexts_of(cells, values), np.random.default_rng(2)
    steps = []
    for number in range(30):
        arm, reward = int(rng.integers(0, 3)), float(rng.integers(0, 2))
        kernel.learn(model, own, contexts[number], arm, reward)
        steps.append((dense[number], arm, reward))
    found = np.array([kernel.scores(model, own, one).copy() for one in contexts])
    assert found == pytest.approx(_textbook(model, steps, dense), abs=1e-4)


def _learned(steps: int) -> tuple[SparseUCB, SparseModel, OwnSteps, list, list]:
    """A user after so many interactions, and what they were: contexts, arms and rewards."""
    model, kernel, own = _model(), SparseUCB(ARMS, CELLS, PLACES), OwnSteps(CELLS)
    cells, values = _contexts(steps + 20)
    contexts, rng = contexts_of(cells, values), np.random.default_rng(3)
    played = [(contexts[number], int(rng.integers(0, ARMS)), float(rng.integers(0, 2))) for number in range(steps)]
    for context, arm, reward in played:
        kernel.learn(model, own, context, arm, reward)
    return kernel, model, own, played, contexts[steps:]


def test_what_a_user_learned_alone_takes_bounded_memory_and_forgets_the_oldest():
    """Memory and the rows that a decision reads stay where they were after the first `MOST_STEPS` interactions."""
    _, _, full, _, _ = _learned(MOST_STEPS)
    _, _, later, played, _ = _learned(2 * MOST_STEPS + 17)
    assert [part.nbytes for part in later.taken] == [part.nbytes for part in full.taken]
    assert sum(part.nbytes for part in later.taken) == MOST_STEPS * (4 * CELLS + 12)
    assert (later.count, later.oldest) == (MOST_STEPS, 17)
    kept = np.roll(later.taken[0], -later.oldest).tolist()
    assert kept == [arm for _, arm, _ in played[-MOST_STEPS:]]


def test_a_width_is_never_smaller_for_what_was_forgotten():
    """Each step takes the square of u'x off a width, so to leave one out makes it larger."""
    kernel, model, own, _, others = _learned(MOST_STEPS)
    arms, vectors, gains = (part.copy() for part in own.taken)
    for forgotten in (1, 40, MOST_STEPS - 1):
        less = OwnSteps.restored(arms[forgotten:], vectors[forgotten:], gains[forgotten:] * 0, 0)
        whole = OwnSteps.restored(arms, vectors, gains * 0, 0)
        for context in others:
            # Without gains the means are the model's, so what differs between scores is the width.
            before = kernel.scores(model, whole, context).copy()
            assert (kernel.scores(model, less, context) >= before - 1e-6).all()


def test_steps_are_restored_to_the_last_bit_also_after_the_oldest_was_forgotten():
    for steps in (0, 1, 5, MOST_STEPS, MOST_STEPS + 9):
        kernel, model, own, _, others = _learned(steps)
        again = OwnSteps.restored(*(part.copy() for part in own.taken), own.oldest)
        for number, context in enumerate(others):
            assert kernel.scores(model, own, context).tobytes() == kernel.scores(model, again, context).tobytes()
            kernel.learn(model, own, context, number % ARMS, 1.0)
            kernel.learn(model, again, context, number % ARMS, 1.0)
        assert own.oldest == again.oldest


def test_impossible_steps_are_refused():
    for count, oldest in ((MOST_STEPS + 1, 0), (3, 1), (MOST_STEPS, MOST_STEPS), (3, -1)):
        with pytest.raises(LearnerError, match="expected at most"):
            OwnSteps.restored(np.zeros(count), np.zeros((count, CELLS)), np.zeros(count), oldest)


def test_batches_choose_what_is_chosen_one_at_a_time():
    model, kernel = _model(), SparseUCB(ARMS, CELLS, PLACES)
    cells, values = _contexts(300)
    single = [kernel.choose(model, None, one)[0] for one in contexts_of(cells, values)]
    assert kernel.choose_batch(model, cells, values).tolist() == single


def test_it_is_linucb_with_the_stated_theta_and_gram():
    """theta = sqrt(F + 1) m, A = diag(g / ((F + 1) D)), alpha = sqrt(g), contexts over sqrt(F + 1)."""
    from hushstream.learners.linucb import LinUCB, LinUCBModel

    model, kernel, blocks = _model(), SparseUCB(ARMS, CELLS, PLACES), 3
    means, variances = model.table[:, :ARMS].T.astype(np.float64), model.table[:, ARMS:].T.astype(np.float64)
    diagonal = model.reward_variance / ((blocks + 1) * variances)
    gram = np.stack([np.diag(row) for row in diagonal])
    dense = LinUCBModel(gram, diagonal * means * np.sqrt(blocks + 1)).state()
    plain = LinUCB(ARMS, CELLS, float(np.sqrt(model.reward_variance)))
    cells, values = _contexts(20)
    for context, written in zip(contexts_of(cells, values), _dense(cells, values), strict=True):
        wanted = plain.scores(dense, (written / np.sqrt(blocks + 1)).astype(np.float32))
        assert kernel.scores(model, None, context) == pytest.approx(wanted, abs=1e-4)


def test_equal_arms_tie_and_only_eligible_ones_are_chosen():
    flat = SparseModel.of(np.zeros((ARMS, CELLS)), np.ones((ARMS, CELLS)), 1.0)
    kernel, (context,) = SparseUCB(ARMS, CELLS, PLACES), contexts_of(*_contexts(1))
    assert {kernel.choose(flat, None, context, tie)[0] for tie in range(ARMS)} == set(range(ARMS))
    assert kernel.choose(flat, None, context, lambda count: count - 1) == (ARMS - 1, ARMS)
    eligible = np.zeros(ARMS, dtype=np.bool_)
    eligible[[1, 4]] = True
    assert {kernel.choose(flat, None, context, tie, eligible) for tie in range(4)} == {(1, 2), (4, 2)}
    with pytest.raises(NoEligibleArm):
        kernel.choose(flat, None, context, 0, np.zeros(ARMS, dtype=np.bool_))


def test_impossible_models_are_refused():
    good = np.ones((ARMS, CELLS))
    for means, variances, noise in (
        (good[:2], good, 1.0),
        (good * np.nan, good, 1.0),
        (good, good * 0, 1.0),
        (good, good, 0.0),
    ):
        with pytest.raises(LearnerError):
            SparseModel.of(means, variances, noise)
    with pytest.raises(LearnerError):
        SparseUCB(0, 1, 1)
