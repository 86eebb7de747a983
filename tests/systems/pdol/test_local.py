"""What a node learns for itself: its own learner, a correction, and a vote that follows the better of late."""

from __future__ import annotations

import numpy as np
from tests.systems.pdol.conftest import DIMENSION, random_model, records

from hushstream.systems.pdol.algorithm.local import EXPERTS, AdaGrad, NodePredictors
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.configuration import UNIT, PredictionConfig

ONE = np.zeros(1, dtype=np.int64)


def labelled(count: int, weights: np.ndarray, seed: int = 0) -> Rows:
    """Records with the labels of a linear rule."""
    rows = records(count, seed)
    found = [int(weights[part.indices] @ part.values) for part in (rows.part(i, i + 1) for i in range(count))]
    return Rows(rows.indptr, rows.indices, rows.values, np.where(np.array(found) > 0, 1, -1).astype(np.int8))


def test_the_learner_is_adagrad_as_it_is_written() -> None:
    rows, learner = records(60), AdaGrad(1, DIMENSION, 0.5)
    weights, energy = np.zeros(DIMENSION), np.zeros(DIMENSION)
    for place in range(60):
        row = rows.part(place, place + 1)
        x, y = np.zeros(DIMENSION), int(row.labels[0])
        x[row.indices] = row.values / UNIT
        found = learner.scores(ONE, row)
        assert np.isclose(found[0], weights @ x)
        learner.learn(ONE, row, found)
        if y * (weights @ x) < 1:
            energy += x * x
            weights += 0.5 * np.divide(y * x, np.sqrt(energy), out=np.zeros(DIMENSION), where=x != 0)


def test_nodes_side_by_side_learn_as_they_would_alone() -> None:
    rows = records(40)
    together, alone = AdaGrad(4, DIMENSION, 0.5), [AdaGrad(1, DIMENSION, 0.5) for _ in range(4)]
    for step in range(10):
        part, nodes = rows.part(4 * step, 4 * step + 4), np.array([2, 0, 3, 1])
        found = together.scores(nodes, part)
        together.learn(nodes, part, found)
        for place, node in enumerate(nodes):
            one = part.part(place, place + 1)
            assert np.isclose(alone[node].scores(ONE, one)[0], found[place])
            alone[node].learn(ONE, one, alone[node].scores(ONE, one))


def test_the_vote_follows_whoever_is_right_of_late() -> None:
    """A released model that turns wrong halfway is left; the node's own learner takes its place."""
    rule = random_model(3).astype(np.int64)
    rows = labelled(800, rule, seed=2)
    predictors, right = NodePredictors(1, DIMENSION, PredictionConfig("node")), []
    for place in range(800):
        model = (rule if place < 400 else -rule).astype(np.int32)
        row = rows.part(place, place + 1)
        right.append(predictors.step(ONE, row, model)[0] == row.labels[0])
    hits = np.array(right)
    released = EXPERTS.index("released")
    assert hits[:400, released].all()
    assert not hits[400:, released].any()
    assert hits[20:400, -1].mean() > 0.95
    assert hits[450:, -1].mean() > 0.75


def test_a_kept_learner_goes_on_as_it_was() -> None:
    rows, first, second = records(30), AdaGrad(1, DIMENSION, 0.5), AdaGrad(1, DIMENSION, 0.5)
    for place in range(30):
        row = rows.part(place, place + 1)
        first.learn(ONE, row, first.scores(ONE, row))
    second.load(first.dump())
    assert second.scores(ONE, rows.part(3, 4)) == first.scores(ONE, rows.part(3, 4))
