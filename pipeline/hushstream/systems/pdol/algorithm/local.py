"""A node's own learning in the edge zone: a learner, a correction of the released model, and a vote.

None of this is released, and no release depends on it. A node's predictions depend on its records, so the guarantee
holds only against outsiders. Several nodes are computed together, one record of each at a time. Floats are used,
because no other machine has to compute the same values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.algorithm.gradient import MARGIN, predictions, scores
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.configuration import UNIT, PredictionConfig

EXPERTS = ("constant", "isolated", "released", "offset")
"""The experts: the most frequent label, the node's own learner, the published model, and this model with a correction
by the node."""


class AdaGrad:
    """Linear learners of the hinge loss with step sizes by coordinate (Duchi, Hazan, Singer 2011), one for each
    node."""

    def __init__(self, nodes: int, dimension: int, rate: float) -> None:
        """Begin with all weights 0."""
        self._rate = rate
        self._weights = np.zeros((nodes, dimension))
        self._energy = np.zeros((nodes, dimension))

    def scores(self, nodes: NDArray[np.int64], rows: Rows) -> NDArray[np.float64]:
        """w . x of one record of each of some nodes, (m,)."""
        owner = np.repeat(nodes, rows.lengths)
        products = self._weights[owner, rows.indices] * (rows.values / UNIT)
        sums = np.bincount(np.repeat(np.arange(len(rows)), rows.lengths), products, minlength=len(rows))
        return sums.astype(np.float64)

    def learn(self, nodes: NDArray[np.int64], rows: Rows, found: NDArray[np.float64]) -> None:
        """Take a gradient step for each record whose score ``found`` has a loss; all nodes are different."""
        signs = np.where(rows.labels * found < 1, -rows.labels, 0).astype(np.float64)
        gradient = np.repeat(signs, rows.lengths) * (rows.values / UNIT)
        moved = gradient != 0
        place = np.repeat(nodes, rows.lengths)[moved], rows.indices[moved]
        self._energy[place] += gradient[moved] ** 2
        self._weights[place] -= self._rate * gradient[moved] / np.sqrt(self._energy[place])

    def dump(self) -> bytes:
        """The state; as sensitive as the records."""
        return self._weights.astype("<f8").tobytes() + self._energy.astype("<f8").tobytes()

    def load(self, state: bytes) -> None:
        """Take over what `dump` gave."""
        held = np.frombuffer(state, dtype="<f8").reshape(2, *self._weights.shape).astype(np.float64)
        self._weights, self._energy = held[0].copy(), held[1].copy()


class NodePredictors:
    """Fixed share over the experts of each node (Herbster, Warmuth 1998).

    A mistake multiplies a weight by exp(-rate), and a share of all weights is redistributed at each record, so that the
    recently best expert has the largest weight. The prediction is the label with the larger total weight.
    """

    def __init__(self, nodes: int, dimension: int, config: PredictionConfig) -> None:
        """Begin before the first record."""
        self._config = config
        self._weights = np.full((nodes, len(EXPERTS)), 1.0 / len(EXPERTS))
        self._labels = np.zeros(nodes, dtype=np.int64)
        self._isolated = AdaGrad(nodes, dimension, config.local_rate)
        # The correction learns with half the rate, because the published model is mostly right already.
        self._offset = AdaGrad(nodes, dimension, config.local_rate / 2)

    def step(self, nodes: NDArray[np.int64], rows: Rows, model: NDArray[np.int32]) -> NDArray[np.int8]:
        """Predict one record of each of some nodes, then learn from its label.

        Args:
            nodes: int64 (m,), all different.
            rows: their records, in the same order; none is null.
            model: int32 (n,), the published weights.

        Returns:
            int8 (m, 5): the label of each of `EXPERTS`, and the vote.
        """
        predicted = self.predict(nodes, rows, model)
        self.learn(nodes, rows, model, predicted[:, :-1])
        return predicted

    def predict(self, nodes: NDArray[np.int64], rows: Rows, model: NDArray[np.int32]) -> NDArray[np.int8]:
        """The result of `step`, without learning; the labels of ``rows`` are not used."""
        released = scores(rows, model) / MARGIN
        alone = self._isolated.scores(nodes, rows)
        corrected = released + self._offset.scores(nodes, rows)
        votes = np.stack(
            [_signs(value) for value in (self._labels[nodes].astype(np.float64), alone, released, corrected)], axis=1
        )
        majority = _signs(np.sum(self._weights[nodes] * votes, axis=1))
        return np.concatenate([votes, majority[:, None]], axis=1)

    def learn(self, nodes: NDArray[np.int64], rows: Rows, model: NDArray[np.int32], votes: NDArray[np.int8]) -> None:
        """Learn from the labels of records that were already predicted.

        Args:
            nodes, rows, model: as for `step`.
            votes: int8 (m, 4), the labels that each of `EXPERTS` had predicted.
        """
        alone = self._isolated.scores(nodes, rows)
        corrected = scores(rows, model) / MARGIN + self._offset.scores(nodes, rows)
        self._share(nodes, votes != rows.labels[:, None])
        self._labels[nodes] += rows.labels
        self._isolated.learn(nodes, rows, alone)
        self._offset.learn(nodes, rows, corrected)

    def dump(self) -> bytes:
        """The state; as sensitive as the records."""
        return b"".join(
            [
                self._weights.astype("<f8").tobytes(),
                self._labels.astype("<i8").tobytes(),
                self._isolated.dump(),
                self._offset.dump(),
            ]
        )

    def load(self, state: bytes) -> None:
        """Take over what `dump` gave."""
        weights, labels = self._weights.nbytes, self._labels.nbytes
        half = (len(state) - weights - labels) // 2
        self._weights = np.frombuffer(state[:weights], "<f8").reshape(self._weights.shape).astype(np.float64)
        self._labels = np.frombuffer(state[weights : weights + labels], "<i8").astype(np.int64)
        self._isolated.load(state[weights + labels : weights + labels + half])
        self._offset.load(state[weights + labels + half :])

    def _share(self, nodes: NDArray[np.int64], mistaken: NDArray[np.bool_]) -> None:
        weights = self._weights[nodes] * np.where(mistaken, np.exp(-self._config.rate), 1.0)
        weights /= weights.sum(axis=1, keepdims=True)
        share = self._config.share
        self._weights[nodes] = (1 - share) * weights + share / len(EXPERTS)


def _signs(values: NDArray[np.float64]) -> NDArray[np.int8]:
    return predictions(np.sign(values).astype(np.int64))
