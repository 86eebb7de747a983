"""The datasets of BGTplanner: its worlds, one of them made of another dataset's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hushstream.replay.datasets.builtin import ML_100K
from hushstream.replay.datasets.dataset import Summary, simulated_dataset
from hushstream.replay.studies.bgt.worlds.ratings import RatingWorld, ml_100k, tastes


def _summary(world: RatingWorld) -> Summary:
    features = world.features.shape[1]
    return {"users": world.user_count, "items": world.item_count, "ratings": len(world.users), "features": features}


def _films(folder: Path) -> Summary:
    return _summary(ml_100k(data_dir=str(folder)))


def _simulated(folder: Path) -> Summary:
    return _summary(tastes())


ML_RATINGS = replace(
    ML_100K,
    name="ml-ratings",
    description="MovieLens-100K as ratings on users' devices, with genres and years of films",
    note="The files of ml-100k, which `replay bgt` knows by that name, too.",
    summarise=_films,
)

TASTES = simulated_dataset(
    "tastes",
    "Simulated ratings of users with offsets and tastes",
    _simulated,
    page="https://arxiv.org/abs/2412.05564",
)
