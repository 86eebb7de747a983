"""Scores and gradients in whole numbers, held to a plain computation with unbounded integers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.pdol.conftest import DIMENSION, join_rows, random_model, records

from hushstream.systems.pdol.algorithm.gradient import add_gradients, predictions, scores
from hushstream.systems.pdol.algorithm.rows import Rows, null_rows
from hushstream.systems.pdol.configuration import UNIT


def plainly(rows: Rows, model: np.ndarray) -> tuple[list[int], list[int]]:
    found, leaf = [], [0] * len(model)
    for row in range(len(rows)):
        places = range(int(rows.indptr[row]), int(rows.indptr[row + 1]))
        score = sum(int(model[rows.indices[place]]) * int(rows.values[place]) for place in places)
        found.append(score)
        if int(rows.labels[row]) * score < 1 << 24:
            for place in places:
                leaf[rows.indices[place]] -= int(rows.labels[row]) * int(rows.values[place])
    return found, leaf


@pytest.mark.parametrize("seed", range(5))
def test_scores_and_sums_are_those_of_unbounded_integers(seed: int) -> None:
    rows = join_rows([null_rows(1), records(40, seed), null_rows(2), records(3, seed + 50)])
    model = random_model(seed)
    leaf = np.zeros(DIMENSION, dtype=np.int64)
    add_gradients(leaf, rows, model)
    found, expected = plainly(rows, model)
    assert scores(rows, model).tolist() == found
    assert leaf.tolist() == expected
    assert 0 < np.count_nonzero(np.array(found) * rows.labels >= 1 << 24) < len(rows)


def test_the_largest_weights_do_not_overflow() -> None:
    rows = records(20)
    model = np.full(DIMENSION, -(1 << 31), dtype=np.int32)
    assert scores(rows, model).tolist() == plainly(rows, model)[0]


def test_one_record_moves_a_sum_by_its_own_length_at_most_and_null_by_nothing() -> None:
    for row in range(30):
        one = records(30, seed=9).part(row, row + 1)
        leaf = np.zeros(DIMENSION, dtype=np.int64)
        add_gradients(leaf, one, random_model(row))
        assert int((leaf**2).sum()) in (0, int((one.values**2).sum()))
        assert int((leaf**2).sum()) <= UNIT * UNIT
    leaf = np.zeros(DIMENSION, dtype=np.int64)
    add_gradients(leaf, null_rows(5), random_model())
    assert not leaf.any()


def test_the_margin_is_one_and_belongs_to_no_loss() -> None:
    """y w.x = 1 exactly has no gradient; one unit less has."""
    row = Rows(
        np.array([0, 1], dtype=np.int64),
        np.array([0], dtype=np.int32),
        np.array([UNIT], dtype=np.int64),
        np.array([-1], dtype=np.int8),
    )
    for weight, moved in ((-UNIT, 0), (-UNIT + 1, UNIT), (-UNIT - 1, 0)):
        leaf = np.zeros(1, dtype=np.int64)
        add_gradients(leaf, row, np.array([weight], dtype=np.int32))
        assert leaf.tolist() == [moved]


def test_a_score_of_nothing_is_a_minus() -> None:
    assert predictions(np.array([0, 1, -1, 1 << 40])).tolist() == [-1, 1, -1, 1]
