"""Plays a world of related users through the learner, counter and aggregator of collaborative bandits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import parse_as, prepare
from hushstream.engine.declare.declaration import System
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.catalogue.worlds import seeded_world
from hushstream.replay.checks import run_fields
from hushstream.replay.configurations import NEVER_SECONDS, merged_values
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.progress import Progress
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.summaries import paired
from hushstream.replay.runners.playing import Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.colin.closed_loop import (
    CollaborativeLoop,
    CollaborativePlan,
    CollaborativePlayed,
    user_name,
)
from hushstream.replay.studies.colin.report import CollaborativeResult, RegretRow
from hushstream.replay.studies.colin.worlds.related import CollaborativeWorld
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.artefacts import inputs_of
from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import Relation, SocialGraph

MAX_ROWS_A_PHASE = 4000
_ROWS = 200
"""Most points of the regret curve in a report."""


@dataclass(frozen=True, slots=True)
class CollaborativeOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and those of collaborative bandits.

    Attributes:
        dataset: name of a collaborative world.
        rounds: interactions of each user; by default all that the world has.
        rounds_per_phase: a new model is made after this many rounds of every user.
    """

    dataset: str = "colin"
    rounds: int | None = None
    rounds_per_phase: int = 10


def run_collaborative(options: CollaborativeOptions, progress: Progress | None = None) -> CollaborativeResult:
    """Play a world through a collaborative system and return its regret, guarantee, counts and throughput.

    Raises:
        HushstreamError: the world, the runner or an option is unknown, the world has no related users, or the
            configuration is invalid.
    """
    options.require_runner()
    world = _world(options)
    plan = CollaborativePlan(options.rounds or world.rounds, options.rounds_per_phase)
    if world.users * plan.rounds_per_phase > MAX_ROWS_A_PHASE:
        raise HushstreamError(
            f"rounds_per_phase: expected at most {max(1, MAX_ROWS_A_PHASE // world.users)} for {world.users} users, "
            f"got {plan.rounds_per_phase}"
        )
    with deployed(options.folder) as folder:
        config = parse_as(CollaborativeConfig, _config(options, world, plan))
        if not world.public:
            raise HushstreamError(
                f"dataset: expected a public one, as regret is an exact figure on rewards; got {world.name}"
            )
        graph = relation_graph(world, config.learner.algorithm)
        system = prepare(folder, config, inputs_of(graph), public_dataset=world.name)
        place = options.place(folder)
        recording = run_to_end(lambda: play(system, place, CollaborativeLoop(world, plan, progress).run))
    return _result(options, world, system, recording)


def relation_graph(world: CollaborativeWorld, algorithm: str) -> SocialGraph:
    """The world's users and their ties: for CoLin the weights that make W, for the others the plain graph.

    The columns of W are the weights divided by their sums, where a user's own tie is 1. So dividing each column by its
    diagonal entry gives the weights again.

    Raises:
        HushstreamError: W was not made from symmetric weights.
    """
    names = [user_name(user) for user in range(world.users)]
    if algorithm != "colin":
        return SocialGraph(tuple(names), world.graph)
    weights = world.relation / np.diag(world.relation)
    if not np.allclose(weights, weights.T):
        raise HushstreamError(f"{world.name}: expected a relation matrix of symmetric weights, got another one")
    upper = np.triu(weights, 1)
    return SocialGraph(tuple(names), upper + upper.T)


def _world(options: CollaborativeOptions) -> CollaborativeWorld:
    world = seeded_world(options.dataset, options.world, options.seed)
    if not isinstance(world, CollaborativeWorld):
        raise HushstreamError(
            f"dataset: expected a world of related users, got {options.dataset!r}{hint(options.dataset)}"
        )
    return world


def _config(options: CollaborativeOptions, world: CollaborativeWorld, plan: CollaborativePlan) -> dict[str, Any]:
    """The configuration that fits a world, with the values that the caller set."""
    longest = plan.rounds + 1
    lengths = {"norm": _at_most_longest(world, 2), "norm_l1": _at_most_longest(world, 1)}
    values: dict[str, Any] = {
        "system": "colin",
        "deployment": "replay",
        "items": {"capacity": world.arms},
        "features": {"dimension": world.feature_dimension, **lengths},
        "feedback": {"attribution_window_seconds": NEVER_SECONDS, "settle_seconds": NEVER_SECONDS},
        "privacy": {"units_per_person": longest},
        "release": {"window_units": 4096},
    }
    return merged_values(values, options.config)


def _at_most_longest(world: CollaborativeWorld, order: int) -> float:
    """The largest length of features in the world, rounded up so that the bound is a short decimal."""
    return float(np.ceil(world.largest_feature_norm(order) * 1e6) / 1e6)


def _result(
    options: CollaborativeOptions,
    world: CollaborativeWorld,
    deployed: System,
    recording: Recording[CollaborativePlayed],
) -> CollaborativeResult:
    played = recording.played
    system: CollaborativeSystem = deployed.core
    release = system.config.release
    return CollaborativeResult(
        **run_fields(options, world.name, deployed, recording, played.chosen.size),
        algorithm=system.config.learner.algorithm,
        mechanism=release.mechanism,
        noise_at=release.noise_at,
        users=world.users,
        rows=_rows(played),
        mean_reward=float(played.rewards.mean()),
        comparison=paired(played.regret.sum(axis=1), played.random_regret.sum(axis=1)),
        payoff=payoff(world, played.regret, system.config.learner.alpha),
    )


def _rows(played: CollaborativePlayed) -> tuple[RegretRow, ...]:
    """Cumulative regret over events, with users served equally often, at up to `_ROWS` points."""
    regret = np.cumsum(played.regret.sum(axis=0))
    random = np.cumsum(played.random_regret.sum(axis=0))
    users, rounds = played.regret.shape
    places = np.unique(np.linspace(0, rounds - 1, min(rounds, _ROWS)).astype(int))
    return tuple(RegretRow(int(users * (at + 1)), float(regret[at]), float(random[at])) for at in places)


RIDGE, ALPHA = 1.0, 0.1
"""Settings of a learner without noise, as in the experiments; a run may set another alpha."""

Float64 = NDArray[np.float64]


def regret_apart(world: CollaborativeWorld, rounds: int, alpha: float) -> Float64:
    """The regret of users who learn separately: best mean reward minus that of each choice, (users, rounds).

    Here a user learns from each reward at once, while a deployment waits for the end of its phase.

    Args:
        world: a world with known mean rewards.
        rounds: rounds of each user.
        alpha: width of the bounds.

    Raises:
        HushstreamError: the world has no known mean rewards.
    """
    alone = Relation("linucb", np.eye(1))
    learners = [CollaborativeState(alone, world.feature_dimension, RIDGE) for _ in range(world.users)]
    everyone = np.arange(world.users)
    found = np.zeros((world.users, rounds))
    for turn in range(rounds):
        features = world.features(everyone, turn).astype(np.float64)
        arms = np.array([one.choose(0, features[user], alpha) for user, one in enumerate(learners)])
        rewards = np.clip(world.rewards(everyone, turn, arms), 0.0, 1.0)
        for user, one in enumerate(learners):
            one.learn(0, features[user, arms[user]], float(rewards[user]))
        found[:, turn] = _missed(world, turn, arms)
    return found


def _missed(world: CollaborativeWorld, turn: int, arms: NDArray[np.int64]) -> Float64:
    users = np.repeat(np.arange(world.users), world.arms)
    means = world.expected(users, turn, np.tile(np.arange(world.arms), world.users))
    if means is None:
        raise HushstreamError(f"{world.name}: expected a world with known mean rewards")
    table = means.reshape(world.users, world.arms)
    missed: Float64 = table.max(axis=1) - table[np.arange(world.users), arms]
    return missed


def payoff(world: CollaborativeWorld, regret: Float64, alpha: float | Literal["lemma"]) -> Payoff:
    """The regret of a run compared with that of users who learn separately; the sample is the users.

    Args:
        world: the world that was played.
        regret: (users, rounds), of the run.
        alpha: alpha of the run's learner; ``lemma`` is for noised sums, so for these exact ones it means `ALPHA`.
    """
    ours = regret.mean(axis=1)
    others = regret_apart(world, regret.shape[1], ALPHA if alpha == "lemma" else alpha).mean(axis=1)
    return Payoff(
        what="mean regret a visit",
        value=float(ours.mean()),
        baseline="users who keep apart, each with an exact learner of their own",
        reference=float(others.mean()),
        gap=paired_gap(ours, others),
        units="users",
        otherwise="keep users apart, or use a larger epsilon or noise at the learner",
        less_is_better=True,
        digits=4,
    )
