"""Counts rows, users, arms and rewards of each built-in dataset, for ``datasets inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hushstream.replay.datasets.dataset import DatasetError, Summary

if TYPE_CHECKING:
    from hushstream.replay.worlds.world import World


def summarise_synthetic(folder: Path) -> Summary:
    """Describe the default synthetic world; the click rate is that of uniformly random arms."""
    from hushstream.replay.worlds.synthetic import synthetic

    world = synthetic()
    return simulated(world, world.dimension)


def summarise_shop(folder: Path) -> Summary:
    """Describe the default shop; the dimension is that of all blocks of its declared features together."""
    from hushstream.replay.worlds.shop import shop

    world = shop()
    return simulated(world, world.dimension)


def simulated(world: World, dimension: int) -> Summary:
    """Describe a simulator; the reward is that of uniformly random arms."""
    everyone = np.arange(world.users)
    arms = everyone % world.arms
    rate = np.mean([world.expected(everyone, round_index, arms) for round_index in range(world.rounds)])
    return {
        "rows": world.users * world.rounds,
        "users": world.users,
        "arms": world.arms,
        "dimension": dimension,
        "random_arm_reward": float(rate),
    }


def summarise_movielens(folder: Path) -> Summary:
    """Count ratings, users, items and genres, and the share of likes (4 stars or more)."""
    from hushstream.replay.worlds.movielens import read_ratings

    ratings = read_ratings(folder)
    return {
        "rows": int(ratings.users.size),
        "users": int(np.unique(ratings.users).size),
        "items": int(ratings.genres.shape[0]),
        "arms": len(ratings.genre_names) - 1,
        "click_rate": float(np.mean(ratings.stars >= 4)),
    }


def summarise_tmc2007(folder: Path) -> Summary:
    """Count instances, words and labels, and the mean number of labels an instance."""
    from hushstream.replay.worlds.multilabel import read_corpus, split_labels

    words, labels, names = split_labels(read_corpus(folder))
    return {
        "rows": words.shape[0],
        "dimension": words.shape[1],
        "arms": len(names),
        "labels_per_row": float(labels.sum(axis=1).mean()),
        "click_rate": float(labels.mean()),
    }


def summarise_mediamill(folder: Path) -> Summary:
    """Count instances, features and labels, and the mean number of labels an instance."""
    from hushstream.replay.worlds.multilabel import read_mediamill

    table = read_mediamill(folder)
    return {
        "rows": table.numbers.shape[0],
        "dimension": table.numbers.shape[1],
        "arms": table.labels.shape[1],
        "labels_per_row": float(table.labels.sum(axis=1).mean()),
        "click_rate": float(table.labels.mean()),
    }


def summarise_criteo(folder: Path) -> Summary:
    """Count the rows that the world reads by default, the rows of its arms, and the share of these with a click."""
    from hushstream.replay.catalogue.worlds import world_options
    from hushstream.replay.worlds.criteo import FILE, NUMBERS, read_impressions

    options = world_options("criteo")
    kept = read_impressions(folder / FILE, options["rows"], options["arms"])
    return {
        "rows_read": kept.read,
        "rows_kept": len(kept.ranks),
        "dimension": NUMBERS,
        "arms": options["arms"],
        "click_rate": float(kept.clicks.mean()),
    }


def summarise_obd(folder: Path) -> Summary:
    """Count the rows and clicks of every log, and the arms of every campaign."""
    from hushstream.replay.logged.log import CAMPAIGNS, POLICIES, load_obd

    summary: dict[str, int | float | str] = {}
    rows = clicks = 0
    for policy in POLICIES:
        for campaign in CAMPAIGNS:
            log = load_obd(folder, policy=policy, campaign=campaign)
            rows += len(log)
            clicks += int(log.rewards.sum())
            summary[f"arms_{campaign}"] = log.arms
            summary[f"clicks_{policy}_{campaign}"] = int(log.rewards.sum())
    return {"rows": rows, "click_rate": clicks / rows, **summary}


def summarise_filmtrust(folder: Path) -> Summary:
    """Count ratings, users and items, and the mean rating (0.5 to 4)."""
    rows = [line for part in range(4) for line in _lines(folder / f"ratings_{part}.txt")]
    fields = [line.split() for line in rows]
    if any(len(entry) != 3 for entry in fields):
        raise DatasetError(f"{folder}: expected 'user item rating' in every line of ratings")
    return {
        "rows": len(rows),
        "users": len({user for user, _, _ in fields}),
        "items": len({item for _, item, _ in fields}),
        "mean_rating": float(np.mean([float(rating) for _, _, rating in fields])),
    }


def summarise_lastfm(folder: Path) -> Summary:
    """Count listening counts, users, artists listened to, and directed friendships."""
    pairs = [line.split("\t") for line in _lines(folder / "user_artists.dat")[1:]]
    return {
        "rows": len(pairs),
        "users": len({pair[0] for pair in pairs}),
        "items": len({pair[1] for pair in pairs}),
        "friendships": len(_lines(folder / "user_friends.dat")) - 1,
    }


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="latin-1").splitlines() if line.strip()]
