"""Baselines for every result: predictors that need no data of others, and one without protection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hushstream.replay.studies.bgt.play import predicted_later, scored
from hushstream.replay.studies.bgt.worlds.ratings import UNIT_SCALE, Float64, Int64, RatingWorld, make_world
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.edge.ratings import Ratings
from hushstream.systems.bgt.rounds import Model

_ROUNDS = 20
_BIAS_RIDGE = 4.0
_ALS_FACTORS = 10
_ALS_RIDGE = 0.25
"""Ridge of the squared factors, which start at .1; it counts as much as about seven ratings on the scale 0 to 1."""

NAMES = ("constant", "local", "local with features", "user and item bias", "als", "all positive")


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline on a split.

    Attributes:
        world: name of the world.
        name: one of `NAMES`.
        seed: seed of the split.
        data_dir: see `hushstream.replay.datasets.store.locate`.
    """

    world: str
    name: str
    seed: int
    data_dir: str | None = None


def baseline(task: Baseline) -> tuple[float, float, float]:
    """Score a baseline: RMSE, F1 and balanced accuracy."""
    return baseline_of(make_world(task.world, task.data_dir), task.name, task.seed)


def baseline_of(world: RatingWorld, name: str, seed: int) -> tuple[float, float, float]:
    """Score a baseline as `baseline` does, on a world that is loaded already."""
    return scored(predictions_of(world, name, seed), world.values[world.split(seed).later])


def predictions_of(world: RatingWorld, name: str, seed: int) -> Float64:
    """A baseline's predictions of the later ratings, in their order."""
    shown = world if name == "local with features" else world.without_features()
    config = BgtConfig("experiment", shown.item_count, shown.features.shape[1], UNIT_SCALE)
    split = shown.split(seed)
    known, rows = split.known(config), split.later
    users, items = shown.users[rows], shown.items[rows]
    if name in ("constant", "all positive"):
        return np.full(len(rows), 1.0 if name == "all positive" else float(known.values.mean()))
    if name in ("local", "local with features"):
        nothing = Model(np.zeros(shown.item_count), np.zeros((shown.item_count, 0)))
        return predicted_later(split, known, nothing, config)
    mean, user, item = _biases(known, shown.item_count)
    found = mean + user[users] + item[items]
    if name == "als":
        left, right = _als(known, mean, user, item)
        found = found + (left[users] * right[items]).sum(axis=1)
    return np.clip(found, 0, 1)


def _biases(known: Ratings, count: int) -> tuple[float, Float64, Float64]:
    """Offsets of users and items, fitted in turns; each is shrunk as if it had `_BIAS_RIDGE` more ratings of 0."""
    mean, item = float(known.values.mean()), np.zeros(count)
    user = np.zeros(known.users)
    rated = np.bincount(known.items, minlength=count)
    for _ in range(_ROUNDS):
        user = known.sums(known.values - mean - item[known.items]) / (known.counts + _BIAS_RIDGE)
        rest = known.values - mean - user[known.owners]
        item = np.bincount(known.items, weights=rest, minlength=count) / (rated + _BIAS_RIDGE)
    return mean, user, item


def _als(known: Ratings, mean: float, user: Float64, item: Float64) -> tuple[Float64, Float64]:
    """Factors of the offsets' residuals, by alternating ridge regressions; a row's ridge grows with its ratings."""
    rest = known.values - mean - user[known.owners] - item[known.items]
    right = 0.1 * np.random.default_rng(0).standard_normal((len(item), _ALS_FACTORS))
    left = np.zeros((len(user), _ALS_FACTORS))
    for _ in range(_ROUNDS):
        left = _ridge(known.owners, known.items, rest, right, len(user))
        right = _ridge(known.items, known.owners, rest, left, len(item))
    return left, right


def _ridge(rows: Int64, columns: Int64, rest: Float64, other: Float64, count: int) -> Float64:
    order = np.argsort(rows, kind="stable")
    ends = np.searchsorted(rows[order], np.arange(count + 1))
    found = np.zeros((count, other.shape[1]))
    eye = np.eye(other.shape[1])
    for row in np.flatnonzero(np.diff(ends)).tolist():
        some = order[ends[row] : ends[row + 1]]
        matrix = other[columns[some]]
        scale = np.sqrt(len(some)) * _ALS_RIDGE
        found[row] = np.linalg.solve(matrix.T @ matrix + scale * eye, matrix.T @ rest[some])
    return found
