"""A node's own learning in the edge zone, and the guard that lets a node join without a risk.

None of this is released, and no release depends on it. A node's predictions depend on its records, so the guarantee
holds only against those who do not see them. Several nodes are computed together, one record of each at a time. Floats
are used, because no other machine has to compute the same values.

A node keeps apart with `OWN` experts, under fixed share: this is the best that it could do alone, and what joining is
compared with. Under `JOINT` experts, which use the published model, stands a second fixed share over all of them. The
`Guard` decides which of the two a prediction follows.

*The guard's guarantee* (no statement on privacy). Let B be the node's own learner and A the one over all experts. The
guard holds a credit W, 5 at first. Before a prediction it takes p = min(1, .3 (W - O)), O being the sum of p over all
predictions whose label has not come, and follows A with chance p, by a coin that nothing else uses. When the label
comes, W += p (1[B was wrong] - 1[A was wrong]).

* W > 0 for ever: W - O > 0 holds at first, a new p takes at most .3 of it away, and a label takes p from O and at most
  p from W. A label that never comes leaves its p in O.
* So for labels that do not follow the coin of their own prediction: a prediction's expected mistakes are 1[B wrong] - p
  (1[B wrong] - 1[A wrong]). Their sum over all labelled predictions is the mistakes of B minus (W_T - 5). Predictions
  whose label has not come add at most O_T to those of B. The sum is less than the mistakes of B plus 5, as O_T < W_T:
  **at every node, for every number of records, every sequence and every delay of labels.** All that p depends on is
  known before the coin is thrown, and no learner learns from what was shown.
* p is kept in whole units of 1/255, rounded down, so the sums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dger

from hushstream.systems.pdol.algorithm.moments import RIDGE, Solved, takes_moments
from hushstream.systems.pdol.algorithm.rows import (
    MARGIN,
    Rows,
    predictions,
    scores,
)
from hushstream.systems.pdol.configuration import UNIT

OWN = ("constant", "gradient", "ridge", "recent", "stack")
"""Experts of a node that keeps apart: its most frequent label, AdaGrad, exact ridge regression, its recent labels, and
a logistic regression on the scores of these four."""

JOINT = ("released", "offset", "hybrid", "joint stack")
"""Experts that need the published model: the model, the model with a correction by the node, ridge regression of the
node's own records toward a published model of moments, and a logistic regression on the scores of all others."""

EXPERTS = (*OWN, *JOINT)
VOTES = (*EXPERTS, "alone", "joined", "chance", "shown")
"""What is known of a prediction until its label comes: the label of each expert, the labels of both sides of the guard,
the chance (`Guard.chances`), and the label that was shown."""
ALONE, JOINED, CHANCE, SHOWN = range(len(EXPERTS), len(VOTES))

STEP = 0.5
"""Step of the gradient learners."""
SHARE_RATE, SHARE = 0.3, 0.001
"""Fixed share: by how much a mistake lowers a weight, and the share of all weights that is redistributed."""
LARGEST_RIDGE = 512
"""A ridge regression keeps n x n numbers a node; with more features the expert follows the gradient's score."""
RECENT = 0.1
"""Weight of the latest label among a node's recent ones."""
STACK_BIAS, STACK_REACH = 0.3, 2.0
"""The constant input of a stack, and the largest size of a score in it."""

CREDIT, CHANCE_UNIT, CHANCE_SHARE = 5, 255, 0.3
"""The guard's credit in mistakes, the units of a chance, and the share of the free credit that a prediction takes."""


class AdaGrad:
    """Linear learners of the hinge loss with step sizes by coordinate (Duchi, Hazan, Singer 2011), one for each
    node."""

    def __init__(self, nodes: int, dimension: int, rate: float) -> None:
        """Begin with all weights 0."""
        self._rate = rate
        self.weights = np.zeros((nodes, dimension))
        self.energy = np.zeros((nodes, dimension))

    def scores(self, nodes: NDArray[np.int64], rows: Rows) -> NDArray[np.float64]:
        """w . x of one record of each of some nodes, (m,)."""
        return products(self.weights, nodes, rows)

    def learn(self, nodes: NDArray[np.int64], rows: Rows, found: NDArray[np.float64]) -> None:
        """Take a gradient step for each record whose score ``found`` has a loss; all nodes are different."""
        signs = np.where(rows.labels * found < 1, -rows.labels, 0).astype(np.float64)
        gradient = np.repeat(signs, rows.lengths) * (rows.values / UNIT)
        moved = gradient != 0
        place = np.repeat(nodes, rows.lengths)[moved], rows.indices[moved]
        self.energy[place] += gradient[moved] ** 2
        self.weights[place] -= self._rate * gradient[moved] / np.sqrt(self.energy[place])


class Ridge:
    """Exact ridge regressions of the labels, one for each node: inverses by Sherman and Morrison."""

    def __init__(self, nodes: int, dimension: int) -> None:
        """Begin with all weights 0."""
        self.weights = np.zeros((nodes, dimension))
        self.inverse = np.repeat(np.eye(dimension)[None] / RIDGE, nodes, axis=0)

    def scores(self, nodes: NDArray[np.int64], rows: Rows) -> NDArray[np.float64]:
        """w . x of one record of each of some nodes, (m,)."""
        return products(self.weights, nodes, rows)

    def learn(self, nodes: NDArray[np.int64], rows: Rows, found: NDArray[np.float64]) -> None:
        """Take each record, whose score is ``found``, into its node's regression."""
        for row, node in enumerate(nodes.tolist()):
            low, high = rows.indptr[row], rows.indptr[row + 1]
            indices, values = rows.indices[low:high], rows.values[low:high] / UNIT
            moved = self.inverse[node][:, indices] @ values
            moved_by = 1.0 + float(moved[indices] @ values)
            self.weights[node] += moved * ((rows.labels[row] - found[row]) / moved_by)
            # In place: the transpose of a symmetric matrix is itself, and has the order of columns that is wanted.
            dger(-1.0 / moved_by, moved, moved, a=self.inverse[node].T, overwrite_a=1)

    def begin_from(self, own: Ridge, model: Solved) -> None:
        """Begin anew from the regressions ``own`` without their prior, under that of a published model."""
        assert model.precision is not None
        mean, eye = model.weights / UNIT, np.eye(len(model.weights))
        for node, inverse in enumerate(own.inverse):
            exact = np.linalg.inv(inverse)
            self.inverse[node] = np.linalg.inv(exact - RIDGE * eye + model.precision)
            self.weights[node] = self.inverse[node] @ (exact @ own.weights[node] + model.precision @ mean)


class Stack:
    """Logistic regressions of the labels on scores, one for each node, by online Newton steps.

    Scores of learners (``leading``) begin with weight 1, all others with 0.
    """

    def __init__(self, nodes: int, inputs: int, leading: slice) -> None:
        """Begin before the first label."""
        self.weights = np.zeros((nodes, inputs + 1))
        self.weights[:, leading] = 1.0
        self.curvature = np.repeat(np.eye(inputs + 1)[None], nodes, axis=0)

    def inputs(self, found: NDArray[np.float64]) -> NDArray[np.float64]:
        """(m, inputs + 1): scores within `STACK_REACH`, and the constant."""
        bias = np.full((len(found), 1), STACK_BIAS)
        return np.concatenate([np.clip(found, -STACK_REACH, STACK_REACH), bias], axis=1)

    def scores(self, nodes: NDArray[np.int64], found: NDArray[np.float64]) -> NDArray[np.float64]:
        """The log-odds of label 1, (m,), from scores (m, inputs)."""
        return np.asarray((self.weights[nodes] * self.inputs(found)).sum(axis=1))

    def learn(self, nodes: NDArray[np.int64], labels: NDArray[np.int8], found: NDArray[np.float64]) -> None:
        """Take a Newton step for each label; all nodes are different."""
        given = self.inputs(found)
        odds = np.clip((self.weights[nodes] * given).sum(axis=1), -30, 30)
        chance = 1.0 / (1.0 + np.exp(-odds))
        curved = (chance * (1 - chance))[:, None, None] * given[:, :, None] * given[:, None, :]
        self.curvature[nodes] += curved
        gradient = (chance - (labels > 0))[:, None] * given
        self.weights[nodes] -= np.linalg.solve(self.curvature[nodes], gradient[:, :, None])[:, :, 0]


class FixedShare:
    """Fixed share over the experts of each node (Herbster, Warmuth 1998).

    A mistake multiplies a weight by exp(-rate), and a share of all weights is redistributed at each label, so that the
    recently best expert has the largest weight. The prediction is the label with the larger total weight.
    """

    def __init__(self, nodes: int, experts: int) -> None:
        """Begin with equal weights."""
        self.weights = np.full((nodes, experts), 1.0 / experts)

    def vote(self, nodes: NDArray[np.int64], votes: NDArray[np.int8]) -> NDArray[np.int8]:
        """The label of each of some nodes, (m,), from those of its experts, (m, experts)."""
        return _signs(np.sum(self.weights[nodes] * votes, axis=1))

    def learn(self, nodes: NDArray[np.int64], mistaken: NDArray[np.bool_]) -> None:
        """Follow the mistakes of each node's experts, (m, experts)."""
        weights = self.weights[nodes] * np.where(mistaken, np.exp(-SHARE_RATE), 1.0)
        weights /= weights.sum(axis=1, keepdims=True)
        self.weights[nodes] = (1 - SHARE) * weights + SHARE / weights.shape[1]


class Guard:
    """Credit and reserved chances of each node, in units of 1/255 mistakes; see the module's docstring."""

    def __init__(self, nodes: int) -> None:
        """Begin with the whole credit."""
        self.credit = np.full(nodes, CREDIT * CHANCE_UNIT, dtype=np.int64)
        self.reserved = np.zeros(nodes, dtype=np.int64)

    def reserve(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chance of each of some different nodes for its next prediction, in units of 1/255; it is reserved."""
        free = self.credit[nodes] - self.reserved[nodes]
        chances: NDArray[np.int64] = np.minimum(CHANCE_UNIT, np.floor(CHANCE_SHARE * free).astype(np.int64))
        self.reserved[nodes] += chances
        return chances

    def close(self, nodes: NDArray[np.int64], chances: NDArray[np.int64], gained: NDArray[np.int64]) -> None:
        """Take labels: ``gained`` is 1 where only the own learner was wrong, -1 where only the joined one was."""
        self.reserved[nodes] -= chances
        self.credit[nodes] += chances * gained


class NodePredictors:
    """All learners of some nodes; see the module."""

    def __init__(self, nodes: int, dimension: int) -> None:
        """Begin before the first record."""
        self._labels = np.zeros((nodes, 2))
        """Sum and number of labels."""
        self._recent = np.zeros(nodes)
        self._gradient = AdaGrad(nodes, dimension, STEP)
        self._ridge = Ridge(nodes, dimension) if dimension <= LARGEST_RIDGE else None
        self._hybrid = Ridge(nodes, dimension) if takes_moments(dimension) else None
        # The correction learns with half the rate, because the published model is mostly right already.
        self._offset = AdaGrad(nodes, dimension, STEP / 2)
        self._own_stack = Stack(nodes, len(OWN) - 1, slice(1, 3))
        self._joint_stack = Stack(nodes, len(EXPERTS) - 1, slice(1, 3))
        self._alone = FixedShare(nodes, len(OWN))
        self._joined = FixedShare(nodes, len(EXPERTS))
        self._guard = Guard(nodes)

    def adopt(self, model: Solved) -> None:
        """Take over a version of the published model."""
        if self._hybrid is not None and self._ridge is not None:
            self._hybrid.begin_from(self._ridge, model)

    def step(
        self, nodes: NDArray[np.int64], rows: Rows, model: NDArray[np.int32], coins: NDArray[np.float64]
    ) -> NDArray[np.int8]:
        """Predict one record of each of some nodes, then learn from its label; arguments and result as `predict`."""
        votes = self.predict(nodes, rows, model, coins)
        self.close(nodes, rows.labels, votes)
        self.learn(nodes, rows, model, votes)
        return votes

    def predict(
        self, nodes: NDArray[np.int64], rows: Rows, model: NDArray[np.int32], coins: NDArray[np.float64]
    ) -> NDArray[np.int8]:
        """Predict one record of each of some nodes; the labels of ``rows`` are not used.

        Args:
            nodes: int64 (m,), all different.
            rows: their records, in the same order; none is null.
            model: int32 (n,), the published weights.
            coins: float64 (m,), uniform in [0, 1), each used for this prediction alone.

        Returns:
            int8 (m, len(VOTES)), by the places of `VOTES`; `SHOWN` is the prediction.
        """
        votes = np.zeros((len(rows), len(VOTES)), dtype=np.int8)
        votes[:, : len(EXPERTS)] = _signs(self._scores(nodes, rows, model))
        votes[:, ALONE] = self._alone.vote(nodes, votes[:, : len(OWN)])
        votes[:, JOINED] = self._joined.vote(nodes, votes[:, : len(EXPERTS)])
        chances = self._guard.reserve(nodes)
        votes[:, CHANCE] = chances - (1 << 7)
        votes[:, SHOWN] = np.where(coins * CHANCE_UNIT < chances, votes[:, JOINED], votes[:, ALONE])
        return votes

    def close(self, nodes: NDArray[np.int64], labels: NDArray[np.int8], votes: NDArray[np.int8]) -> None:
        """Tell the guard the labels of records that were predicted; each record once."""
        wrong = votes[:, [ALONE, JOINED]] != labels[:, None]
        gained = wrong[:, 0].astype(np.int64) - wrong[:, 1]
        self._guard.close(nodes, votes[:, CHANCE].astype(np.int64) + (1 << 7), gained)

    def learn(self, nodes: NDArray[np.int64], rows: Rows, model: NDArray[np.int32], votes: NDArray[np.int8]) -> None:
        """Learn from the labels of records that were predicted.

        Args:
            nodes, rows, model: as for `predict`.
            votes: what `predict` gave for each record.
        """
        found, labels = self._scores(nodes, rows, model), rows.labels
        mistaken = votes[:, : len(EXPERTS)] != labels[:, None]
        self._alone.learn(nodes, mistaken[:, : len(OWN)])
        self._joined.learn(nodes, mistaken)
        self._own_stack.learn(nodes, labels, found[:, : len(OWN) - 1])
        self._joint_stack.learn(nodes, labels, found[:, :-1])
        self._labels[nodes] += np.stack([labels, np.ones(len(labels))], axis=1)
        self._recent[nodes] += RECENT * (labels - self._recent[nodes])
        self._gradient.learn(nodes, rows, found[:, EXPERTS.index("gradient")])
        if self._ridge is not None:
            self._ridge.learn(nodes, rows, found[:, EXPERTS.index("ridge")])
        if self._hybrid is not None:
            self._hybrid.learn(nodes, rows, found[:, EXPERTS.index("hybrid")])
        self._offset.learn(nodes, rows, found[:, EXPERTS.index("offset")])

    def _scores(self, nodes: NDArray[np.int64], rows: Rows, model: NDArray[np.int32]) -> NDArray[np.float64]:
        """(m, experts): the score of each expert; its sign is the label."""
        sums = self._labels[nodes]
        gradient = self._gradient.scores(nodes, rows)
        ridge = gradient if self._ridge is None else self._ridge.scores(nodes, rows)
        own = [sums[:, 0] / (sums[:, 1] + 2), gradient, ridge, self._recent[nodes]]
        own.append(self._own_stack.scores(nodes, np.stack(own, axis=1)))
        released = scores(rows, model) / MARGIN
        hybrid = released if self._hybrid is None else self._hybrid.scores(nodes, rows)
        found = [*own, released, released + self._offset.scores(nodes, rows), hybrid]
        return np.stack([*found, self._joint_stack.scores(nodes, np.stack(found, axis=1))], axis=1)

    # The state.

    def _arrays(self) -> Mapping[str, NDArray[np.float64] | NDArray[np.int64]]:
        """All numbers that learning changes, by name."""
        found = {
            "labels": self._labels,
            "recent": self._recent,
            "gradient": self._gradient.weights,
            "gradient energy": self._gradient.energy,
            "offset": self._offset.weights,
            "offset energy": self._offset.energy,
            "own stack": self._own_stack.weights,
            "own curvature": self._own_stack.curvature,
            "joint stack": self._joint_stack.weights,
            "joint curvature": self._joint_stack.curvature,
            "alone": self._alone.weights,
            "joined": self._joined.weights,
            "credit": self._guard.credit,
            "reserved": self._guard.reserved,
        }
        if self._ridge is not None:
            found |= {"ridge": self._ridge.weights, "inverse": self._ridge.inverse}
        if self._hybrid is not None:
            found |= {"hybrid": self._hybrid.weights, "hybrid inverse": self._hybrid.inverse}
        return found

    def dump(self) -> bytes:
        """The state; as sensitive as the records."""
        return b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in self._arrays().values())

    def load(self, state: bytes) -> None:
        """Take over what `dump` gave."""
        place = 0
        for array in self._arrays().values():
            kind = array.dtype.newbyteorder("<")
            array[...] = np.frombuffer(state, kind, array.size, place).reshape(array.shape)
            place += array.nbytes


def products(weights: NDArray[np.float64], nodes: NDArray[np.int64], rows: Rows) -> NDArray[np.float64]:
    """w . x of one record of each of some nodes, (m,), from weights (nodes, n)."""
    owner = np.repeat(nodes, rows.lengths)
    found = weights[owner, rows.indices] * (rows.values / UNIT)
    sums = np.bincount(np.repeat(np.arange(len(rows)), rows.lengths), found, minlength=len(rows))
    return sums.astype(np.float64)


def _signs(values: NDArray[np.float64]) -> NDArray[np.int8]:
    return predictions(np.sign(values).astype(np.int64))
