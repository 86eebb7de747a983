"""Makes a world from its name and options.

*Played by.* Says which commands play a dataset: worlds are replayed through a system, logs of another policy are
evaluated.

*Known worlds.* Finds worlds by name: the built-in ones, and those that other packages offer by entry point.

*Summaries.* Counts rows, users, arms and rewards of each built-in dataset, for ``datasets inspect``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from hushstream.replay.datasets.builtin import DatasetError, Summary, known_datasets
from hushstream.replay.logged.log import known_logs
from hushstream.replay.study import Registry, studies
from hushstream.replay.worlds.world import World, WorldError

Factory = Callable[..., World]
"""A function that makes a world. Its options are keyword arguments; its declared return type decides the system."""

WORLDS: Registry[Factory] = Registry("world", "hushstream.worlds", Callable, WorldError)


def known_worlds() -> dict[str, Factory]:
    """Return every world's factory by name, sorted.

    Raises:
        WorldError: two packages claim one name.
    """
    return WORLDS.known({name: made for study in studies().values() for name, made in study.worlds.items()})


def system_of(name: str) -> str:
    """The system that plays a world, by the declared return type of its factory.

    Raises:
        KeyError: there is no world of this name.
        WorldError: no system plays such worlds.
    """
    made = get_type_hints(known_worlds()[name]).get("return")
    for study in studies().values():
        if name in study.worlds or study.plays(made):
            return study.system
    raise WorldError(f"world {name!r}: expected a factory whose return type a system plays, got {made}")


def played_by(name: str) -> tuple[str, ...]:
    """The commands that play the dataset of this name, without ``hushstream`` and ``--dataset NAME``; often one."""
    replays = (f"replay {system_of(name)}",) if name in known_worlds() else ()
    return replays + (("evaluate",) if name in known_logs() else ())


def hint(name: str) -> str:
    """The end of a message about a name that was given to the wrong command; empty for an unknown name."""
    commands = [f"`hushstream {command} --dataset {name}`" for command in played_by(name)]
    if commands:
        return f"; {name!r} is played by {' and '.join(commands)}"
    if name in known_datasets():
        return f"; {name!r} is a dataset that no command plays: `hushstream datasets inspect {name}` reads it"
    return ""


def find_world(name: str) -> Factory:
    """Return the factory of this name.

    Raises:
        WorldError: there is no such world; the message lists the known names, and the command that plays a log of this
            name.
    """
    known = known_worlds()
    return WORLDS.find(known, name, "" if name in known else hint(name))


def world_options(name: str) -> dict[str, Any]:
    """Return the options of a world with their defaults.

    Raises:
        WorldError: as `find_world`.
    """
    parameters = inspect.signature(find_world(name)).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def make_world(name: str, **options: Any) -> World:
    """Build a world by name.

    Args:
        name: one of `known_worlds`.
        options: those of its factory; see `world_options`.

    Raises:
        WorldError: the world or an option is unknown (the message lists the known ones), or has a bad value.
        DatasetError: its files are absent or differ from the published ones.
    """
    known = world_options(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise WorldError(f"world {name!r} has no option {', '.join(unknown)}; known: {', '.join(known)}")
    return find_world(name)(**options)


def seeded_world(name: str, options: Mapping[str, Any], seed: int) -> object:
    """Build a world by name; where it has a seed and the options have none, it gets ``seed``.

    Raises:
        WorldError: as `make_world`.
    """
    own = {"seed": seed} if "seed" in world_options(name) else {}
    return make_world(name, **{**own, **options})


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


def summarise_catalogue(folder: Path) -> Summary:
    """Describe the default world of items with features, of fewer users."""
    from hushstream.replay.worlds.mixed_table import catalogue

    world = catalogue(users=500)
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
