"""Measures how fast collaborative bandits choose and learn, one event at a time, for ``make bench``.

The textbook form and a dense Sherman-Morrison form are measured for comparison, with few events because they are slow.
Rates are per second of the thread's CPU time, medians over rounds; ratios are taken within a round. BLAS may use only
this thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.replay.experiments.rows import BenchRow, Progress, at_least, figure
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.relation import Relation, TextbookCollaborative

Float64 = NDArray[np.float64]

DIMENSION = 25
ARMS = 25
ALPHA = 0.1
BOUNDS = {10: 30_000, 50: 12_000, 100: 5_000}
"""The target in events per second, by number of users."""

_EVENTS = {10: 6_400, 50: 2_560, 100: 1_280}
_DENSE_EVENTS = {10: 400, 50: 30, 100: 6}
_TEXTBOOK_EVENTS = {10: 10, 50: 1, 100: 1}
"""Few events, as one event of 100 users solves two systems of 2,500 equations."""


class _DenseInverse:
    """``A^-1`` of size dN kept by Sherman-Morrison, with full products: the work that C-space saves."""

    def __init__(self, relation: Relation, dimension: int, ridge: float) -> None:
        self._relation = relation.matrix
        self._inverse: Float64 = np.eye(relation.users * dimension) / ridge
        self._target: Float64 = np.zeros(relation.users * dimension)
        self._theta = self._target.copy()

    def choose(self, user: int, features: Float64, alpha: float) -> int:
        projected = np.kron(self._relation[user], features)
        widths = np.sqrt(np.vecdot(projected @ self._inverse, projected))
        return int((projected @ self._theta + alpha * widths).argmax())

    def learn(self, user: int, features: Float64, reward: float) -> None:
        projected = np.kron(self._relation[user], features)
        step = self._inverse @ projected
        step /= sqrt(1.0 + float(step @ projected))
        self._inverse -= np.outer(step, step)
        self._target += reward * projected
        self._theta = self._inverse @ self._target


Learner = CollaborativeState | TextbookCollaborative | _DenseInverse


def collaborative_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure CoLin with 10, 50 and 100 users.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    rows = []
    with threadpool_limits(limits=1):
        for users, bound in BOUNDS.items():
            progress(f"collaborative learners: {users} users")
            rows += _rows_of(users, bound, rounds)
    return rows


def _rows_of(users: int, bound: int, rounds: int) -> list[BenchRow]:
    ours = [_rate(CollaborativeState, users, _EVENTS[users], number) for number in range(rounds)]
    dense = [_rate(_DenseInverse, users, _DENSE_EVENTS[users], number) for number in range(rounds)]
    textbook = [_rate(TextbookCollaborative, users, _TEXTBOOK_EVENTS[users], 0)]
    shape = f"N={users}, d={DIMENSION}, {ARMS} arms"
    return [
        at_least(f"CoLin, choose and learn, {shape}", ours, "events/CPU s", bound),
        figure(f"CoLin by dense Sherman-Morrison, {shape}", dense, "events/CPU s"),
        figure(f"CoLin over dense Sherman-Morrison, {shape}", _ratios(ours, dense), "x"),
        figure(f"CoLin by the textbook, one round, {shape}", textbook, "events/CPU s"),
        figure(f"CoLin over the textbook, one round, {shape}", _ratios(ours[:1], textbook), "x"),
    ]


def _rate(form: Callable[[Relation, int, float], Learner], users: int, events: int, seed: int) -> float:
    """Events per second of CPU time from a cold state, all users in turn."""
    draws = np.random.default_rng(seed)
    weights = draws.random((users, users))
    learner = form(Relation("colin", weights / weights.sum(axis=0)), DIMENSION, 1.0)
    arms = draws.random((200, ARMS, DIMENSION))
    arms /= np.linalg.norm(arms, axis=2, keepdims=True)
    rewards = draws.random(events).tolist()
    begin = time.thread_time()
    for event, reward in enumerate(rewards):
        user, shown = event % users, arms[event % len(arms)]
        chosen = learner.choose(user, shown, ALPHA)
        learner.learn(user, shown[chosen], reward)
    return events / (time.thread_time() - begin)


def _ratios(fast: list[float], slow: list[float]) -> list[float]:
    return [one / other for one, other in zip(fast, slow, strict=True)]
