"""Plays the three slots in batches: all users of a world at once, through the stages of a deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hushstream.privacy.keys import seeded_key
from hushstream.replay.studies.bgt.worlds.ratings import UNIT_SCALE, Float64, RatingWorld, Split, make_world
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig, bgt_digest
from hushstream.systems.bgt.deployment import bgt_address
from hushstream.systems.bgt.edge.making import make_slots
from hushstream.systems.bgt.edge.ratings import Ratings
from hushstream.systems.bgt.edge.solving import fit, predict
from hushstream.systems.bgt.rounds import Model, Round
from hushstream.systems.bgt.server.rounds import Server
from hushstream.systems.bgt.shuffler.collector import Collector
from hushstream.systems.bgt.slots import Slots

Form = Literal["three", "items"]
"""All three slots, or almost all of the budget on the first one alone."""

_ITEMS_ALONE = (0.98, 0.01, 0.01)
_ID = 16

Tamper = Callable[[Slots, Round], Slots]
"""Replaces some slots by those of malicious clients."""


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
        rmse: of predictions by the last model.
        f1, balanced: scores for ratings above one half (see `evaluate`).
        after: RMSE after each round.
        kinds: the kind of slot that each round asked for.
        ratio: largest eigenvalue of the pairs divided by the edge of the noise; 0 where no edge was tested.
        factors: how many factors were kept.
    """

    rmse: float
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
    spectrum = server.spectrum
    ratio = float(spectrum.largest[0] / spectrum.edge) if spectrum is not None and spectrum.edge else 0.0
    return Played(rmse, f1, balanced, tuple(after), tuple(kinds), ratio, server.model.factors.shape[1])


def answered(
    server: Server, known: Ratings, config: BgtConfig, task: Task, tamper: Tamper | None = None
) -> Iterator[Round]:
    """Play the rounds; yield each one after the server has learned from it."""
    while server.asked is not None:
        asked = server.asked
        collector = open_round(asked, config, task.seed)
        collect(collector, known, config, task, tamper)
        server.take(collector.release())
        yield asked
        if task.form == "items":
            server.stop()


def open_round(asked: Round, config: BgtConfig, seed: int) -> Collector:
    """A collector with a seeded key."""
    key = None if config.release.noise == "exact" else seeded_key(seed, "collector")
    return Collector(asked, config, key, bgt_address(config, bgt_digest(config), bytes(32), 0))


def collect(collector: Collector, known: Ratings, config: BgtConfig, task: Task, tamper: Tamper | None = None) -> None:
    """Let every user answer whose slot is not lost."""
    users = np.arange(known.users)
    salts = Draws(task.seed, "bgt-salts").generator().integers(0, 2**63, known.users).astype(np.uint64)
    slots = make_slots(known, collector.asked, config, salts)
    if tamper is not None:
        slots = tamper(slots, collector.asked)
    there = Draws(task.seed, "bgt-lost").uniforms(users, collector.asked.number, 1)[:, 0] >= task.lost
    named = [user.to_bytes(_ID, "big") for user in users[there].tolist()]
    collector.take(slots[there], named)


def evaluate(split: Split, known: Ratings, model: Model, config: BgtConfig) -> tuple[float, float, float]:
    """RMSE, F1 and balanced accuracy of predictions of the later ratings."""
    return scored(predicted_later(split, known, model, config), split.world.values[split.later])


def predicted_later(split: Split, known: Ratings, model: Model, config: BgtConfig) -> Float64:
    """Predictions of the later ratings, in their order."""
    world, rows = split.world, split.later
    own = fit(known, model, world.features, config)
    return predict(own, world.users[rows], world.items[rows], model, world.features, config)


def scored(found: Float64, truth: Float64) -> tuple[float, float, float]:
    """RMSE; F1 and balanced accuracy of being above one half."""
    rmse = float(np.sqrt(np.mean((found - truth) ** 2)))
    yes, said = truth > 0.5, found > 0.5
    right, wrong = (int(np.count_nonzero(said & one)) for one in (yes, ~yes))
    positives, negatives = int(np.count_nonzero(yes)), int(np.count_nonzero(~yes))
    f1 = 2 * right / max(1, positives + right + wrong)
    return rmse, f1, (right / max(1, positives) + 1 - wrong / max(1, negatives)) / 2
