"""Plays a deployment of P2B in a closed loop, directly or through a broker.

The model without privacy: ridge regression on every interaction in clear.

It is computed here, in one process, from what contributors did in a replay of a public dataset, because no deployment
sends interactions in clear.

Waits until the learners have the model of a phase that ended; an application can wait in the same way.

Plays the closed loop: a population uses the stream through the client only, as an application does.

Phase 0: contributors learn alone, act, and each has one slot due; then the phase is ended. Phase 1: other users are
played once for each model track, as distinct users with the same contexts and the same coin for every arm. So the
conditions of the comparison differ only in the models that users start from.

Makes small deployments of P2B, to measure sizes and to show dashboards.

Plays a population through P2B's learner, shuffler and aggregator, and measures the gain of the shared private model.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.agents.worker.deployment import KEYS, KeySource, load, make_folder, parse_as, parse_config, prepare
from hushstream.client.client import Client
from hushstream.client.items import Item
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.declare.role import key_names
from hushstream.features.schema import FeatureSchema, Rows
from hushstream.learners.population import NormalPrior, Population
from hushstream.privacy.keys import generate_keys
from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.catalogue import hint, make_world, system_of, world_options
from hushstream.replay.checks import (
    NEVER_SECONDS,
    PlayOptions,
    merged_values,
    role_checks,
    run_fields,
)
from hushstream.replay.report.parts import NORMAL_975, Comparison, gain_kept, ratio
from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows
from hushstream.replay.result import BadResult, Headline
from hushstream.replay.runners.playing import Place, Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.p2b.play import COLD, CONDITION_NAMES, CONDITIONS, WARM_NONPRIVATE, WARM_PRIVATE
from hushstream.replay.study import Progress, Sample
from hushstream.replay.worlds.draws import Draws, IntArray
from hushstream.replay.worlds.mixed_table import ITEMS, CatalogueWorld, FeatureWorld
from hushstream.replay.worlds.shop import shop
from hushstream.replay.worlds.world import BlockedWorld, World
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import LearnerConfig, P2BConfig

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class DeclaredWorld(World, FeatureWorld, Protocol):
    """A world for a closed loop, with visits that declared features describe."""


class ClearSums:
    """The sums for ridge regression: for each item, a gram matrix and a moment of dense contexts."""

    def __init__(self, width: int, ridge: float, arms: int) -> None:
        """Start without interactions of contexts of ``width`` entries."""
        self._ridge = ridge
        self.gram, self.moment = np.zeros((arms, width, width)), np.zeros((arms, width))

    def add(self, contexts: Float32, arms: IntArray, rewards: Float64) -> None:
        """Count n interactions: contexts (n, P) as `seen` gives them, items (n,) and rewards (n,)."""
        for arm in range(len(self.gram)):
            mine = contexts[arms == arm]
            self.gram[arm] += mine.T @ mine
            self.moment[arm] += mine.T @ rewards[arms == arm].astype(np.float32)

    def prior(self, alpha: float = 1.0) -> NormalPrior:
        """The model that new users start from; ``alpha`` is the factor of their scores' widths."""
        covariance = np.linalg.inv(self.gram + self._ridge * np.eye(self.gram.shape[1])).astype(np.float64)
        means = np.einsum("kij,kj->ki", covariance, self.moment)
        return NormalPrior.of(means, alpha**2 * covariance, alpha**2)


def written_out(schema: FeatureSchema, rows: Rows) -> Float32:
    """Make dense contexts (1, blocks) from rows, (n, P)."""
    blocks, width = schema.blocks(rows), schema.cells + 1
    keys = blocks.cells + 1 + np.arange(len(rows))[:, None] * width
    dense = np.bincount(keys.ravel(), blocks.values.ravel(), len(rows) * width).reshape(len(rows), width)
    dense[:, 0] = 1.0
    return dense.astype(np.float32)


def clear_sums(schema: FeatureSchema, arms: int) -> ClearSums:
    """The sums of contexts that declared features describe, without interactions."""
    return ClearSums(schema.cells + 1, float(len(schema.table) + 1), arms)


def seen(world: World, users: Int64, turn: int) -> Float32:
    """The contexts (n, P) of visits for a model without privacy: histograms as they are, features written out."""
    if _declares(world):
        return written_out(world.schema, world.visits(users, turn).rows)
    return np.ascontiguousarray(world.contexts(users, turn), dtype=np.float32)


def clear_sums_of(world: World, users: Int64, chosen: IntArray, rewards: Float64, ridge: float = 1.0) -> ClearSums:
    """The sums of what users (n,) did in a closed loop.

    Args:
        world: the world of the users.
        users: (n,).
        chosen: (n, rounds) items that they were shown.
        rewards: (n, rounds).
        ridge: of a model of histograms.
    """
    sums = clear_sums(world.schema, world.arms) if _declares(world) else ClearSums(world.dimension, ridge, world.arms)
    for turn in range(chosen.shape[1]):
        sums.add(seen(world, users, turn), chosen[:, turn], rewards[:, turn])
    return sums


def clear_rewards(world: World, prior: NormalPrior, users: Int64, seed: int) -> Float64:
    """Rewards of new users who start from a model, (n, rounds), with the world's coins.

    Args:
        world: the world of the users.
        prior: the model.
        users: (n,).
        seed: seed of the draws that break ties among items.
    """
    population = Population(prior, len(users), world.rounds)
    found = np.zeros((len(users), world.rounds))
    for turn in range(world.rounds):
        contexts = seen(world, users, turn)
        # A draw much smaller than any difference of scores breaks ties.
        ties = 1e-5 * Draws(seed, "ties").uniforms(users, turn, world.arms)
        scores, masks = population.scores(contexts) + ties, world.eligible(users, turn)
        if masks is not None:
            bits = np.frombuffer(b"".join(masks), np.uint8).reshape(len(users), -1)
            scores[np.unpackbits(bits, axis=1, count=world.arms, bitorder="little") == 0] = -np.inf
        chosen = np.asarray(scores.argmax(axis=1))
        found[:, turn] = world.rewards(users, turn, chosen)
        population.learn(contexts, chosen, found[:, turn])
    return found


MODEL_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.1
STEADY_POLLS = 5


async def await_models(
    client: Client, tracks: set[str], partitions: int, context: ArrayLike | Mapping[str, Any]
) -> None:
    """Wait until every learner answers from a complete model of each track.

    Args:
        client: a started client.
        tracks: the model tracks.
        partitions: how many partitions the learners have.
        context: any valid context.

    Raises:
        HushstreamError: no model came in time.
    """
    for track in sorted(tracks):
        for partition in range(partitions):
            await _await_model(client, track, partition, partitions, context)


async def _await_model(
    client: Client, track: str, partition: int, partitions: int, context: ArrayLike | Mapping[str, Any]
) -> None:
    """Request decisions for users who do nothing else, until their learner has the model; some may never be given it.

    Several windows give several versions. The model counts as complete when `STEADY_POLLS` answers in a row come from
    the same version.
    """
    names = (f"probe-{track}-{n}" for n in count())
    users = list(islice((name for name in names if partition_of(name, partitions) == partition), STEADY_POLLS))
    deadline = time.perf_counter() + MODEL_TIMEOUT_SECONDS
    versions: list[int] = []
    for poll in count():
        user = users[poll % len(users)]
        decision = await client.decide(f"{user}:{poll}", user, context, timeout=60.0, track=track)
        versions += [decision.model_version] if decision.model_version else []
        if len(set(versions[-STEADY_POLLS:])) == 1 and len(versions) >= STEADY_POLLS:
            return
        if time.perf_counter() > deadline:
            raise HushstreamError(
                f"model track {track}: expected a model within {MODEL_TIMEOUT_SECONDS:g} s of the phase's end, got "
                f"none; are the shuffler and the aggregator running?"
            )
        await asyncio.sleep(POLL_SECONDS)


TRACK_OF = {COLD: "cold", WARM_PRIVATE: "private"}
"""The conditions that a deployment plays, each with the model track that its users start from."""

GAIN = "the gain over users' own learning"
WITHOUT_PRIVACY = "an additive model of the exact interactions with the same features"

Rewards = Mapping[str, NDArray[np.float64]]
"""(users, rounds) in [0, 1] by condition; row i is the same user in all of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which users play, how many at the same time, and how fast.

    Attributes:
        contributors: users 0 .. contributors-1 act in phase 0.
        evaluated: how many users after them act in phase 1, once per condition.
        conditions: the names of the conditions to compare.
        in_flight: how many users act at the same time; each has one open request.
        pace: interactions per second; None: as fast as possible.
        first: users of phase 0 with lower numbers were played by an earlier run (resume).
    """

    contributors: int
    evaluated: int
    conditions: tuple[str, ...] = CONDITIONS
    in_flight: int = 512
    pace: float | None = None
    first: int = 0

    @property
    def played(self) -> tuple[str, ...]:
        """The conditions that the deployment plays."""
        return tuple(one for one in self.conditions if one in TRACK_OF)

    def interactions(self, rounds: int) -> int:
        """How many interactions both phases have, if every user has ``rounds`` rounds."""
        return (max(0, self.contributors - self.first) + self.evaluated * len(self.played)) * rounds

    def __post_init__(self) -> None:
        """Refuse a plan without users, or a condition that does not exist."""
        unknown = sorted(set(self.conditions) - set(CONDITIONS))
        if unknown:
            raise HushstreamError(f"conditions: expected some of {', '.join(CONDITIONS)}, got {', '.join(unknown)}")
        if min(self.contributors, self.evaluated) < 0 or self.contributors + self.evaluated == 0:
            raise HushstreamError(
                f"plan: expected at least one user, got {self.contributors} contributors, {self.evaluated} evaluated"
            )
        if self.in_flight < 1 or (self.pace is not None and self.pace <= 0) or self.first < 0:
            raise HushstreamError("plan: expected in_flight and pace above 0 and first of at least 0, got others")


@dataclass(slots=True)
class Played:
    """The outcome of a run: rewards (users, rounds) per condition, and how long it took.

    Attributes:
        rewards: rewards by condition of the comparison; those of contributors under "contributors".
        chosen: the chosen arms in the same form.
        decisions: how many decisions were requested.
        seconds: from the first context to the last reward.
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    rewards: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    chosen: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    decisions: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class ClosedLoop:
    """Plays a world against a stream."""

    def __init__(
        self, world: World, plan: Plan, progress: Progress | None = None, rules: ContextRules | None = None
    ) -> None:
        """Bind a world with enough users to a plan.

        Args:
            world: the users who act.
            plan: who plays when.
            progress: called after every interaction.
            rules: the contexts that the deployment accepts; a client needs them where contexts are values by name.

        Raises:
            HushstreamError: the plan needs more users than the world has.
        """
        needed = plan.contributors + plan.evaluated
        if needed > world.users:
            raise HushstreamError(f"plan: expected at most the world's {world.users} users, got {needed}")
        self._world = world
        self._blocked = BlockedWorld(world)
        self._plan = plan
        self._rules = rules
        self._progress = progress
        self._done = 0
        self._total = plan.interactions(world.rounds)
        self._gate = asyncio.Semaphore(plan.in_flight)
        self._started = 0.0
        self.played = Played()

    async def run(self, log: EventLog) -> Played:
        """Play both phases over a client's log.

        Raises:
            HushstreamError: no model followed the ended phase in time.
        """
        plan = self._plan
        self._started = time.perf_counter()
        async with Client(log, rules=self._rules) as client:
            if isinstance(self._world, CatalogueWorld):
                offered = enumerate(self._world.table.items)
                await client.items.add_all(Item(f"item-{row}", features=features) for row, features in offered)
            await self._phase(client, "contributors", range(plan.first, plan.contributors), "cold", "phase 0")
            await client.end_phase(0)
            tracks = {TRACK_OF[condition] for condition in plan.played} - {COLD}
            await await_models(client, tracks, log.partitions(), self._blocked.context(0, 0))
            evaluated = range(plan.contributors, plan.contributors + plan.evaluated)
            await asyncio.gather(
                *(
                    self._phase(client, condition, evaluated, TRACK_OF[condition], "phase 1")
                    for condition in plan.played
                )
            )
        self.played.seconds = time.perf_counter() - self._started
        return self.played

    async def _phase(self, client: Client, condition: str, users: Sequence[int], track: str, what: str) -> None:
        rounds = self._world.rounds
        self.played.rewards[condition] = np.zeros((len(users), rounds))
        self.played.chosen[condition] = np.zeros((len(users), rounds), dtype=np.int32)
        await asyncio.gather(*(self._user(client, condition, row, user, track, what) for row, user in enumerate(users)))

    async def _user(self, client: Client, condition: str, row: int, user: int, track: str, what: str) -> None:
        name = f"{condition}-{user}"
        async with self._gate:
            for round_index in range(self._world.rounds):
                await self._wait_for_turn()
                reward, chosen = await self._interact(client, name, user, round_index, track)
                self.played.rewards[condition][row, round_index] = reward
                self.played.chosen[condition][row, round_index] = chosen
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, self._total, what)

    async def _interact(self, client: Client, name: str, user: int, round_index: int, track: str) -> tuple[float, int]:
        event_id = f"{name}:{round_index}"
        context = self._blocked.context(user, round_index)
        eligible = self._blocked.eligible(user, round_index)
        asked = time.perf_counter()
        decision = await client.decide(event_id, name, context, eligible, timeout=60.0, track=track)
        if self.played.decisions % 16 == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        self.played.decisions += 1
        reward = self._blocked.reward(user, round_index, decision.arm)
        await client.reward(event_id, name, decision.arm if decision.item is None else decision.item, reward)
        return reward, decision.arm

    async def _wait_for_turn(self) -> None:
        pace = self._plan.pace
        if pace is not None:
            due = self._started + self.played.decisions / pace
            delay = due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)


_DATASET = "synthetic"
_LIVE_ROUNDS, _LIVE_WINDOWS, _LIVE_WINDOW_SLOTS, _LIVE_RELEASES = 3, 300, 20, 1024


def sample(
    folder: Path,
    *,
    users: int = 500,
    dimension: int = 10,
    arms: int = 10,
    codes: int = 16,
    window_slots: int = 100,
) -> Sample:
    """A deployment whose users each have one slot due at the end."""
    world: World = make_world(_DATASET, users=users, dimension=dimension, arms=arms, seed=1)
    more = {
        "expected_slots": users,
        "encoder": {"codes": codes},
        "slot": {"after_interactions": world.rounds},
        "release": {"window_units": window_slots},
    }
    config = parse_config(_sample_config("sizes", world, more))
    system = prepare(folder, config, public_dataset=_DATASET)
    return Sample(system, users, users * world.rounds, ClosedLoop(world, Plan(users, 0, ("cold",), in_flight=64)).run)


def live(folder: Path, users: int, pace: float) -> Sample:
    """Contributors of a shop, half as many users of each line, at ``pace`` interactions/s; windows close in seconds."""
    plan = Plan(users, users // 2, ("cold", "warm_private"), in_flight=16, pace=pace)
    world = shop(users=plan.contributors + plan.evaluated, rounds=_LIVE_ROUNDS, seed=1)
    values = {
        "deployment": "live",
        "items": {"capacity": world.arms},
        "features": world.schema.plain,
        "expected_slots": world.users,
        "slot": {"after_interactions": _LIVE_ROUNDS},
        "exploration": {"choice": "epsilon", "share": 0.05},
        "feedback": {"attribution_window_seconds": 0.4, "settle_seconds": 0.5, "click_rate": world.click_rate},
        "release": {"window_units": _LIVE_WINDOW_SLOTS, "sums": "counter", "horizon": _LIVE_WINDOWS},
        # The epsilon is so large that noise does not hide the preferences of so few users.
        "measurement": {
            "own": 0.3,
            "epsilon": 8.0,
            "decisions_per_user": _LIVE_ROUNDS,
            "every_seconds": 1.0,
            "releases": _LIVE_RELEASES,
        },
    }
    make_folder(folder, parse_config(values), public_dataset="shop")
    system = load(folder)
    return Sample(system, world.users, world.users * world.rounds, ClosedLoop(world, plan, rules=system.requests).run)


def _sample_config(name: str, world: World, more: Mapping[str, Any]) -> dict[str, Any]:
    return {"deployment": name, "items": {"capacity": world.arms}, "features": {"dimension": world.dimension}, **more}


@dataclass(frozen=True, slots=True)
class P2BOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and P2B's own.

    Attributes:
        dataset: name of a world.
        contributors, evaluated: users of the two phases; by default 70 % and 30 % of the world's users.
        conditions: which conditions to compare.
        in_flight: how many users act at the same time.
        pace: interactions per second; None: as fast as possible.
        first: contributors with lower numbers were played before (resume).
        secret_keys: whether the private deployment has random keys in files, as a live one has, in place of keys from
            the seed; then every run has other noise.
    """

    dataset: str = "synthetic"
    contributors: int | None = None
    evaluated: int | None = None
    conditions: tuple[str, ...] = CONDITIONS
    in_flight: int = 512
    pace: float | None = None
    first: int = 0
    secret_keys: bool = False


def run_p2b(options: P2BOptions, progress: Progress | None = None) -> RunResult:
    """Play a world through P2B and return rewards by condition, guarantee, counts and throughput.

    Users who start from the model without privacy are played here: no deployment has such a model.

    Raises:
        HushstreamError: the world, the runner or an option is unknown, or the configuration is invalid.
    """
    options.require_runner()
    world = _world(options)
    plan = _plan(options, world)
    with deployed(options.folder) as folder:
        config = parse_as(P2BConfig, _config(options, world, plan))
        if WARM_PRIVATE in plan.conditions and config.slot.after_interactions > world.rounds:
            raise HushstreamError(
                f"slot.after_interactions: expected at most {world.rounds}, as no user of this world has more visits, "
                f"got {config.slot.after_interactions}: nothing would ever be released"
            )
        place = options.place(folder, options.first > 0)
        if options.secret_keys:
            place = replace(place, seed=None)
        system = _prepared(options, world, config, place)
        rules = system.requests if _declares(world) else None
        recording = run_to_end(lambda: play(system, place, ClosedLoop(world, plan, progress, rules).run))
        clear = _clear(options, world, plan, recording.played, config.learner)
        return _result(options, world.public, system, recording, place.keys, clear)


def _prepared(options: P2BOptions, world: World, config: P2BConfig, place: Place) -> System:
    """Prepare the deployment's folder: with seeded keys as a replay, otherwise with new random keys.

    With a broker and workers, the encoder is fitted in a process of its own, which then frees its memory.
    """
    seeded = place.seed is not None
    public_dataset = options.dataset if world.public and seeded else None
    made = partial(make_folder, place.folder, config, public_dataset=public_dataset)
    if not seeded:
        _new_keys(place.folder, config)
    if options.runner == "direct":
        made(keys=place.keys)
    else:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(made, keys=place.keys).result()
    return load(place.folder)


def _new_keys(folder: Path, config: P2BConfig) -> None:
    """Make a random key for each zone, unless an earlier run that is resumed left its keys."""
    if not (folder / KEYS).exists():
        generate_keys(folder / KEYS, key_names(kind_of(config.system).roles))


def _world(options: P2BOptions) -> World:
    values, known = dict(options.world), world_options(options.dataset)
    if system_of(options.dataset) != "p2b":
        raise HushstreamError(
            f"dataset: expected a world of unrelated users, got {options.dataset!r}{hint(options.dataset)}"
        )
    if "seed" in known:
        values.setdefault("seed", options.seed)
    wanted = (options.contributors or 0) + (options.evaluated or 0)
    if wanted and "users" in known:
        values.setdefault("users", wanted)
    return make_world(options.dataset, **values)


def _plan(options: P2BOptions, world: World) -> Plan:
    contributors = options.contributors if options.contributors is not None else world.users * 7 // 10
    evaluated = options.evaluated if options.evaluated is not None else world.users - contributors
    return Plan(contributors, evaluated, tuple(options.conditions), options.in_flight, options.pace, options.first)


def _config(options: P2BOptions, world: World, plan: Plan) -> dict[str, Any]:
    """The configuration that fits a world, with the values that the caller set."""
    values: dict[str, Any] = {
        "deployment": "replay",
        "items": {
            "capacity": world.arms,
            **({"named": True, "features": ITEMS} if isinstance(world, CatalogueWorld) else {}),
        },
        "features": world.schema.plain if _declares(world) else {"dimension": world.dimension},
        "expected_slots": max(1, plan.contributors),
        "slot": {"after_interactions": world.rounds},
        "feedback": {
            "attribution_window_seconds": NEVER_SECONDS,
            "settle_seconds": NEVER_SECONDS,
            **({"click_rate": world.click_rate} if _declares(world) else {}),
        },
        "release": {"window_units": max(1_000_000, plan.contributors + 1)},
    }
    return merged_values(values, options.config)


def _declares(world: World) -> TypeGuard[DeclaredWorld]:
    return isinstance(getattr(world, "schema", None), FeatureSchema)


def _clear(
    options: P2BOptions, world: World, plan: Plan, played: Played, learner: LearnerConfig
) -> Mapping[str, NDArray[np.float64]]:
    """Rewards of users who start from a model of all interactions in clear."""
    contributed = plan.contributors - plan.first
    if WARM_NONPRIVATE not in plan.conditions or not contributed:
        return {}
    users = np.arange(plan.first, plan.contributors + plan.evaluated)
    did = played.chosen["contributors"], played.rewards["contributors"]
    prior = clear_sums_of(world, users[:contributed], *did, learner.ridge).prior(learner.alpha)
    return {WARM_NONPRIVATE: clear_rewards(world, prior, users[contributed:], options.seed)}


def _result(
    options: P2BOptions,
    public: bool,
    system: System,
    recording: Recording[Played],
    keys: KeySource,
    clear: Mapping[str, NDArray[np.float64]],
) -> RunResult:
    config: P2BConfig = system.core.config
    played = recording.played
    shown = {name: found for name, found in {**played.rewards, **clear}.items() if name in options.conditions}
    rewards = shown if public else {}
    kept, payoff = kept_of(rewards), payoff_of(rewards)
    gap = None if payoff is None else Headline(GAIN, payoff.gap.value, payoff.gap.low, payoff.gap.high, ratio=False)
    rows, curve = reward_figures(rewards)
    chosen, asked = played.chosen["contributors"], options.config.get("release", {}).get("window_units")
    early = "" if asked is None else unfilled(config, np.full(len(chosen), chosen.shape[1]))
    shared = run_fields(replace(options, verify=False), options.dataset, system, recording, played.decisions, public)
    checked = role_checks(system, recording.logs, keys) if options.verify else None
    privacy = system.guarantee().under_key(reproducible=keys.seed is not None)
    return RunResult(
        **{**shared, "privacy": privacy, "verify": checked},
        title=f"p2b on {options.dataset}",
        facts={
            "release mode": config.release.mode,
            "sampling": config.release.sampling,
            "without privacy means": WITHOUT_PRIVACY,
        },
        reached=reached_text(rewards, kept),
        headline=ratio(f"share of {GAIN} that is kept", kept) or gap,
        payoff=payoff,
        rows=rows,
        curve=curve,
        remarks=(*_remarks(public, rewards, kept), *((early,) if early else ())),
        unprotected={CONDITION_NAMES[WARM_NONPRIVATE]: NOT_PRIVATE},
        public=public,
    )


def reward_figures(rewards: Rewards) -> tuple[RunRows, RunCurve]:
    """The mean reward of every condition, in all and by interaction, with 95 % intervals.

    The users are the sample. The interval over all interactions comes from the spread of the users' means, because the
    interactions of one user depend on one another.

    Raises:
        BadResult: no users or no rounds, or a value that is not in [0, 1].
    """
    shown = {CONDITION_NAMES[name]: rewards[name] for name in CONDITION_NAMES if name in rewards}
    for found in shown.values():
        if found.ndim != 2 or 0 in found.shape:
            raise BadResult(f"rewards: expected (users, rounds) with at least one of each, got shape {found.shape}")
        if not (found.min() >= 0 and found.max() <= 1):
            raise BadResult("rewards: expected values in [0, 1], got one outside or not a number")
    rows = RunRows(
        "Mean reward of an interaction of the evaluated users, by the model that they start from.",
        (Column("condition"), Column("users", ",d"), Column("mean_reward", ".4f"), Column("ci95", ".4f")),
        tuple(
            (name, len(found), float(found.mean()), float(half_width(found.mean(axis=1, keepdims=True))[0]))
            for name, found in shown.items()
        ),
    )
    curve = RunCurve(
        name="rewards",
        title="New users' mean reward at each visit",
        caption="Mean reward of the evaluated users at each of their interactions, with 95 % intervals. All lines show "
        "the same users with the same randomness; they differ in the model that users start from.",
        what="Mean reward",
        across="visits of a new user",
        at=tuple(range(1, 1 + max((found.shape[1] for found in shown.values()), default=0))),
        lines={name: tuple(found.mean(axis=0).tolist()) for name, found in shown.items()},
        half_widths={name: tuple(half_width(found).tolist()) for name, found in shown.items()},
        form="alone",
    )
    return rows, curve


def half_width(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half-width of the 95 % interval of each column's mean, (columns,).

    The spread of a single row is not known, so its half-width is 1, which always covers a mean in [0, 1].

    Args:
        values: (n, columns), independent rows in [0, 1].
    """
    if len(values) < 2:
        return np.ones(values.shape[1])
    return np.asarray(NORMAL_975 * values.std(axis=0, ddof=1) / math.sqrt(len(values)))


def kept_of(rewards: Rewards) -> Comparison | None:
    """The share of the gain over cold users that warm private ones keep of that of warm non-private ones.

    Paired by user; None without the three, or where the gain without privacy is not significant.
    """
    if not set(CONDITIONS) <= rewards.keys():
        return None
    private, exact, own = (rewards[name].mean(axis=1) for name in (WARM_PRIVATE, WARM_NONPRIVATE, COLD))
    return gain_kept(private, exact, own)


def payoff_of(rewards: Rewards) -> Payoff | None:
    """Warm private users compared with cold ones, paired by user; None without both."""
    if not {WARM_PRIVATE, COLD} <= rewards.keys():
        return None
    private, cold = (rewards[name].mean(axis=1) for name in (WARM_PRIVATE, COLD))
    return Payoff(
        what="mean reward from the shared private model",
        value=float(private.mean()),
        baseline="users with own learning only",
        reference=float(cold.mean()),
        gap=paired_gap(private, cold),
        units="users",
        otherwise="let users learn alone, or collect more slots or use a larger epsilon",
    )


def unfilled(config: P2BConfig, visits: Int64) -> str:
    """That live no window would close after so many visits of each contributor, (users,); empty where one would."""
    slot, least = config.slot, config.release.window_slots * config.partitions.shuffler
    reports = int(np.minimum(visits // slot.after_interactions, slot.lifetime_slots).sum())
    if config.release.window_seconds is not None or reports >= least:
        return ""
    return f"It is from {reports:,} reports, whose window closed at their end; live, none closes before {least:,}."


def reached_text(rewards: Rewards, kept: Comparison | None) -> str:
    """The rewards in words; empty where the private condition was not played."""
    means = {name: float(found.mean()) for name, found in rewards.items()}
    if WARM_PRIVATE not in means:
        return ""
    private = means[WARM_PRIVATE]
    if not set(CONDITIONS) <= means.keys():
        return f"New users' mean reward from a shared private model is {private:.3f}"
    did = "raised" if private >= means[COLD] else "lowered"
    what = f"A shared private model {did} new users' mean reward from {means[COLD]:.3f} (own learning only) to "
    gap = paired_gap(rewards[WARM_NONPRIVATE].mean(axis=1), rewards[WARM_PRIVATE].mean(axis=1))
    room = None if gap.low is None or gap.high is None else (gap.value, (gap.low, gap.high))
    model = WITHOUT_PRIVACY + ("" if room is None else "; 95 % intervals over this run's users")
    return f"{what}{private:.3f}; {without_privacy(means[WARM_NONPRIVATE], room, model, kept, digits=3)}"


def without_privacy(
    reward: float,
    room: tuple[float, tuple[float, float]] | None,
    model: str,
    kept: Comparison | None,
    apart: str = "",
    digits: int = 4,
    its: str = "it would be",
) -> str:
    """What the model without privacy earns, how much more that is, and the share of its gain that is kept.

    Args:
        reward: the mean reward of users who start from it.
        room: how much more that is than from the private model, with its interval; None where that is not known.
        model: the model, in words.
        kept: the share of the gain over own learning that is kept; None where that is not known.
        apart: what is to be said of the interval of that share.
        digits: digits after the decimal point.
        its: subject and verb.
    """
    more = "" if room is None else f", {against(*room, digits)}"
    said = f"without privacy {its} {reward:.{digits}f}{more} ({model})"
    if kept is None:
        return said
    share, low, high = (f"{100 * one:.0f} %" for one in (kept.ratio, kept.low, kept.high))
    if kept.high - kept.low > 1.0:
        return f"{said}: how much of that gain over own learning is kept is not known ({low} to {high})"
    return f"{said}: of that gain over own learning {share} is kept ({low} to {high}{apart})"


def against(difference: float, interval: tuple[float, float], digits: int = 4) -> str:
    """A difference in words, with its interval."""
    (low, high), more = interval, "more" if difference >= 0.0 else "less"
    return f"{abs(difference):.{digits}f} {more} ({low:+.{digits}f} to {high:+.{digits}f})"


def _remarks(public: bool, rewards: Rewards, kept: Comparison | None) -> tuple[str, ...]:
    """Why no share of the gain is given; empty where it is."""
    if not public:
        return ("This is a live run: rewards are exact figures on content and are not shown.",)
    if not set(CONDITIONS) <= rewards.keys():
        return ("This run did not play all three kinds of users, so it shows no share of the gain.",)
    return () if kept else (f"Without privacy {GAIN} does not clearly differ from 0, so no share of it is given.",)
