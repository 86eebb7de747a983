"""Sparse learners, one user and a population."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hushstream.learners.exploration import LearnerError, NoEligibleArm, best_of
from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.learners.population import NormalPrior, Population
from hushstream.learners.sparse import MOST_STEPS, OwnSteps, SparseContext, SparseModel, SparseUCB

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


def _each(cells, values) -> list[SparseContext]:
    contexts = SparseContext.of(cells, values)
    return [contexts.at(row) for row in range(len(cells))]


def _learn(kernel: SparseUCB, model: SparseModel, own: OwnSteps, context: SparseContext, arm: int, reward: float):
    one = SparseContext(context.cells[None], context.powers[None])
    kernel.learn(model, [own], one, np.array([arm]), np.array([reward]))


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
    found = np.array([kernel.scores(model, None, one).copy() for one in _each(cells, values)])
    assert found == pytest.approx(_textbook(model, [], _dense(cells, values)), abs=1e-5)


def test_scores_after_own_interactions_are_the_textbooks():
    model, kernel, own = _model(), SparseUCB(ARMS, CELLS, PLACES), OwnSteps(CELLS)
    cells, values = _contexts(60)
    dense, contexts, rng = _dense(cells, values), _each(cells, values), np.random.default_rng(2)
    steps = []
    for number in range(30):
        arm, reward = int(rng.integers(0, 3)), float(rng.integers(0, 2))
        _learn(kernel, model, own, contexts[number], arm, reward)
        steps.append((dense[number], arm, reward))
    found = np.array([kernel.scores(model, own, one).copy() for one in contexts])
    assert found == pytest.approx(_textbook(model, steps, dense), abs=1e-4)


def _learned(steps: int) -> tuple[SparseUCB, SparseModel, OwnSteps, list, list]:
    """A user after so many interactions, and what they were: contexts, arms and rewards."""
    model, kernel, own = _model(), SparseUCB(ARMS, CELLS, PLACES), OwnSteps(CELLS)
    cells, values = _contexts(steps + 20)
    contexts, rng = _each(cells, values), np.random.default_rng(3)
    played = [(contexts[number], int(rng.integers(0, ARMS)), float(rng.integers(0, 2))) for number in range(steps)]
    for context, arm, reward in played:
        _learn(kernel, model, own, context, arm, reward)
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
            _learn(kernel, model, own, context, number % ARMS, 1.0)
            _learn(kernel, model, again, context, number % ARMS, 1.0)
        assert own.oldest == again.oldest


def test_impossible_steps_are_refused():
    for count, oldest in ((MOST_STEPS + 1, 0), (3, 1), (MOST_STEPS, MOST_STEPS), (3, -1)):
        with pytest.raises(LearnerError, match="expected at most"):
            OwnSteps.restored(np.zeros(count), np.zeros((count, CELLS)), np.zeros(count), oldest)


def test_users_together_have_the_bits_of_each_alone():
    """Whoever else is scored or learns with a user: some without a step, with a few, and with all that are kept."""
    model, rng = _model(), np.random.default_rng(4)
    kernel = SparseUCB(ARMS, CELLS, PLACES)
    lives = [_learned(steps)[2] for steps in (0, 1, 5, 40, MOST_STEPS + 3)]
    owns = [OwnSteps.restored(*(part.copy() for part in one.taken), one.oldest) for one in rng.choice(lives, 200)]
    alone = [OwnSteps.restored(*(part.copy() for part in one.taken), one.oldest) for one in owns]
    for turn in range(3):
        cells, values = _contexts(len(owns), turn)
        contexts, each = SparseContext.of(cells, values), _each(cells, values)
        together = kernel.scores_of(
            model, [None if number % 7 == 0 else one for number, one in enumerate(owns)], contexts
        )
        single = [
            kernel.scores(model, None if number % 7 == 0 else one, context).copy()
            for number, (one, context) in enumerate(zip(alone, each, strict=True))
        ]
        assert together.tobytes() == np.array(single).tobytes()
        arms, rewards = together.argmax(axis=1), rng.random(len(owns))
        assert best_of(together, tie_of_none) == (arms.tolist(), [1] * len(arms))
        kernel.learn(model, owns, contexts, arms, rewards)
        for one, context, arm, reward in zip(alone, each, arms.tolist(), rewards, strict=True):
            _learn(kernel, model, one, context, arm, reward)
        for one, other in zip(owns, alone, strict=True):
            assert [part.tobytes() for part in one.taken] == [part.tobytes() for part in other.taken]
    tied = np.zeros((2, ARMS))
    tied[0, 3] = 1.0
    assert best_of(tied, lambda row, count: row + count - 3) == ([3, ARMS - 2], [1, ARMS])
    tied[1, 2] = np.nan
    with pytest.raises(LearnerError, match="NaN"):
        best_of(tied, tie_of_none)


def tie_of_none(row: int, count: int) -> int:
    """Where no arms tie."""
    raise AssertionError((row, count))


_LIVES = """
import hashlib, sys
import numpy as np
sys.path.insert(0, {folder!r})
from test_sparse import MOST_STEPS, _contexts, _learned, SparseContext
found = hashlib.sha256()
for steps in (0, 1, 3, 40, MOST_STEPS + 3):
    kernel, model, own, _, others = _learned(steps)
    found.update(kernel.scores_of(model, [own, None] * 10, SparseContext.of(*_contexts(20))).tobytes())
    found.update(own.rows.tobytes() + b"".join(kernel.scores(model, own, one).tobytes() for one in others))
print(found.hexdigest())
"""
"""Prints a digest of what users learn and of their scores."""


def test_what_users_learn_and_their_scores_have_the_same_bits_on_every_cpu():
    """NumPy and its linear algebra choose their code by the CPU, and can be told to take that of an older one."""
    from numpy._core._multiarray_umath import __cpu_dispatch__

    script = _LIVES.format(folder=str(Path(__file__).parent))
    cpus = [{"OPENBLAS_CORETYPE": core} for core in ("Prescott", "Haswell", "SkylakeX")]
    cpus[0]["NPY_DISABLE_CPU_FEATURES"] = " ".join(__cpu_dispatch__)
    runs = [
        subprocess.run([sys.executable, "-c", script], env=os.environ | cpu, check=True, capture_output=True)
        for cpu in cpus
    ]
    assert len({run.stdout for run in runs}) == 1


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
    for context, written in zip(_each(cells, values), _dense(cells, values), strict=True):
        wanted = plain.scores(dense, (written / np.sqrt(blocks + 1)).astype(np.float32))
        assert kernel.scores(model, None, context) == pytest.approx(wanted, abs=1e-4)


def test_equal_arms_tie_and_only_eligible_ones_are_chosen():
    flat = SparseModel.of(np.zeros((ARMS, CELLS)), np.ones((ARMS, CELLS)), 1.0)
    kernel, (context,) = SparseUCB(ARMS, CELLS, PLACES), _each(*_contexts(1))
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


MANY_ARMS, MANY_CELLS, READ_PLACES, USERS, ROUNDS = 4, 12, 3, 9, 6


def _played(covariance_of):
    """Scores of a population and of the per-event kernel, round by round."""
    rng = np.random.default_rng(4)
    means, variances = rng.normal(size=(MANY_ARMS, MANY_CELLS)), rng.uniform(0.2, 1.0, (MANY_ARMS, MANY_CELLS))
    model, kernel = SparseModel.of(means, variances, 0.4), SparseUCB(MANY_ARMS, MANY_CELLS, READ_PLACES)
    population = Population(NormalPrior.of(means, covariance_of(variances), 0.4), USERS, ROUNDS)
    own = [OwnSteps(MANY_CELLS) for _ in range(USERS)]
    for _ in range(ROUNDS):
        cells = np.array([rng.choice(MANY_CELLS, READ_PLACES, replace=False) for _ in range(USERS)])
        values = rng.uniform(0, 1, (USERS, READ_PLACES))
        dense = np.zeros((USERS, MANY_CELLS), dtype=np.float32)
        dense[np.arange(USERS)[:, None], cells] = values
        contexts = SparseContext.of(cells, values)
        yield (
            population.scores(dense),
            np.array([kernel.scores(model, own[u], contexts.at(u)).copy() for u in range(USERS)]),
        )
        arms, rewards = rng.integers(0, 2, USERS), rng.integers(0, 2, USERS).astype(np.float64)
        population.learn(dense, arms, rewards)
        kernel.learn(model, own, contexts, arms, rewards)


def test_a_diagonal_prior_gives_the_scores_of_the_per_event_kernel():
    for together, single in _played(lambda variances: variances):
        assert together == pytest.approx(single, abs=1e-4)


def test_a_full_prior_with_a_diagonal_is_that_diagonal():
    for together, single in _played(lambda variances: np.stack([np.diag(row) for row in variances])):
        assert together == pytest.approx(single, abs=1e-4)


def test_impossible_priors_are_refused():
    with pytest.raises(LearnerError):
        NormalPrior.of(np.zeros((2, 3)), np.zeros((3, 2)))


@pytest.mark.parametrize("warm", [False, True])
def test_every_user_agrees_with_their_own_single_learner(warm):
    rng = np.random.default_rng(7)
    users, rounds, arms, dimension, alpha = 60, 40, 6, 5, 0.9
    model = LinUCBModel.cold(arms, dimension)
    if warm:
        model = LinUCBModel(model.gram * (1 + rng.integers(0, 3, arms))[:, None, None], rng.random((arms, dimension)))
    population = Population(NormalPrior.of_state(model.state()), users, rounds, alpha)
    kernel = LinUCB(arms, dimension, alpha)
    shared = model.state()
    states = [shared.fork() for _ in range(users)]
    undecided = 0
    for _ in range(rounds):
        contexts = rng.dirichlet(np.ones(dimension), users).astype(np.float32)
        ties = rng.integers(0, 1 << 40, users)
        chosen, counts = population.choose(contexts, ties)
        for user, state in enumerate(states):
            scores = np.sort(kernel.scores(state, contexts[user]).copy())
            if scores[-1] - scores[-2] > 1e-5 or scores[-1] == scores[-2]:
                single = kernel.choose(state, contexts[user], int(ties[user]))
                assert (chosen[user], counts[user]) == single
            else:
                undecided += 1
        rewards = rng.random(users)
        population.learn(contexts, chosen, rewards)
        for user, state in enumerate(states):
            kernel.learn(state, contexts[user], int(chosen[user]), float(rewards[user]))
    assert undecided < users * rounds // 200


def test_chunks_of_users_do_not_meet():
    rng = np.random.default_rng(8)
    contexts = rng.dirichlet(np.ones(4), 300).astype(np.float32)
    ties = np.arange(300)
    state = NormalPrior.of_state(LinUCBModel.cold(3, 4).state())
    whole, parts = Population(state, 300, 3), Population(state, 300, 3)
    parts._chunk = 64
    for _ in range(3):
        first, second = whole.choose(contexts, ties), parts.choose(contexts, ties)
        assert np.array_equal(first[0], second[0])
        whole.learn(contexts, first[0], first[0] % 2.0)
        parts.learn(contexts, first[0], first[0] % 2.0)
    assert np.allclose(whole._steps, parts._steps, atol=1e-6)


def test_a_cold_phase_of_20_000_users_takes_well_under_six_seconds():
    # The promise is 100,000 users in 30 s; 20,000 take about 0.1 s on the machine that this was written on.
    rng = np.random.default_rng(9)
    population = Population(NormalPrior.of_state(LinUCBModel.cold(10, 10).state()), 20_000, 10)
    contexts = rng.dirichlet(np.ones(10), 20_000).astype(np.float32)
    ties = rng.integers(0, 1 << 40, 20_000)
    began = time.process_time()
    for _ in range(10):
        arms, _ = population.choose(contexts, ties)
        population.learn(contexts, arms, (arms % 3 == 0) * 1.0)
    assert time.process_time() - began < 6.0


def test_more_rounds_than_reserved_and_wrong_contexts_are_refused():
    population = Population(NormalPrior.of_state(LinUCBModel.cold(2, 3).state()), 2, 1)
    contexts = np.ones((2, 3), np.float32)
    with pytest.raises(LearnerError, match="float32 contexts"):
        population.choose(contexts.astype(np.float64), np.zeros(2, np.int64))
    population.learn(contexts, np.zeros(2, np.int64), np.ones(2))
    with pytest.raises(LearnerError, match="at most 1 rounds"):
        population.learn(contexts, np.zeros(2, np.int64), np.ones(2))
