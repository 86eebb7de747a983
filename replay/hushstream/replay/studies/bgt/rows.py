"""Rows of BGTplanner's experiments, and their privacy statements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.rows import Row, over_seeds, privacy_columns
from hushstream.replay.studies.bgt.play import Task, configuration
from hushstream.replay.studies.bgt.worlds.ratings import make_world
from hushstream.systems.bgt.price.guarantee import RELATION, UNIT_OF_PROMISE, epoch_guarantee

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


def value_columns(name: str, values: Sequence[float]) -> Row:
    """Columns of one value a seed: its mean and 95 % interval."""
    mean, low, high = over_seeds(np.array(values))
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def score_columns(scores: Sequence[tuple[float, float, float]]) -> Row:
    """Columns of RMSE, F1 and balanced accuracy from one triple a seed."""
    columns = [list(column) for column in zip(*scores, strict=True)]
    return {
        **value_columns("rmse", columns[0]),
        "f1": float(np.mean(columns[1])),
        "balanced": float(np.mean(columns[2])),
    }


def guarantee_of(task: Task) -> Guarantee:
    """The guarantee of a run, whose key is seeded."""
    world = make_world(task.world, task.data_dir)
    world = world if task.features else world.without_features()
    return epoch_guarantee(configuration(task, world)).under_key(True)


def promised(task: Task) -> Row:
    """The guarantee as columns."""
    return privacy_columns(guarantee_of(task))


def within(name: str, value: float, aim: float, most: float, unit: str = "RMSE") -> BenchRow:
    """A figure that should lie within ``most`` of ``aim``."""
    return BenchRow(name, value, unit, f"{aim:g} +- {most:g}", abs(value - aim) <= most)
