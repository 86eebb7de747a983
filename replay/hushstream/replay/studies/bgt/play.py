"""Plays the three slots in batches, and the predictors to compare them with; makes rows of the results.

All users of a world act at once, through the stages of a deployment. The predictors are those that a device alone has,
and those without privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hushstream.privacy.keys import seeded_key
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.experiments.rows import Row, columns, privacy_columns
from hushstream.replay.studies.bgt.worlds import UNIT_SCALE, Float64, Int64, RatingWorld, Split, make_world
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.bgt.artefacts import bgt_address
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig, bgt_digest
from hushstream.systems.bgt.edge.agent import Ratings, fit, make_slots, predict
from hushstream.systems.bgt.guarantee import RELATION, UNIT_OF_PROMISE, epoch_guarantee
from hushstream.systems.bgt.server import Server
from hushstream.systems.bgt.shuffler import Collector
from hushstream.systems.bgt.slots import Model, Round

Form = Literal["three", "items"]
"""All three slots, or almost all of the budget on the first one alone."""

_ITEMS_ALONE = (0.98, 0.01, 0.01)
_ID = 16


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        world: name of the world.
        form: see `Form`.
        epsilon: None for no noise.
        seed: seed of split, keys and losses.
        features: whether public features are used, where the world has them.
        lost: share of slots that never arrive, drawn anew in each round.
        release: further release settings, as pairs.
        data_dir: see `hushstream.replay.datasets.store.locate`.
    """

    world: str
    form: Form
    epsilon: float | None
    seed: int
    features: bool = False
    lost: float = 0.0
    release: tuple[tuple[str, float], ...] = ()
    data_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a run.

    Attributes:
        rmse: of predictions by devices, each of which mixes the last model with its own mean.
        released: RMSE of predictions by the last model alone.
        f1, balanced: scores for ratings above one half (see `evaluate`).
        after: RMSE after each round.
        kinds: the kind of slot that each round asked for.
        ratio: largest eigenvalue of the pairs divided by the edge of the noise; 0 where no edge was tested.
        factors: how many factors were kept.
    """

    rmse: float
    released: float
    f1: float
    balanced: float
    after: tuple[float, ...]
    kinds: tuple[str, ...]
    ratio: float
    factors: int


def configuration(task: Task, world: RatingWorld) -> BgtConfig:
    """The configuration of a run."""
    exact = task.epsilon is None
    options = dict(task.release)
    if task.form == "items":
        options["shares"] = _ITEMS_ALONE  # type: ignore[assignment]
    release = ReleaseConfig("exact" if exact else "gaussian", task.epsilon or 1.0, **options)  # type: ignore[arg-type]
    return BgtConfig("experiment", world.item_count, world.features.shape[1], UNIT_SCALE, release)


def play(task: Task) -> Played:
    """Play one run."""
    world = make_world(task.world, task.data_dir)
    return play_world(task, world if task.features else world.without_features())


def play_world(task: Task, world: RatingWorld) -> Played:
    """Run a task on a world that is loaded already; see `Task`."""
    config, split = configuration(task, world), world.split(task.seed)
    known = split.known(config)
    server, after, kinds = Server(config, world.features), [], []
    for asked in answered(server, known, config, task):
        after.append(evaluate(split, known, server.model, config)[0])
        kinds.append(asked.kind)
    rmse, f1, balanced = evaluate(split, known, server.model, config)
    released = evaluate(split, known, server.model, config, released=True)[0]
    spectrum = server.spectrum
    ratio = float(spectrum.largest[0] / spectrum.edge) if spectrum is not None and spectrum.edge else 0.0
    return Played(rmse, released, f1, balanced, tuple(after), tuple(kinds), ratio, server.model.factors.shape[1])


def answered(server: Server, known: Ratings, config: BgtConfig, task: Task) -> Iterator[Round]:
    """Play the rounds; yield each one after the server has learned from it."""
    while server.asked is not None:
        asked = server.asked
        collector = open_round(asked, config, task.seed)
        collect(collector, known, config, task)
        server.take(collector.release())
        yield asked
        if task.form == "items":
            server.stop()


def open_round(asked: Round, config: BgtConfig, seed: int) -> Collector:
    """A collector with a seeded key."""
    key = None if config.release.noise == "exact" else seeded_key(seed, "collector")
    return Collector(asked, config, key, bgt_address(config, bgt_digest(config), bytes(32), 0))


def collect(collector: Collector, known: Ratings, config: BgtConfig, task: Task) -> None:
    """Let every user answer whose slot is not lost."""
    users = np.arange(known.users)
    salts = Draws(task.seed, "bgt-salts").generator().integers(0, 2**63, known.users).astype(np.uint64)
    slots = make_slots(known, collector.asked, config, salts)
    there = Draws(task.seed, "bgt-lost").uniforms(users, collector.asked.number, 1)[:, 0] >= task.lost
    named = [user.to_bytes(_ID, "big") for user in users[there].tolist()]
    collector.take(slots[there], named)


def evaluate(
    split: Split, known: Ratings, model: Model, config: BgtConfig, released: bool = False
) -> tuple[float, float, float]:
    """RMSE, F1 and balanced accuracy of `predicted_later`."""
    found = predicted_later(split, known, model, config, released)
    return scored(found, split.world.values[split.later])


def predicted_later(split: Split, known: Ratings, model: Model, config: BgtConfig, released: bool = False) -> Float64:
    """Predictions of the later ratings, in their order: by devices that mix or, where ``released``, the model alone."""
    world, rows = split.world, split.later
    own = fit(known, model, world.features, config)
    if released:
        own = own._replace(weight=np.ones(len(own.weight)))
    return predict(own, world.users[rows], world.items[rows], model, world.features, config)


def scored(found: Float64, truth: Float64) -> tuple[float, float, float]:
    """RMSE; F1 and balanced accuracy of being above one half."""
    rmse = float(np.sqrt(np.mean((found - truth) ** 2)))
    yes, said = truth > 0.5, found > 0.5
    right, wrong = (int(np.count_nonzero(said & one)) for one in (yes, ~yes))
    positives, negatives = int(np.count_nonzero(yes)), int(np.count_nonzero(~yes))
    f1 = 2 * right / max(1, positives + right + wrong)
    return rmse, f1, (right / max(1, positives) + 1 - wrong / max(1, negatives)) / 2


_ROUNDS = 20
_BIAS_RIDGE = 4.0
_ALS_FACTORS = 10
_ALS_RIDGE = 0.25
"""Ridge of the squared factors, which start at .1; it counts as much as about seven ratings on the scale 0 to 1."""

NAMES = ("constant", "alone", "user and item bias", "als", "all positive")
"""``alone``: each device's own ratings, by ridge regression on the public features where the world has some."""


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
    config = BgtConfig("experiment", world.item_count, world.features.shape[1], UNIT_SCALE)
    split = world.split(seed)
    known, rows = split.known(config), split.later
    users, items = world.users[rows], world.items[rows]
    if name in ("constant", "all positive"):
        return np.full(len(rows), 1.0 if name == "all positive" else float(known.values.mean()))
    if name == "alone":
        nothing = Model(np.zeros(world.item_count), np.zeros((world.item_count, 0)))
        return predicted_later(split, known, nothing, config)
    mean, user, item = _biases(known, world.item_count)
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


SOURCE = "Zhang et al. 2024, BGTplanner: Maximizing Training Accuracy for Differentially Private Federated Recommenders"
SEEDS = (0, 1, 2)
EPSILONS = (10.0, 5.0, 3.0, 1.0)

SETTINGS = (
    f"Unit: {UNIT_OF_PROMISE} ({RELATION}); delta 1e-5. A user's slots against other slots of the same user cost 4"
    " rho: epsilon 24.2 where the guarantee against null is 10.",
    "RMSE on a scale from 0 to 1: FilmTrust (r - .5) / 3.5, MovieLens r / 5; a random four fifths of the ratings"
    " are for learning. F1 and balanced accuracy are for a rating above one half; all positive says yes to all.",
    "Local rows predict each user's own mean (with features: own ridge on genres and year), without data of others.",
    "Worlds' splits and keys are seeded: REPRODUCIBLE, NOT PRIVATE.",
)


def score_columns(scores: Sequence[tuple[float, float, float]]) -> Row:
    """Columns of RMSE, F1 and balanced accuracy from one triple a seed."""
    rmse, f1, balanced = zip(*scores, strict=True)
    return {
        **columns("rmse", rmse),
        "f1": float(np.mean(f1)),
        "balanced": float(np.mean(balanced)),
    }


def guarantee_of(task: Task) -> Guarantee:
    """The guarantee of a run, whose key is seeded."""
    world = make_world(task.world, task.data_dir)
    world = world if task.features else world.without_features()
    return epoch_guarantee(configuration(task, world)).under_key(True)


def promised(task: Task) -> Row:
    """The guarantee as columns."""
    return privacy_columns(guarantee_of(task))
