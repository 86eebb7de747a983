"""Plays populations of P2B in batches, point by point of a figure.

Exact counts of what windows released and withheld; they are private, so for public data only (rule 11).

P2B's three-way comparison for a whole population at once: batch kernels, and all other stages as deployed.

Phase 0: contributors learn alone in lockstep, and each has slots due. The slots are packed, windowed and
released by `hushstream.systems.p2b.machines.shuffler` and become models by `hushstream.systems.p2b.deployment`,
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

One point of a table or figure: a world, a population, and the private deployments that are compared on it.

A point is played under several seeds, each with its own world, coins and noise. Rewards differ more between worlds
than between users, so intervals are over seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.noise.spending import ChargeKey, Spending
from hushstream.learners.linucb import LinUCBModel, LinUCBState
from hushstream.learners.population import NormalPrior, Population
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, bernoulli, probability_units
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.catalogue import make_world
from hushstream.replay.experiments.rows import Row, over_seeds, privacy_columns
from hushstream.replay.runners.to_end import play_all
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.world import World
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.codebook import fit_grid
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.guarantee import resolve_codes
from hushstream.systems.p2b.machines.aggregator import ModelFields, PrivateTotals
from hushstream.systems.p2b.machines.shuffler import (
    FIRST_EPOCH,
    ShufflerMachine,
    WindowRelease,
    open_running,
    release_address,
    release_window,
    window_address,
)
from hushstream.systems.p2b.server.estimate import ModelSums
from hushstream.systems.p2b.shuffler import ClosedBy, ClosedWindow
from hushstream.systems.p2b.slots import Report, pack, reward_level, unpack


@dataclass(frozen=True, slots=True)
class Released:
    """Counts over windows; ``reports == unsampled + below_threshold + released``.

    Attributes:
        windows: how many windows were closed.
        slots: how many slots are in them, nulls included.
        reports: how many slots hold a report.
        unsampled: how many reports the shuffler's coin left out.
        below_threshold: how many sampled reports had a crowd that was too small.
        released: how many reports are in the release (under noise, in slot sums).
    """

    windows: int = 0
    slots: int = 0
    reports: int = 0
    unsampled: int = 0
    below_threshold: int = 0
    released: int = 0

    def plus(self, other: Released) -> Released:
        """The sum of both counts."""
        return Released(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def withheld_share(self) -> float:
        """Share of the sampled reports that the threshold withheld."""
        sampled = self.reports - self.unsampled
        return self.below_threshold / sampled if sampled else 0.0


def count_released(
    system: P2BSystem, key: Key, genesis_nonce: bytes, closed: ClosedWindow, release: WindowRelease
) -> Released:
    """Count one window of partition 0 by drawing its coins again."""
    config = system.config
    coins = bernoulli(
        KeyedStream(key, window_address(system, key, genesis_nonce, 0, closed).at("sampling")),
        probability_units(config.release.sampling),
        len(closed.contents),
    )
    filled = np.array(
        [unpack(c, system.codes, config.arms, config.release.levels) is not None for c in closed.contents],
        dtype=np.bool_,
    )
    reports, sampled = int(filled.sum()), int((filled & coins).sum())
    released = sampled
    if config.release.mode != "slot-sums":
        total = sum(int(np.frombuffer(release.record[name], "<i8").sum()) for name in ("ones", "zeros"))
        released = total // config.release.levels
    return Released(1, len(closed.contents), reports, reports - sampled, sampled - released, released)


Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

COLD, WARM_NONPRIVATE, WARM_PRIVATE = "cold", "warm_nonprivate", "warm_private"
CONDITIONS = (COLD, WARM_NONPRIVATE, WARM_PRIVATE)
"""Conditions of the comparison."""

CONDITION_NAMES = {
    WARM_PRIVATE: "shared private model",
    COLD: "own learning only",
    WARM_NONPRIVATE: "shared, non-private",
}
"""The conditions in words, in the order in which they are shown."""

CHUNK_USERS = 20_000
"""The number of users in memory at a time; with T=10 and d=10 they take 11 MB."""


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
    models: Mapping[str, ModelFields | ModelSums]

    def mean(self, condition: str) -> float:
        """Mean reward of a condition."""
        return float(self.rewards[condition].mean())


def run_population(
    system: P2BSystem,
    world: World,
    contributors: int,
    evaluated: int,
    seed: int = 0,
    *,
    coins: Coins | None = None,
    key: Key | None = None,
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

    Raises:
        PopulationError: the world does not fit the deployment, has too few users, or restricts arms; or the data
            are not public.
    """
    return run_systems((system,), world, contributors, evaluated, seed, coins=coins, key=key)[0]


def run_systems(
    systems: Sequence[P2BSystem],
    world: World,
    contributors: int,
    evaluated: int,
    seed: int = 0,
    *,
    coins: Coins | None = None,
    key: Key | None = None,
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
    play = _Play(first, world, SeededCoins(seed) if coins is None else coins)
    shuffler = seeded_key(seed, "shuffler") if key is None else key
    given = play.contribute(np.arange(contributors, dtype=np.int64))
    users = np.arange(contributors, contributors + evaluated, dtype=np.int64)
    exact = exact_model(given.contexts, given.arms, given.rewards, first.config.arms, first.config.learner.ridge)
    shared = {
        COLD: play.evaluate(COLD, _start(first, None), users),
        WARM_NONPRIVATE: play.evaluate(WARM_NONPRIVATE, _start(first, exact), users),
    }
    runs: list[PopulationRun] = []
    for system in systems:
        private, released = _private_model(system, shuffler, given)
        rewards = {**shared, WARM_PRIVATE: play.evaluate(WARM_PRIVATE, _start(system, private), users)}
        guarantee = system.guarantee().under_key(shuffler.reproducible)
        models: dict[str, ModelFields | ModelSums] = {WARM_NONPRIVATE: exact, WARM_PRIVATE: private}
        runs.append(PopulationRun(system, world.name, contributors, seed, rewards, guarantee, released, models))
    return runs


class _Play:
    """Plays users of one world in lockstep, chunk by chunk."""

    def __init__(self, system: P2BSystem, world: World, coins: Coins) -> None:
        self._system, self._world, self._coins = system, world, coins

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
        prior, alpha = NormalPrior.of_state(start), self._system.config.learner.alpha
        population = Population(prior, len(users), self._world.rounds, alpha)
        for index in range(self._world.rounds):
            contexts = self._world.contexts(users, index)
            chosen, _ = population.choose(contexts, self._coins.ties(condition, users, index))
            rewards = self._world.rewards(users, index, chosen)
            population.learn(contexts, chosen, rewards)
            yield index, contexts, chosen, rewards


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
        if not totals.add(release.record):
            raise PopulationError("expected every window's sums to fit the deployment's domain, got some that do not")
        released = released.plus(count_released(system, key, nonce, closed, release))
    return totals.model(), released


def exact_model(contexts: Float32, chosen: Int64, rewards: Float64, arms: int, ridge: float = 1.0) -> ModelSums:
    """The sums of LinUCB over exact interactions: contexts (n, d), arms (n,) below ``arms``, and rewards (n,)."""
    points, of_arm = contexts.astype(np.float64), [np.flatnonzero(chosen == arm) for arm in range(arms)]
    gram = np.stack([points[rows].T @ points[rows] for rows in of_arm]) + ridge * np.eye(points.shape[1])
    moment = np.stack([rewards[rows] @ points[rows] for rows in of_arm])
    return ModelSums(gram, moment, float(len(points)))


def _start(system: P2BSystem, model: ModelFields | ModelSums | None) -> LinUCBState:
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


CONTRIBUTING = 0.7
"""Share of the users who contribute; the others are evaluated (P2B, section 5.2)."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world without its size and seed.

    Attributes:
        key: its name in rows.
        label: variant and settings in words, as in captions.
        name: name of the world's factory.
        options: options of the factory other than size and seed.
    """

    key: str
    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, users: int, rounds: int, dimension: int, arms: int, seed: int) -> World:
        """Make the world with a size and a seed."""
        return make_world(
            self.name, users=users, rounds=rounds, dimension=dimension, arms=arms, seed=seed, **self.options
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A private deployment of a point: its label, its codes and its release."""

    label: str
    codes: int | Literal["auto"]
    release: ReleaseConfig


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One comparison; see the module.

    Attributes:
        experiment: name of the experiment; the deployments have it too.
        columns: the values that identify the point, at the front of each of its rows.
        world: the world.
        users: contributors and evaluated users together.
        rounds: T.
        dimension: d.
        arms: K.
        lines: the private deployments.
        slot_every: a slot is due after this many interactions; None: one slot after T interactions.
    """

    experiment: str
    columns: Mapping[str, Any]
    world: WorldSpec
    users: int
    rounds: int
    dimension: int
    arms: int
    lines: tuple[Line, ...]
    slot_every: int | None = None

    @property
    def contributors(self) -> int:
        """How many users phase 0 has."""
        return round(self.users * CONTRIBUTING)

    @property
    def systems(self) -> tuple[P2BSystem, ...]:
        """The deployments of all lines."""
        return tuple(fitted_system(self.configuration(line)) for line in self.lines)

    def configuration(self, line: Line) -> P2BConfig:
        """The deployment of a line; all slots are in one window, which is as large as possible."""
        every = self.rounds if self.slot_every is None else self.slot_every
        lifetime = self.rounds // every
        slots = self.contributors * lifetime
        return P2BConfig(
            self.experiment,
            self.arms,
            ContextConfig(self.dimension),
            slots,
            encoder=EncoderConfig(codes=line.codes),
            slot=SlotConfig(after_interactions=every, lifetime_slots=lifetime),
            release=replace(line.release, window_slots=slots),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A point under all seeds.

    Attributes:
        point: what was played.
        systems: the deployments, in the order of the lines.
        guarantees: the guarantees of the deployments, with seeded keys.
        means: (seeds, 2 + lines): mean reward by own learning only, without privacy, and of each line.
        released: what was released and withheld, by line, over all seeds.
    """

    point: Point
    systems: tuple[P2BSystem, ...]
    guarantees: tuple[Guarantee, ...]
    means: NDArray[np.float64]
    released: tuple[Released, ...]

    def rows(self) -> list[Row]:
        """One row for own learning only, one without privacy, and one for each line."""
        front = {**self.point.columns, "world": self.point.world.key, "users": self.point.users}
        return [
            {**front, "condition": CONDITION_NAMES[COLD], **self._reward(0)},
            {**front, "condition": CONDITION_NAMES[WARM_NONPRIVATE], **self._reward(1)},
            *({**front, **self._private(index)} for index in range(len(self.systems))),
        ]

    def ratio(self, line: int, condition: str) -> tuple[float, float, float]:
        """Reward of a line divided by that of another condition: mean over seeds, and its 95 % interval."""
        return over_seeds(self.means[:, 2 + line] / self.means[:, 0 if condition == COLD else 1])

    def _reward(self, column: int) -> Row:
        mean, low, high = over_seeds(self.means[:, column])
        return {"reward": mean, "reward_low": low, "reward_high": high, "seeds": len(self.means)}

    def _private(self, index: int) -> Row:
        system, guarantee, released = self.systems[index], self.guarantees[index], self.released[index]
        to_nonprivate, to_cold = self.ratio(index, WARM_NONPRIVATE), self.ratio(index, COLD)
        return {
            "condition": CONDITION_NAMES[WARM_PRIVATE],
            "line": self.point.lines[index].label,
            "mode": system.config.release.mode,
            "codes": system.codes,
            **self._reward(2 + index),
            "over_non_private": to_nonprivate[0],
            "over_non_private_low": to_nonprivate[1],
            "over_non_private_high": to_nonprivate[2],
            "over_own_learning": to_cold[0],
            "over_own_learning_low": to_cold[1],
            "over_own_learning_high": to_cold[2],
            "withheld_share": released.withheld_share,
            "unsampled_share": released.unsampled / released.reports,
            "released_share": released.released / released.reports,
            **privacy_columns(guarantee),
            "digest": system.digest.hex(),
        }


def play(point: Point, seeds: Sequence[int], progress: Progress | None = None) -> Played:
    """Play a point under each seed, at least one, in this process; ``progress`` as in `play_points`."""
    return play_points([point], seeds, progress, processes=1)[0]


def play_points(
    points: Sequence[Point], seeds: Sequence[int], progress: Progress | None = None, processes: int | None = None
) -> list[Played]:
    """Play points under each seed; ``progress`` and ``processes`` as in `hushstream.replay.runners.to_end.play_all`."""
    tasks = [(point, seed) for point in points for seed in seeds]
    found = play_all(_play_seed, tasks, "populations", progress, processes)
    return [_played(point, [found[point, seed] for seed in seeds]) for point in points]


_OfSeed = tuple[list[float], tuple[Guarantee, ...], tuple[Released, ...]]
"""Means of cold, non-private and each line; guarantees and what was released, by line."""


def _play_seed(task: tuple[Point, int]) -> _OfSeed:
    point, seed = task
    world = point.world.make(point.users, point.rounds, point.dimension, point.arms, seed)
    runs = run_systems(point.systems, world, point.contributors, point.users - point.contributors, seed)
    means = [runs[0].mean(COLD), runs[0].mean(WARM_NONPRIVATE), *(run.mean(WARM_PRIVATE) for run in runs)]
    return means, tuple(run.guarantee for run in runs), tuple(run.released for run in runs)


def without_learning(point: Point, seed: int) -> tuple[float, float]:
    """What the evaluated users would earn by the best single item, chosen with hindsight, and by items at random."""
    world = point.world.make(point.users, point.rounds, point.dimension, point.arms, seed)
    users, rounds = np.arange(point.contributors, point.users, dtype=np.int64), range(point.rounds)
    earned = [
        np.mean([world.rewards(users, index, np.full(len(users), arm)) for index in rounds])
        for arm in range(point.arms)
    ]
    return float(max(earned)), float(np.mean(earned))


def _played(point: Point, seeds: Sequence[_OfSeed]) -> Played:
    means, guarantees, released = zip(*seeds, strict=True)
    of_lines = tuple(reduce(Released.plus, of_line) for of_line in zip(*released, strict=True))
    return Played(point, point.systems, guarantees[0], np.array(means), of_lines)


def fitted_system(config: P2BConfig) -> P2BSystem:
    """`P2BSystem.fitted`, with each encoder fitted once in a process."""
    context = config.context
    lattice = _lattice(context.dimension, context.digits, resolve_codes(config), config.encoder.seed)
    return P2BSystem.of(config, lattice)


@lru_cache(maxsize=64)
def _lattice(dimension: int, digits: int, codes: int, seed: int) -> NDArray[np.int64]:
    """An encoder's centroids; all deployments with the same settings share them, so they are fitted once."""
    return fit_grid(dimension, digits, codes, seed).lattice
