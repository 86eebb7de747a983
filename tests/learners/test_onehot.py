"""One-hot learners are LinUCB on unit vectors, kept as a table."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.learners.errors import LearnerError, NoEligibleArm
from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.learners.onehot import OneHotModel, OneHotState, OneHotUCB


def test_the_table_chooses_as_linucb_on_unit_vectors():
    rng = np.random.default_rng(1)
    arms, codes = 5, 6
    table, dense = OneHotUCB(arms, codes, 0.8), LinUCB(arms, codes, 0.8)
    table_state, dense_state = OneHotModel.cold(arms, codes).state(0.8), LinUCBModel.cold(arms, codes).state()
    units = np.eye(codes, dtype=np.float32)
    for _ in range(3000):
        code, tie, reward = int(rng.integers(codes)), int(rng.integers(1 << 30)), float(rng.integers(17) / 16)
        eligible = np.append(rng.random(arms - 1) < 0.6, True)
        wide = table.scores(table_state, code)
        assert np.allclose(dense.scores(dense_state, units[code]), wide, atol=1e-5)
        # float32 and float64 round apart: only clear leads must agree.
        ordered = np.sort(wide[eligible])
        arm, ties = table.choose(table_state, code, tie, eligible)
        if len(ordered) == 1 or ordered[-1] - ordered[-2] > 1e-4:
            assert dense.choose(dense_state, units[code], tie, eligible) == (arm, ties)
        table.learn(table_state, code, arm, reward)
        dense.learn(dense_state, units[code], arm, reward)


def test_batches_do_what_single_calls_do():
    rng = np.random.default_rng(2)
    kernel = OneHotUCB(4, 5)
    shared = OneHotModel.cold(4, 5).state()
    single, batch = shared.fork(), shared.fork()
    codes, arms = rng.integers(0, 4, 400), rng.integers(0, 3, 400)
    rewards = rng.integers(0, 9, 400) / 8
    for code, arm, reward in zip(codes.tolist(), arms.tolist(), rewards.tolist(), strict=True):
        kernel.learn(single, code, arm, reward)
    kernel.learn_batch(batch, codes, arms, rewards)
    assert batch.dump() == single.dump()
    asked, ties = rng.integers(0, 5, 100), rng.integers(0, 1 << 30, 100)
    found, counts = kernel.choose_batch(single, asked, ties)
    expected = [kernel.choose(single, int(c), int(t)) for c, t in zip(asked, ties, strict=True)]
    assert list(zip(found.tolist(), counts.tolist(), strict=True)) == expected


def test_users_share_the_table_until_they_learn_and_copy_one_row_then():
    kernel = OneHotUCB(3, 4)
    shared = OneHotModel.cold(3, 4).state()
    before = shared.table.tobytes()
    user = shared.fork()
    kernel.learn(user, 2, 1, 1.0)
    later = user.fork()
    kernel.learn(user, 2, 1, 1.0)
    assert user.table is shared.table
    assert shared.table.tobytes() == before
    assert list(user.own) == [2]
    assert later.row(2)[0, 1] == 2.0
    assert user.row(2)[0, 1] == 3.0


def test_a_dumped_state_goes_on_with_the_same_bits():
    kernel = OneHotUCB(3, 4, 0.5)
    state = OneHotModel(np.full((3, 4), 1.5), np.arange(12.0).reshape(3, 4)).state(0.5)
    kernel.learn(state, 1, 2, 0.75)
    again = OneHotState.load(state.dump())
    kernel.learn(state, 1, 0, 0.25)
    kernel.learn(again, 1, 0, 0.25)
    assert again.dump() == state.dump()
    assert np.array_equal(again.dense(), state.dense())


@pytest.mark.parametrize("damage", [b"", b"XXXX" + bytes(20), "short"])
def test_damaged_dumps_are_refused(damage):
    good = OneHotModel.cold(2, 2).state().dump()
    with pytest.raises(LearnerError):
        OneHotState.load(good[:-1] if damage == "short" else damage)


def test_impossible_questions_are_refused():
    kernel = OneHotUCB(2, 3)
    state = OneHotModel.cold(2, 3).state()
    with pytest.raises(NoEligibleArm):
        kernel.choose(state, 0, 0, np.zeros(2, np.bool_))
    with pytest.raises(LearnerError, match="alpha"):
        OneHotUCB(2, 3, 2.0).choose(state, 0)
    with pytest.raises(LearnerError, match="positive gram"):
        OneHotModel(np.zeros((2, 3)), np.zeros((2, 3)))
