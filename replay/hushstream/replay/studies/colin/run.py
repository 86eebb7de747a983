"""Plays collaborative bandits in a closed loop, directly or through a broker, and reports the result."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import parse_as, prepare
from hushstream.client.client import Client
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System
from hushstream.replay.catalogue import hint, seeded_world
from hushstream.replay.checks import NEVER_SECONDS, PlayOptions, merged_values, run_fields
from hushstream.replay.report.parts import paired, ratio
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows
from hushstream.replay.runners.playing import Recording, deployed, play
from hushstream.replay.runners.to_end import await_version, run_to_end
from hushstream.replay.studies.colin.worlds import CollaborativeWorld
from hushstream.replay.study import Progress
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.configuration import CollaborativeConfig
from hushstream.systems.colin.deployment import alone_ridge, inputs_of
from hushstream.systems.colin.relation import Relation, SocialGraph

_ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CollaborativePlan:
    """How a world is played: ``rounds`` for every user, in phases of ``rounds_per_phase``."""

    rounds: int
    rounds_per_phase: int

    def __post_init__(self) -> None:
        """Refuse a plan without rounds."""
        if min(self.rounds, self.rounds_per_phase) < 1:
            raise HushstreamError(
                f"plan: expected rounds and rounds a phase of at least 1, got {self.rounds} and {self.rounds_per_phase}"
            )

    @property
    def phases(self) -> int:
        """The number of phases; the last one may be shorter."""
        return -(-self.rounds // self.rounds_per_phase)

    def rounds_of(self, phase: int) -> range:
        """The rounds of one phase."""
        return range(phase * self.rounds_per_phase, min(self.rounds, (phase + 1) * self.rounds_per_phase))


@dataclass(slots=True)
class CollaborativePlayed:
    """The outcome of a run: (users, rounds) arrays, and how long it took.

    Attributes:
        chosen: arms, int32.
        rewards: float64.
        regret: best mean reward minus that of the chosen arm, float64.
        random_regret: the mean regret of a policy that picks an arm at random, float64.
        seconds: from the first context to the last model.
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    chosen: NDArray[np.int32]
    rewards: NDArray[np.float64]
    regret: NDArray[np.float64]
    random_regret: NDArray[np.float64]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


def user_name(user: int) -> str:
    """The name of a world's user on the stream and in the relation graph."""
    return f"user-{user}"


class CollaborativeLoop:
    """Plays a collaborative world against a deployment."""

    def __init__(self, world: CollaborativeWorld, plan: CollaborativePlan, progress: Progress | None = None) -> None:
        """Bind a world to a plan.

        Raises:
            HushstreamError: the plan has more rounds than the world, or the world has no known mean rewards.
        """
        if plan.rounds > world.rounds:
            raise HushstreamError(f"plan: expected at most the world's {world.rounds} rounds, got {plan.rounds}")
        self._world = world
        self._plan = plan
        self._progress = progress
        self._done = 0
        self._feedback: list[asyncio.Future[None]] = []
        shape = (world.users, plan.rounds)
        self.played = CollaborativePlayed(
            np.zeros(shape, dtype=np.int32), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        )

    async def run(self, log: EventLog) -> CollaborativePlayed:
        """Play all phases over a client's log.

        Raises:
            HushstreamError: no model followed the end of a phase in time.
        """
        started, context = time.perf_counter(), self._world.contexts(np.array([0]), 0)[0]
        async with Client(log) as client:
            for phase in range(self._plan.phases):
                await asyncio.gather(*(self._user(client, user, phase) for user in range(self._world.users)))
                await asyncio.gather(*self._feedback)
                self._feedback.clear()
                await client.end_phase(phase)
                await await_version(client, self._probes(log.partitions()), context, phase, _ANSWER_SECONDS)
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _user(self, client: Client, user: int, phase: int) -> None:
        for round_index in self._plan.rounds_of(phase):
            await self._interact(client, user, round_index)
            self._done += 1
            if self._progress is not None:
                total = self._world.users * self._plan.rounds
                self._progress(self._done, total, f"phase {phase + 1} of {self._plan.phases}")

    async def _interact(self, client: Client, user: int, round_index: int) -> None:
        world, name = self._world, user_name(user)
        event_id = f"{name}:{round_index}"
        one = np.array([user])
        asked = time.perf_counter()
        decision = await client.decide(event_id, name, world.contexts(one, round_index)[0], timeout=60.0)
        if self._done % 16 == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        arm = decision.arm
        reward = float(world.rewards(one, round_index, np.array([arm]))[0])
        # No decision of this phase needs this feedback; only the end of the phase waits for it.
        self._feedback.append(asyncio.ensure_future(_answer(client, event_id, name, arm, reward)))
        self._note(user, round_index, arm, reward)

    def _note(self, user: int, round_index: int, arm: int, reward: float) -> None:
        arms = np.arange(self._world.arms)
        means = self._world.expected(np.full(len(arms), user), round_index, arms)
        if means is None:
            raise HushstreamError(f"{self._world.name}: expected a world with known mean rewards")
        played, place = self.played, (user, round_index)
        played.chosen[place], played.rewards[place] = arm, reward
        played.regret[place] = means.max() - means[arm]
        played.random_regret[place] = means.max() - means.mean()

    def _probes(self, partitions: int) -> dict[int, str]:
        """One user of each partition that has users."""
        names = [user_name(user) for user in reversed(range(self._world.users))]
        return {partition_of(name, partitions): name for name in names}


async def _answer(client: Client, event_id: str, name: str, arm: int, reward: float) -> None:
    await client.shown(event_id, name, arm)
    await client.reward(event_id, name, arm, reward)


MAX_ROWS_A_PHASE = 4000
_POINTS = 200
"""Most points of the regret curve."""


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


def run_collaborative(options: CollaborativeOptions, progress: Progress | None = None) -> RunResult:
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
) -> RunResult:
    played, config = recording.played, deployed.core.config
    learner, release = config.learner, config.release
    curve = _curve(played, learner.algorithm)
    regret, random = (float(values.sum()) for values in (played.regret, played.random_regret))
    # Where all arms are equally good, a random policy has no regret either.
    share = regret / random if random else 1.0
    found = paired(played.regret.sum(axis=1), played.random_regret.sum(axis=1))
    return RunResult(
        **run_fields(options, world.name, deployed, recording, played.chosen.size),
        title=f"{learner.algorithm} on {world.name}: {release.mechanism}, noise at the {release.noise_at}",
        facts={
            "algorithm": learner.algorithm,
            "mechanism": release.mechanism,
            "noise at": release.noise_at,
            "users": world.users,
            "interactions": curve.at[-1],
            "mean reward": float(played.rewards.mean()),
        },
        reached=f"{100 * share:.0f} % of the regret of a policy that picks at random",
        headline=ratio("regret over that of a random policy", found),
        payoff=payoff(world, played.regret, learner.alpha),
        rows=RunRows(
            "Regret: the best item's mean reward minus that of the shown item, over all interactions.",
            (Column("policy"), Column("cumulative_regret", ".1f"), Column("of_random", ".0%")),
            ((learner.algorithm, regret, share), ("random policy", random, 1.0)),
        ),
        curve=curve,
    )


def _curve(played: CollaborativePlayed, algorithm: str) -> RunCurve:
    """Cumulative regret over interactions, with users served equally often, at up to `_POINTS` points."""
    users, rounds = played.regret.shape
    places = np.unique(np.linspace(0, rounds - 1, min(rounds, _POINTS)).astype(int))
    lines = {algorithm: played.regret, "random policy": played.random_regret}
    return RunCurve(
        name="regret",
        title="Cumulative regret",
        caption="The sum over all users and interactions so far of the best item's mean reward minus that of the "
        "shown item. Below the random policy is better than chance; a curve whose slope falls shows learning.",
        what="Cumulative regret",
        across="interactions, all users",
        at=tuple((users * (places + 1)).tolist()),
        lines={name: tuple(np.cumsum(one.sum(axis=0))[places].tolist()) for name, one in lines.items()},
        form="sum",
    )


ALPHA = 0.1
"""Alpha of a learner without noise, as in the experiments; a run may set another one."""

Float64 = NDArray[np.float64]


def regret_alone(world: CollaborativeWorld, rounds: int, alpha: float) -> Float64:
    """Best mean reward minus that of each choice of users alone, each with an exact learner, (users, rounds).

    Here a user learns from each reward at once, while a deployment waits for the end of its phase.

    Args:
        world: a world with known mean rewards.
        rounds: rounds of each user.
        alpha: width of the bounds.

    Raises:
        HushstreamError: the world has no known mean rewards.
    """
    alone, wide = Relation("linucb", np.eye(1)), world.feature_dimension
    learners = [CollaborativeState(alone, wide, alone_ridge(wide)) for _ in range(world.users)]
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
    """The regret of a run compared with that of users alone; the sample is the users.

    Args:
        world: the world that was played.
        regret: (users, rounds), of the run.
        alpha: alpha of the run's learner; ``lemma`` is for noised sums, so for these exact ones it means `ALPHA`.
    """
    ours = regret.mean(axis=1)
    others = regret_alone(world, regret.shape[1], ALPHA if alpha == "lemma" else alpha).mean(axis=1)
    return Payoff(
        what="mean regret a visit",
        value=float(ours.mean()),
        baseline="users alone, each with an exact learner of their own",
        reference=float(others.mean()),
        gap=paired_gap(ours, others),
        units="users",
        otherwise="keep users apart, or use a larger epsilon or noise at the learner",
        less_is_better=True,
        digits=4,
    )
