"""A user as the shared model and their own few updates: the same scores as the dense form, in a tenth of the bytes."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.learners.errors import LearnerError
from hushstream.learners.linucb import LinUCBModel, LinUCBState
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.code_policies import UserLinUCB
from hushstream.systems.p2b.edge.low_rank import OwnUpdates, load_user_state, rows_limit
from hushstream.systems.p2b.edge.shared import SharedModels

TOLERANCE = 1e-5
SHAPES = [(2, 3), (5, 4), (10, 10), (25, 25)]


def base_state(arms, dimension, seed=0):
    rng = np.random.default_rng(seed)
    seen = rng.dirichlet(np.ones(dimension), (arms, 30))
    gram = np.einsum("kni,knj->kij", seen, seen) + np.eye(dimension)
    return LinUCBModel((gram + gram.transpose(0, 2, 1)) / 2, rng.random((arms, dimension)) * 5).state()


def live(kernel, states, rounds, seed=1):
    """The same interactions for every state."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        context = rng.dirichlet(np.ones(kernel.dimension)).astype(np.float32)
        arm, reward = int(rng.integers(kernel.arms)), float(rng.random())
        states = [kernel.learned(state, context, arm, reward) for state in states]
    return states


def contexts(dimension, count=50):
    return np.random.default_rng(9).dirichlet(np.ones(dimension), count).astype(np.float32)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize(("arms", "dimension"), SHAPES)
def test_scores_are_those_of_the_dense_form(arms, dimension, alpha):
    kernel, base = UserLinUCB(arms, dimension, alpha), base_state(arms, dimension)
    few, dense = live(kernel, [OwnUpdates.none(base), base.fork()], rows_limit(arms, dimension))
    assert isinstance(few, OwnUpdates)
    for context in contexts(dimension):
        assert np.abs(kernel.scores(few, context).copy() - kernel.scores(dense, context)).max() < TOLERANCE
    assert np.abs(few.inverse - dense.inverse).max() < TOLERANCE
    assert np.abs(few.theta - dense.theta).max() < TOLERANCE


@pytest.mark.parametrize(("arms", "dimension"), SHAPES)
def test_beyond_the_limit_a_user_becomes_dense_and_goes_on_alike(arms, dimension):
    kernel, base = UserLinUCB(arms, dimension), base_state(arms, dimension)
    many, dense = live(kernel, [OwnUpdates.none(base), base.fork()], 4 * rows_limit(arms, dimension))
    assert isinstance(many, LinUCBState)
    for context in contexts(dimension):
        assert np.abs(kernel.scores(many, context).copy() - kernel.scores(dense, context)).max() < TOLERANCE


def test_the_shared_model_is_never_written():
    kernel, base = UserLinUCB(5, 4), base_state(5, 4)
    before = base.packed.copy()
    live(kernel, [OwnUpdates.none(base)], 40)
    assert (base.packed == before).all()


@pytest.mark.parametrize("gap", range(1, 7))
def test_arms_with_equal_histories_tie_exactly_whatever_lies_between(gap):
    """Their rows lie at different places of the arrays; a sum that depended on the place would break the tie."""
    dimension = 12
    kernel = UserLinUCB(gap + 2, dimension)
    state = OwnUpdates.none(LinUCBModel.cold(gap + 2, dimension).state())
    rng = np.random.default_rng(gap)
    for context in rng.dirichlet(np.ones(dimension), 2).astype(np.float32):
        state = kernel.learned(state, context, 0, 0.0)
        for other in range(1, gap + 1):
            state = kernel.learned(state, rng.dirichlet(np.ones(dimension)).astype(np.float32), other, 1.0)
        state = kernel.learned(state, context, gap + 1, 0.0)
    for context in contexts(dimension):
        scores = kernel.scores(state, context)
        assert scores[0] == scores[gap + 1]
    assert isinstance(state, OwnUpdates)


@pytest.mark.parametrize("rounds", [0, 1, 7, 40])
def test_a_state_comes_back_from_its_bytes_bit_for_bit(rounds):
    kernel, base = UserLinUCB(5, 4), base_state(5, 4)
    (state,) = live(kernel, [OwnUpdates.none(base)], rounds)
    again = load_user_state(base, state.dump())
    assert again.dump() == state.dump()
    state, again = live(kernel, [state, again], 3, seed=2)
    for context in contexts(4):
        assert (kernel.scores(state, context).copy() == kernel.scores(again, context)).all()


def test_ten_interactions_take_a_tenth_of_the_dense_bytes():
    kernel, base = UserLinUCB(10, 10), base_state(10, 10)
    (state,) = live(kernel, [OwnUpdates.none(base)], 10)
    assert len(state.dump()) < 500
    assert len(base.dump()) > 4400


def test_bytes_of_another_shape_or_with_damage_are_refused():
    kernel, base = UserLinUCB(5, 4), base_state(5, 4)
    (state,) = live(kernel, [OwnUpdates.none(base)], 3)
    good = state.dump()
    for bad in (good[:-1], good[:10], good + b"\0", good[:4] + b"\2" + good[5:], b""):
        with pytest.raises(LearnerError):
            load_user_state(base, bad)
    with pytest.raises(LearnerError, match="shape"):
        load_user_state(base_state(4, 4), good)


def test_a_version_stays_while_a_user_stands_on_it_and_no_longer():
    models = SharedModels(("cold", "private"), "cold")
    models.adopt("private", 1, "first")
    assert models.retain("private").version == models.retain("private").version == 1
    models.adopt("private", 2, "second")
    models.drop("private", 1)
    assert models.retained("private", 1) == "first"
    again = SharedModels(("cold", "private"), "cold")
    again.restore(models.dump(str.encode), bytes.decode)
    assert again.dump(str.encode) == models.dump(str.encode)
    assert (again.retained("private", 1), again.newest("private").state) == ("first", "second")
    again.drop("private", 1)
    with pytest.raises(HushstreamError, match="a version of 'private' that a user started from, got 1"):
        again.retained("private", 1)
    assert [item["version"] for item in again.dump(str.encode)] == [0, 2]
