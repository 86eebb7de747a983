"""P2B's three-way comparison for a whole population at once: batch kernels, and all other stages as deployed.

Phase 0: contributors start cold and interact in lockstep, and each has slots due. The slots are packed, windowed and
released by `hushstream.systems.p2b.machines.release` and become models by `hushstream.systems.p2b.machines.models`,
which is the code of the workers. Phase 1: other users are played once for each condition of the comparison. They have
the same contexts, the same coin for every arm that could be shown and the same draw for ties, so conditions differ by
the start alone.

It differs from the machines of a deployment in this:

* choices and steps come from the lockstep kernel (`hushstream.learners.population`), which agrees with the
  per-event one up to float32's rounding;
* the interaction that a slot reports, and ties, are drawn from a counter-based generator with the run's seed, not from
  each user's own key (`Coins`; with the users' keys the run equals that of the machines, and a test requires it);
* several windows are cut in the order of users' numbers, but in a stream in the order of keyed report ids. Users are
  exchangeable, so both are windows of random users.

The non-private track learns from every slot's interaction in clear; where the private track samples with probability
p, it learns from a share p of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.noise.spending import ChargeKey, Spending
from hushstream.learners.linucb import LinUCBModel, LinUCBState
from hushstream.learners.population import Population
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.progress import Progress
from hushstream.replay.studies.p2b.experiments.released import Released, count_released
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.world import World
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.slots import Report, pack, reward_level
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.aggregator import ModelFields, PrivateTotals, RawTotals
from hushstream.systems.p2b.machines.release import FIRST_EPOCH, release_address, release_window
from hushstream.systems.p2b.machines.running import open_running
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine
from hushstream.systems.p2b.shuffler.windows import ClosedBy, ClosedWindow

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

COLD, WARM_NONPRIVATE, WARM_PRIVATE = "cold", "warm_nonprivate", "warm_private"
CONDITIONS = (COLD, WARM_NONPRIVATE, WARM_PRIVATE)
"""Conditions of the comparison."""

CHUNK_USERS = 20_000
"""The number of users in memory at a time; with T=10 and d=10 they take 11 MB."""

NORMAL_95 = 1.959963984540054
"""Half the width of a 95 % normal interval, in standard errors."""


class PopulationError(HushstreamError):
    """A run that cannot be played; the message says what was expected and what it got."""


@dataclass(frozen=True, slots=True, eq=False)
class Contributions:
    """Interactions in clear that slots report, in the order of the slots: (n, d), (n,), (n,); and their report ids."""

    contexts: Float32
    arms: Int64
    rewards: Float64
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PopulationRun:
    """The outcome of a run.

    Attributes:
        system: the deployment that was simulated.
        world: name of the world and variant.
        contributors: how many users phase 0 has.
        seed: seed of the coins and of the shuffler's key.
        rewards: (evaluated, T) by condition of the comparison.
        guarantee: guarantee of the private condition, marked reproducible.
        released: what the windows released and withheld; exact, so for public data only.
        models: the sums from which the warm conditions started.
    """

    system: P2BSystem
    world: str
    contributors: int
    seed: int
    rewards: Mapping[str, Float64]
    guarantee: Guarantee
    released: Released
    models: Mapping[str, ModelFields]

    def rounds(self) -> list[dict[str, Any]]:
        """A row for each condition and round: mean reward in it and up to it, with 95 % intervals over users."""
        rows: list[dict[str, Any]] = []
        for condition, rewards in self.rewards.items():
            so_far = rewards.cumsum(axis=1) / np.arange(1, rewards.shape[1] + 1)
            for index in range(rewards.shape[1]):
                rows.append(
                    {
                        "condition": condition,
                        "round": index + 1,
                        "users": len(rewards),
                        **interval("reward", rewards[:, index]),
                        **interval("reward_so_far", so_far[:, index]),
                    }
                )
        return rows

    def conditions(self) -> list[dict[str, Any]]:
        """A row for each condition: mean reward of a user over all rounds, with a 95 % interval over users."""
        return [
            {"condition": condition, "users": len(rewards), **interval("reward", rewards.mean(axis=1))}
            for condition, rewards in self.rewards.items()
        ]

    def mean(self, condition: str) -> float:
        """Mean reward of a condition."""
        return float(self.rewards[condition].mean())


def interval(name: str, values: Float64) -> dict[str, float]:
    """The mean of ``values`` (n,) under ``name``, and its normal 95 % interval under ``_low`` and ``_high``.

    The spread of a single value is not known: its bounds are NaN.
    """
    mean = float(values.mean())
    half = NORMAL_95 * float(values.std(ddof=1)) / float(np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}


def run_population(
    system: P2BSystem,
    world: World,
    contributors: int,
    evaluated: int,
    seed: int = 0,
    *,
    coins: Coins | None = None,
    key: Key | None = None,
    progress: Progress | None = None,
) -> PopulationRun:
    """Play both phases.

    Args:
        system: a system that is marked as public data.
        world: users 0 .. contributors-1 contribute; the ``evaluated`` users after them are compared.
        contributors: at least 1.
        evaluated: at least 1.
        seed: seed of the users' coins and the shuffler's key.
        coins: used in place of `SeededCoins`.
        key: the shuffler's key, in place of the seeded one.
        progress: called after every round of every chunk of users.

    Raises:
        PopulationError: the world does not fit the deployment, has too few users, or restricts arms; the data
            are not public; or the deployment learns on one-hot codes.
    """
    return run_systems((system,), world, contributors, evaluated, seed, coins=coins, key=key, progress=progress)[0]


def run_systems(
    systems: Sequence[P2BSystem],
    world: World,
    contributors: int,
    evaluated: int,
    seed: int = 0,
    *,
    coins: Coins | None = None,
    key: Key | None = None,
    progress: Progress | None = None,
) -> list[PopulationRun]:
    """As `run_population`, for deployments that differ only in encoder and release.

    The common parts are played once: the contributors, the cold condition and the non-private one.

    Raises:
        PopulationError: as in `run_population`; or the deployments have different learners, contexts or slots.
    """
    first = systems[0]
    for system in systems:
        _require(system, world, contributors, evaluated)
        _require_shared(first.config, system.config)
    play = _Play(first, world, SeededCoins(seed) if coins is None else coins, progress)
    play.expect((contributors + evaluated * (2 + len(systems))) * world.rounds)
    shuffler = seeded_key(seed, "shuffler") if key is None else key
    given = play.contribute(np.arange(contributors, dtype=np.int64))
    users = np.arange(contributors, contributors + evaluated, dtype=np.int64)
    raw = _raw_model(first, given)
    shared = {
        COLD: play.evaluate(COLD, _start(first, None), users),
        WARM_NONPRIVATE: play.evaluate(WARM_NONPRIVATE, _start(first, raw), users),
    }
    runs: list[PopulationRun] = []
    for system in systems:
        private, released = _private_model(system, shuffler, given)
        rewards = {**shared, WARM_PRIVATE: play.evaluate(WARM_PRIVATE, _start(system, private), users)}
        guarantee = system.guarantee().under_key(shuffler.reproducible)
        models = {WARM_NONPRIVATE: raw, WARM_PRIVATE: private}
        runs.append(PopulationRun(system, world.name, contributors, seed, rewards, guarantee, released, models))
    return runs


class _Play:
    """Plays users of one world in lockstep, chunk by chunk."""

    def __init__(self, system: P2BSystem, world: World, coins: Coins, progress: Progress | None) -> None:
        self._system, self._world, self._coins, self._progress = system, world, coins, progress
        self._done = self._total = 0

    def expect(self, interactions: int) -> None:
        """Set how many interactions there will be in all."""
        self._total = interactions

    def contribute(self, users: Int64) -> Contributions:
        """Phase 0: play cold and keep the interaction that each due slot reports."""
        start = _start(self._system, None)
        parts = [self._kept(start, part) for part in _chunks(users)]
        return Contributions(
            np.concatenate([part.contexts for part in parts]),
            np.concatenate([part.arms for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            tuple(name for part in parts for name in part.ids),
        )

    def _kept(self, start: LinUCBState, users: Int64) -> Contributions:
        config = self._system.config.slot
        each, count = config.after_interactions, len(users)
        due = min(self._system.lifetime_slots, self._world.rounds // each)
        targets = np.stack([self._coins.targets(users, slot, each) + slot * each for slot in range(due)])
        contexts = np.zeros((due * count, self._world.dimension), dtype=np.float32)
        arms, rewards = np.zeros(due * count, dtype=np.int64), np.zeros(due * count)
        for index, shown, chosen, earned in self._rounds(COLD, start, users):
            slot, row = np.nonzero(targets == index)
            place = slot * count + row
            contexts[place], arms[place], rewards[place] = shown[row], chosen[row], earned[row]
        ids = tuple(name for slot in range(due) for name in self._coins.report_ids(users, slot))
        return Contributions(contexts, arms, rewards, ids)

    def evaluate(self, condition: str, start: LinUCBState, users: Int64) -> Float64:
        """Phase 1: the rewards, (n, T), of users who start from a shared state."""
        rewards = np.empty((len(users), self._world.rounds))
        low = 0
        for part in _chunks(users):
            for index, _, _, earned in self._rounds(condition, start, part):
                rewards[low : low + len(part), index] = earned
            low += len(part)
        return rewards

    def _rounds(
        self, condition: str, start: LinUCBState, users: Int64
    ) -> Iterator[tuple[int, Float32, Int64, Float64]]:
        """Round by round: its index, contexts, chosen arms and rewards."""
        population = Population(start, len(users), self._world.rounds, self._system.config.learner.alpha)
        for index in range(self._world.rounds):
            contexts = self._world.contexts(users, index)
            chosen, _ = population.choose(contexts, self._coins.ties(condition, users, index))
            rewards = self._world.rewards(users, index, chosen)
            population.learn(contexts, chosen, rewards)
            yield index, contexts, chosen, rewards
            self._done += len(users)
            if self._progress is not None:
                self._progress(self._done, self._total, condition)


def genesis_nonce(system: P2BSystem, key: Key) -> bytes:
    """The nonce of a shuffler's journal; with a seeded key it equals that of a stream with this key."""
    _, fields = codec.decode(ShufflerMachine(system, 0, key).genesis(os.urandom(32)))
    nonce: bytes = fields["nonce"]
    return nonce


def _private_model(system: P2BSystem, key: Key, given: Contributions) -> tuple[ModelFields, Released]:
    """Window the slots, release the windows, and make the model."""
    config = system.config
    levels = config.release.levels
    codes = system.encoder.encode(given.contexts).tolist()
    reports = zip(codes, given.arms.tolist(), given.rewards.tolist(), strict=True)
    contents = [pack(Report(code, arm, reward_level(reward, levels))) for code, arm, reward in reports]
    slots = list(zip(given.ids, contents, strict=True))
    nonce = genesis_nonce(system, key)
    totals, released = PrivateTotals(system), Released()
    running = open_running(system.window_tree, key, release_address(system, nonce, 0))
    spending = Spending(system.slot_terms, 0)
    for window, low in enumerate(range(0, len(slots), config.release.window_slots)):
        part = sorted(slots[low : low + config.release.window_slots])
        closed_by = ClosedBy.SLOTS if len(part) == config.release.window_slots else ClosedBy.SEAL
        ids, kept = zip(*part, strict=True)
        closed = ClosedWindow(window, closed_by, kept, ids)
        if spending.try_charge(ChargeKey(FIRST_EPOCH, 0 if running is not None else window)).refused:
            break
        release = release_window(system, key, nonce, 0, closed, running)
        if not totals.add(release.crowd):
            raise PopulationError("expected every crowd to fit the deployment's domain, got one that does not")
        released = released.plus(count_released(system, key, nonce, closed, release))
    return totals.model(), released


def _raw_model(system: P2BSystem, given: Contributions) -> ModelFields:
    totals = RawTotals(system)
    record = {
        "contexts": given.contexts.astype("<f4").tobytes(),
        "arms": given.arms.astype("<i4").tobytes(),
        "rewards": given.rewards.astype("<f8").tobytes(),
    }
    if not totals.add(record):
        raise PopulationError("expected interactions that fit the deployment, got others")
    return totals.model()


def _start(system: P2BSystem, model: ModelFields | None) -> LinUCBState:
    config = system.config
    if model is None:
        return LinUCBModel.cold(config.arms, config.context.dimension, config.learner.ridge).state()
    return LinUCBModel(model.gram, model.moment).state()


def _chunks(users: Int64) -> list[Int64]:
    return [users[low : low + CHUNK_USERS] for low in range(0, len(users), CHUNK_USERS)]


def _require_shared(first: P2BConfig, other: P2BConfig) -> None:
    for name in ("arms", "context", "learner", "slot"):
        if getattr(first, name) != getattr(other, name):
            raise PopulationError(f"{name}: expected the same in every deployment that is run together, got others")


def _require(system: P2BSystem, world: World, contributors: int, evaluated: int) -> None:
    config = system.config
    if not world.public:
        raise PopulationError("expected data marked as public: a run shows exact figures and a non-private condition")
    if config.encoder.features != "centroid":
        raise PopulationError(f"encoder.features: expected centroid in a batch run, got {config.encoder.features}")
    if (world.dimension, world.arms) != (config.context.dimension, config.arms):
        raise PopulationError(
            f"expected a world of dimension {config.context.dimension} and {config.arms} arms,"
            f" got {world.dimension} and {world.arms}"
        )
    if min(contributors, evaluated) < 1 or contributors + evaluated > world.users:
        raise PopulationError(
            f"expected at least one contributor and one evaluated user, at most {world.users} in all,"
            f" got {contributors} and {evaluated}"
        )
    if config.slot.after_interactions > world.rounds:
        raise PopulationError(
            f"slot.after_interactions: expected at most the world's {world.rounds} rounds,"
            f" got {config.slot.after_interactions}: no slot would fall due"
        )
    if world.eligible(np.zeros(1, dtype=np.int64), 0) is not None:
        raise PopulationError(f"{world.name}: expected a world in which every arm may be shown, got one that restricts")


_TIES = float(1 << 52)


class Coins(Protocol):
    """The source of the users' random numbers."""

    def ties(self, condition: str, users: Int64, round_index: int) -> Int64:
        """Draws of at least 0, (n,): of m tied arms, number ``draw mod m`` is taken."""

    def targets(self, users: Int64, slot: int, below: int) -> Int64:
        """The index of the interaction that a slot reports, (n,) in [0, below)."""

    def report_ids(self, users: Int64, slot: int) -> list[bytes]:
        """Report ids of a slot of each user: 16 bytes each, different for every (user, slot)."""


@dataclass(frozen=True, slots=True)
class SeededCoins:
    """Uniform draws that depend only on seed, user and round; the same for a user in every condition."""

    seed: int

    def ties(self, condition: str, users: Int64, round_index: int) -> Int64:
        draws = Draws(self.seed, "ties").uniforms(users, round_index, 1)[:, 0]
        return np.asarray(draws * _TIES, dtype=np.int64)

    def targets(self, users: Int64, slot: int, below: int) -> Int64:
        draws = Draws(self.seed, "slot-targets").uniforms(users, slot, 1)[:, 0]
        return np.asarray(draws * below, dtype=np.int64)

    def report_ids(self, users: Int64, slot: int) -> list[bytes]:
        key = seeded_key(self.seed, "users")
        number = slot.to_bytes(8, "little")
        return [key.digest("report-id", user.to_bytes(8, "little"), number) for user in users.tolist()]
